//! Events about workloads.

use perennial_harness::eventually;

use super::shared;

#[tokio::test(flavor = "multi_thread")]
async fn workloads_are_listed_by_label_and_watched() {
    let (cluster, _) = shared().await;
    cluster.deployment("web").annotate("spot-percentage", "50").replicas(2).create().await;
    cluster.deployment("api").annotate("spot-percentage", "50").replicas(0).create().await;
    cluster.wait_for_split("web", 1, 1).await;
    cluster.kubectl("label deployment web tier=gold");
    let (here, key) =
        (format!("-n {}", cluster.workspace()), |name: &str| format!("deployment/{}/{name}", cluster.workspace()));

    assert_eq!(
        cluster.perennial_all_namespaces(&format!("workloads {here} -o name")),
        format!("{}\n{}\n", key("api"), key("web"))
    );
    assert_eq!(
        cluster.perennial_all_namespaces(&format!("workloads {here} -o name -l tier=gold")),
        format!("{}\n", key("web"))
    );
    let wide = cluster.perennial_all_namespaces(&format!("workloads {here} -o wide -l tier"));
    assert!(wide.contains("ASKED") && wide.contains("50% on spot, at least 0 on-demand"), "{wide}");

    let watching = cluster.perennial_all_namespaces_in_background(&format!("workloads {here} -w"));
    eventually("the list", async || {
        let output = watching.output();
        if output.contains("deployment/web") { Ok(()) } else { Err(output) }
    })
    .await;
    cluster.scale("web", 4).await;
    eventually("what it has now is printed", async || {
        let output = watching.output();
        let found = output.lines().any(|line| {
            let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
            line.contains("deployment/web 4 2/2 2/2 4/4 0 0 as requested")
        });
        if found { Ok(()) } else { Err(output) }
    })
    .await;
}
