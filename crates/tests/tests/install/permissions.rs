//! The deployed permissions are sufficient and minimal: the requests of an operator in the API
//! server's audit log are compared with its granted permissions. Removing any rule would break
//! something that this test does.

use std::collections::BTreeSet;

use perennial_harness::{ApiRequest, Operator, OperatorBuilder, TestCluster, Webhooks, eventually, verbs};
use rstest::rstest;
use serde_json::{Value, json};

const ACCOUNT: &str = "perennial";

/// A verb on a resource: group, resource, verb.
type Permission = (String, String, String);

/// Objects of Perennial whose names never change.
const OWN_OBJECTS: [&str; 4] = ["perennial", "perennial-config", "perennial-webhook-certs", "perennial-record-keys"];

/// Permissions of the roles.
struct Granted {
    all: BTreeSet<Permission>,
    /// Those for objects of any name.
    unnamed: BTreeSet<Permission>,
    /// Those for one object, with its name.
    named: BTreeSet<(Permission, String)>,
}

impl Granted {
    /// Returns the permissions that no request used.
    fn unused(&self, asked: &[ApiRequest]) -> Vec<Permission> {
        self.all.difference(&verbs(asked)).filter(|granted| !is_for_laggards(granted)).cloned().collect()
    }

    /// Returns the names of `resourceNames` that no request used: the rule is wider than it has to be.
    fn unused_names(&self, asked: &[ApiRequest]) -> Vec<(Permission, String)> {
        let is_used = |((group, resource, verb), name): &&(Permission, String)| {
            asked.iter().any(|one| {
                (&one.group, &one.resource, &one.verb) == (group, resource, verb) && one.name.as_ref() == Some(name)
            })
        };
        self.named.iter().filter(|granted| !is_used(granted)).cloned().collect()
    }

    /// Returns the permissions for objects of any name that were used for one of Perennial's own
    /// objects only: a `resourceNames` is missing.
    fn without_name(&self, asked: &[ApiRequest]) -> Vec<Permission> {
        let names = |(group, resource, verb): &Permission| -> BTreeSet<Option<String>> {
            let same = asked.iter().filter(|one| (&one.group, &one.resource, &one.verb) == (group, resource, verb));
            same.map(|one| one.name.clone()).collect()
        };
        let is_one_of_ours = |names: BTreeSet<Option<String>>| {
            let only = names.into_iter().collect::<Vec<_>>();
            matches!(&only[..], [Some(name)] if OWN_OBJECTS.contains(&name.as_str()))
        };
        // `create` cannot be restricted to a name.
        let restrictable = self.unnamed.iter().filter(|(_, _, verb)| verb != "create");
        restrictable.filter(|granted| is_one_of_ours(names(granted))).cloned().collect()
    }
}

/// Applies the output of `perennial manifests` for these features. Returns the granted verbs.
fn install(cluster: &TestCluster, webhooks: bool, placement: bool) -> Granted {
    install_set(cluster, &format!("--set webhook.enabled={webhooks} --set placement.enabled={placement}"))
}

