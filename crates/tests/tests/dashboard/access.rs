//! Access to the dashboard, and its response headers.

use perennial_harness::TestCluster;

use super::{agent, returned};

fn get(url: &str, host: &str) -> (u16, String, ureq::http::HeaderMap) {
    let mut answer = agent().get(url).header("host", host).call().unwrap();
    (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap(), answer.headers().clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_for_this_machine_and_under_a_strict_policy() {
    let cluster = TestCluster::new().await;
    let operator = returned(&cluster).await;
    let address = operator.dashboard().await;
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");

    let (status, text, headers) = get(&address, "localhost");
    assert_eq!(status, 200);
    assert!(text.contains("<title>Perennial</title>"), "{text}");
    let policy = headers["content-security-policy"].to_str().unwrap();
    for rule in
        ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"]
    {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(headers["referrer-policy"], "no-referrer");

    // A foreign host name that resolves to this machine is refused.
    for host in ["evil.example.com", "127.0.0.1.evil.example.com"] {
        let (status, text, _) = get(&format!("{address}api/nodes?count=10"), host);
        assert_eq!((status, text.contains("worker-1")), (421, false), "{host}");
    }
    let (_, nodes, _) = get(&format!("{address}api/nodes?count=10"), "localhost");
    assert!(nodes.contains("worker-1"), "{nodes}");
    assert_eq!(get(&format!("{address}api/node?name=none"), "localhost").0, 404);
    // A name cannot be used to reach other paths of the API server.
    let elsewhere = format!("{address}api/node?name=worker-1%2F..%2F..%2Fnamespaces%2F{}", cluster.namespace());
    assert_eq!(get(&elsewhere, "localhost").0, 404);
    assert_eq!(get(&format!("{address}api/node"), "localhost").0, 400);
    assert_eq!(get(&format!("{address}Cargo.toml"), "localhost").0, 404);
    // Read-only: only GET is allowed.
    for path in ["api/node?name=worker-1", "api/nodes", ""] {
        let answer = agent().post(format!("{address}{path}")).send_empty().unwrap();
        assert_eq!(answer.status().as_u16(), 405, "{path}");
    }
    // The metrics port does not serve it.
    assert_eq!(operator.get("/api/nodes").0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_is_off_by_default() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().without_leader_election().start().await;

    let message =
        operator.log().iter().any(|line| line["message"].as_str().is_some_and(|text| text.contains("dashboard")));

    assert!(!message);
}
