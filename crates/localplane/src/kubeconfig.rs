//! kubeconfig files with everything inlined, so that one file is all that a client needs.

use serde_json::json;

use crate::{der::base64, pki::Credentials};

/// How a client proves who it is.
#[derive(Debug)]
pub(crate) enum Proof<'a> {
    Certificate(&'a Credentials),
    Token(&'a str),
}

/// A kubeconfig for one server and one user.
pub(crate) fn render(server: &str, ca: &str, user: &str, proof: &Proof<'_>) -> String {
    // A JSON string is a YAML string: user names have colons and may have anything.
    let user = json!(user);
    let proof = match proof {
        Proof::Certificate(credentials) => format!(
            "client-certificate-data: {}\n    client-key-data: {}",
            base64(credentials.certificate.as_bytes()),
            base64(credentials.key.as_bytes())
        ),
        Proof::Token(token) => format!("token: {}", json!(token)),
    };
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: localplane
  cluster:
    server: {server}
    certificate-authority-data: {ca}
users:
- name: {user}
  user:
    {proof}
contexts:
- name: localplane
  context:
    cluster: localplane
    user: {user}
current-context: localplane
",
        ca = base64(ca.as_bytes())
    )
}
