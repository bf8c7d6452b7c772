//! Search, filters and order of the list of nodes, its table for screen readers, the policies, the
//! names of the cluster and the theme.

use perennial_harness::{Chromium, Page, TestCluster, Webhooks};
use serde_json::json;

use super::{is_clean, serving};

/// Waits until the list has exactly these nodes, in this order.
async fn lists(page: &Page, names: &[&str]) {
    let shown = "JSON.stringify([...document.querySelectorAll('.space .row')].sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map((row) => row.querySelector('.name')?.textContent))";
    page.wait_until(&format!("{shown} === {}", json!(json!(names).to_string()))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_found_by_name_label_state_policy_and_hold() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::with_policies().await;
    cluster.apply_policy("gpu", &json!({"nodeSelector": {"matchLabels": {"pool": "gpu"}}, "retention": "48h"}));
    let operator = serving(&cluster).start().await;
    for (name, pool) in [("a", "gpu"), ("b", "cpu"), ("c", "gpu")] {
        cluster.node(name).label("pool", pool).label("team", "ml").create().await;
        cluster.wait_for_record(name, [("pool", pool), ("team", "ml")]).await;
    }
    cluster.delete_node("c").await;
    cluster.perennial("hold b").expect_success();
    let address = operator.dashboard().await;
    let page = browser.open(&format!("{address}#/nodes"), 1280, 900).await;

    lists(&page, &["a", "b", "c"]).await;
    page.go("#/nodes?l=pool%3Dgpu%2Cteam").await;
    lists(&page, &["a", "c"]).await;
    page.go("#/nodes?l=pool%3Dgpu&state=Away").await;
    lists(&page, &["c"]).await;
    page.go("#/nodes?policy=config").await;
    lists(&page, &["b"]).await;
    page.go("#/nodes?policy=gpu").await;
    lists(&page, &["a", "c"]).await;
    page.go("#/nodes?hold=true").await;
    lists(&page, &["b"]).await;
    page.wait_for_in(".space .row", "hold").await;
    page.go("#/nodes?l=pool%3D%3D%3D").await;
    page.wait_for_in("#labels-problem", "Not a label selector").await;
    page.go("#/nodes?sort=-name").await;
    lists(&page, &["c", "b", "a"]).await;

    // A table for screen readers: caption, titles of columns and rows, order.
    let table = page
        .evaluate(
            "({caption: document.querySelector('.rows caption').textContent,
               columns: [...document.querySelectorAll('.rows thead th[scope=col]')].map((th) => th.textContent),
               sorted: [...document.querySelectorAll('.rows th[aria-sort]')].map((th) => [th.textContent, th.ariaSort]),
               rows: document.querySelectorAll('.space th[scope=row]').length})",
        )
        .await;
    assert_eq!(
        table,
        json!({
            "caption": "Nodes and records of deleted nodes",
            "columns": ["Node", "State", "Ready", "Kept", "Labels", "Policy", "Captured", "Away since", "Collected"],
            "sorted": [["Node", "descending"]],
            "rows": 3,
        })
    );

    // Filters by hand: the address follows.
    page.go("#/nodes").await;
    lists(&page, &["a", "b", "c"]).await;
    page.evaluate("document.getElementById('hold').click()").await;
    page.wait_until("location.hash === '#/nodes?hold=true'").await;
    lists(&page, &["b"]).await;
    page.evaluate("document.getElementById('labels').focus()").await;
    page.type_in("team=none").await;
    page.wait_for("No node is on hold with these labels.").await;
    is_clean(&page, &address);
    cluster.kubectl("delete keeppolicies --all");
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_are_shown_with_what_they_decide() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::with_policies().await;
    let gpu = json!({"nodeSelector": {"matchLabels": {"pool": "gpu"}}, "priority": 7, "keep": ["example.com/"],
        "taints": ["dedicated"], "cordon": true, "merge": "overwrite", "identity": "systemUUID", "retention": "48h"});
    cluster.apply_policy("gpu", &gpu);
    cluster.apply_policy("low", &json!({"priority": -1}));
    let operator = serving(&cluster).start().await;
    cluster.node("a").label("pool", "gpu").create().await;
    let page = browser.open(&format!("{}#/policies", operator.dashboard().await), 1280, 900).await;

    page.wait_for_in(".card", "gpu").await;
    page.wait_for_in(".card", "1 node").await;
    let titles = "JSON.stringify([...document.querySelectorAll('.card h2')].map((title) => title.textContent))";
    page.wait_until(&format!("{titles} === {}", json!(r#"["gpu","low","Configuration"]"#))).await;
    let text = page.text_of(".card").await;
    for part in
        ["pool=gpu", "example.com/*", "dedicated", "overwrite", "systemUUID", "48h", "kubectl get keeppolicy gpu"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    cluster.kubectl("delete keeppolicies --all");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_header_names_the_cluster_and_chooses_the_theme() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::new().await;
    let operator = serving(&cluster).set("dashboard.clusterName", "prod-eu").start().await;
    let page = browser.open(&operator.dashboard().await, 1280, 900).await;

    page.wait_for_in("#cluster", "prod-eu (context ").await;
    page.wait_until("document.title === 'Overview · prod-eu · Perennial'").await;

    // The theme overrides that of the system, and is still there when the page is opened again.
    let ground = "getComputedStyle(document.body).backgroundColor";
    page.set_color_scheme("light").await;
    assert_eq!(page.evaluate(ground).await, json!("rgb(248, 247, 243)"));
    for _ in ["light", "dark"] {
        page.evaluate("document.getElementById('theme').click()").await;
    }
    page.wait_for_in("#theme", "Theme: dark").await;
    assert_eq!(page.evaluate(ground).await, json!("rgb(17, 21, 19)"));
    page.evaluate("location.reload()").await;
    page.wait_for_in("#theme", "Theme: dark").await;
    page.wait_until(&format!("{ground} === 'rgb(17, 21, 19)'")).await;
}

/// The title of the chart, its axis and its description name the same time.
#[tokio::test(flavor = "multi_thread")]
async fn the_chart_covers_the_time_that_its_title_names() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::new().await;
    let operator = cluster
        .start_with(Webhooks::Off, |builder| {
            builder.without_leader_election().set("dashboard.enabled", "true").set("dashboard.port", "0")
        })
        .await;
    let page = browser.open(&operator.dashboard().await, 1280, 900).await;

    page.wait_for_in(".axis", "10 min ago").await;
    let title = page.evaluate("document.querySelector('#churn + p').textContent").await;
    assert!(title.as_str().unwrap().starts_with("the last 10 min, counted for "), "{title}");
    let label = page.evaluate("document.querySelector('.churn').ariaLabel").await;
    assert!(label.as_str().unwrap().starts_with("In the last 10 min: "), "{label}");
}
