//! Renders self-contained kubeconfig files with inlined certificates.

use serde_json::json;

use crate::{der::base64, pki::Credentials};

/// Credentials of a client.
#[derive(Debug)]
pub(crate) enum Authentication<'a> {
    Certificate(&'a Credentials),
    Token(&'a str),
}

/// Renders a kubeconfig for one server and one user.
pub(crate) fn render(server: &str, ca: &str, user: &str, authentication: &Authentication<'_>) -> String {
    // Encoded as a JSON string, which is also a YAML string: user names may contain any character.
    let user = json!(user);
    let authentication = match authentication {
        Authentication::Certificate(credentials) => format!(
            "client-certificate-data: {}\n    client-key-data: {}",
            base64(credentials.certificate.as_bytes()),
            base64(credentials.key.as_bytes())
        ),
        Authentication::Token(token) => format!("token: {}", json!(token)),
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
    {authentication}
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
