//! The chart without a cluster: invalid values are refused, and it renders the same objects as
//! `perennial manifests`.

use perennial_harness::{Helm, perennial};
use rstest::rstest;
use serde_json::Value;

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
    for name in ["perennial-records", "perennial-nodes"] {
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
    assert_eq!(template(&chart, "securityContext"), template(&printed, "securityContext"));
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
fn what_is_asked_for_is_there(#[case] set: &str, #[case] kind: &str, #[case] there: bool) {
    let three = rendered(Helm::V3, &[set]);
    let four = rendered(Helm::V4, &[set]);

    assert_eq!(three.iter().any(|object| object["kind"] == kind), there);
    assert_eq!(three, four, "helm 3 and 4 disagree");
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
fn what_makes_no_sense_is_refused(#[case] set: &str) {
    for helm in [Helm::V3, Helm::V4] {
        helm.template(&[set]).expect_failure();
    }
}
