//! Long lists: only visible rows are in the DOM. `PERENNIAL_NODES` sets the number of nodes; the
//! default fits into a test run.

use std::time::Instant;

use perennial_harness::{Chromium, Labels, TestCluster, eventually, node_count_or};
use serde_json::json;

use super::{is_clean, serving};

/// Formats a number as the page does.
fn grouped(number: usize) -> String {
    if number < 1000 { number.to_string() } else { format!("{},{:03}", number / 1000, number % 1000) }
}

#[tokio::test(flavor = "multi_thread")]
async fn tens_of_thousands_of_rows_scroll() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::new().await;
    let operator = serving(&cluster).start().await;
    let count = node_count_or(20_000);
    cluster.create_many(count, |_| Labels::new()).await;
    operator.wait_for_metric("perennial_nodes", &[], f64::from(u32::try_from(count).unwrap())).await;
    let (address, before, begun) = (operator.dashboard().await, operator.peak_rss(), Instant::now());
    let page = browser.open(&format!("{address}#/nodes"), 1280, 900).await;
    page.wait_for_in(".rows", "node-00000").await;
    page.wait_for(&format!("{} nodes, including deleted ones", grouped(count))).await;
    eprintln!(
        "{} nodes: the first rows after {} ms; the operator had {} MiB before the page, and {} MiB with it",
        grouped(count),
        begun.elapsed().as_millis(),
        before >> 20,
        operator.peak_rss() >> 20
    );

    let rows = "document.querySelectorAll('.space .row').length";
    assert!(page.evaluate(rows).await.as_u64().unwrap() < 80, "only what is on the screen is there");
    for (part, number) in [("0.5", count / 2), ("1", count - 1), ("0.25", count / 4), ("0", 0)] {
        let name = format!("node-{number:05}");
        page.evaluate(&format!(
            "(() => {{ const body = document.querySelector('.rows'); body.scrollTop = body.scrollHeight * {part}; }})()"
        ))
        .await;
        page.wait_for_in(".rows", &name).await;
        page.wait_until("document.querySelectorAll('.rows .coming').length === 0").await;
    }
    assert!(page.evaluate(rows).await.as_u64().unwrap() < 80);

    // Scrolls through the whole list: every frame has rows, and their number stays bounded.
    let scrolled = page
        .evaluate(
            "(async () => {
                const body = document.querySelector('.rows');
                let most = 0, empty = 0;
                for (let top = 0; top < body.scrollHeight; top += body.scrollHeight / 300) {
                    body.scrollTop = top;
                    await new Promise(requestAnimationFrame);
                    const count = document.querySelectorAll('.space .row').length;
                    most = Math.max(most, count);
                    empty += count === 0;
                }
                return { most, empty };
            })()",
        )
        .await;
    assert_eq!(scrolled["empty"], json!(0));
    assert!(scrolled["most"].as_u64().unwrap() < 80, "{scrolled}");

    // The server searches the whole list.
    let last = format!("node-{:05}", count - 1);
    page.go(&format!("#/nodes?q={last}")).await;
    page.wait_for_in("main [role=status]", &format!("1 of {} nodes", grouped(count))).await;
    page.wait_for_in(".rows", &last).await;
    cluster.label(&last, "team", "ml").await;
    eventually("the row shows the kept labels", async || {
        let seen = page.text_of(".space .row").await;
        if seen.contains("current") && seen.contains('1') { Ok(()) } else { Err(seen) }
    })
    .await;
    is_clean(&page, &address);
}
