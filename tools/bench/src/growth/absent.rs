//! Growth of the records of nodes that never return, as in a cluster that is scaled all the time.

use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use perennial::keeper::apply::NODE_ANNOTATION;
use perennial_core::keeper::{
    collect::ABSENT_SINCE,
    record::{RECORD_KEY, RECORD_LABEL, RECORD_LABEL_VALUE, Record},
};
use perennial_harness::{Operator, TestCluster, eventually_within};
use serde_json::json;

use super::wait_until_ready;
use crate::{
    contender::Usage,
    fleet::{Fleet, each, name, wait_for_records},
    report::{Goal, Report, progress},
};

/// Time from the start of a process to its first audit.
const FIRST_AUDIT: Duration = Duration::from_mins(1);
/// Log message at the end of the lists of an audit.
const AUDITED: &str = "garbage collection";

/// Numbers of nodes and of absent records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AbsentSize {
    pub(crate) live: usize,
    pub(crate) absent: usize,
}

pub(crate) async fn measure(AbsentSize { live, absent }: AbsentSize, report: &mut Report) {
    let other = std::env::var("PERENNIAL_ABSENT").ok();
    let absent = other.map_or(absent, |text| text.parse().expect("PERENNIAL_ABSENT is a number"));
    report.part(&format!("Growth: {live} nodes, and {absent} records of nodes that do not return"));
    let cluster = TestCluster::new().await;
    let fleet = Fleet::of(&cluster);
    each(0..live, 32, |number| fleet.create_labelled(number)).count().await;
    let (operator, _) = wait_until_ready(cluster.operator()).await;
    wait_for_records(&cluster, live).await;
    operator.stop().await;
    progress(&format!("  {absent} absent records …"));
    let records = AbsentRecords::like_the_first(&cluster).await;
    each(0..absent, 64, |number| records.create(number)).count().await;

    let since = Instant::now();
    let builder = cluster.operator().set("controller.auditPeriod", "1m").set("logging.level", "debug");
    let (operator, ready) = wait_until_ready(builder).await;
    let audit = first_audit(&operator, since).await;
    let back = records.first_returns(&cluster).await;
    let memory = Usage::of(operator.pid()).peak_mebibytes();
    operator.stop().await;

    let (ready, audit) = (ready.as_secs_f64(), audit.as_secs_f64());
    report.table(
        &["nodes", "absent records", "start to ready", "audit", "one returns, labels back", "peak memory"],
        &[vec![
            live.to_string(),
            absent.to_string(),
            format!("{ready:.1} s"),
            format!("{audit:.1} s"),
            format!("{:.2} s", back.as_secs_f64()),
            format!("{memory:.1} MiB"),
        ]],
    );
    report.raw(
        "growth/absent",
        json!({
            "nodes": live, "absent": absent, "readySeconds": ready, "auditSeconds": audit,
            "returnSeconds": back.as_secs_f64(), "peakMebibytes": memory,
        }),
    );
    if absent >= 999_000 {
        let text = "1,000,000 records, 1,000 of them of live nodes";
        report.goal(
            &format!("peak memory, {text}"),
            &format!("{memory:.1} MiB"),
            Goal::at_most(memory, 96.0, "96 MiB"),
        );
        report.goal(&format!("audit, {text}"), &format!("{audit:.0} s"), Goal::at_most(audit, 600.0, "10 minutes"));
        report.goal(&format!("start to ready, {text}"), &format!("{ready:.1} s"), Goal::at_most(ready, 30.0, "30 s"));
    }
}

/// Returns the duration of the lists of the first audit.
async fn first_audit(operator: &Operator, since: Instant) -> Duration {
    eventually_within(Duration::from_hours(1), "the first audit has ended", async || {
        let audits = operator.log().iter().filter(|line| line["message"] == AUDITED).count();
        if audits > 0 { Ok(()) } else { Err("it has not") }
    })
    .await;
    since.elapsed().saturating_sub(FIRST_AUDIT)
}

/// Records of nodes that do not exist, in the form that the operator has written.
struct AbsentRecords {
    api: Api<ConfigMap>,
    record: Record,
}

impl AbsentRecords {
    /// Copies the form of the record of the first node.
    async fn like_the_first(cluster: &TestCluster) -> Self {
        let api: Api<ConfigMap> = Api::namespaced(cluster.client(), cluster.namespace());
        let first = api.get(&format!("node-{}", name(0))).await.expect("reading a record");
        let text = first.data.unwrap_or_default().remove(RECORD_KEY).expect("a record");
        Self { api, record: Record::decode(&text).expect("a valid record") }
    }

    fn node(number: usize) -> String {
        format!("ip-10-{}-{}-{}.eu-west-1.compute.internal", number / 65_536, number / 256 % 256, number % 256)
    }

    async fn create(&self, number: usize) {
        let mut record = self.record.clone();
        record.node.name = Self::node(number);
        record.node.uid = format!("gone-{number}");
        let annotations = [
            (NODE_ANNOTATION.to_owned(), record.node.name.clone()),
            (ABSENT_SINCE.to_owned(), record.captured_at.to_string()),
        ];
        let config_map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(record.name().0),
                labels: Some([(RECORD_LABEL.to_owned(), RECORD_LABEL_VALUE.to_owned())].into()),
                annotations: Some(annotations.into()),
                ..ObjectMeta::default()
            },
            data: Some([(RECORD_KEY.to_owned(), record.encode().expect("a small record"))].into()),
            ..ConfigMap::default()
        };
        self.api.create(&PostParams::default(), &config_map).await.expect("creating a record");
    }

    /// Creates a node of the first record. Returns the time until its labels are back.
    async fn first_returns(&self, cluster: &TestCluster) -> Duration {
        let since = Instant::now();
        cluster.node(&Self::node(0)).create().await;
        let wanted = self.record.labels();
        eventually_within(Duration::from_mins(5), "the labels of an absent node are back", async || {
            let found = cluster.labels(&Self::node(0)).await;
            if wanted.keys().all(|key| found.contains_key(key)) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
        since.elapsed()
    }
}
