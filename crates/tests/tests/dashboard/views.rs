//! The dashboard in light and dark mode, with mouse and keyboard, on a desktop and on a phone.

use perennial_harness::{Chromium, TestCluster};
use serde_json::json;

use super::{is_clean, obstacles, returned};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_shown_with_its_origins_its_lives_and_its_history() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::new().await;
    let operator = returned(&cluster).await;
    cluster.node("plain").create().await;
    let address = operator.dashboard().await;

    let page = browser.open(&address, 1280, 1000).await;

    page.wait_for_in("#live", "Live").await;
    page.wait_for_in(".happens", "worker-1").await;
    page.wait_for_in(".happens", "was restored: 2 keys").await;
    page.wait_for_in(".happens", "team=ml").await;
    page.wait_for_in(".attention", "Nothing needs attention.").await;
    page.wait_for_in("h1", "All 2 nodes are current").await;
    page.wait_for_in(".headline", "1 no record").await;

    page.go("#/node/worker-1").await;
    page.wait_for_in("h1", "worker-1").await;
    page.wait_for_in(".keylist", "rack=r7").await;
    let origins = page
        .evaluate("Object.fromEntries([...document.querySelectorAll('.keylist li')].map((li) => [li.querySelector('.key').textContent, li.querySelector('.pill').textContent]))")
        .await;
    assert_eq!(origins, json!({"team": "restored", "rack": "restored", "kubernetes.io/hostname": "foreign"}));
    let text = page.text().await;
    for part in
        ["Current incarnation", "Restored 2 keys by a patch of the operator", "Last incarnation", "Earlier incarnation"]
    {
        assert_eq!(text.contains(part), part != "Last incarnation", "{part}: {text}");
    }
    assert!(text.contains("Version 2") && text.contains("rack=r7"), "{text}");
    assert!(text.contains("perennial rollback worker-1 --to 1"), "{text}");
    // The reason is one click away, in the words of `perennial explain`.
    page.evaluate("document.querySelectorAll('.keylist summary')[2].click()").await;
    page.wait_for_in(".keylist details[open]", "dropped by default").await;
    // Filters are part of the address.
    page.evaluate(
        "[...document.querySelectorAll('.chip')].find((chip) => chip.textContent.startsWith('foreign')).click()",
    )
    .await;
    page.wait_until(
        "document.querySelectorAll('.keylist li').length === 1 && location.hash.endsWith('?origin=foreign')",
    )
    .await;

    page.go("#/node/nobody").await;
    page.wait_for("There is no node nobody").await;
    assert!(page.errors().iter().all(|complaint| complaint.contains("404")), "{:?}", page.errors());
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_shown_live() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::new().await;
    let operator = returned(&cluster).await;
    let address = operator.dashboard().await;
    let page = browser.open(&address, 1280, 1000).await;
    page.wait_for_in("h1", "The one node is current").await;
    page.evaluate("window.here = true").await;

    cluster.node("worker-2").label("team", "web").create().await;
    page.wait_for_in("h1", "All 2 nodes are current").await;
    cluster.delete_node("worker-2").await;
    page.wait_for_in(".headline", "1 away").await;
    cluster.node("worker-2").create().await;
    page.wait_for_in(".happening", "worker-2 was restored: 1 key").await;
    cluster.corrupt_record("worker-2", json!({"record.json": "not a record"})).await;
    page.wait_for_in(".attention", "1 record is quarantined").await;
    page.wait_for_in(".attention", "perennial explain worker-2").await;

    assert_eq!(page.evaluate("window.here").await, json!(true), "it was the same page all the time");
    // The page of a node is updated live as well.
    page.go("#/node/worker-1").await;
    page.wait_for_in(".keylist", "team=ml").await;
    cluster.label("worker-1", "disk", "nvme").await;
    page.wait_for_in(".keylist", "disk=nvme").await;
    page.wait_for_in(".lives", "Version 3").await;
    is_clean(&page, &address);
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_reached_by_keys() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::new().await;
    let operator = returned(&cluster).await;
    for number in 0..30 {
        cluster.node(&format!("other-{number:02}")).create().await;
    }
    let page = browser.open(&operator.dashboard().await, 1280, 800).await;
    page.wait_for_in("h1", "All 31 nodes are current").await;

    // The first tab stop skips the navigation.
    page.press("Tab").await;
    assert_eq!(page.evaluate("document.activeElement.id").await, json!("skip"));
    page.press("Enter").await;
    page.wait_until("document.activeElement.id === 'content'").await;

    page.press("g").await;
    page.press("n").await;
    page.wait_for_in("h1", "Nodes").await;
    page.wait_for_in(".rows", "other-00").await;
    page.press("ArrowDown").await;
    page.press("ArrowDown").await;
    page.wait_for_in("[aria-selected=true]", "other-01").await;
    page.press("End").await;
    page.wait_for_in("[aria-selected=true]", "worker-1").await;
    page.press("Enter").await;
    page.wait_for_in(".keylist", "team=ml").await;
    page.press("u").await;
    page.wait_for_in("h1", "Nodes").await;

    page.press("/").await;
    page.type_in("worker").await;
    page.wait_until("location.hash === '#/nodes?q=worker'").await;
    page.wait_for_in("main [role=status]", "1 of 31 nodes").await;
    page.press("Enter").await;
    page.wait_until("location.hash === '#/node/worker-1'").await;

    page.press("?").await;
    page.wait_until("document.getElementById('keys').open").await;
    page.press("Escape").await;
    page.wait_until("!document.getElementById('keys').open").await;
    page.press("g").await;
    page.press("o").await;
    page.wait_for_in("h1", "All 31 nodes are current").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_light_or_dark_and_fits_a_phone() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::new().await;
    let operator = returned(&cluster).await;
    let page = browser.open(&operator.dashboard().await, 1280, 900).await;
    page.wait_for_in("h1", "current").await;
    let ground = "getComputedStyle(document.body).backgroundColor";

    page.set_color_scheme("light").await;
    let light = page.evaluate(ground).await;
    page.set_color_scheme("dark").await;
    let dark = page.evaluate(ground).await;
    assert_eq!((light, dark), (json!("rgb(248, 247, 243)"), json!("rgb(17, 21, 19)")));

    page.resize(390, 844).await;
    for view in ["#/", "#/nodes", "#/node/worker-1", "#/workloads", "#/policies"] {
        page.go(view).await;
        page.wait_until("document.querySelector('main h1') !== null").await;
        page.wait_until("document.documentElement.scrollWidth <= innerWidth").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_has_no_accessibility_problems() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::new().await;
    let operator = returned(&cluster).await;
    cluster.node("worker-2").label("team", "web").create().await;
    cluster.wait_for_record("worker-2", [("team", "web")]).await;
    cluster.corrupt_record("worker-2", json!({"record.json": "not a record"})).await;
    let page = browser.open(&operator.dashboard().await, 1280, 900).await;
    page.wait_for_in(".attention", "quarantined").await;
    page.go("#/?feed=all").await;

    for scheme in ["light", "dark"] {
        page.set_color_scheme(scheme).await;
        for (view, ready) in [
            ("#/", ".happening"),
            ("#/nodes", ".space [role=row]"),
            ("#/node/worker-1", ".keylist li"),
            ("#/workloads", ".empty:not([hidden])"),
            ("#/policies", ".card h2"),
        ] {
            page.go(view).await;
            page.wait_until(&format!("document.querySelector({}) !== null", json!(ready))).await;
            let found = obstacles(&page).await;
            assert!(found.is_empty(), "{view} in the {scheme}: {found:#?}");
        }
    }
}