/// Applies it for any settings.
fn install_set(cluster: &TestCluster, set: &str) -> Granted {
    let permissions = cluster.perennial(&format!("manifests permissions {set}")).expect_success();
    cluster.try_kubectl_with("apply --server-side --validate=strict", &permissions).expect_success();
    let crds = cluster.perennial("manifests crds").expect_success();
    cluster.try_kubectl_with("apply --server-side --validate=strict", &crds).expect_success();

    let objects = permissions.split("\n---\n").map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    let rules: Vec<Value> =
        objects.flat_map(|object| object["rules"].as_array().cloned().unwrap_or_default()).collect();
    let texts = |rule: &Value, what: &str| -> Vec<String> {
        rule[what].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let mut granted = Granted { all: BTreeSet::new(), unnamed: BTreeSet::new(), named: BTreeSet::new() };
    for rule in &rules {
        for resource in texts(rule, "resources") {
            for verb in texts(rule, "verbs") {
                let permission = (texts(rule, "apiGroups")[0].clone(), resource.clone(), verb);
                if rule["resourceNames"].is_null() {
                    granted.unnamed.insert(permission.clone());
                } else {
                    let names = texts(rule, "resourceNames");
                    granted.named.extend(names.into_iter().map(|name| (permission.clone(), name)));
                }
                granted.all.insert(permission);
            }
        }
    }
    granted
}

fn operator(cluster: &TestCluster, webhooks: bool, placement: bool) -> OperatorBuilder {
    cluster
        .operator_in_cluster(ACCOUNT)
        .webhooks(if webhooks { Webhooks::On } else { Webhooks::Off })
        .set("placement.enabled", &placement.to_string())
        .set("placement.cooldown", "1s")
        .set("placement.gateTimeout", "5s")
        .set("controller.auditPeriod", "5s")
        .set("controller.resyncPeriod", "5s")
        .set("keeper.retention", "15s")
}

/// Changes of nodes: labelled, deleted, created again, gone for good; and a policy.
async fn churn(cluster: &TestCluster) {
    let names: Vec<String> = (0..8).map(|number| format!("kept-{number}")).collect();
    for name in &names {
        cluster.node(name).label("team", "ml").create().await;
    }
    for name in &names {
        cluster.wait_for_record(name, [("team", "ml")]).await;
    }
    cluster.kubectl("label node kept-0 rack=r7");
    cluster.wait_for_record("kept-0", [("team", "ml"), ("rack", "r7")]).await;
    cluster.delete_node("kept-0").await;
    cluster.node("kept-0").label("own", "1").create().await;
    cluster.wait_for_labels("kept-0", [("team", "ml"), ("rack", "r7"), ("own", "1")]).await;

    // Its record is collected after the retention.
    cluster.delete_node("kept-1").await;
    eventually("the absence is noted", async || {
        let object = cluster.config_map("kept-1").await.ok_or("no record")?;
        let noted = object.metadata.annotations.unwrap_or_default().contains_key("perennial.dev/absent-since");
        if noted { Ok(()) } else { Err("not yet") }
    })
    .await;
    eventually("the record is collected", async || match cluster.config_map("kept-1").await {
        None => Ok(()),
        Some(_) => Err("it is there"),
    })
    .await;

    let policy = "apiVersion: perennial.dev/v1alpha1\nkind: KeepPolicy\nmetadata: {name: all}\nspec: {keep: ['*']}\n";
    cluster.try_kubectl_with("apply", policy).expect_success();
    eventually("the policy is in force", async || {
        let status = cluster.kubectl("get keeppolicy all -o jsonpath={.status.conditions[0].status}");
        if status == "True" { Ok(()) } else { Err(status) }
    })
    .await;
}

/// Changes of workloads: placed, rebalanced, fallen back.
async fn place(cluster: &TestCluster) {
    cluster.capacity("spot", 1, 6).await;
    cluster.capacity("on-demand", 1, 40).await;
    cluster.deployment("web").replicas(4).annotate("spot-percentage", "50").create().await;
    cluster.wait_for_split("web", 2, 2).await;
    let db = cluster
        .stateful_set("db")
        .replicas(4)
        .annotate("spot-percentage", "50")
        .annotate("move-statefulset-pods", "true");
    db.create().await;
    cluster.wait_for_split("db", 2, 2).await;
    // Fewer spot replicas than there are: some are evicted.
    cluster.annotate_deployment("web", "spot-percentage", "25").await;
    cluster.wait_for_split("web", 1, 3).await;
    cluster.kubectl("annotate statefulset db --overwrite perennial.dev/spot-percentage=25");
    cluster.wait_for_split("db", 1, 3).await;
    // So are pods of a bare ReplicaSet.
    let bare = cluster.deployment("bare").replicas(2).annotate("spot-percentage", "50");
    let bare = bare.with(|object| object["kind"] = json!("ReplicaSet"));
    cluster.try_kubectl_with("create", &bare.text()).expect_success();
    cluster.wait_for_split("bare", 1, 1).await;
    cluster.kubectl("annotate replicaset bare --overwrite perennial.dev/spot-percentage=0");
    cluster.wait_for_split("bare", 0, 2).await;
    // The volume of a pod is on spot only.
    cluster.volume("kept-0", Some(("karpenter.sh/capacity-type", "spot")));
    cluster.stateful_set("kept").annotate("spot-percentage", "0").claims().create().await;
    cluster.wait_for_split("kept", 1, 0).await;
    // More replicas than room: the rest falls back.
    let short =
        cluster.deployment("short").replicas(8).annotate("spot-percentage", "100").annotate("fallback-after", "1s");
    short.create().await;
    eventually("replicas that found no spot run on-demand", async || {
        let placed = cluster.pod_counts("short").await;
        if placed.on_demand >= 1 { Ok(()) } else { Err(placed.to_string()) }
    })
    .await;
}

/// Pods whose owners the watches have not delivered yet: the webhook reads them from the API
/// server.
fn strangers(cluster: &TestCluster) {
    let set = "apiVersion: apps/v1
kind: ReplicaSet
metadata:
  name: stranger
  finalizers: [example.com/stay]
  ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: unknown, controller: true}]
