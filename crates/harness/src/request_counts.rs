//! Request counts from the API server's metrics. The plane belongs to the test, so do the requests.

use std::collections::BTreeMap;

use super::{Metrics, TestCluster};

const WRITES: [&str; 6] = ["POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"];

/// Request counts by verb and resource.
#[derive(Clone, Debug)]
pub struct Requests(Metrics);

impl TestCluster {
    /// Reads all request counts so far.
    pub async fn requests(&self) -> Requests {
        let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
        Requests(Metrics::new(self.client().request_text(request).await.expect("the API server's metrics")))
    }
}

impl Requests {
    /// Returns all metrics of the API server.
    pub fn samples(&self) -> &Metrics {
        &self.0
    }

    /// Returns the number of requests with this verb (`POST`, `PUT`, `PATCH`, …) for objects of
    /// this resource, with any response.
    pub fn count(&self, verb: &str, resource: &str) -> u64 {
        let sum = self.0.sum("apiserver_request_total", &[("verb", verb), ("resource", resource)]);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a counter of requests")]
        let count = sum as u64;
        count
    }

    /// Returns the writes since `before` by verb, without zeros.
    pub fn writes_since(&self, before: &Self, resource: &str) -> BTreeMap<&'static str, u64> {
        let since = |verb| self.count(verb, resource) - before.count(verb, resource);
        WRITES.into_iter().map(|verb| (verb, since(verb))).filter(|(_, count)| *count > 0).collect()
    }
}
