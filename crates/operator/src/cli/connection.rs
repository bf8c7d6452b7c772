//! Whether the API server answers and accepts the credentials, and what to do if not.

use kube::Client;

use crate::runtime::error_category::{self, Category};

/// Remedy of an API server that does not answer.
pub(super) const SELECT_CLUSTER: &str =
    "Check that the cluster is running and that --context and --kubeconfig select the right one.";
/// Remedy of rejected credentials.
const RENEW_CREDENTIALS: &str = "Renew your credentials, or select others with --kubeconfig and --context.";

/// The API server did not answer.
#[derive(Debug, thiserror::Error)]
#[error("could not reach the API server at {url}: {}", error_category::message(cause))]
struct Unreachable {
    url: String,
    cause: kube::Error,
}

/// The API server does not accept the credentials. No permission would help.
#[derive(Debug, thiserror::Error)]
#[error("the API server at {url} rejected your credentials (401 Unauthorized)")]
struct Unauthorized {
    url: String,
}

/// Fails if the API server does not answer, or rejects the credentials.
pub(super) async fn require_answer(client: &Client, url: String) -> anyhow::Result<()> {
    match client.apiserver_version().await {
        Err(cause) if Category::of(&cause) == Category::Unreachable => Err(Unreachable { url, cause }.into()),
        Err(kube::Error::Api(status)) if status.code == 401 => Err(Unauthorized { url }.into()),
        // Any other answer will do: the version may be forbidden.
        _ => Ok(()),
    }
}

/// Returns the remedy of a failed connection. `None` for other errors.
pub(super) fn remedy(error: &anyhow::Error) -> Option<&'static str> {
    if error.is::<Unreachable>() {
        Some(SELECT_CLUSTER)
    } else if error.is::<Unauthorized>() {
        Some(RENEW_CREDENTIALS)
    } else {
        None
    }
}
