//! The chart without a cluster: invalid values are refused, and it renders the same objects as
//! `perennial manifests`.

use perennial_core::keeper::selection::GATE_TAINT;
use perennial_harness::{Helm, perennial};
use rstest::rstest;
use serde_json::{Value, json};

fn documents(text: &str) -> Vec<Value> {
    let documents = text.split("\n---\n").map(serde_saphyr::from_str::<Value>);
    documents.map(Result::unwrap).filter(|object| !object.is_null()).collect()
}

fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> Option<&'a Value> {
    objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
}

fn rendered(helm: Helm, sets: &[&str]) -> Vec<Value> {
    documents(helm.template(sets).expect_success().trim_start_matches("---\n"))
}

#[rstest]
fn the_chart_passes_lint(#[values(Helm::V3, Helm::V4)] helm: Helm) {
    helm.lint().expect_success();
}

#[rstest]
#[case::defaults(&[], &[])]
#[case::keeper_alone(
    &[r#"config={"webhook":{"enabled":false},"placement":{"enabled":false}}"#],
    &["webhook.enabled=false", "placement.enabled=false"],
)]
#[case::without_webhooks(&[r#"config={"webhook":{"enabled":false}}"#], &["webhook.enabled=false"])]
#[case::without_placement(&[r#"config={"placement":{"enabled":false}}"#], &["placement.enabled=false"])]
#[case::certificates_from_elsewhere(
    &[r#"certificates={"source":"secret","secretName":"mine"}"#],
    &["webhook.certDir=/etc/perennial-certificate"],
)]
#[case::roles(&[r#"config={"controller":{"roles":["capture","restore"]}}"#], &["controller.roles=capture,restore"])]
#[case::other_ports(
    &[r#"config={"webhook":{"port":19443},"metrics":{"port":18080}}"#],
    &["webhook.port=19443", "metrics.port=18080"],
)]
#[case::signed_records(&[r#"config={"records":{"hmac":"require"}}"#], &["records.hmac=require"])]
#[case::leases_elsewhere(
    &[r#"config={"controller":{"leaderElection":{"namespace":"election"}}}"#],
    &["controller.leaderElection.namespace=election"],
)]
#[case::no_metrics(&[r#"config={"metrics":{"enabled":false}}"#], &["metrics.enabled=false"])]
fn it_renders_what_the_program_prints(#[case] values: &[&str], #[case] settings: &[&str]) {
    let chart = rendered(Helm::V4, values);
    let mut words = vec!["manifests"];
    for setting in settings {
        words.extend(["--set", setting]);
    }
    let printed = documents(&perennial(words, &[]).expect_success());

    for kind in ["ClusterRole", "Role"] {
        let rules = |objects: &[Value]| find(objects, kind, "perennial").unwrap()["rules"].clone();
        assert_eq!(rules(&chart), rules(&printed), "{kind}");
    }
    for kind in ["Role", "RoleBinding"] {
        let leases = |objects: &[Value]| {
            let found = find(objects, kind, "perennial-leases")?;
            Some(["rules", "roleRef", "subjects"].map(|field| found[field].clone()))
        };
        assert_eq!(leases(&chart), leases(&printed), "{kind} for Leases");
        let namespace =
            |objects: &[Value]| Some(find(objects, kind, "perennial-leases")?["metadata"]["namespace"].clone());
        assert_eq!(namespace(&chart), namespace(&printed), "{kind} for Leases");
        let wanted = settings.iter().find_map(|setting| setting.strip_prefix("controller.leaderElection.namespace="));
        assert_eq!(namespace(&chart), wanted.map(Value::from), "{kind} for Leases");
        let removes =
            find(&chart, kind, "perennial-uninstall-leases").map(|object| object["metadata"]["namespace"].clone());
        assert_eq!(removes, wanted.map(Value::from), "{kind} of the uninstall");
    }
    let policies: Vec<&Value> = printed.iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicy").collect();
    assert!(policies.len() > 6, "only {} policies", policies.len());
    for name in policies.into_iter().filter_map(|policy| policy["metadata"]["name"].as_str()) {
        for kind in ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] {
            let spec = |objects: &[Value]| find(objects, kind, name).unwrap()["spec"].clone();
            assert_eq!(spec(&chart), spec(&printed), "{kind} {name}");
        }
    }
    let config = |objects: &[Value]| -> String {
        let map = find(objects, "ConfigMap", "perennial-config").unwrap();
        map["data"]["config.yaml"].as_str().unwrap().to_owned()
    };
    let settings = |text: String| {
        let layers = perennial_core::config::Layers { file: Some(text), ..Default::default() };
        perennial_core::config::load(&layers).unwrap().settings
    };
    assert_eq!(settings(config(&chart)), settings(config(&printed)));
    let container = |objects: &[Value], what: &str| {
        find(objects, "Deployment", "perennial").unwrap()["spec"]["template"]["spec"]["containers"][0][what].clone()
    };
    for what in
        ["args", "env", "ports", "startupProbe", "livenessProbe", "readinessProbe", "resources", "securityContext"]
    {
        let printed = container(&printed, what);
        let printed = if printed == serde_json::json!([]) { Value::Null } else { printed };
        assert_eq!(container(&chart, what), printed, "{what}");
    }
    let ports =
        |objects: &[Value]| find(objects, "Service", "perennial").map(|service| service["spec"]["ports"].clone());
    assert_eq!(ports(&chart), ports(&printed));
    let template = |objects: &[Value], what: &str| {
        find(objects, "Deployment", "perennial").unwrap()["spec"]["template"]["spec"][what].clone()
    };
    for what in ["securityContext", "tolerations", "nodeSelector"] {
        assert_eq!(template(&chart, what), template(&printed, what), "{what}");
    }
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        let hooks = |objects: &[Value]| find(objects, kind, "perennial").map(|object| object["webhooks"].clone());
        assert_eq!(hooks(&chart), hooks(&printed), "{kind}");
        // The operator writes the webhooks, so that an upgrade does not remove them.
        assert!(hooks(&chart).is_none_or(|hooks| hooks.is_null()), "{kind}");
    }
}

