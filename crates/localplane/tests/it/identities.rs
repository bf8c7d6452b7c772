//! Identities on a plane and their permissions. All tests share one plane.

use std::{fs, path::PathBuf};

use localplane::Plane;

use crate::support::{Folder, kubectl, kubectl_ok, succeed, text};

fn plane() -> &'static Plane {
    Plane::shared().unwrap()
}

/// Writes a kubeconfig file.
fn kubeconfig(folder: &Folder, text: &str) -> PathBuf {
    let path = folder.join("kubeconfig");
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn the_admin_creates_a_node() {
    let plane = plane();

    kubectl_ok(plane, &["create", "-f", &node_file(&Folder::new("admin"), "by-admin", "team=ml")]);

    let label = kubectl_ok(plane, &["get", "node", "by-admin", "-o", "jsonpath={.metadata.labels.team}"]);
    assert_eq!(label, "ml");
}

#[test]
fn a_kubelet_can_label_its_own_node_but_not_with_a_protected_key() {
    let plane = plane();
    let folder = Folder::new("kubelet");
    let kubelet = kubeconfig(&folder, &plane.kubeconfig_for("system:node:mine", &["system:nodes"]).unwrap());
    let as_kubelet = |args: &[&str]| plane.kubectl().env("KUBECONFIG", &kubelet).args(args).output().unwrap();

    let created = as_kubelet(&["create", "-f", &node_file(&folder, "mine", "team=ml")]);
    let allowed = as_kubelet(&["label", "node", "mine", "tier=gold"]);
    let refused = as_kubelet(&["label", "node", "mine", "node-restriction.kubernetes.io/tier=gold"]);
    let other = as_kubelet(&["create", "-f", &node_file(&folder, "another", "team=ml")]);

    assert!(created.status.success(), "{}", text(&created.stderr));
    assert!(allowed.status.success(), "{}", text(&allowed.stderr));
    let error = text(&refused.stderr);
    assert!(error.contains("is not allowed to modify labels: node-restriction.kubernetes.io/tier"), "{error}");
    assert!(!other.status.success(), "a kubelet must not create another node");
}

#[test]
fn a_certificate_contains_every_group() {
    let plane = plane();
    let folder = Folder::new("groups");
    let text = plane.kubeconfig_for("jane: \"the\" first", &["one", "two", "three", "four"]).unwrap();
    let kubeconfig = kubeconfig(&folder, &text);

    let who = succeed(plane.kubectl().env("KUBECONFIG", kubeconfig).args(["auth", "whoami", "-o", "json"]));

    let who: serde_json::Value = serde_json::from_str(&who).unwrap();
    assert_eq!(who["status"]["userInfo"]["username"], "jane: \"the\" first");
    assert_eq!(
        who["status"]["userInfo"]["groups"],
        serde_json::json!(["one", "two", "three", "four", "system:authenticated"])
    );
}

#[test]
fn an_unknown_user_has_no_permissions() {
    let plane = plane();
    let folder = Folder::new("unknown");
    let kubeconfig = kubeconfig(&folder, &plane.kubeconfig_for("unknown", &[]).unwrap());

    let output = plane.kubectl().env("KUBECONFIG", kubeconfig).args(["get", "nodes"]).output().unwrap();

    assert!(text(&output.stderr).contains("Forbidden"), "{}", text(&output.stderr));
}

#[test]
fn a_service_account_token_authenticates() {
    let plane = plane();
    let folder = Folder::new("account");
    kubectl_ok(plane, &["create", "serviceaccount", "robot", "-n", "default"]);

    let kubeconfig = kubeconfig(&folder, &plane.kubeconfig_for_service_account("default", "robot").unwrap());
    let missing = plane.kubeconfig_for_service_account("default", "missing").unwrap_err();

    let who = succeed(plane.kubectl().env("KUBECONFIG", kubeconfig).args(["auth", "whoami", "-o", "json"]));
    assert!(who.contains("system:serviceaccount:default:robot"), "{who}");
    assert!(missing.to_string().contains("answered 404"), "{missing}");
}

#[test]
fn etcd_rejects_a_cluster_identity() {
    let plane = plane();
    let state = plane.folder().state().unwrap().unwrap();
    let url = format!("https://127.0.0.1:{}/health", state.components["etcd"].port);

    let refused = query_etcd(plane, &url, "apiserver");
    let allowed = query_etcd(plane, &url, "etcd-client");

    assert!(refused.is_err(), "{refused:?}");
    assert!(allowed.unwrap().contains("true"));
}

/// Sends a request to etcd with a certificate from the plane's `pki` folder.
fn query_etcd(plane: &Plane, url: &str, certificate: &str) -> Result<String, String> {
    use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
    let read = |name: String| fs::read(plane.dir().join("pki").join(name)).unwrap();
    let own = Certificate::from_pem(&read(format!("{certificate}.crt"))).unwrap();
    let key = PrivateKey::from_pem(&read(format!("{certificate}.key"))).unwrap();
    let root = Certificate::from_pem(&read("etcd-ca.crt".to_owned())).unwrap();
    let tls = TlsConfig::builder()
        .client_cert(Some(ClientCert::new_with_certs(&[own], key)))
        .root_certs(RootCerts::new_with_certs(&[root]))
        .build();
    let agent = ureq::Agent::config_builder().proxy(None).tls_config(tls).build().new_agent();
    let mut response = agent.get(url).call().map_err(|error| error.to_string())?;
    response.body_mut().read_to_string().map_err(|error| error.to_string())
}

fn node_file(folder: &Folder, name: &str, label: &str) -> String {
    let (key, value) = label.split_once('=').unwrap();
    let node = serde_json::json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": { key: value } },
    });
    let path = folder.join(&format!("{name}.json"));
    fs::write(&path, node.to_string()).unwrap();
    path.display().to_string()
}

#[test]
fn an_identity_signed_by_another_plane_is_rejected() {
    let plane = plane();
    let folder = Folder::new("foreign");
    let foreign = localplane::PlaneFolder::at(folder.path()).credentials(&localplane::Identity::admin()).unwrap();
    fs::write(folder.join("crt"), foreign.certificate).unwrap();
    fs::write(folder.join("key"), foreign.key).unwrap();
    let own = kubeconfig(&folder, &plane.kubeconfig_for("user", &[]).unwrap());
    // The plane's address and CA with the certificate of the other plane.
    let set = |args: &[&str]| succeed(plane.kubectl().env("KUBECONFIG", &own).args(["config"]).args(args));
    let (crt, key) = (folder.join("crt").display().to_string(), folder.join("key").display().to_string());
    set(&["set-credentials", "foreign", "--client-certificate", &crt, "--client-key", &key]);
    set(&["set-context", "localplane", "--user", "foreign"]);

    let output = plane.kubectl().env("KUBECONFIG", &own).args(["get", "namespaces"]).output().unwrap();

    assert!(kubectl(plane, &["get", "namespaces"]).status.success(), "the plane's own admin is accepted");
    assert!(!output.status.success(), "{}", text(&output.stdout));
}
