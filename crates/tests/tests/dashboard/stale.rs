//! The dashboard while the API server does not answer, and its counts beside those of the commands.

use perennial_harness::{Chromium, Fault, TestCluster, eventually};
use serde_json::{Value, json};

use super::{agent, returned, serving};

fn get(address: &str, path: &str) -> Value {
    let text = agent().get(format!("{address}{path}")).call().unwrap().body_mut().read_to_string().unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_a_lost_api_server_is_shown_as_stale() {
    let cluster = TestCluster::new().await;
    let proxy = cluster.fault_proxy().await;
    drop(returned(&cluster).await);
    let operator = serving(&cluster).through(&proxy).start().await;
    let address = operator.dashboard().await;
    eventually("the data is fresh", async || {
        let value = get(&address, "api/overview");
        if value["synced"] == json!(true) && value["stale"].is_null() { Ok(()) } else { Err(value["stale"].clone()) }
    })
    .await;

    proxy.wire().down();

    let stale = eventually("the overview is stale", async || {
        let value = get(&address, "api/overview");
        if value["stale"].is_object() { Ok(value) } else { Err("fresh") }
    })
    .await;
    assert!(stale["stale"]["since"].is_string() && stale["stale"]["why"].is_string(), "{stale}");
    assert_eq!(stale["attention"][0]["level"], "bad", "{stale}");
    for path in ["api/nodes?count=9", "api/workloads?count=9"] {
        assert!(get(&address, path)["stale"].is_object(), "{path}");
    }
    if let Some(browser) = Chromium::start() {
        let page = browser.open(&address, 1280, 900).await;
        page.wait_for_in("#live", "Stale").await;
        page.wait_for_in("#broken", "does not answer").await;
        page.wait_for_in("h1", "was current").await;
        let text = page.text().await;
        for claim in ["Live", "The one node is current", "There are no nodes", "Nothing needs attention"] {
            assert!(!text.contains(claim), "{claim}: {text}");
        }
        page.go("#/nodes").await;
        page.wait_for_in(".rows", "worker-1").await;
        page.wait_for_in("[role=status].soft", "last seen").await;
        page.go("#/node/worker-1").await;
        page.wait_until("document.querySelector('.empty')?.textContent.length > 0").await;

        // Every page recovers without a reload.
        proxy.wire().up();
        page.wait_for_in(".keylist", "team=ml").await;
        page.wait_for_in("#live", "Live").await;
        page.go("#/").await;
        page.wait_for_in("h1", "The one node is current").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_the_api_server_does_not_deliver_is_shown_as_stale() {
    let cluster = TestCluster::new().await;
    let proxy = cluster.fault_proxy().await;
    drop(returned(&cluster).await);
    let operator = serving(&cluster).through(&proxy).start().await;
    let address = operator.dashboard().await;
    let stale = async |what: &str, wanted: bool| {
        eventually(what, async || {
            let value = get(&address, "api/overview");
            let is_so = value["synced"] == json!(true) && value["stale"].is_object() == wanted;
            if is_so { Ok(value) } else { Err(value["stale"].clone()) }
        })
        .await
    };
    stale("the data is fresh", false).await;

    // The server answers, but the permission to read nodes was revoked.
    proxy.inject(|request| {
        let is_read = request.resource == "nodes" && request.name.is_none() && !request.is_write();
        is_read.then_some(Fault::Answered(403, None))
    });
    proxy.cut_watches();

    let value = stale("the data is stale", true).await;
    assert_eq!(value["stale"]["title"], "The API server does not deliver nodes", "{value}");
    assert!(value["stale"]["since"].is_string(), "{value}");
    assert_eq!(value["attention"][0]["title"], "The API server does not deliver nodes", "{value}");
    assert!(get(&address, "api/nodes?count=9")["stale"].is_object());

    proxy.clear_faults();
    stale("the data is fresh again", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_top_and_the_page_count_the_same_nodes_as_current() {
    let cluster = TestCluster::with_policies().await;
    let spec = json!({"nodeSelector": {"matchLabels": {"pool": "cloud"}}, "identity": "providerID"});
    cluster.apply_policy("cloud", &spec);
    let operator = serving(&cluster).start().await;
    cluster.node("kept").label("team", "ml").create().await;
    cluster.node("plain").create().await;
    cluster.node("shy").label("team", "x").annotation("perennial.dev/ignore", "true").create().await;
    cluster.node("unknown").label("pool", "cloud").create().await;
    cluster.node("gone").label("team", "ml").create().await;
    cluster.wait_for_record("kept", [("team", "ml")]).await;
    cluster.wait_for_record("gone", [("team", "ml")]).await;
    cluster.delete_node("gone").await;
    let address = operator.dashboard().await;
    let page = eventually("the page has settled", async || {
        let value = get(&address, "api/overview");
        if value["nodes"]["states"]["Away"] == json!(1) && value["nodes"]["states"]["Current"] == json!(1) {
            Ok(value)
        } else {
            Err(value["nodes"].clone())
        }
    })
    .await;

    let status = cluster.perennial_json("status -o json");
    let text = cluster.perennial("status").expect_success();
    let top = cluster.perennial("top --once --interval 200ms").expect_success();

    // Two of the three nodes that are not ignored: the identity of one is not known.
    assert_eq!((&page["nodes"]["live"], &page["nodes"]["current"]), (&json!(3), &json!(2)), "{}", page["nodes"]);
    assert_eq!((&status["live"], &status["current"]), (&json!(3), &json!(2)), "{status}");
    assert!(text.contains("2 of 3 current"), "{text}");
    assert!(top.contains("2 of 3 current"), "{top}");
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 2.0 / 3.0).await;
    cluster.kubectl("delete keeppolicies --all");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_node_without_an_identity_claims_no_kept_keys() {
    let cluster = TestCluster::with_policies().await;
    cluster.apply_policy("by-provider", &json!({"identity": "providerID"}));
    let operator = serving(&cluster).start().await;
    cluster.node("bare").label("team", "ml").create().await;
    let address = operator.dashboard().await;
    let value = eventually("the page", async || {
        let value = get(&address, "api/node?name=bare");
        if value["state"] == "Unidentified" { Ok(value) } else { Err(value) }
    })
    .await;

    let origin = |key: &str| {
        let keys = value["keys"].as_array().unwrap();
        keys.iter().find(|each| each["key"] == key).map(|each| each["origin"].clone()).unwrap_or_default()
    };
    assert_eq!((origin("team"), &value["record"], &value["next"]), (json!("not captured"), &json!(null), &json!(null)));
    assert!(value["nothing"].as_str().is_some_and(|why| why.contains("no providerID")), "{value}");
    cluster.kubectl("delete keeppolicies --all");
}