/// Store and restore can be scaled apart: a Deployment each, which together have every role.
#[test]
fn roles_are_installed_as_deployments_of_their_own() {
    let split = r#"deployments={"store":{"roles":["capture","webhooks"],"replicas":3},"restore":{"roles":["restore","placement"]}}"#;
    let objects = rendered(Helm::V4, &[split, "replicas=2"]);

    assert!(find(&objects, "Deployment", "perennial").is_none());
    let store = find(&objects, "Deployment", "perennial-store").unwrap();
    let restore = find(&objects, "Deployment", "perennial-restore").unwrap();
    assert_eq!((&store["spec"]["replicas"], &restore["spec"]["replicas"]), (&json!(3), &json!(2)));
    let container = |deployment: &Value| deployment["spec"]["template"]["spec"]["containers"][0].clone();
    let roles = |deployment: &Value| container(deployment)["args"][2].clone();
    assert_eq!(roles(store), "--set=controller.roles=capture,webhooks");
    assert_eq!(roles(restore), "--set=controller.roles=restore,placement");
    let ports = |deployment: &Value| container(deployment)["ports"].as_array().unwrap().len();
    assert_eq!((ports(store), ports(restore)), (2, 1), "only the store serves webhooks");
    // No Deployment takes the pods of the other one, and the Service and the budget cover both.
    let selector = |deployment: &Value| deployment["spec"]["selector"]["matchLabels"].clone();
    assert_ne!(selector(store), selector(restore));
    for deployment in [store, restore] {
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        for kind in ["Service", "PodDisruptionBudget"] {
            let spec = &find(&objects, kind, "perennial").unwrap()["spec"]["selector"];
            let wanted = spec.get("matchLabels").unwrap_or(spec).as_object().unwrap();
            assert!(wanted.iter().all(|(key, value)| labels[key] == *value), "{kind}: {labels}");
        }
        let name = deployment["metadata"]["name"].as_str().unwrap();
        let job = find(&objects, "Job", "perennial-uninstall").unwrap().to_string();
        assert!(job.contains(&format!("--stop={name}")), "{job}");
        let role = find(&objects, "Role", "perennial-uninstall").unwrap().to_string();
        assert!(role.contains(&format!("\"{name}\"")), "{role}");
    }
    assert_eq!(shards(&objects), 3, "those of the larger one");
}

