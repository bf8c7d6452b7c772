//! Three members and eight shards: joining, leaving, crashing, pausing; never two owners of one
//! shard at once.

use crate::{client, eventually, namespace};
use futures::future::poll_fn;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams};
use perennial::runtime::clock::Clock;
use perennial::runtime::coordinator::coordinate;
use perennial::runtime::jitter::Jitter;
use perennial::runtime::lease_metadata::{Coordination, shard_lease};
use perennial::runtime::lease_observer::{ObservedLeases, observe_owners};
use perennial::runtime::ownership::Ownership;
use perennial_core::coordination::shards::assignment;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const LEASE: Duration = Duration::from_secs(5);
/// A member that took a shard in place of its assigned owner keeps it for four Lease durations;
/// then all shards are balanced.
const BALANCED: Duration = Duration::from_secs(6 * LEASE.as_secs());
const SLACK: Duration = Duration::from_secs(2);

/// Stops polling a future, like SIGSTOP stops a process.
#[derive(Clone, Default)]
struct Pause {
    paused: Arc<AtomicBool>,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Pause {
    fn set(&self, paused: bool) {
        self.paused.store(paused, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().unwrap().take() {
            waker.wake();
        }
    }

    async fn around<F: Future>(self, future: F) -> F::Output {
        let mut future = Box::pin(future);
        poll_fn(move |context| {
            *self.waker.lock().unwrap() = Some(context.waker().clone());
            if self.paused.load(Ordering::SeqCst) { Poll::Pending } else { future.as_mut().poll(context) }
        })
        .await
    }
}

struct Member {
    identity: String,
    ownership: Ownership,
    stop: CancellationToken,
    pause: Pause,
    task: JoinHandle<()>,
}

impl Member {
    fn start(client: &kube::Client, namespace: &str, identity: &str, shards: u32) -> Self {
        let stop = CancellationToken::new();
        let pause = Pause::default();
        let settings = Coordination {
            client: client.clone(),
            namespace: namespace.to_owned(),
            group: "perennial".to_owned(),
            identity: identity.to_owned(),
            shards,
            lease: LEASE,
            history: perennial::runtime::history::History::default(),
            clock: Clock::system(),
            report: Arc::new(|_, _| {}),
            impairments: Arc::new(Vec::new),
        };
        let (ownership, task) = coordinate(settings, stop.clone());
        let task = tokio::spawn(pause.clone().around(task));
        Self { identity: identity.to_owned(), ownership, stop, pause, task }
    }

    fn owned(&self) -> BTreeSet<u32> {
        (0..self.ownership.shards()).filter(|shard| self.ownership.is_ours(*shard)).collect()
    }

    /// Crashes: no Lease is released. Work with existing permits continues until they expire.
    fn crash(&self) {
        self.task.abort();
    }
}

/// Checks continuously that no two members may act on the same shard.
struct Referee {
    handles: Arc<Mutex<Vec<(String, Ownership)>>>,
    looks: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Referee {
    fn start() -> Self {
        let handles: Arc<Mutex<Vec<(String, Ownership)>>> = Arc::default();
        let looks: Arc<AtomicUsize> = Arc::default();
        let (watched, counted) = (Arc::clone(&handles), Arc::clone(&looks));
        let task = tokio::spawn(async move {
            loop {
                let watched: Vec<_> = watched.lock().unwrap().clone();
                let shards = watched.iter().map(|(_, ownership)| ownership.shards()).max().unwrap_or(0);
                for shard in 0..shards {
                    // While a permit is held its shard is not handed over: overlapping permits are
                    // overlapping owners.
                    let permits: Vec<_> =
                        watched.iter().filter_map(|(name, ownership)| Some((name, ownership.owns(shard)?))).collect();
                    let now = Instant::now();
                    let acting: Vec<_> =
                        permits.iter().filter(|(_, permit)| now < permit.deadline()).map(|(name, _)| name).collect();
                    assert!(acting.len() <= 1, "{acting:?} may all act on shard {shard}");
                }
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        Self { handles, looks, task }
    }

    fn watch(&self, member: &Member) {
        self.handles.lock().unwrap().push((member.identity.clone(), member.ownership.clone()));
    }

    async fn verdict(self) {
        assert!(self.looks.load(Ordering::SeqCst) > 100, "the referee looked away");
        self.task.abort();
        let ended = self.task.await;
        assert!(ended.is_err_and(|error| error.is_cancelled()), "two members could act on one shard");
    }
}

/// Waits until exactly these members hold exactly their assigned shards.
async fn settled(members: &[&Member], shards: u32, within: Duration) -> Duration {
    let rightful = assignment(shards, members.iter().map(|member| member.identity.as_str()));
    let look = || async {
        let wrong: Vec<String> = members
            .iter()
            .filter_map(|member| {
                let right: BTreeSet<u32> = rightful
                    .iter()
                    .filter(|(_, holder)| **holder == member.identity)
                    .map(|(shard, _)| *shard)
                    .collect();
                let owned = member.owned();
                (owned != right).then(|| format!("{} holds {owned:?}, not {right:?}", member.identity))
            })
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    };
    eventually(within, "every member holds its own shards", look).await.1
}

/// Waits until these members together hold all shards.
async fn all_held(members: &[&Member], shards: u32, within: Duration) -> Duration {
    let look = || async {
        let held: BTreeSet<u32> = members.iter().flat_map(|member| member.owned()).collect();
        if held.len() == shards as usize { Ok(()) } else { Err(format!("only {held:?}")) }
    };
    eventually(within, "all shards are held", look).await.1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_shards_and_no_two_act_at_once() {
    let client = client().await;
    let namespace = namespace(&client, "members").await;
    let start = |name: &str| Member::start(&client, &namespace, name, 8);
    let referee = Referee::start();

    let (a, b, c) = (start("replica-a"), start("replica-b"), start("replica-c"));
    for member in [&a, &b, &c] {
        referee.watch(member);
    }
    settled(&[&a, &b, &c], 8, BALANCED).await;

    // Leaving: at once, and only the shards of that member move.
    b.stop.cancel();
    let took = all_held(&[&a, &c], 8, LEASE).await;
    assert!(took < LEASE / 2, "a graceful stop took {took:?}");
    settled(&[&a, &c], 8, BALANCED).await;
    b.task.await.unwrap();

    // Joining: the others hand over the shards of the new member.
    let d = start("replica-d");
    referee.watch(&d);
    settled(&[&a, &c, &d], 8, BALANCED).await;

    // Crashing.
    let lost = d.owned();
    assert!(!lost.is_empty(), "the test needs a member with shards");
    d.crash();
    let took = all_held(&[&a, &c], 8, LEASE + SLACK).await;
    assert!(took > LEASE / 3, "a shard must not be taken before its holder has stopped, but it took {took:?}");
    settled(&[&a, &c], 8, BALANCED).await;

    // Pausing: the others take over, and the shards are handed back later.
    assert!(!c.owned().is_empty(), "the test needs a member with shards");
    c.pause.set(true);
    all_held(&[&a], 8, LEASE + SLACK).await;
    assert!(c.owned().is_empty());
    c.pause.set(false);
    settled(&[&a, &c], 8, BALANCED).await;

    for member in [&a, &c] {
        member.stop.cancel();
    }
    a.task.await.unwrap();
    c.task.await.unwrap();
    referee.verdict().await;

    // A graceful leave removes the member's Lease; that of a crashed member stays for ten Lease
    // durations.
    let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    let members = leases.list(&ListParams::default().labels("perennial.dev/member=v1")).await.unwrap();
    let names: Vec<_> = members.items.iter().filter_map(|lease| lease.metadata.name.as_deref()).collect();
    assert_eq!(names, ["perennial-member-replica-d"]);
    for shard in 0..8 {
        let lease = leases.get(&shard_lease("perennial", shard, 8)).await.unwrap();
        assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""), "shard {shard} was released");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_shard_is_plain_leader_election() {
    let client = client().await;
    let namespace = namespace(&client, "leader").await;
    let (a, b) =
        (Member::start(&client, &namespace, "replica-a", 1), Member::start(&client, &namespace, "replica-b", 1));
    settled(&[&a, &b], 1, BALANCED).await;
    let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    let holder = leases.get("perennial").await.unwrap().spec.unwrap().holder_identity.unwrap();

    let (leader, other) = if holder == a.identity { (a, b) } else { (b, a) };
    leader.stop.cancel();
    let took = all_held(&[&other], 1, LEASE).await;

    assert!(took < LEASE / 2, "a graceful stop took {took:?}");
    other.stop.cancel();
    other.task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_is_not_handed_over_while_work_is_under_way() {
    let client = client().await;
    let namespace = namespace(&client, "permits").await;
    let a = Member::start(&client, &namespace, "replica-a", 1);
    let b = Member::start(&client, &namespace, "replica-b", 1);
    settled(&[&a, &b], 1, BALANCED).await;
    let (leader, other) = if a.owned().is_empty() { (b, a) } else { (a, b) };
    let permit = leader.ownership.may_act("node-1").unwrap();

    leader.stop.cancel();
    eventually(LEASE, "the leader stops", || async {
        if leader.ownership.is_ours(0) { Err("still ours".to_owned()) } else { Ok(()) }
    })
    .await;
    let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    let held = leases.get("perennial").await.unwrap().spec.unwrap().holder_identity;
    assert_eq!(held.as_deref(), Some(leader.identity.as_str()), "the Lease is kept while the permit is");
    assert!(other.owned().is_empty());
    assert!(permit.remaining() > Duration::ZERO);

    drop(permit);
    all_held(&[&other], 1, LEASE / 2).await;
    other.stop.cancel();
    other.task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_with_another_number_of_shards_wait_for_the_old_ones() {
    let client = client().await;
    let namespace = namespace(&client, "counts").await;
    let old = Member::start(&client, &namespace, "replica-old", 2);
    settled(&[&old], 2, BALANCED).await;
    // Seniority comes from the API server's clock, which has a resolution of seconds.
    let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    let announced = leases.get("perennial-member-replica-old").await.unwrap().metadata.creation_timestamp.unwrap().0;
    eventually(SLACK, "the next second begins", || async {
        let now = jiff::Timestamp::now();
        if now.as_second() > announced.as_second() { Ok(()) } else { Err(now.to_string()) }
    })
    .await;
    let new = Member::start(&client, &namespace, "replica-new", 4);
    eventually(LEASE, "the newcomer is announced", || async {
        leases.get("perennial-member-replica-new").await.map_err(|error| error.to_string())
    })
    .await;
    // Several renewals, during which a new member that does not wait would take the free shards 2
    // and 3.
    let before = leases.get("perennial-shard-0").await.unwrap().metadata.resource_version;
    eventually(LEASE, "the old one renews", || async {
        let now = leases.get("perennial-shard-0").await.unwrap().metadata.resource_version;
        if now == before { Err("not renewed".to_owned()) } else { Ok(()) }
    })
    .await;
    assert!(new.owned().is_empty());
    assert_eq!(old.owned().len(), 2);

    old.stop.cancel();

    settled(&[&new], 4, LEASE).await;
    new.stop.cancel();
    new.task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_non_member_observes_the_shard_owners() {
    let client = client().await;
    let namespace = namespace(&client, "observed").await;
    let stop = CancellationToken::new();
    let observed = ObservedLeases {
        client: client.clone(),
        namespace: namespace.clone(),
        groups: vec!["perennial-placement".to_owned(), "perennial".to_owned()],
        shards: 2,
        lease: LEASE,
    };
    let (others, task) = observe_owners(&observed, &Jitter::seeded(1), &stop);
    let task = tokio::spawn(task);
    let attended = async |wanted: bool| {
        eventually(LEASE + SLACK, "it is seen", async || {
            let seen: Vec<bool> = (0..2).map(|shard| others.has_owner(shard)).collect();
            if seen.iter().all(|seen| *seen == wanted) { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await
    };
    attended(false).await;

    let a = Member::start(&client, &namespace, "replica-a", 2);
    attended(true).await;
    assert!((0..2).all(|shard| !others.is_ours(shard)));
    a.crash();
    let ((), took) = attended(false).await;

    assert!(took < LEASE, "a crash is noticed before the Lease can be taken, but it took {took:?}");
    stop.cancel();
    task.await.unwrap();
}
