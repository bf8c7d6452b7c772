//! A broken event stream is shown and reconnected.

use perennial_harness::{Chromium, TestCluster, free_port};

use super::serving;

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_stream_is_shown_and_reconnected() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::new().await;
    let port = free_port().to_string();
    let operator = serving(&cluster).set("dashboard.port", &port).start().await;
    cluster.node("worker-1").label("team", "ml").create().await;
    let page = browser.open(&operator.dashboard().await, 1280, 900).await;
    page.wait_for_in("#live", "Live").await;
    page.wait_for_in("h1", "The one node is current").await;
    page.evaluate("window.here = true").await;

    operator.crash();

    page.wait_for_in("#live", "Not live").await;
    page.wait_for_in("#broken", "The connection to Perennial is lost. The data shown is from").await;
    assert!(page.text_of("h1").await.contains("The one node is current"), "what was seen stays");

    let again = serving(&cluster).set("dashboard.port", &port).start().await;
    cluster.node("worker-2").label("team", "web").create().await;

    page.wait_for_in("#live", "Live").await;
    page.wait_until("document.getElementById('broken').hidden").await;
    page.wait_for_in("h1", "All 2 nodes are current").await;
    page.wait_until("window.here === true").await;

    // A graceful stop closes streams at once.
    assert!(again.stop().await.expect("it stops within five seconds").success());
    page.wait_for_in("#live", "Not live").await;
}