fn shards(objects: &[Value]) -> u16 {
    let map = find(objects, "ConfigMap", "perennial-config").unwrap();
    let file = map["data"]["config.yaml"].as_str().map(str::to_owned);
    let layers = perennial_core::config::Layers { file, ..Default::default() };
    perennial_core::config::load(&layers).unwrap().settings.controller.shards
}

/// Replicas share the work, unless configured otherwise.
#[rstest]
#[case::default(&[], 2)]
#[case::more(&["replicas=5"], 5)]
#[case::none(&["replicas=0"], 1)]
#[case::set(&["replicas=5", r#"config={"controller":{"shards":1}}"#], 1)]
#[case::one_process(&["replicas=1", r#"config={"controller":{"leaderElection":{"enabled":false}}}"#], 1)]
fn there_are_as_many_shards_as_replicas(#[case] values: &[&str], #[case] expected: u16) {
    assert_eq!(shards(&rendered(Helm::V4, values)), expected);
}

#[rstest]
#[case(r#"deployments={"store":{"roles":["capture","webhooks"]}}"#, "has the role restore")]
#[case(r#"deployments={"store":{"roles":["capture","webhooks","restore"]}}"#, "has the role placement")]
#[case(r#"deployments={"store":{"roles":["save"]}}"#, "store")]
#[case(r#"deployments={"store":{"replicas":2}}"#, "roles")]
fn a_split_that_leaves_a_role_out_is_refused(#[case] value: &str, #[case] message: &str) {
    let error = Helm::V4.template(&[value]).expect_failure();
    assert!(error.contains(message), "{error}");
}

/// A new node has the gate taint until an operator removes it: no operator may wait for that
/// itself.
#[rstest]
#[case::default(&[])]
#[case::with_others(&[r#"tolerations=[{"key":"dedicated","operator":"Exists"}]"#])]
fn every_pod_tolerates_the_gate_taint(#[case] values: &[&str]) {
    let chart = rendered(Helm::V4, values);
    let pods: Vec<&Value> = chart.iter().filter(|object| !object["spec"]["template"]["spec"].is_null()).collect();

    assert_eq!(pods.len(), 3, "the operator, the check and the uninstall");
    for object in pods {
        let tolerations = object["spec"]["template"]["spec"]["tolerations"].as_array().unwrap();
        let keys: Vec<&str> = tolerations.iter().filter_map(|toleration| toleration["key"].as_str()).collect();
        assert!(keys.contains(&GATE_TAINT), "{}: {keys:?}", object["kind"]);
        assert_eq!(keys.len(), 1 + values.len(), "{}: {keys:?}", object["kind"]);
    }
}

/// A frozen process is killed after the failed probes and their own grace period, not that of the
/// pod.
#[test]
fn a_frozen_operator_is_replaced_within_35_seconds() {
    for objects in [rendered(Helm::V4, &[]), documents(&perennial(["manifests"], &[]).expect_success())] {
        let deployment = find(&objects, "Deployment", "perennial").unwrap();
        let probe = &deployment["spec"]["template"]["spec"]["containers"][0]["livenessProbe"];
        let seconds = |name: &str| probe[name].as_u64().unwrap();

        let noticed = seconds("periodSeconds") * seconds("failureThreshold") + seconds("timeoutSeconds");
        assert!(noticed + seconds("terminationGracePeriodSeconds") < 35, "{probe}");
    }
}

