//! Lists of any length: only what is on the screen exists.

use perennial_tests::{Chromium, Labels, TestCluster, eventually};
use serde_json::json;

use super::{is_clean, serving};

const COUNT: usize = 20_000;

#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_rows_scroll() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::new().await;
    let operator = serving(&cluster).start().await;
    cluster.create_many(COUNT, |_| Labels::new()).await;
    let address = operator.dashboard().await;
    let page = browser.open(&format!("{address}#/nodes"), 1280, 900).await;
    page.wait_for("20,000 nodes, those that are away included").await;
    page.wait_for_in(".rows", "node-00000").await;

    let rows = "document.querySelectorAll('.rows .row').length";
    assert!(page.value(rows).await.as_u64().unwrap() < 80, "only what is on the screen is there");
    for (part, name) in [("0.5", "node-10000"), ("1", "node-19999"), ("0.25", "node-05000"), ("0", "node-00000")] {
        page.value(&format!(
            "(() => {{ const body = document.querySelector('.rows'); body.scrollTop = body.scrollHeight * {part}; }})()"
        ))
        .await;
        page.wait_for_in(".rows", name).await;
        page.wait_until("document.querySelectorAll('.rows .coming').length === 0").await;
    }
    assert!(page.value(rows).await.as_u64().unwrap() < 80);

    // Through all of it, a screen at a time: every frame has rows, and nothing piles up.
    let scrolled = page
        .value(
            "(async () => {
                const body = document.querySelector('.rows');
                let most = 0, empty = 0;
                for (let top = 0; top < body.scrollHeight; top += body.scrollHeight / 300) {
                    body.scrollTop = top;
                    await new Promise(requestAnimationFrame);
                    const count = document.querySelectorAll('.rows .row').length;
                    most = Math.max(most, count);
                    empty += count === 0;
                }
                return { most, empty };
            })()",
        )
        .await;
    assert_eq!(scrolled["empty"], json!(0));
    assert!(scrolled["most"].as_u64().unwrap() < 80, "{scrolled}");

    // Search is by the server, over all of them.
    page.go("#/nodes?q=9999").await;
    page.wait_for_in("main [role=status]", "2 of 20,000 nodes").await;
    page.wait_for_in(".rows", "node-09999").await;
    page.wait_for_in(".rows", "node-19999").await;
    cluster.label("node-09999", "team", "ml").await;
    eventually("the row says what is kept", async || {
        let seen = page.text_of(".rows .row").await;
        if seen.contains("current") && seen.contains('1') { Ok(()) } else { Err(seen) }
    })
    .await;
    is_clean(&page, &address);
}
