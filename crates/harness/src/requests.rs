//! Requests as the API server itself has counted them. The plane is the test's own, so are the requests.

use std::collections::BTreeMap;

use super::{Samples, TestCluster};

const WRITES: [&str; 6] = ["POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"];

/// Counts by verb and resource.
#[derive(Clone, Debug)]
pub struct Requests(Samples);

impl TestCluster {
    /// All requests so far.
    pub async fn requests(&self) -> Requests {
        let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
        Requests(Samples::new(self.client().request_text(request).await.expect("the API server's metrics")))
    }
}

impl Requests {
    /// Everything that the API server tells of itself.
    pub fn samples(&self) -> &Samples {
        &self.0
    }

    /// Requests with this verb (`POST`, `PUT`, `PATCH`, …) for objects of this resource, whatever was answered.
    pub fn count(&self, verb: &str, resource: &str) -> u64 {
        let sum = self.0.sum("apiserver_request_total", &[("verb", verb), ("resource", resource)]);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a counter of requests")]
        let count = sum as u64;
        count
    }

    /// What was written since, by verb; verbs without a request are left out.
    pub fn writes_since(&self, before: &Self, resource: &str) -> BTreeMap<&'static str, u64> {
        let since = |verb| self.count(verb, resource) - before.count(verb, resource);
        WRITES.into_iter().map(|verb| (verb, since(verb))).filter(|(_, count)| *count > 0).collect()
    }
}
