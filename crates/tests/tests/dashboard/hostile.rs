//! Hostile content from users with few permissions is shown as plain text to users with more.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::PostParams};
use perennial_core::keeper::{
    keys::Key,
    provenance::Provenance,
    record::{Origin, RECORD_LABEL, RECORD_LABEL_VALUE, Record},
};
use perennial_harness::{Chromium, TestCluster};
use serde_json::json;

use super::{is_clean, serving};

const MARKUP: &str =
    "<img src=x onerror=\"window.pwned=1\"><script>window.pwned=1</script>\"'><svg onload=window.pwned=1>";

#[tokio::test(flavor = "multi_thread")]
async fn markup_in_a_cluster_is_shown_as_text() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::new().await;
    let operator = serving(&cluster).set("keeper.annotations", "example.com/*").start().await;
    // Label values cannot contain markup; annotations and hand-written records can.
    cluster.node("worker-1").annotation("example.com/note", MARKUP).label("team", "ml").create().await;
    cluster.wait_for_record("worker-1", [("team", "ml")]).await;
    cluster.delete_node("worker-1").await;
    cluster.node("worker-1").create().await;
    cluster.wait_for_labels("worker-1", [("team", "ml")]).await;
    let forged = Record {
        sequence: 7,
        node: Origin { name: MARKUP.to_owned(), uid: MARKUP.to_owned(), ..Origin::default() },
        identity: Some(format!("label:{MARKUP}")),
        provenance: Provenance { policy: MARKUP.to_owned(), ..Provenance::default() },
        kept: [(Key::label(MARKUP), MARKUP.to_owned())].into(),
        folded: false,
        before: [].into(),
        withheld: Vec::new(),
        captured_at: jiff::Timestamp::now(),
        captured_by: MARKUP.to_owned(),
        history: Vec::new(),
    };
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), cluster.namespace());
    let object = json!({
        "metadata": {"name": forged.name().0, "labels": {RECORD_LABEL: RECORD_LABEL_VALUE}},
        "data": {"record.json": forged.encode().unwrap()},
    });
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    cluster.corrupt_record("worker-2", json!({"record.json": format!("{{\"version\": {}}}", json!(MARKUP))})).await;

    let address = operator.dashboard().await;
    let page = browser.open(&format!("{address}#/?feed=all"), 1280, 900).await;
    page.wait_for_in(".happens", MARKUP).await;
    page.wait_for_in(".attention", "quarantined").await;
    page.go("#/node/worker-1").await;
    page.wait_for_in(".keylist", MARKUP).await;
    page.wait_for_in(".diff", MARKUP).await;
    page.go("#/node/worker-2").await;
    page.wait_for_in(".facts", "<svg onload=window.pwned=1>").await;
    page.go("#/nodes").await;
    page.wait_for_in(".rows", MARKUP).await;
    page.evaluate(&format!("location.hash = '#/node/' + encodeURIComponent({})", json!(MARKUP))).await;
    page.wait_for_in(".keylist", MARKUP).await;
    // A copied command quotes the name as one word.
    page.wait_for_in(".commands", &format!("perennial explain '{}'", MARKUP.replace('\'', r"'\''"))).await;
    // The address is untrusted as well.
    page.evaluate(&format!("location.hash = '#/nodes?q=' + encodeURIComponent({})", json!(format!("{MARKUP} none"))))
        .await;
    page.wait_for("in its name").await;
    page.go("#/__proto__/x?%zz").await;
    page.wait_for_in("h1", "current").await;

    assert_eq!(page.evaluate("window.pwned === undefined").await, json!(true));
    assert_eq!(
        page.evaluate("document.querySelectorAll('main img, main script, main svg[onload]').length").await,
        json!(0)
    );
    is_clean(&page, &address);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_browser_itself_refuses_what_would_become_markup() {
    let Some(browser) = Chromium::start() else { return };
    let cluster = TestCluster::new().await;
    let operator = serving(&cluster).start().await;
    let page = browser.open(&operator.dashboard().await, 800, 600).await;
    page.wait_for_in("#live", "Live").await;

    let refused = page
        .evaluate(
            "(async () => {
                const outcome = {};
                try { document.querySelector('main').innerHTML = '<b>x</b>'; outcome.markup = 'taken'; } catch (error) { outcome.markup = error.name; }
                const script = document.createElement('script');
                try { script.textContent = 'window.pwned = 1'; document.head.append(script); } catch {}
                outcome.script = window.pwned ?? 'refused';
                outcome.elsewhere = await fetch('https://example.com/').then(() => 'reached', () => 'refused');
                return outcome;
            })()",
        )
        .await;

    assert_eq!(refused, json!({"markup": "TypeError", "script": "refused", "elsewhere": "refused"}));
}
