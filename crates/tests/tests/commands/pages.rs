//! Long lists: read page by page, with at most one page in memory.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::PostParams};
use perennial_core::keeper::record::{RECORD_LABEL, RECORD_LABEL_VALUE};
use perennial_harness::{TestCluster, node_count_or};
use serde_json::json;

const COUNT: usize = 1_300;

#[tokio::test]
async fn long_lists_are_read_in_pages_and_joined_by_name() {
    let cluster = TestCluster::new().await;
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), cluster.namespace());
    let record = |number: usize| {
        let name = format!("node-w{number:05}");
        let object = json!({
            "metadata": {"name": name, "labels": {RECORD_LABEL: RECORD_LABEL_VALUE}},
            "data": {"record.json": "not a record"},
        });
        serde_json::from_value::<ConfigMap>(object).unwrap()
    };
    for chunk in (0..COUNT).collect::<Vec<_>>().chunks(64) {
        let creates = chunk.iter().map(|number| {
            let (api, object) = (api.clone(), record(*number));
            async move { api.create(&PostParams::default(), &object).await.unwrap() }
        });
        futures::future::join_all(creates).await;
    }
    for name in ["a", "w00003x", "w01299", "z"] {
        cluster.node(name).label("team", "ml").create().await;
    }

    let before = cluster.requests().await;
    let names = cluster.perennial("records -o name").expect_success();
    let after = cluster.requests().await;

    assert_eq!(names.lines().count(), COUNT);
    let pages = after.count("LIST", "configmaps") - before.count("LIST", "configmaps");
    // No operator runs in the namespace: the command looks for one record there first.
    assert_eq!(pages, 1 + 3, "pages of 500");
    let nodes = cluster.perennial("nodes -o name").expect_success();
    let nodes: Vec<&str> = nodes.lines().collect();
    assert_eq!((nodes.len(), nodes[0], nodes[COUNT + 2]), (COUNT + 3, "node/a", "node/z"));
    assert_eq!(nodes[4..7], ["node/w00003", "node/w00003x", "node/w00004"], "both lists in their order");
    let away = cluster.perennial("nodes -o name --state Away").expect_success();
    assert_eq!(away.lines().count(), COUNT - 1);
    let json: serde_json::Value = serde_json::from_str(&cluster.perennial("records -o json").expect_success()).unwrap();
    assert_eq!(json["items"].as_array().unwrap().len(), COUNT);
}

/// Table of nodes and labels as input for `import`.
fn labels_of(nodes: std::ops::Range<usize>, keys: usize) -> String {
    let mut text = "node,key,value\n".to_owned();
    for node in nodes {
        for key in 0..keys {
            let _ = writeln!(text, "w{node:05},example.com/some-key-{key},some-value-{key}-of-{node}");
        }
    }
    text
}

/// Records per request.
const PAGE: usize = 500;
/// If all records were held in memory, the difference between few and many would be several times
/// this.
const NOISE: u64 = 8 << 20;
/// The commands, and whether their output grows with the number of records.
const COMMANDS: [(&str, bool); 6] = [
    ("records", true),
    ("records -o json", true),
    ("nodes", true),
    ("nodes -o json", true),
    ("export", true),
    ("status", false),
];

/// With 2,000 records, or `PERENNIAL_NODES`.
#[tokio::test]
async fn a_longer_list_takes_no_more_memory() {
    let cluster = TestCluster::new().await;
    let many = node_count_or(2_000);
    let few = (many / 10).max(PAGE);
    // Fewer records must be larger for the difference to be measurable.
    let keys = (80_000 / many).clamp(10, 40);
    let file = cluster.plane().dir().join("labels.csv");
    let import = |nodes| {
        std::fs::write(&file, labels_of(nodes, keys)).unwrap();
        cluster.perennial(&format!("import -f {}", file.display())).expect_success();
    };
    let drained = || COMMANDS.map(|(words, _)| cluster.measure(words));

    import(0..few);
    let of_few = drained();
    import(few..many);
    let before = cluster.requests().await;
    let of_many = drained();
    let after = cluster.requests().await;

    for (((words, is_list), less), more) in COMMANDS.iter().zip(of_few).zip(of_many) {
        for (count, took) in [(few, less), (many, more)] {
            let (seconds, peak) = (took.took.as_secs_f64(), took.peak >> 10);
            eprintln!("{words}, {count} records of {keys} labels: {seconds:.2} s, {peak} KiB, {} bytes", took.bytes);
        }
        assert!(less.success && more.success, "{words}: {less:?}, {more:?}");
        assert!(!is_list || more.bytes > less.bytes * 3, "{words}: all of them are printed: {less:?}, {more:?}");
        assert!(more.peak < less.peak + NOISE, "{words}: {less:?} for {few}, {more:?} for {many}");
    }
    let pages = after.count("LIST", "configmaps") - before.count("LIST", "configmaps");
    let expected = (COMMANDS.len() * many.div_ceil(PAGE)) as u64;
    // No operator runs in the namespace: a command may look for one record there, and again before
    // it reads both nodes and records.
    let looks = 2 * COMMANDS.len() as u64;
    assert!((expected..=expected + looks).contains(&pages), "each page is read once: {pages} instead of {expected}");
}