/// Optional objects are rendered if and only if they are enabled.
#[rstest]
#[case(r#"podDisruptionBudget={"enabled":false}"#, "PodDisruptionBudget", false)]
#[case(r#"podDisruptionBudget={"enabled":true,"maxUnavailable":"50%"}"#, "PodDisruptionBudget", true)]
#[case(r#"networkPolicy={"enabled":true,"metricsFrom":[{"namespaceSelector":{}}]}"#, "NetworkPolicy", true)]
#[case(r#"networkPolicy={"enabled":false}"#, "NetworkPolicy", false)]
#[case(r#"monitoring.serviceMonitor={"enabled":true,"labels":{"release":"prometheus"}}"#, "ServiceMonitor", true)]
#[case(r#"monitoring.serviceMonitor={"enabled":false}"#, "ServiceMonitor", false)]
#[case(r#"monitoring.podMonitor={"enabled":true}"#, "PodMonitor", true)]
#[case(r#"monitoring.prometheusRule={"enabled":true}"#, "PrometheusRule", true)]
#[case(r#"monitoring.prometheusRule={"enabled":false}"#, "PrometheusRule", false)]
#[case(r#"certificates={"source":"certManager"}"#, "Issuer", true)]
#[case(
    r#"certificates={"source":"certManager","certManager":{"issuerRef":{"name":"ours","kind":"ClusterIssuer"}}}"#,
    "Issuer",
    false
)]
#[case(
    r#"certificates={"source":"certManager","certManager":{"issuerRef":{"name":"ours","kind":"ClusterIssuer"}}}"#,
    "Certificate",
    true
)]
#[case(r#"crds={"enabled":false}"#, "CustomResourceDefinition", false)]
#[case(r#"admissionPolicies={"enabled":true}"#, "ValidatingAdmissionPolicy", true)]
#[case(r#"admissionPolicies={"enabled":false}"#, "ValidatingAdmissionPolicy", false)]
#[case(r#"rbac={"create":false}"#, "RoleBinding", true)]
#[case(r#"uninstall={"enabled":false}"#, "Job", true)]
#[case(
    r#"extraObjects=[{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"mine-{{ .Release.Name }}"}}]"#,
    "ConfigMap",
    true
)]
fn requested_objects_are_rendered(#[case] set: &str, #[case] kind: &str, #[case] there: bool) {
    let three = rendered(Helm::V3, &[set]);
    let four = rendered(Helm::V4, &[set]);

    assert_eq!(three.iter().any(|object| object["kind"] == kind), there);
    // They install webhook configurations at different times.
    let sorted = |mut objects: Vec<Value>| {
        objects.sort_by_key(|object| format!("{} {}", object["kind"], object["metadata"]["name"]));
        objects
    };
    assert_eq!(sorted(three), sorted(four), "helm 3 and 4 disagree");
}

