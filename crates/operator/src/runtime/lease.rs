//! Reads and writes Lease objects, conditionally and with a deadline.
//!
//! Owns the translation between the object and [`perennial_core::coordination::lease`]. Decides
//! nothing.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use perennial_core::coordination::lease::{LeaseState, LeaseWrite, WriteKind};
use std::collections::BTreeMap;
use std::time::Duration;

/// A request about a Lease failed.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    #[error("could not read Lease {lease}")]
    Read { lease: String, source: kube::Error },
    #[error("could not write Lease {lease}")]
    Write { lease: String, source: kube::Error },
    #[error("Lease {lease} was changed by another process")]
    Changed { lease: String },
    #[error("could not delete Lease {lease}")]
    Delete { lease: String, source: kube::Error },
    #[error("no response about Lease {lease} within {deadline:?}")]
    Unanswered { lease: String, deadline: Duration },
}

/// The Leases of Perennial's namespace.
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

    /// Replaces the Lease if the object has a resourceVersion, and creates it otherwise.
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

    /// Deletes exactly this version. A Lease that is gone or has changed is no error.
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

/// Returns whether the Lease does not exist, exists already or has another version.
fn is_changed(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || status.code == 409)
}

/// Returns the fields of a Lease that the election depends on.
pub fn state(lease: &Lease) -> LeaseState {
    let spec = lease.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
    LeaseState {
        holder: spec.and_then(|spec| spec.holder_identity.clone()).unwrap_or_default(),
        renewed: spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0.as_microsecond()),
        lease: seconds.map(Duration::from_secs),
        transitions: spec.and_then(|spec| spec.lease_transitions).unwrap_or(0),
        resource_version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

/// Returns the object of a write. Labels and annotations of others stay.
pub fn object(
    name: &str,
    write: &LeaseWrite,
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
    let acquired = if write.kind == WriteKind::Acquire { Some(renewed.clone()) } else { spec.acquire_time };
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

    fn write(kind: WriteKind, on: Option<&str>) -> LeaseWrite {
        LeaseWrite {
            kind,
            on: on.map(str::to_owned),
            holder: "a".to_owned(),
            lease: Duration::from_secs(15),
            renewed: 1_700_000_000_000_001,
            transitions: 4,
        }
    }

    #[test]
    fn a_written_lease_reads_back_the_same() {
        let lease = object("perennial", &write(WriteKind::Acquire, None), None, &BTreeMap::new(), &BTreeMap::new());
        let read = state(&serde_json::from_value(serde_json::to_value(&lease).unwrap()).unwrap());

        assert_eq!(read.holder, "a");
        assert_eq!(read.renewed, Some(1_700_000_000_000_001));
        assert_eq!(read.lease, Some(Duration::from_secs(15)));
        assert_eq!(read.transitions, 4);
    }

    #[test]
    fn a_renewal_keeps_the_time_of_the_acquisition_and_foreign_labels() {
        let none = BTreeMap::new();
        let mut first = object("perennial", &write(WriteKind::Acquire, None), None, &none, &none);
        first.metadata.labels = Some(BTreeMap::from([("team".to_owned(), "infra".to_owned())]));
        let later = LeaseWrite { renewed: 1_700_000_009_000_000, ..write(WriteKind::Renew, Some("7")) };

        let renewed = object("perennial", &later, Some(&first), &none, &none);

        let (before, after) = (first.spec.unwrap(), renewed.spec.unwrap());
        assert_eq!(before.acquire_time, after.acquire_time);
        assert_ne!(before.renew_time, after.renew_time);
        assert_eq!(renewed.metadata.labels.unwrap()["team"], "infra");
        assert_eq!(renewed.metadata.resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn an_empty_lease_is_free() {
        let read = state(&Lease::default());

        assert_eq!((read.holder.as_str(), read.renewed, read.lease), ("", None, None));
    }
}
