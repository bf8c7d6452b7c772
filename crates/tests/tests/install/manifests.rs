//! Plain manifests and the kustomize base on a real API server that enforces PodSecurity
//! `restricted`.

use perennial_harness::{TestCluster, eventually, perennial};
use serde_json::Value;

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");

#[tokio::test]
async fn the_kustomize_base_is_what_the_program_prints_and_its_pods_are_admitted() {
    let cluster = TestCluster::without_kubelets().await;
    let printed = perennial(["manifests"], &[]).expect_success();

    // In two steps, because the namespace must exist first.
    cluster.kubectl(&format!("apply --server-side --validate=strict -k {DEPLOY}"));
    cluster.try_kubectl_with("apply --server-side --validate=strict", &printed).expect_success();

    eventually("the pods are there: nothing of them offends `restricted`", async || {
        let pods = cluster.kubectl("get pods -n perennial-system -o name");
        if pods.lines().count() == 2 { Ok(()) } else { Err(pods) }
    })
    .await;
    let generation = cluster.kubectl("get deployment perennial -n perennial-system -o jsonpath={.metadata.generation}");
    assert_eq!(generation, "1", "the second changed what the first had made");
}

#[tokio::test]
async fn deleting_the_manifests_keeps_the_records() {
    let cluster = TestCluster::without_kubelets().await;
    // In two steps, because the namespace must exist first.
    cluster.kubectl(&format!("apply --server-side --validate=strict -k {DEPLOY}"));
    cluster.kubectl("create configmap node-n1 -n perennial-system --from-literal=record.json={}");
    eventually("the policy is in force", async || {
        let tried = cluster.try_kubectl("delete namespace perennial-system --dry-run=server");
        if tried.stderr.contains("perennial.dev/delete-records") { Ok(()) } else { Err(tried.stderr) }
    })
    .await;

    let deleted = cluster.try_kubectl(&format!("delete -k {DEPLOY} --wait=false"));

    assert!(deleted.stderr.contains("kubectl annotate namespace"), "{}", deleted.stderr);
    // The policy is deleted as well, so that the next attempt succeeds. The message states that.
    assert!(deleted.stderr.contains("the next attempt is not refused"), "{}", deleted.stderr);
    assert!(deleted.stderr.contains("perennial export"), "{}", deleted.stderr);
    let phase = cluster.kubectl("get namespace perennial-system -o jsonpath={.status.phase}");
    assert_eq!(phase, "Active");
    cluster.kubectl("get configmap node-n1 -n perennial-system");
    for kind in
        ["mutatingwebhookconfiguration", "validatingwebhookconfiguration", "validatingadmissionpolicy", "clusterrole"]
    {
        let left = cluster.kubectl(&format!("get {kind} -o name"));
        assert!(!left.contains("/perennial"), "{left}");
    }
    // The requested deletion.
    cluster.kubectl("annotate namespace perennial-system perennial.dev/delete-records=true");
    cluster.kubectl("delete namespace perennial-system --wait=false");
}

/// The overlay of docs/explain/security.md: no number of deletes removes the records.
#[tokio::test]
async fn an_overlay_without_the_namespace_never_deletes_the_records() {
    let cluster = TestCluster::without_kubelets().await;
    let page = std::fs::read_to_string(format!("{DEPLOY}/../docs/explain/security.md")).unwrap();
    let overlay = page.split("\n```").find(|block| block.contains("$patch: delete")).unwrap();
    let folder = cluster.plane().dir().join("overlay");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("kustomization.yaml"), overlay.trim_start_matches("yaml\n")).unwrap();
    let folder = folder.display();
    cluster.shell(&format!("ln -s {DEPLOY} {folder}/../deploy")).expect_success();
    cluster.kubectl("create namespace perennial-system");
    cluster.kubectl(&format!("apply --server-side --validate=strict -k {folder}"));
    cluster.kubectl("create configmap node-n1 -n perennial-system --from-literal=record.json={}");

    for _ in 0..3 {
        cluster.kubectl(&format!("delete -k {folder} --ignore-not-found --wait=false"));
    }

    let phase = cluster.kubectl("get namespace perennial-system -o jsonpath={.status.phase}");
    assert_eq!(phase, "Active");
    cluster.kubectl("get configmap node-n1 -n perennial-system");
    assert_eq!(cluster.kubectl("get deployments -n perennial-system -o name"), "");
}