#[test]
fn chart_values_reach_the_rendered_objects() {
    let objects = rendered(
        Helm::V4,
        &[
            r#"image={"repository":"example.com/perennial","digest":"sha256:0123456789012345678901234567890123456789012345678901234567890123"}"#,
            r#"imagePullSecrets=[{"name":"pull"}]"#,
            "replicas=3",
            r#"priorityClassName="system-cluster-critical""#,
            r#"serviceAccount={"create":false,"name":"existing"}"#,
            r#"topologySpreadConstraints=[{"maxSkew":2,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule"}]"#,
            r#"tolerations=[{"operator":"Exists"}]"#,
            r#"nodeSelector={"pool":"system"}"#,
            r#"podLabels={"team":"platform"}"#,
            r#"podAnnotations={"a":"b"}"#,
            r#"extraEnv=[{"name":"PERENNIAL_LOGGING_LEVEL","value":"debug"}]"#,
            r#"monitoring.dashboard={"enabled":true}"#,
            r#"networkPolicy={"enabled":true,"egress":[{"ports":[{"port":4318}]}]}"#,
            r#"uninstall={"enabled":true,"records":true}"#,
            r#"admissionPolicies={"recordWriters":[{"kind":"User","name":"jane"}]}"#,
        ],
    );

    let pod = &find(&objects, "Deployment", "perennial").unwrap()["spec"]["template"];
    let spec = &pod["spec"];
    assert!(spec["containers"][0]["image"].as_str().unwrap().starts_with("example.com/perennial@sha256:"));
    assert_eq!(spec["imagePullSecrets"][0]["name"], "pull");
    assert_eq!(spec["priorityClassName"], "system-cluster-critical");
    assert_eq!(spec["serviceAccountName"], "existing");
    assert_eq!(spec["topologySpreadConstraints"].as_array().unwrap().len(), 1);
    assert_eq!(spec["tolerations"][0]["operator"], "Exists");
    assert_eq!(spec["nodeSelector"]["pool"], "system");
    assert_eq!(
        (&pod["metadata"]["labels"]["team"], &pod["metadata"]["annotations"]["a"]),
        (&"platform".into(), &"b".into())
    );
    assert_eq!(spec["containers"][0]["env"][1]["name"], "PERENNIAL_LOGGING_LEVEL");
    assert!(find(&objects, "ServiceAccount", "existing").is_none());
    assert_eq!(find(&objects, "ClusterRoleBinding", "perennial").unwrap()["subjects"][0]["name"], "existing");
    assert_eq!(find(&objects, "RoleBinding", "perennial-records").unwrap()["subjects"][0]["name"], "jane");
    let policy = find(&objects, "ValidatingAdmissionPolicy", "perennial-nodes").unwrap()["spec"].to_string();
    assert!(policy.contains("system:serviceaccount:perennial-system:existing"), "{policy}");
    let egress = &find(&objects, "NetworkPolicy", "perennial").unwrap()["spec"]["egress"];
    assert_eq!((&egress[0]["ports"][0]["port"], &egress[1]["ports"][0]["port"]), (&443.into(), &4318.into()));
    let board = &find(&objects, "ConfigMap", "perennial-dashboard").unwrap()["data"]["perennial.json"];
    serde_json::from_str::<Value>(board.as_str().unwrap()).unwrap();
    let job = &find(&objects, "Job", "perennial-uninstall").unwrap()["spec"]["template"]["spec"]["containers"][0];
    assert!(job["args"].as_array().unwrap().contains(&"--records".into()));
}

/// The values that other charts have, under the same names.
#[test]
fn security_contexts_arguments_volumes_and_the_network_can_be_changed() {
    let pod = |sets: &[&str]| {
        let objects = rendered(Helm::V4, sets);
        find(&objects, "Deployment", "perennial").unwrap()["spec"]["template"]["spec"].clone()
    };
    let plain = pod(&[]);
    assert_eq!(plain["nodeSelector"]["kubernetes.io/os"], "linux");
    assert_eq!((&plain["hostNetwork"], &plain["dnsPolicy"]), (&Value::Null, &Value::Null));

    let changed = pod(&[
        r#"podSecurityContext={"runAsUser":null,"runAsGroup":null,"fsGroup":7}"#,
        r#"securityContext={"readOnlyRootFilesystem":false}"#,
        r#"extraArgs=["--set","logging.level=debug"]"#,
        r#"volumes=[{"name":"ca","configMap":{"name":"ca"}}]"#,
        r#"volumeMounts=[{"name":"ca","mountPath":"/ca"}]"#,
        "hostNetwork=true",
    ]);
    let security = &changed["securityContext"];
    assert_eq!((&security["runAsUser"], &security["fsGroup"]), (&Value::Null, &7.into()), "{security}");
    assert_eq!(security["runAsNonRoot"], true, "the other defaults stay: {security}");
    let container = &changed["containers"][0];
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], false);
    assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL");
    assert_eq!(container["args"].as_array().unwrap().last().unwrap(), "logging.level=debug");
    assert!(container["volumeMounts"].to_string().contains("/ca") && changed["volumes"].to_string().contains("\"ca\""));
    assert_eq!((&changed["hostNetwork"], &changed["dnsPolicy"]), (&true.into(), &"ClusterFirstWithHostNet".into()));
}

