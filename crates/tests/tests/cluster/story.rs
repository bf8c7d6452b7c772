//! The main use case with kubectl.

use perennial_harness::{TestCluster, eventually};

#[tokio::test]
async fn labels_that_were_set_with_kubectl_survive_the_deletion_of_their_node() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    let manifest = cluster.plane().dir().join("node.yaml");
    std::fs::write(&manifest, "apiVersion: v1\nkind: Node\nmetadata:\n  name: worker-1\n").unwrap();
    let create = format!("create -f {}", manifest.display());
    let get_record = format!("get configmap node-worker-1 -n {} -o jsonpath={{.data}}", cluster.namespace());

    assert_eq!(cluster.kubectl(&create), "node/worker-1 created\n");
    assert_eq!(cluster.kubectl("label node worker-1 team=ml example.com/rack=r7"), "node/worker-1 labeled\n");
    cluster.wait_for_record("worker-1", [("team", "ml"), ("example.com/rack", "r7")]).await;
    cluster.kubectl("delete node worker-1");
    let record = cluster.kubectl(&get_record);
    assert!(record.contains(r#"\"team\":\"ml\""#) && record.contains(r#"\"example.com/rack\":\"r7\""#), "{record}");
    cluster.kubectl(&create);

    eventually("kubectl shows the labels", async || {
        let shown = cluster.kubectl("get node worker-1 --show-labels --no-headers");
        if shown.contains("example.com/rack=r7,team=ml") { Ok(()) } else { Err(shown) }
    })
    .await;
}
