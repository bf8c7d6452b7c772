//! Metrics of operators, read from a URL or from their pods through the API server.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use http::{Request, Uri};
use kube::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::leases::LeaseSnapshot;

const DEADLINE: Duration = Duration::from_secs(5);
/// Length of the random suffix that a replica's identity has after the name of its pod.
const RANDOM_END: usize = 17;

/// Value of each metric, summed over all labels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(BTreeMap<String, f64>);

impl Samples {
    /// Reads the metrics at a URL.
    pub(crate) async fn from_url(url: &str) -> anyhow::Result<Self> {
        let text = tokio::time::timeout(DEADLINE, get(url))
            .await
            .map_err(|_| anyhow::anyhow!("no response within {} s", DEADLINE.as_secs()))
            .and_then(|read| read)
            .with_context(|| format!("could not read metrics from {url}"))?;
        Ok(Self::parse(&text))
    }

    /// Reads the metrics of all live replicas at this port. Skips those that cannot be read.
    pub(crate) async fn of_members(
        client: &Client,
        namespace: &str,
        port: u16,
        leases: Option<&LeaseSnapshot>,
    ) -> BTreeMap<String, Self> {
        let mut found = BTreeMap::new();
        let members = leases.into_iter().flat_map(|found| &found.groups).flat_map(|group| &group.members);
        for member in members.filter(|member| member.alive) {
            let Some(pod) = pod_of(&member.identity) else { continue };
            let Ok(request) = Request::get(path(namespace, pod, port)).body(Vec::new()) else { continue };
            if let Ok(Ok(text)) = tokio::time::timeout(DEADLINE, client.request_text(request)).await {
                found.insert(pod.to_owned(), Self::parse(&text));
            }
        }
        found
    }

    /// Parses the Prometheus text format. Skips lines that are not samples.
    pub(crate) fn parse(text: &str) -> Self {
        let mut sums = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (head, rest) = match line.split_once('{') {
                Some((name, rest)) => (name, rest.rsplit_once('}').map_or("", |(_, rest)| rest)),
                None => line.split_once(' ').unwrap_or((line, "")),
            };
            if let Some(value) = rest.split_whitespace().next().and_then(|value| value.parse::<f64>().ok()) {
                *sums.entry(head.trim().to_owned()).or_default() += value;
            }
        }
        Self(sums)
    }

    pub(crate) fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    fn latency(&self) -> Option<f64> {
        let count = self.get("perennial_restore_latency_seconds_count");
        (count > 0.0).then(|| self.get("perennial_restore_latency_seconds_sum") / count)
    }

    pub(crate) fn summary(&self) -> Value {
        json!({
            "captures": self.get("perennial_captures_total"),
            "restores": self.get("perennial_restores_total"),
            "labelsRestored": self.get("perennial_labels_restored_total"),
            "meanRestoreSeconds": self.latency(),
            "queue": self.get("workqueue_depth"),
            "requests": self.get("rest_client_requests_total"),
            "errors": self.get("perennial_errors_total"),
        })
    }

    pub(crate) fn sentence(&self) -> String {
        let latency = self.latency().map(|mean| format!(" ({:.0} ms on average)", mean * 1000.0)).unwrap_or_default();
        format!(
            "{} captures, {} restores{latency}, {} in the queue, {} requests, {} errors since start",
            self.get("perennial_captures_total"),
            self.get("perennial_restores_total"),
            self.get("workqueue_depth"),
            self.get("rest_client_requests_total"),
            self.get("perennial_errors_total"),
        )
    }
}

/// Returns the name of the pod of a replica.
fn pod_of(identity: &str) -> Option<&str> {
    identity.get(..identity.len().checked_sub(RANDOM_END)?)
}

fn path(namespace: &str, pod: &str, port: u16) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics")
}

/// Sends an HTTP/1.0 request, whose response ends with the connection.
async fn get(url: &str) -> anyhow::Result<String> {
    let uri: Uri = url.parse().context("invalid URL")?;
    anyhow::ensure!(uri.scheme_str() == Some("http"), "unsupported scheme; only http:// works");
    let host = uri.host().context("the URL has no host")?;
    let path = uri.path_and_query().map_or("/metrics", |path| path.as_str());
    let mut stream =
        tokio::net::TcpStream::connect((host.trim_matches(['[', ']']), uri.port_u16().unwrap_or(80))).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: {host}\r\naccept: text/plain\r\n\r\n").as_bytes()).await?;
    let mut bytes = Vec::new();
    stream.take(64 * 1024 * 1024).read_to_end(&mut bytes).await?;
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").context("the response is not HTTP")?;
    let status = head.lines().next().unwrap_or_default();
    anyhow::ensure!(status.contains(" 200 "), "unexpected response: {status}");
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read_from_the_configured_port_of_the_pod() {
        let pod = pod_of("perennial-7d4b-x2x9q-0123456789abcdef").unwrap();
        assert_eq!(path("system", pod, 9090), "/api/v1/namespaces/system/pods/perennial-7d4b-x2x9q:9090/proxy/metrics");
        assert_eq!(pod_of("short"), None);
    }

    #[test]
    fn samples_are_summed_over_labels() {
        let text = "# HELP x y\nperennial_captures_total{via=\"watch\"} 3\nperennial_captures_total{via=\"admission\"} 4 170\nup 1\nbroken\n";
        let samples = Samples::parse(text);
        assert!((samples.get("perennial_captures_total") - 7.0).abs() < 1e-9);
        assert!((samples.get("up") - 1.0).abs() < 1e-9);
        assert!(samples.get("absent").abs() < 1e-9);
    }
}
