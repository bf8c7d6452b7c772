//! HTTP client for the few requests that localplane sends to the servers it starts.

use std::time::Duration;

use serde_json::Value;
use ureq::{
    Agent,
    tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig},
};

use crate::pki::Credentials;

/// A request without a response, or with an error status.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("invalid client credentials")]
    Credentials(#[source] Box<ureq::Error>),
    #[error("{method} {path}: no response")]
    Call { method: &'static str, path: String, source: Box<ureq::Error> },
    #[error("{method} {path} answered {status}: {message}")]
    Refused { method: &'static str, path: String, status: u16, message: String },
}

/// Client of one server.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    agent: Agent,
    base: String,
}

impl Api {
    /// Returns a client that trusts `ca` and authenticates with `credentials`.
    pub(crate) fn new(base: String, ca: &str, credentials: &Credentials) -> Result<Self, ApiError> {
        let fail = |error| ApiError::Credentials(Box::new(error));
        let certificate = Certificate::from_pem(credentials.certificate.as_bytes()).map_err(fail)?;
        let key = PrivateKey::from_pem(credentials.key.as_bytes()).map_err(fail)?;
        let root = Certificate::from_pem(ca.as_bytes()).map_err(fail)?;
        let tls = TlsConfig::builder()
            .client_cert(Some(ClientCert::new_with_certs(&[certificate], key)))
            .root_certs(RootCerts::new_with_certs(&[root]))
            .build();
        Ok(Self { agent: agent().tls_config(tls).build().new_agent(), base })
    }

    /// Returns a client of a server without TLS.
    pub(crate) fn plain(base: String) -> Self {
        Self { agent: agent().build().new_agent(), base }
    }

    pub(crate) fn get(&self, path: &str) -> Result<Value, ApiError> {
        answer("GET", path, self.agent.get(format!("{}{path}", self.base)).call())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        answer("POST", path, self.agent.post(format!("{}{path}", self.base)).send_json(body))
    }
}

fn agent() -> ureq::config::ConfigBuilder<ureq::typestate::AgentScope> {
    Agent::config_builder()
        // Requests go to loopback, so a proxy of the environment must not be used.
        .proxy(None)
        .http_status_as_error(false)
        .timeout_connect(Some(Duration::from_secs(2)))
        .timeout_global(Some(Duration::from_secs(20)))
}

fn answer(
    method: &'static str,
    path: &str,
    result: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> Result<Value, ApiError> {
    let call_error = |source| ApiError::Call { method, path: path.to_owned(), source: Box::new(source) };
    let mut response = result.map_err(call_error)?;
    let status = response.status();
    let text = response.body_mut().with_config().limit(u64::MAX).read_to_string().map_err(call_error)?;
    let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    if status.is_success() {
        Ok(body)
    } else {
        let message = body["message"].as_str().map_or(text, str::to_owned);
        Err(ApiError::Refused { method, path: path.to_owned(), status: status.as_u16(), message })
    }
}
