//! Argo CD and Flux: with the documented ignore rules, the rendered chart and the live objects do
//! not differ, and a sync does not empty the webhook configurations.
//!
//! Neither tool runs here. Both ask the API server what an apply would change and compare the answer
//! with the live object, which is what this test does.

use perennial_harness::{Helm, chart, eventually};
use serde_json::Value;

use crate::lifecycle::{NAMESPACE, Stage};

/// Returns the YAML block of the page that has this kind.
fn documented(kind: &str) -> Value {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/gitops.md");
    let text = std::fs::read_to_string(page).unwrap();
    let mut blocks = text.split("\n```").skip(1).step_by(2).map(|block| block.trim_start_matches("yaml\n"));
    let block = blocks.find(|block| block.contains(&format!("\nkind: {kind}\n")));
    serde_saphyr::from_str(block.unwrap_or_else(|| panic!("no {kind}"))).unwrap()
}

/// JSON pointers to ignore on the objects with a group, a name and possibly a kind.
struct Ignore {
    group: String,
    name: String,
    kind: Option<String>,
    pointers: Vec<String>,
}

impl Ignore {
    fn new(target: &Value, pointers: &Value) -> Self {
        let text = |key: &str| target[key].as_str().map(str::to_owned);
        let pointers = pointers.as_array().unwrap().iter().map(|pointer| pointer.as_str().unwrap().to_owned());
        Self {
            group: text("group").unwrap(),
            name: text("name").unwrap(),
            kind: text("kind"),
            pointers: pointers.collect(),
        }
    }

    fn applies_to(&self, object: &Value) -> bool {
        let group = object["apiVersion"].as_str().and_then(|version| version.split_once('/')).map_or("", |it| it.0);
        let kind = self.kind.as_deref().is_none_or(|kind| object["kind"] == kind);
        group == self.group && object["metadata"]["name"] == self.name[..] && kind
    }
}

fn rules_of_argo() -> Vec<Ignore> {
    let application = documented("Application");
    let rules = application["spec"]["ignoreDifferences"].as_array().unwrap();
    rules.iter().map(|rule| Ignore::new(rule, &rule["jsonPointers"])).collect()
}

fn rules_of_flux() -> Vec<Ignore> {
    let release = documented("HelmRelease");
    let rules = release["spec"]["driftDetection"]["ignore"].as_array().unwrap();
    rules.iter().map(|rule| Ignore::new(&rule["target"], &rule["paths"])).collect()
}

fn remove(object: &mut Value, pointer: &str) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    if let Some(parent) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
        parent.remove(key);
    }
}

/// Returns the objects that kubectl printed without what both tools leave out, and without what the
/// rules name.
fn comparable(printed: &str, rules: &[Ignore]) -> Vec<Value> {
    // A List, or one object after the other.
    let printed = serde_json::Deserializer::from_str(printed).into_iter::<Value>();
    let objects = printed.flat_map(|object| {
        let object = object.unwrap();
        object["items"].as_array().cloned().unwrap_or_else(|| vec![object])
    });
    let cleaned = objects.map(|mut object| {
        for pointer in ["/status", "/metadata/managedFields", "/metadata/resourceVersion", "/metadata/generation"] {
            remove(&mut object, pointer);
        }
        let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
        let emptied = annotations.is_some_and(|annotations| {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
            annotations.is_empty()
        });
        if emptied {
            remove(&mut object, "/metadata/annotations");
        }
        for rule in rules.iter().filter(|rule| rule.applies_to(&object)).collect::<Vec<_>>() {
            rule.pointers.iter().for_each(|pointer| remove(&mut object, pointer));
        }
        object
    });
    cleaned.collect()
}

/// Returns the rendered objects that are not hooks, as one file.
fn without_hooks(rendered: &str) -> String {
    let objects = rendered.trim_start_matches("---\n").split("\n---\n");
    objects.filter(|object| !object.contains("helm.sh/hook:")).collect::<Vec<_>>().join("\n---\n")
}

fn webhooks(stage: &Stage) -> Vec<usize> {
    let count = |kind: &str| {
        let text = stage.cluster.kubectl(&format!("get {kind} perennial -o jsonpath={{.webhooks[*].name}}"));
        text.split_whitespace().count()
    };
    ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"].map(count).to_vec()
}