spec:
  replicas: 0
  selector: {matchLabels: {app: stranger}}
  template: {metadata: {labels: {app: stranger}}, spec: {containers: [{name: main, image: none}]}}
";
    cluster.try_kubectl_with("create", set).expect_success();
    let uid = cluster.kubectl("get replicaset stranger -o jsonpath={.metadata.uid}");
    let owners =
        [("ReplicaSet", "nobody", "unknown"), ("StatefulSet", "db", "unknown"), ("ReplicaSet", "stranger", &uid)];
    for (kind, name, uid) in owners {
        let pod = format!(
            "apiVersion: v1
kind: Pod
metadata:
  generateName: stranger-
  ownerReferences: [{{apiVersion: apps/v1, kind: {kind}, name: {name}, uid: {uid}, controller: true}}]
spec: {{containers: [{{name: main, image: none}}]}}
"
        );
        cluster.try_kubectl_with("create --dry-run=server", &pod).expect_success();
    }
}

/// Cannot be provoked in a test: the watch of namespaces is behind when the first pod in one is
/// created.
fn is_for_laggards((group, resource, verb): &(String, String, String)) -> bool {
    (group.as_str(), resource.as_str(), verb.as_str()) == ("", "namespaces", "get")
}

fn refused(cluster: &TestCluster) -> Vec<String> {
    let asked = cluster.requests_by(&user(cluster)).into_iter().filter(|asked| asked.code == 403);
    asked.map(|asked| format!("{asked:?}")).collect()
}

fn user(cluster: &TestCluster) -> String {
    format!("system:serviceaccount:{}:{ACCOUNT}", cluster.namespace())
}

async fn stop(operator: Operator) {
    assert!(operator.stop().await.is_some_and(|status| status.success()), "the operator did not stop");
}

#[rstest]
#[case::keeper_alone(false, false)]
#[case::with_webhooks(true, false)]
#[case::with_placement(true, true)]
#[tokio::test]
async fn an_operator_uses_every_permission_and_needs_no_other(#[case] webhooks: bool, #[case] placement: bool) {
    let cluster = TestCluster::with_audit_log(placement).await;
    let granted = install(&cluster, webhooks, placement);
    let of_pods = granted.all.iter().filter(|(_, resource, _)| resource.starts_with("pods"));
    assert_eq!(of_pods.count() > 0, placement, "permissions for pods exist only with placement");

    let running = operator(&cluster, webhooks, placement).start().await;
    churn(&cluster).await;
    if webhooks {
        // A webhook configuration that was changed is repaired.
        for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
            cluster.kubectl(&format!("patch {kind} perennial --type=merge -p {{\"webhooks\":null}}"));
            eventually("the webhook configuration is right again", async || {
                let seen = cluster.kubectl(&format!("get {kind} perennial -o jsonpath={{.webhooks[*].name}}"));
                if seen.contains("perennial.dev") { Ok(()) } else { Err(seen) }
            })
            .await;
        }
    }
    if placement {
        place(&cluster).await;
        strangers(&cluster);
    }
    stop(running).await;
    if webhooks {
        // After webhooks are turned off they are removed, and labels are restored by watch.
        install(&cluster, false, placement);
        let running = operator(&cluster, false, placement).start().await;
        cluster.delete_node("kept-2").await;
        cluster.node("kept-2").create().await;
        cluster.wait_for_labels("kept-2", [("team", "ml")]).await;
        cluster.wait_for_event("kept-2", "Restored").await;
        stop(running).await;
        let left = cluster.kubectl("get mutatingwebhookconfiguration,validatingwebhookconfiguration -o name");
        assert_eq!(left, "");
    }

    assert_eq!(refused(&cluster), Vec::<String>::new());
    let asked = cluster.requests_by(&user(&cluster));
    assert_eq!(granted.unused(&asked), [], "granted, and used by nothing");
    assert_eq!(granted.without_name(&asked), [], "granted for any name, and used for one");
    assert_eq!(granted.unused_names(&asked), [], "granted for a name that is not used");
}

