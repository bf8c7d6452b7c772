//! `perennial dashboard`: the same page from a kubeconfig.

use perennial_harness::{Chromium, TestCluster, eventually};

use super::{agent, is_clean, returned};

#[tokio::test(flavor = "multi_thread")]
async fn the_command_serves_the_dashboard_at_an_unguessable_address() {
    let cluster = TestCluster::new().await;
    let _operator = returned(&cluster).await;
    let reader = cluster.read_only_user();
    let before = cluster.requests().await;

    let command = cluster.perennial_in_background_as(&reader, &[], "dashboard");
    let address = eventually("the command prints the address", async || {
        let message = command.output();
        message.lines().find(|line| line.starts_with("http://127.0.0.1:")).map(str::to_owned).ok_or(message)
    })
    .await;

    let agent = agent();
    let status = |url: &str| agent.get(url).call().unwrap().status().as_u16();
    let (origin, token) = address.trim_end_matches('/').rsplit_once('/').unwrap();
    assert_eq!(token.len(), 48);
    assert_eq!(status(&address), 200);
    for path in ["", "/", "/api/nodes", "/index.html", "/x/api/nodes"] {
        assert_eq!(status(&format!("{origin}{path}")), 404, "{path}");
    }

    // Read access is sufficient, and no write is attempted.
    let nodes = eventually("the command has read the nodes", async || {
        let text =
            agent.get(format!("{address}api/nodes?count=9")).call().unwrap().body_mut().read_to_string().unwrap();
        if text.contains("\"Current\"") { Ok(text) } else { Err(text) }
    })
    .await;
    assert!(nodes.contains("worker-1"), "{nodes}");
    assert_eq!(status(&format!("{address}api/node?name=worker-1")), 200);
    let after = cluster.requests().await;
    for resource in ["nodes", "configmaps", "events", "leases", "keeppolicies"] {
        assert!(
            after.writes_since(&before, resource).is_empty(),
            "{resource}: {:?}",
            after.writes_since(&before, resource)
        );
    }

    if let Some(browser) = Chromium::start() {
        let page = browser.open(&address, 1280, 900).await;
        page.wait_for_in("h1", "The one node is current").await;
        cluster.node("worker-2").label("team", "web").create().await;
        cluster.wait_for_record("worker-2", [("team", "web")]).await;
        cluster.delete_node("worker-2").await;
        cluster.node("worker-2").create().await;
        page.wait_for_in(".happening", "worker-2 was restored: 1 key").await;
        page.go("#/node/worker-1").await;
        page.wait_for_in(".keylist", "team=ml").await;
        page.wait_for("Recent Events").await;
        is_clean(&page, &address);
    }
    drop(command);
    assert!(agent.get(&address).call().is_err(), "it ends with the command");
}