async fn filled(stage: &Stage) -> Vec<usize> {
    eventually("the operator has filled the webhook configurations", async || {
        let seen = webhooks(stage);
        if seen.iter().all(|count| *count > 0) { Ok(seen) } else { Err(format!("{seen:?}")) }
    })
    .await
}

/// Compares what an apply would leave with what is there, object by object.
fn assert_no_drift(stage: &Stage, file: &str, apply: &str, rules: &[Ignore]) {
    let live = stage.cluster.kubectl(&format!("get -n {NAMESPACE} -f {file} -o json"));
    let predicted = stage.cluster.kubectl(&format!("{apply} --dry-run=server -n {NAMESPACE} -f {file} -o json"));
    let (live, predicted) = (comparable(&live, rules), comparable(&predicted, rules));
    assert_eq!(live.len(), predicted.len());
    assert!(live.len() > 10, "{}", live.len());
    for (live, predicted) in live.iter().zip(&predicted) {
        assert_eq!(predicted, live, "{apply}: {} {}", live["kind"], live["metadata"]["name"]);
    }
}

const VALUES: [&str; 3] = ["replicas=1", r#"check={"enabled":false}"#, r#"uninstall={"enabled":false}"#];

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn argo_cd_finds_no_drift_with_the_documented_rules() {
    let stage = Stage::new(Helm::V4).await;
    let rendered = without_hooks(&Helm::V4.template(&VALUES).expect_success());
    let file = stage.cluster.plane().dir().join("argo.yaml");
    std::fs::write(&file, &rendered).unwrap();
    let file = file.display().to_string();
    let apply = "apply --server-side --force-conflicts --field-manager=argocd-controller";
    let sync = || stage.cluster.kubectl(&format!("{apply} -n {NAMESPACE} -f {file}"));
    sync();
    let before = filled(&stage).await;
    let rules = rules_of_argo();

    // `ServerSideApply=true`, as documented, and the three-way merge of a client.
    assert_no_drift(&stage, &file, apply, &rules);
    assert_no_drift(&stage, &file, "apply", &rules);
    // The rules name what a replacement would revert, and nothing is missing in them.
    let object = |rendered: &str| rendered.contains("WebhookConfiguration\n");
    let only: Vec<&str> = rendered.split("\n---\n").filter(|text| object(text)).collect();
    assert_eq!(only.len(), 2);
    let replaced = stage.cluster.try_kubectl_with("replace --dry-run=server -o json", &only.join("\n---\n"));
    let (replaced, live) = (
        replaced.expect_success(),
        stage
            .cluster
            .kubectl("get mutatingwebhookconfiguration/perennial validatingwebhookconfiguration/perennial -o json"),
    );
    assert_eq!(comparable(&replaced, &rules), comparable(&live, &rules));
    assert_ne!(comparable(&replaced, &[]), comparable(&live, &[]));

    // A sync leaves the webhooks, and Perennial works.
    sync();
    assert_eq!(webhooks(&stage), before);
    stage.cluster.node("n1").create().await;
    stage.a_label_survives("n1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn flux_finds_no_drift_with_the_documented_rules() {
    let stage = Stage::new(Helm::V4).await;
    stage.expect(&["install", "perennial", &chart().display().to_string()], &["--wait"]).await;
    let before = filled(&stage).await;
    let release = Helm::V4.on(&stage.cluster, &["get", "manifest", "perennial", "-n", NAMESPACE]).await;
    let file = stage.cluster.plane().dir().join("flux.yaml");
    std::fs::write(&file, release.expect_success()).unwrap();
    let file = file.display().to_string();
    let apply = "apply --server-side --force-conflicts --field-manager=helm-controller";

    assert_no_drift(&stage, &file, apply, &rules_of_flux());

    // The correction of a drift elsewhere leaves the webhooks.
    stage.cluster.kubectl(&format!("scale deployment perennial -n {NAMESPACE} --replicas=0"));
    stage.cluster.kubectl(&format!("{apply} -n {NAMESPACE} -f {file}"));
    let replicas = format!("get deployment perennial -n {NAMESPACE} -o jsonpath={{.spec.replicas}}");
    assert_eq!(stage.cluster.kubectl(&replicas), "1");
    assert_eq!(webhooks(&stage), before);
}
