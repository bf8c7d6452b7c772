//! Generated files in the repository, written by `make manifests`.

use std::{collections::BTreeMap, fs, path::Path};

use perennial_core::config::{Settings, schema};
use serde_json::{Value, json};

use super::{Features, Install, Permissions, policies, uninstall, yaml};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const MADE: &str = "# Made by `make manifests` from crates/operator/src/manifests: change it there.\n";
const PERMISSIONS: &str = "\
# What Perennial needs in a cluster, and nothing more. Its account may
#   - read all nodes and patch them (it never writes a whole node);
#   - in its own namespace: keep records (ConfigMaps), hold Leases, keep the certificate of its webhooks (a Secret);
#   - read KeepPolicies, where there are any, and write their status;
#   - keep the two webhook configurations named `perennial` right;
#   - for placement: read Deployments, StatefulSets, ReplicaSets, PodDisruptionBudgets and namespaces; read, patch, evict and
#     delete pods; patch Deployments and StatefulSets (one annotation);
#   - write Events about nodes and workloads.
# `make demo` and `make up` run the operator with exactly these permissions.
";
const POLICIES: &str = "\
# What RBAC cannot say (docs/security.md). For Kubernetes 1.30 and newer.
#   - Records and the configuration are written by Perennial, by cluster admins, and by those whom RBAC lets create, update
#     or delete `records.perennial.dev` (`configs.perennial.dev`) in Perennial's namespace.
#   - Perennial's account changes labels, annotations, taints and the cordon of nodes, and nothing else about them. Nobody
#     else's requests about nodes are looked at.
";
/// Placeholders that the chart replaces with names of the release.
const NAMESPACE: &str = "PERENNIAL-NAMESPACE";
const ACCOUNT: &str = "PERENNIAL-ACCOUNT";

/// Permissions by feature, from which the chart chooses.
fn by_feature() -> Value {
    json!({
        "keeper": Permissions::keeper(),
        "webhooks": Permissions::webhooks(),
        "noWebhooks": Permissions::no_webhooks(),
        "certificates": Permissions::certificates(),
        "placement": Permissions::placement(),
        "noPlacement": Permissions::no_placement(),
        "signatures": Permissions::signatures(),
        "uninstall": uninstall(),
        "recordWriters": policies::writer_rules(),
    })
}

/// Schema of the chart's values, including that of the config file.
fn values_schema() -> String {
    let outline = fs::read_to_string(format!("{ROOT}/charts/perennial/schema/values.json")).unwrap();
    let mut outline: Value = serde_json::from_str(&outline).unwrap();
    let mut config = schema();
    // Set by the chart itself: its ports, and the namespace of the release.
    let properties = config["properties"].as_object_mut().unwrap();
    properties.remove("namespace");
    outline["properties"]["config"] = config;
    serde_json::to_string_pretty(&outline).unwrap() + "\n"
}

fn made() -> BTreeMap<&'static str, String> {
    let install = Install::new(&Settings::default());
    let copy = |path: &str| fs::read_to_string(format!("{ROOT}/{path}")).unwrap();
    BTreeMap::from([
        ("deploy/permissions.yaml", format!("{MADE}#\n{PERMISSIONS}{}", yaml(&install.permissions()).unwrap())),
        ("deploy/crds.yaml", format!("{MADE}{}", yaml(&Install::crds()).unwrap())),
        ("deploy/policies.yaml", format!("{MADE}#\n{POLICIES}{}", yaml(&install.policies()).unwrap())),
        ("deploy/workload.yaml", format!("{MADE}{}", yaml(&install.workload()).unwrap())),
        ("charts/perennial/files/crds.yaml", format!("{MADE}{}", yaml(&Install::crds()).unwrap())),
        ("charts/perennial/files/permissions.yaml", format!("{MADE}{}", yaml(&[by_feature()]).unwrap())),
        ("charts/perennial/files/policies.yaml", {
            format!("{MADE}{}", yaml(&policies::policies(NAMESPACE, ACCOUNT)).unwrap())
        }),
        ("charts/perennial/values.schema.json", values_schema()),
        ("charts/perennial/files/alerts.yaml", copy("monitoring/alerts.yaml")),
        ("charts/perennial/files/dashboard.json", copy("monitoring/dashboard.json")),
    ])
}

/// `UPDATE_MANIFESTS=1 cargo test -p perennial --lib manifests` writes the files.
#[test]
fn the_committed_files_are_those_that_are_made() {
    for (path, text) in made() {
        let file = Path::new(ROOT).join(path);
        if std::env::var_os("UPDATE_MANIFESTS").is_some() {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, &text).unwrap();
        } else {
            let committed = fs::read_to_string(&file).unwrap_or_default();
            assert_eq!(committed, text, "{path} is out of date, run: make manifests");
        }
    }
}

#[test]
fn the_parts_of_the_chart_are_all_permissions_together() {
    let all = Permissions::of(Features::ALL);
    let parts = by_feature();
    for scope in ["cluster", "namespaced"] {
        let together: Vec<Value> = ["keeper", "webhooks", "certificates", "placement", "signatures"]
            .iter()
            .flat_map(|part| parts[part][scope].as_array().unwrap().clone())
            .collect();
        assert_eq!(json!(together), json!(all)[scope]);
    }
}
