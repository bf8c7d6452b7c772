//! Lease objects: reading and writing them, always conditionally, always with a deadline.
//!
//! Owns the translation between the object and [`perennial_core::coordination::lease`]. Decides nothing.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use perennial_core::coordination::lease::{Act, Seen, Write};
use std::collections::BTreeMap;
use std::time::Duration;

/// A request about a Lease that did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    #[error("the Lease {lease} could not be read")]
    Read { lease: String, source: kube::Error },
    #[error("the Lease {lease} could not be written")]
    Write { lease: String, source: kube::Error },
    #[error("the Lease {lease} was changed by somebody else")]
    Changed { lease: String },
    #[error("the Lease {lease} could not be deleted")]
    Delete { lease: String, source: kube::Error },
    #[error("the API server did not answer about the Lease {lease} within {deadline:?}")]
    Unanswered { lease: String, deadline: Duration },
}

/// A client for Leases: without kube's default retry, which would hold a renewal back for minutes.
pub fn client_without_retry(mut config: kube::Config) -> Result<kube::Client, kube::Error> {
    config.default_retry = false;
    kube::Client::try_from(config)
}

/// The Leases of our namespace.
#[derive(Debug, Clone)]
pub struct Leases {
    api: Api<Lease>,
    deadline: Duration,
}

impl Leases {
    pub fn new(client: kube::Client, namespace: &str, deadline: Duration) -> Self {
        Self { api: Api::namespaced(client, namespace), deadline }
    }

    pub fn api(&self) -> &Api<Lease> {
        &self.api
    }

    pub async fn read(&self, name: &str) -> Result<Option<Lease>, LeaseError> {
        let failed = |source| LeaseError::Read { lease: name.to_owned(), source };
        self.within(name, self.api.get_opt(name)).await?.map_err(failed)
    }

    /// Creates or replaces, as the object's resourceVersion says.
    pub async fn write(&self, lease: &Lease) -> Result<Lease, LeaseError> {
        let name = lease.metadata.name.clone().unwrap_or_default();
        let params = PostParams { field_manager: Some("perennial".to_owned()), ..PostParams::default() };
        let answer = if lease.metadata.resource_version.is_some() {
            self.within(&name, self.api.replace(&name, &params, lease)).await?
        } else {
            self.within(&name, self.api.create(&params, lease)).await?
        };
        answer.map_err(|source| {
            if is_changed(&source) {
                LeaseError::Changed { lease: name }
            } else {
                LeaseError::Write { lease: name, source }
            }
        })
    }

    /// Deletes exactly this version; that it is gone or has changed is no error.
    pub async fn delete(&self, lease: &Lease) -> Result<(), LeaseError> {
        let name = lease.metadata.name.clone().unwrap_or_default();
        let exactly = Preconditions {
            resource_version: lease.metadata.resource_version.clone(),
            uid: lease.metadata.uid.clone(),
        };
        let params = DeleteParams::default().preconditions(exactly);
        match self.within(&name, self.api.delete(&name, &params)).await? {
            Ok(_) => Ok(()),
            Err(source) if is_changed(&source) => Ok(()),
            Err(source) => Err(LeaseError::Delete { lease: name, source }),
        }
    }

    async fn within<T>(&self, name: &str, request: impl Future<Output = T>) -> Result<T, LeaseError> {
        let unanswered = |_| LeaseError::Unanswered { lease: name.to_owned(), deadline: self.deadline };
        tokio::time::timeout(self.deadline, request).await.map_err(unanswered)
    }
}

/// Gone, there already, or not the version that we had.
fn is_changed(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || status.code == 409)
}

/// What the decision needs to know of a Lease.
pub fn seen(lease: &Lease) -> Seen {
    let spec = lease.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
    Seen {
        holder: spec.and_then(|spec| spec.holder_identity.clone()).unwrap_or_default(),
        renewed: spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0.as_microsecond()),
        lease: seconds.map(Duration::from_secs),
        transitions: spec.and_then(|spec| spec.lease_transitions).unwrap_or(0),
        resource_version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

/// The object for a write. What others put on the Lease stays.
pub fn object(
    name: &str,
    write: &Write,
    last: Option<&Lease>,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> Lease {
    let renewed = MicroTime(Timestamp::from_microsecond(write.renewed).unwrap_or(Timestamp::UNIX_EPOCH));
    let before = last.filter(|_| write.on.is_some()).cloned().unwrap_or_default();
    let spec = before.spec.unwrap_or_default();
    let mut metadata =
        ObjectMeta { name: Some(name.to_owned()), resource_version: write.on.clone(), ..before.metadata };
    metadata.managed_fields = None;
    metadata.labels.get_or_insert_default().extend(labels.clone());
    metadata.annotations.get_or_insert_default().extend(annotations.clone());
    let seconds = i32::try_from(write.lease.as_secs()).unwrap_or(i32::MAX);
    let acquired = if write.act == Act::Acquire { Some(renewed.clone()) } else { spec.acquire_time };
    Lease {
        metadata,
        spec: Some(LeaseSpec {
            acquire_time: acquired,
            holder_identity: Some(write.holder.clone()),
            lease_duration_seconds: Some(seconds),
            lease_transitions: Some(write.transitions),
            renew_time: Some(renewed),
            ..spec
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(act: Act, on: Option<&str>) -> Write {
        Write {
            act,
            on: on.map(str::to_owned),
            holder: "a".to_owned(),
            lease: Duration::from_secs(15),
            renewed: 1_700_000_000_000_001,
            transitions: 4,
        }
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let lease = object("perennial", &write(Act::Acquire, None), None, &BTreeMap::new(), &BTreeMap::new());
        let read = seen(&serde_json::from_value(serde_json::to_value(&lease).unwrap()).unwrap());

        assert_eq!(read.holder, "a");
        assert_eq!(read.renewed, Some(1_700_000_000_000_001));
        assert_eq!(read.lease, Some(Duration::from_secs(15)));
        assert_eq!(read.transitions, 4);
    }

    #[test]
    fn a_renewal_keeps_the_time_of_the_acquisition_and_foreign_labels() {
        let none = BTreeMap::new();
        let mut first = object("perennial", &write(Act::Acquire, None), None, &none, &none);
        first.metadata.labels = Some(BTreeMap::from([("team".to_owned(), "infra".to_owned())]));
        let later = Write { renewed: 1_700_000_009_000_000, ..write(Act::Renew, Some("7")) };

        let renewed = object("perennial", &later, Some(&first), &none, &none);

        let (before, after) = (first.spec.unwrap(), renewed.spec.unwrap());
        assert_eq!(before.acquire_time, after.acquire_time);
        assert_ne!(before.renew_time, after.renew_time);
        assert_eq!(renewed.metadata.labels.unwrap()["team"], "infra");
        assert_eq!(renewed.metadata.resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn an_empty_lease_is_held_by_nobody() {
        let read = seen(&Lease::default());

        assert_eq!((read.holder.as_str(), read.renewed, read.lease), ("", None, None));
    }
}
