//! Throughput of the API server alone on this machine.

use std::time::Instant;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use perennial_harness::TestCluster;
use serde_json::json;

use crate::{
    Size,
    fleet::{Fleet, each, name},
    report::Report,
};

const CONCURRENCY: [usize; 3] = [1, 16, 64];

pub(crate) async fn measure(size: Size, report: &mut Report) {
    report.part("Limit: throughput of the API server alone");
    let cluster = TestCluster::new().await;
    let fleet = Fleet::of(&cluster);
    let records: Api<ConfigMap> = Api::namespaced(cluster.client(), cluster.namespace());
    let per = size.limit;
    let mut rates: [Vec<f64>; 5] = Default::default();
    for (turn, at_once) in CONCURRENCY.into_iter().enumerate() {
        let numbers = turn * per..(turn + 1) * per;
        rates[0].push(rate(numbers.clone(), at_once, async |number| drop(fleet.create_bare(number).await)).await);
        rates[1].push(rate(numbers.clone(), at_once, async |number| fleet.label(number).await).await);
        let made = rate(numbers.clone(), at_once, async |number| {
            let record = record(number);
            drop(records.create(&PostParams::default(), &record).await.expect("creating a ConfigMap"));
        });
        rates[2].push(made.await);
        let changed = rate(numbers.clone(), at_once, async |number| {
            let patch = json!({"data": {"again": "true"}});
            let patched = records.patch(&name(number), &PatchParams::default(), &Patch::Merge(patch)).await;
            drop(patched.expect("changing a ConfigMap"));
        });
        rates[3].push(changed.await);
        rates[4].push(rate(numbers, at_once, async |number| fleet.delete(number).await).await);
    }
    let what = ["node create", "node PATCH of 10 labels", "ConfigMap create", "ConfigMap PATCH", "node delete"];
    let rows: Vec<Vec<String>> = what
        .iter()
        .zip(&rates)
        .map(|(what, rates)| {
            std::iter::once((*what).to_owned()).chain(rates.iter().map(|rate| format!("{rate:.0}"))).collect()
        })
        .collect();
    report.table(&["requests a second, at a concurrency of", "1", "16", "64"], &rows);
    report.raw("limit", json!(what.into_iter().zip(&rates).collect::<std::collections::BTreeMap<_, _>>()));
}

fn record(number: usize) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(name(number)), ..ObjectMeta::default() };
    let data = [("record.json".to_owned(), "x".repeat(1200))].into();
    ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }
}

async fn rate(numbers: std::ops::Range<usize>, at_once: usize, act: impl AsyncFn(usize)) -> f64 {
    let start = Instant::now();
    let count = numbers.len();
    each(numbers, at_once, |number| act(number)).count().await;
    #[expect(clippy::cast_precision_loss, reason = "a count of requests")]
    let count = count as f64;
    count / start.elapsed().as_secs_f64()
}