#[tokio::test]
async fn the_manifests_are_applied_as_described() {
    let cluster = TestCluster::without_kubelets().await;
    let page = std::fs::read_to_string(format!("{DEPLOY}/../docs/start/README.md")).unwrap();
    let block = page.split("\n```").find(|block| block.contains("-k deploy\n")).unwrap();
    let prepared =
        format!("set -eo pipefail; cd $FOLDER; ln -s {DEPLOY} deploy; echo 'keeper: {{history: 7}}' > my.yaml");

    cluster.shell(&format!("{prepared}\nunset PERENNIAL_NAMESPACE\n{block}")).expect_success();

    let image = "{.spec.template.spec.containers[0].image}";
    let image = cluster.kubectl(&format!("get deployment perennial -n perennial-system -o jsonpath={image}"));
    assert_eq!(image, format!("registry.example.com/perennial:{}", env!("CARGO_PKG_VERSION")));
    let config = cluster.kubectl("get configmap perennial-config -n perennial-system -o jsonpath={.data}");
    assert!(config.contains("history: 7"), "{config}");
}

/// The image of `make image` is in no registry, which manifests with it must mention.
#[test]
fn manifests_without_an_image_come_with_a_note() {
    let note = "no registry has the image perennial:";
    for (words, noted) in [
        (&["manifests"][..], true),
        (&["manifests", "workload"], true),
        (&["manifests", "permissions"], false),
        (&["manifests", "--image", "registry.example.com/perennial:1"], false),
    ] {
        let printed = perennial(words.iter().copied(), &[]);
        assert_eq!(printed.stderr.contains(note), noted, "{words:?}: {}", printed.stderr);
        assert!(!printed.expect_success().contains(note), "{words:?}");
    }
    for file in ["workload.yaml", "kustomization.yaml"] {
        let text = std::fs::read_to_string(format!("{DEPLOY}/{file}")).unwrap();
        assert!(text.contains("NO REGISTRY HAS THE IMAGE"), "{file}");
    }
}

#[test]
fn disabled_features_have_no_permissions_and_no_ports() {
    // The admission policies restrict features that are off as well.
    let printed =
        |part: &str, set: &[&str]| perennial(["manifests", part].into_iter().chain(set.to_vec()), &[]).expect_success();
    let both = |set: &[&str]| printed("permissions", set) + &printed("workload", set);
    let all = both(&[]);
    let keeper = both(&["--set", "webhook.enabled=false", "--set", "placement.enabled=false"]);

    for word in ["evict", "secrets", "containerPort: 9443", "replicasets"] {
        assert!(all.contains(word), "{word} is not in what is installed by default");
        assert!(!keeper.contains(word), "{word} is in what the keeper alone needs");
    }
    assert!(keeper.contains("enabled: false"), "the config does not say so");
}

/// Collects every rule in a document.
fn rules(value: &Value, found: &mut Vec<Value>) {
    match value {
        Value::Object(map) if map.contains_key("verbs") => found.push(value.clone()),
        Value::Object(map) => map.values().for_each(|value| rules(value, found)),
        Value::Array(items) => items.iter().for_each(|value| rules(value, found)),
        _ => {}
    }
}

/// For every installable document, including those for the uninstall.
#[test]
fn no_rule_is_wider_than_it_has_to_be() {
    let printed = perennial(["manifests", "permissions", "--set", "records.hmac=require"], &[]).expect_success();
    let chart = std::fs::read_to_string(format!("{DEPLOY}/../charts/perennial/files/permissions.yaml")).unwrap();
    let mut all = Vec::new();
    for text in printed.split("\n---\n").chain([chart.as_str()]) {
        rules(&serde_saphyr::from_str(text).unwrap(), &mut all);
    }

    assert!(all.len() > 30, "only {} rules were found", all.len());
    for rule in all {
        let has = |what: &str, word: &str| rule[what].as_array().unwrap().iter().any(|item| item == word);
        for what in ["apiGroups", "resources", "verbs"] {
            assert!(!has(what, "*"), "a wildcard: {rule}");
        }
        for verb in ["escalate", "bind", "impersonate"] {
            assert!(!has("verbs", verb), "{rule}");
        }
        for resource in ["nodes/proxy", "nodes/status", "serviceaccounts", "serviceaccounts/token", "pods/exec"] {
            assert!(!has("resources", resource), "{rule}");
        }
        // `create` cannot be restricted by name.
        let named = rule["resourceNames"].as_array().is_some_and(|names| !names.is_empty());
        let only_creates = rule["verbs"] == serde_json::json!(["create"]);
        assert!(!has("resources", "secrets") || named || only_creates, "any Secret: {rule}");
    }
}

#[test]
fn a_wrong_setting_is_refused() {
    let message = perennial(["manifests", "--set", "webhook.timout=3s"], &[]).expect_failure();

    assert!(message.contains("webhook.timeout"), "{message}");
}