#[tokio::test]
async fn placement_without_webhooks_is_refused_nothing() {
    let cluster = TestCluster::with_audit_log(true).await;
    install(&cluster, false, true);

    let running = operator(&cluster, false, true).start().await;
    cluster.capacity("on-demand", 1, 40).await;
    cluster.deployment("web").replicas(4).annotate("spot-percentage", "50").create().await;
    churn(&cluster).await;
    stop(running).await;

    assert_eq!(refused(&cluster), Vec::<String>::new());
}

/// With signed records the operator reads one more Secret and no other.
#[tokio::test]
async fn an_operator_that_signs_uses_every_permission_and_needs_no_other() {
    let cluster = TestCluster::with_audit_log(false).await;
    let set = "--set webhook.enabled=false --set placement.enabled=false --set records.hmac=sign";
    let granted = install_set(&cluster, set);
    let secret = format!("create secret generic perennial-record-keys -n {}", cluster.namespace());
    cluster.kubectl(&format!("{secret} --from-literal=key-1=0123456789abcdef0123456789abcdef"));

    let running = operator(&cluster, false, false).set("records.hmac", "sign").start().await;
    churn(&cluster).await;
    stop(running).await;

    assert_eq!(refused(&cluster), Vec::<String>::new());
    let asked = cluster.requests_by(&user(&cluster));
    assert_eq!(granted.unused(&asked), [], "granted, and used by nothing");
    assert_eq!(granted.without_name(&asked), [], "granted for any name, and used for one");
    assert_eq!(granted.unused_names(&asked), [], "granted for a name that is not used");
    let secrets = asked.iter().filter(|asked| asked.resource == "secrets");
    assert!(secrets.clone().count() > 0);
    assert!(secrets.clone().all(|asked| asked.name.as_deref() == Some("perennial-record-keys")));
}

/// Processes with some of the roles, each with its own manifests.
#[rstest]
#[case::capture_and_restore("controller.roles=capture,restore", true)]
#[case::webhooks_alone("controller.roles=webhooks", false)]
#[case::placement_alone("controller.roles=placement", false)]
#[case::dry_run("controller.dryRun=true", false)]
#[tokio::test]
async fn each_role_alone_has_sufficient_permissions(#[case] set: &str, #[case] keeps: bool) {
    let cluster = TestCluster::with_audit_log(true).await;
    install_set(&cluster, &format!("--set {set}"));
    let (key, value) = set.split_once('=').unwrap();

    let running = operator(&cluster, true, true).set(key, value).start().await;
    if keeps {
        churn(&cluster).await;
    } else {
        // Tasks of the other roles are not done; changes are observed.
        cluster.node("n1").label("team", "ml").create().await;
        cluster.capacity("on-demand", 1, 40).await;
        cluster.deployment("web").replicas(2).annotate("spot-percentage", "50").create().await;
        cluster.delete_node("n1").await;
        cluster.node("n1").create().await;
        eventually("both nodes are known", async || {
            let seen = running.metrics().sum("perennial_nodes", &[]);
            if seen > 1.5 { Ok(()) } else { Err(seen) }
        })
        .await;
    }
    stop(running).await;

    assert_eq!(refused(&cluster), Vec::<String>::new());
}
