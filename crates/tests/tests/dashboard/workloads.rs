//! The slots of a workload.

use perennial_harness::{Chromium, TestCluster, Webhooks};
use serde_json::json;

use super::{is_clean, obstacles, serving};

#[tokio::test(flavor = "multi_thread")]
async fn slots_are_drawn_as_they_are_filled() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::full().await;
    cluster.capacity("spot", 1, 5).await;
    cluster.capacity("on-demand", 1, 100).await;
    let operator = serving(&cluster).webhooks(Webhooks::On).start().await;
    let web = cluster.deployment("web").annotate("spot-percentage", "70").annotate("min-on-demand", "3");
    web.annotate("fallback-after", "2s").replicas(10).create().await;
    cluster.deployment("odd").annotate("spot-percentage", "many").replicas(0).create().await;
    let address = operator.dashboard().await;
    let page = browser.open(&format!("{address}#/workloads"), 1280, 900).await;
    page.wait_for_in(".rows", "not managed").await;

    // 7 spot slots and room for 5: the rest runs on-demand.
    cluster.wait_for_split("web", 5, 5).await;
    page.wait_for_in(".rows", "spot shortage").await;
    page.go("#/").await;
    page.wait_for_in(".attention", "1 workload runs on-demand: no spot capacity").await;
    page.wait_for_in(".attention", "perennial explain deployment/web -n default").await;
    page.go("#/workload/deployment/default/web").await;
    page.wait_for_in("h1", "web").await;
    page.wait_for_in(".figures", "5 of 7").await;
    page.wait_for_in(".story", "Spot has been short since").await;
    // The shape shows the class of a slot, the colour where its replica runs.
    let drawn = "Object.fromEntries([...document.querySelectorAll('.board path')].map((path) => [path.getAttribute('class'), path.getAttribute('d').split('M').length - 1]))";
    page.wait_until(&format!(
        "JSON.stringify(Object.entries({drawn}).sort()) === {}",
        json!(json!([["round spot", 5], ["round steady", 2], ["square steady", 3]]).to_string())
    ))
    .await;
    // Every slot shows its pod, with the keyboard as well.
    page.evaluate("document.querySelector('.slots').focus()").await;
    page.press("ArrowRight").await;
    page.wait_for_in(".caption", "Slot 0, for on-demand: web-").await;
    page.press("End").await;
    page.wait_for_in(".caption", "Slot 9, for spot: web-").await;
    page.wait_for_in(".caption", "runs on-demand instead").await;
    for scheme in ["light", "dark"] {
        page.set_color_scheme(scheme).await;
        let found = obstacles(&page).await;
        assert!(found.is_empty(), "in the {scheme}: {found:#?}");
    }
    // StatefulSet replicas stay where they are unless moves are enabled, and nothing else is
    // reported.
    cluster.stateful_set("db").annotate("spot-percentage", "0").replicas(2).create().await;
    cluster.wait_for_split("db", 0, 2).await;
    cluster.kubectl("annotate statefulset db perennial.dev/spot-percentage=50 --overwrite");
    page.go("#/workloads?state=Drift").await;
    page.wait_for_in(".rows", "they move when they are next created, or with move-statefulset-pods").await;
    page.wait_for_in(".rows .pill", "drift").await;
    page.go("#/").await;
    page.wait_for_in(".attention", "They stay where they are").await;
    page.go("#/workload/deployment/default/web").await;
    page.wait_for_in("h1", "web").await;
    // Changes are drawn live.
    cluster.scale("web", 4).await;
    cluster.wait_for_split("web", 1, 3).await;
    page.wait_until(&format!("Object.values({drawn}).reduce((sum, count) => sum + count, 0) === 4")).await;
    is_clean(&page, &address);
}