/// restricted-v2 refuses a fixed user.
#[test]
fn on_openshift_no_user_is_set() {
    let output = Helm::V4.template_with(&[], &["--api-versions", "security.openshift.io/v1"]).expect_success();
    let objects = documents(output.trim_start_matches("---\n"));
    for (kind, name) in [("Deployment", "perennial"), ("Job", "perennial-uninstall")] {
        let security = &find(&objects, kind, name).unwrap()["spec"]["template"]["spec"]["securityContext"];
        assert_eq!((&security["runAsUser"], &security["runAsNonRoot"]), (&Value::Null, &true.into()), "{kind}");
    }
}

/// Helm renders the notes only with a release.
#[rstest]
#[case::default("perennial", true)]
#[case::published("registry.example.com/perennial", false)]
fn the_notes_say_that_no_registry_has_the_default_image(#[case] repository: &str, #[case] noted: bool) {
    let notes = Helm::V4.notes(&format!(r#"image.repository="{repository}""#)).expect_success();

    assert!(notes.contains("kubectl label node NODE"), "{notes}");
    // A running kubelet does not bring a deleted node back.
    assert!(notes.contains("registers its node again only when it restarts"), "{notes}");
    assert_eq!(notes.contains("NO REGISTRY HAS THE IMAGE perennial:"), noted, "{notes}");
}

/// cert-manager renews the certificate, and the CA stays the same.
#[test]
fn certificates_are_signed_by_an_authority_that_outlives_them() {
    let objects = rendered(Helm::V4, &[r#"certificates={"source":"certManager"}"#]);
    let spec = |kind, name| find(&objects, kind, name).unwrap()["spec"].clone();

    let (certificate, issuer) = (spec("Certificate", "perennial"), spec("Issuer", "perennial"));
    assert_eq!(certificate["issuerRef"]["name"], "perennial");
    let authority = spec("Certificate", "perennial-authority");
    assert_eq!((&authority["isCA"], &authority["secretName"]), (&true.into(), &issuer["ca"]["secretName"]));
    assert_eq!(spec("Issuer", authority["issuerRef"]["name"].as_str().unwrap())["selfSigned"], serde_json::json!({}));
    assert_ne!(certificate["secretName"], authority["secretName"], "pods would get the key of the authority");
    let pod = &spec("Deployment", "perennial")["template"]["spec"];
    let mounted = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "certificate").unwrap();
    assert_eq!(mounted["secret"]["secretName"], certificate["secretName"]);
}

#[rstest]
#[case::a_typo_in_the_config(r#"config={"keeper":{"kep":[]}}"#)]
#[case::a_wrong_kind_in_the_config(r#"config={"controller":{"qps":"many"}}"#)]
#[case::the_namespace_is_the_releases(r#"config={"namespace":"other"}"#)]
#[case::an_unknown_value("replica=3")]
#[case::too_few("replicas=-1")]
#[case::a_number_for_a_name("priorityClassName=5")]
#[case::an_unknown_source(r#"certificates={"source":"vault"}"#)]
#[case::a_secret_without_a_name(r#"certificates={"source":"secret"}"#)]
#[case::a_writer_without_a_name(r#"admissionPolicies={"recordWriters":[{"kind":"User"}]}"#)]
#[case::a_bad_digest(r#"image={"digest":"latest"}"#)]
#[case::no_duration(r#"check={"timeout":"soon"}"#)]
fn invalid_values_are_refused(#[case] set: &str) {
    for helm in [Helm::V3, Helm::V4] {
        helm.template(&[set]).expect_failure();
    }
}
