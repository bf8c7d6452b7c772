use super::*;

#[tokio::test(start_paused = true)]
async fn the_rate_holds_after_the_burst() {
    let budget = Budget::new(100, 10);
    let start = Instant::now();
    for _ in 0..110 {
        budget.spend(Urgency::Normal).await;
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(990) && took < Duration::from_millis(1200), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn urgent_requests_go_first() {
    let budget = Budget::new(10, 1);
    budget.spend(Urgency::Normal).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for urgency in [Urgency::Low, Urgency::Normal, Urgency::High, Urgency::Immediate] {
        let (budget, order) = (budget.clone(), Arc::clone(&order));
        tasks.spawn(async move {
            budget.spend(urgency).await;
            order.lock().unwrap().push(urgency);
        });
    }
    tasks.join_all().await;
    assert_eq!(*order.lock().unwrap(), Urgency::ALL);
}

#[tokio::test(start_paused = true)]
async fn urgent_requests_of_one_lane_do_not_starve_the_other() {
    let budget = Budget::new(10, 1);
    budget.spend(Urgency::Normal).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    let requests =
        (0..50).map(|_| (Lane::Second, Urgency::Immediate)).chain((0..5).map(|_| (Lane::First, Urgency::Low)));
    for (lane, urgency) in requests {
        let (budget, order) = (budget.lane(lane), Arc::clone(&order));
        tasks.spawn(async move {
            budget.spend(urgency).await;
            order.lock().unwrap().push(lane);
        });
    }
    tasks.join_all().await;
    let order = order.lock().unwrap();
    let last = order.iter().rposition(|lane| *lane == Lane::First).unwrap();
    assert!(last <= 11, "the last of five was served as number {last}");
}

#[tokio::test(start_paused = true)]
async fn both_lanes_together_keep_the_rate() {
    let budget = Budget::new(100, 10);
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..210 {
        let budget = budget.lane(if number % 3 == 0 { Lane::First } else { Lane::Second });
        tasks.spawn(async move { budget.spend(Urgency::Normal).await });
    }
    tasks.join_all().await;
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(1990) && took < Duration::from_millis(2600), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_during_retry_after() {
    let budget = Budget::new(1000, 1000);
    budget.close_for(Duration::from_secs(7));
    let start = Instant::now();
    budget.spend(Urgency::Immediate).await;
    assert!(start.elapsed() >= Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn a_budget_for_waiting_clients_is_closed_for_a_short_time() {
    let budget = Budget::closed_at_most(1000, 1000, Duration::from_secs(1));
    let start = Instant::now();
    budget.close_for(Duration::from_mins(1));
    budget.spend(Urgency::Immediate).await;
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_blocks_no_other() {
    let budget = Budget::new(10, 1);
    budget.spend(Urgency::Immediate).await;
    let given_up = tokio::time::timeout(Duration::from_millis(1), budget.spend(Urgency::Immediate)).await;
    assert!(given_up.is_err());
    budget.spend(Urgency::Low).await;
}

/// A server that accepts a number of requests in each tenth of a second and refuses the rest, from
/// any client.
#[derive(Default)]
struct RefusingServer {
    tenth: u128,
    accepted: usize,
}

impl RefusingServer {
    fn accepts(&mut self, since: Instant, capacity: usize) -> bool {
        let tenth = since.elapsed().as_millis() / 100;
        if tenth != self.tenth {
            (self.tenth, self.accepted) = (tenth, 0);
        }
        self.accepted += 1;
        self.accepted <= capacity / 10
    }
}

/// Runs clients that always have work and a neighbour that sends `neighbour` requests per second.
/// Returns the number of requests of each client that were accepted, and of the neighbour's that
/// were refused.
async fn share(clients: usize, capacity: usize, neighbour: u64, time: Duration) -> (Vec<usize>, usize) {
    let (start, server) = (Instant::now(), Arc::new(Mutex::new(RefusingServer::default())));
    let mut work = tokio::task::JoinSet::new();
    let accepted: Vec<_> = (0..clients).map(|_| Arc::new(Mutex::new(0))).collect();
    for accepted in &accepted {
        let budget = Budget::new(5000, 50_000);
        for _ in 0..16 {
            let (budget, server, accepted) = (budget.clone(), Arc::clone(&server), Arc::clone(accepted));
            work.spawn(async move {
                loop {
                    budget.spend(Urgency::Normal).await;
                    let sent = Instant::now();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    if server.lock().unwrap().accepts(start, capacity) {
                        budget.answered(sent, RequestClass { is_write: true, resource: None });
                        *accepted.lock().unwrap() += 1;
                    } else {
                        budget.refused(sent);
                        budget.close_for(Duration::from_secs(1));
                    }
                }
            });
        }
    }
    let mut refused = 0;
    while start.elapsed() < time {
        tokio::time::sleep(Duration::from_micros(1_000_000 / neighbour)).await;
        refused += usize::from(!server.lock().unwrap().accepts(start, capacity));
    }
    work.abort_all();
    (accepted.iter().map(|count| *count.lock().unwrap()).collect(), refused)
}

#[tokio::test(start_paused = true)]
async fn a_neighbour_keeps_its_share_of_a_server_that_refuses_requests() {
    let (accepted, refused) = share(1, 400, 200, Duration::from_mins(2)).await;

    let (neighbour, all) = (200 * 120, 400 * 120);
    assert!(refused * 10 < neighbour, "{refused} of {neighbour} requests of the neighbour were refused");
    assert!(accepted[0] * 3 > all - neighbour, "{accepted:?} of {all} requests were ours");
}

#[tokio::test(start_paused = true)]
async fn two_clients_share_a_server_evenly() {
    let (accepted, _) = share(2, 600, 10, Duration::from_mins(2)).await;

    let (less, more) = (accepted[0].min(accepted[1]), accepted[0].max(accepted[1]));
    assert!(less * 3 > more * 2, "{accepted:?}");
}

#[tokio::test(start_paused = true)]
async fn saved_requests_are_dropped_at_a_refusal() {
    let budget = Budget::new(100, 1000);
    budget.refused(Instant::now());
    let start = Instant::now();
    for _ in 0..51 {
        budget.spend(Urgency::Normal).await;
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(990), "50 a second: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lifted_budget_has_no_rate_and_stays_closed() {
    let budget = Budget::new(1, 1);
    budget.spend(Urgency::Normal).await;
    let waiting = tokio::spawn({
        let budget = budget.clone();
        async move { budget.spend(Urgency::Low).await }
    });
    tokio::task::yield_now().await;
    let start = Instant::now();

    budget.lift();

    waiting.await.unwrap();
    for _ in 0..1000 {
        budget.lane(Lane::Second).spend(Urgency::Low).await;
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    budget.close_for(Duration::from_secs(3));
    budget.spend(Urgency::High).await;
    assert!(start.elapsed() >= Duration::from_secs(3), "the API server asked for a pause");
}
