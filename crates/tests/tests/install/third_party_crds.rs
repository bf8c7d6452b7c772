//! The chart with cert-manager and the Prometheus operator: with their real CRDs, and the test in
//! place of cert-manager.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, ObjectMeta, PostParams},
};
use perennial::admission::{configuration::NAME, issue};
use perennial_core::certs::Lifetimes;
use perennial_harness::{Helm, chart, third_party_crds};

use crate::lifecycle::{NAMESPACE, Stage, nothing_is_left};

/// Values that render objects of other operators.
const VALUES: [&str; 4] = [
    r#"certificates={"source":"certManager"}"#,
    r#"monitoring.serviceMonitor={"enabled":true,"labels":{"release":"prometheus"}}"#,
    r#"monitoring.podMonitor={"enabled":true}"#,
    r#"monitoring.prometheusRule={"enabled":true}"#,
];

/// Acts as cert-manager: creates a Secret for every Certificate, with the local address as well.
async fn manage_certificates(client: Client) {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate"));
    let certificates: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &kind);
    let secrets: Api<Secret> = Api::namespaced(client, NAMESPACE);
    loop {
        for wanted in certificates.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            let spec = &wanted.data["spec"];
            let name = spec["secretName"].as_str().unwrap().to_owned();
            if secrets.get_opt(&name).await.unwrap().is_some() {
                continue;
            }
            let names = spec["dnsNames"].as_array().cloned().unwrap_or_default();
            let mut names: Vec<String> = names.iter().map(|name| name.as_str().unwrap().to_owned()).collect();
            names.push("127.0.0.1".to_owned());
            let made = issue::create(&names, &Lifetimes::default(), jiff::Timestamp::now().as_second()).unwrap();
            let file = |name: &str, text: String| (name.to_owned(), ByteString(text.into_bytes()));
            let secret = Secret {
                metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
                type_: Some("kubernetes.io/tls".to_owned()),
                data: Some(BTreeMap::from([
                    file("ca.crt", made.bundle()),
                    file("tls.crt", made.serving.certificate.clone()),
                    file("tls.key", made.serving.key.clone()),
                ])),
                ..Secret::default()
            };
            secrets.create(&PostParams::default(), &secret).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn it_works_with_certificates_of_cert_manager_and_fits_the_third_party_crds() {
    let Some(schemas) = third_party_crds() else { return };
    let stage = Stage::new(Helm::V4).await;
    let cluster = &stage.cluster;
    for schema in schemas {
        cluster.kubectl(&format!("apply --server-side -f {}", schema.display()));
    }
    cluster.kubectl("wait --for=condition=Established --timeout=60s crds --all");

    // An API server with their CRDs accepts every object.
    let rendered = Helm::V4.template(&VALUES).expect_success();
    for kind in ["Certificate", "Issuer", "ServiceMonitor", "PodMonitor", "PrometheusRule"] {
        assert!(rendered.contains(&format!("kind: {kind}\n")), "{kind} is not rendered");
    }
    cluster.try_kubectl_with("create --dry-run=server --validate=strict", &rendered).expect_success();

    // The operator uses the certificate of cert-manager and creates none itself.
    let certificates = tokio::spawn(manage_certificates(cluster.client()));
    let mut values = vec!["--wait", "--set", "check.enabled=true"];
    for value in &VALUES {
        values.extend(["--set-json", value]);
    }
    stage.expect(&["install", "perennial", &chart().display().to_string()], &values).await;
    cluster.node("n1").create().await;
    stage.a_label_survives("n1").await;
    let trusted = "{.webhooks[0].clientConfig.caBundle}";
    let trusted = cluster.kubectl(&format!("get mutatingwebhookconfiguration {NAME} -o jsonpath={trusted}"));
    let given = format!("get secret perennial-certificate -n {NAMESPACE} -o jsonpath={{.data.ca\\.crt}}");
    assert_eq!(trusted, cluster.kubectl(&given));
    assert_eq!(stage.get("secret perennial-webhook-certs"), "");
    let account = format!("--as=system:serviceaccount:{NAMESPACE}:perennial -n {NAMESPACE}");
    let may = cluster.try_kubectl(&format!("auth can-i get secrets {account}"));
    assert_eq!(may.stdout.trim(), "no");

    Helm::V4.on(cluster, &["uninstall", "perennial", "-n", NAMESPACE, "--timeout", "3m"]).await.expect_success();
    nothing_is_left(&stage);
    certificates.abort();
}
