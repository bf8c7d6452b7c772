//! Signing keys of records from their Secret, and the verification of records.
//!
//! The only reader of the Secret. `perennial_core::keeper::signature` defines what a signature
//! covers.

use std::{
    collections::VecDeque,
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use perennial_core::{
    config::settings::{Hmac, Settings},
    keeper::{
        record::{RECORD_KEY, RECOVERED_KEY, Record, RecordFault},
        signature::{BadKeys, Keys, Newest, SECRET, SignedLocation},
    },
};
use tokio::time::Instant;
use tracing::{info, warn};

use super::Priority;
use crate::runtime::{
    budget::Budget,
    error_category::Category,
    map::HashMap,
    request::{RequestFailure, send},
};

/// Time for which a key that is not in the Secret is not looked up again.
const ABSENT_FOR: Duration = Duration::from_millis(200);
/// Maximum number of deleted records whose sequence is remembered.
const DELETED: usize = 10_000;
/// Pause between attempts to read the keys at startup.
const TRY_EVERY: Duration = Duration::from_secs(2);

/// Why the keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    #[error("could not read the Secret {SECRET} in namespace {namespace}, which `records.hmac` requires")]
    Read { namespace: String, source: RequestFailure },
    #[error(
        "`records.hmac` requires the Secret {SECRET} in namespace {namespace}, which does not exist: \
         kubectl create secret generic {SECRET} -n {namespace} --from-literal=key-1=\"$(openssl rand -hex 32)\""
    )]
    Missing { namespace: String },
    #[error("the Secret {SECRET} in namespace {namespace} cannot be used")]
    Bad { namespace: String, source: BadKeys },
}

/// A record must be signed, and the keys could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`records.hmac` requires a signature, and the Secret {SECRET} could not be read: it needs permission to get it"
)]
pub struct CannotSign;

/// Signs and verifies records. Clones share the keys.
#[derive(Clone, Debug)]
pub struct Signatures(Arc<SignatureState>);

struct SignatureState {
    mode: Hmac,
    namespace: String,
    secrets: Option<Api<Secret>>,
    /// `None` if they could not be read, in commands only. Nothing is verified or signed then.
    keys: RwLock<Option<Keys>>,
    /// Number of changes of the keys.
    changes: AtomicU64,
    seen: Mutex<SeenRecords>,
    last_read: tokio::sync::Mutex<Option<Instant>>,
    /// Keys that are not in the Secret.
    absent: tokio::sync::Mutex<HashMap<String, Instant>>,
}

/// The newest record seen under each data key of each ConfigMap.
#[derive(Debug, Default)]
struct SeenRecords {
    newest: HashMap<Place, Newest>,
    /// Deleted ConfigMaps by name and UID, oldest first. A deleted record may be created again from
    /// an older copy.
    deleted: VecDeque<(String, String)>,
}

/// A data key of a ConfigMap, as a hash: there is one for every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place(u128);

impl Place {
    fn new(name: &str, key: &str) -> Self {
        let half = |number: u8| {
            let mut hasher = DefaultHasher::new();
            (number, name, key).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        Self((half(0) << 64) | half(1))
    }

    /// Returns both places of a ConfigMap.
    fn all(name: &str) -> [Self; 2] {
        [RECORD_KEY, RECOVERED_KEY].map(|key| Self::new(name, key))
    }
}

impl SeenRecords {
    /// Records a deletion. The oldest of too many deleted ConfigMaps are forgotten. ConfigMaps
    /// without a verified record do not count: anyone who may create them could make this process
    /// forget the others.
    fn deleted(&mut self, name: &str, uid: &str) {
        let is_known = |place| self.newest.get(&place).is_some_and(|newest| newest.is_in(uid));
        if !Place::all(name).into_iter().any(is_known) {
            return;
        }
        self.deleted.push_back((name.to_owned(), uid.to_owned()));
        if self.deleted.len() > DELETED
            && let Some((name, uid)) = self.deleted.pop_front()
        {
            for place in Place::all(&name) {
                if self.newest.get(&place).is_some_and(|newest| newest.is_in(&uid)) {
                    self.newest.remove(&place);
                }
            }
        }
    }
}

impl fmt::Debug for SignatureState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignatureState").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Signatures {
    /// Neither signs nor verifies.
    pub fn none() -> Self {
        Self::new(Hmac::None, String::new(), None)
    }

    fn new(mode: Hmac, namespace: String, secrets: Option<Api<Secret>>) -> Self {
        Self(Arc::new(SignatureState {
            mode,
            namespace,
            secrets,
            keys: RwLock::default(),
            changes: AtomicU64::new(0),
            seen: Mutex::default(),
            last_read: tokio::sync::Mutex::default(),
            absent: tokio::sync::Mutex::default(),
        }))
    }

    fn of(client: &Client, settings: &Settings) -> Self {
        let namespace = settings.namespace.to_string();
        let secrets = Api::namespaced(client.clone(), &namespace);
        Self::new(settings.records.hmac, namespace, Some(secrets))
    }

    /// Reads the keys that the settings require. Retries while the API server is not available, and
    /// fails if the keys cannot be used: nothing can be decided without them.
    pub async fn load(client: &Client, settings: &Settings) -> Result<Self, KeysError> {
        if settings.records.hmac == Hmac::None {
            return Ok(Self::none());
        }
        let signatures = Self::of(client, settings);
        loop {
            match signatures.refresh().await {
                Ok(()) => return Ok(signatures),
                Err(KeysError::Read { source, .. }) if source.category() != Category::Forbidden => {
                    warn!(error = %source, "signing keys cannot be read yet, retrying");
                    tokio::time::sleep(TRY_EVERY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the keys for a command. Without them records are shown unverified, and none can be
    /// written.
    pub async fn for_command(client: &Client, settings: &Settings) -> (Self, Option<KeysError>) {
        if settings.records.hmac == Hmac::None {
            return (Self::none(), None);
        }
        let signatures = Self::of(client, settings);
        let trouble = signatures.refresh().await.err();
        (signatures, trouble)
    }

    pub fn mode(&self) -> Hmac {
        self.0.mode
    }

    /// Returns the names of the keys. The last one signs.
    pub fn key_names(&self) -> Vec<String> {
        self.keys().map(|keys| keys.names().map(str::to_owned).collect()).unwrap_or_default()
    }

    fn keys(&self) -> Option<Keys> {
        self.0.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of changes of the keys. Records that were verified before the last one
    /// must be verified again.
    pub fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::Acquire)
    }

    /// Reads the Secret. The known keys stay in use if it cannot be read.
    async fn refresh(&self) -> Result<(), KeysError> {
        let Some(secrets) = &self.0.secrets else { return Ok(()) };
        let namespace = self.0.namespace.clone();
        let read = send(&Budget::unlimited(), Priority::Restore, secrets.get_opt(SECRET)).await;
        let secret = read.map_err(|source| KeysError::Read { namespace: namespace.clone(), source })?;
        let secret = secret.ok_or_else(|| KeysError::Missing { namespace: namespace.clone() })?;
        let data = secret.data.unwrap_or_default().into_iter().map(|(name, key)| (name, key.0));
        let keys = Keys::new(data).map_err(|source| KeysError::Bad { namespace, source })?;
        let mut known = self.0.keys.write().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref() == Some(&keys) {
            return Ok(());
        }
        info!(keys = ?keys, "signing keys read");
        // The first keys are no change: no record was verified without them.
        let others = known.replace(keys).is_some();
        self.0.changes.fetch_add(u64::from(others), Ordering::Release);
        Ok(())
    }

    /// Reads the Secret, unless it was read less than `age` ago.
    pub async fn refresh_after(&self, age: Duration) -> Result<(), KeysError> {
        let mut last_read = self.0.last_read.lock().await;
        if last_read.is_some_and(|at| at.elapsed() < age) {
            return Ok(());
        }
        let refreshed = self.refresh().await;
        *last_read = Some(Instant::now());
        refreshed
    }

    /// Looks up a key that signed a record: another replica may have read a new key earlier. On an
    /// error it is not known whether the key exists.
    pub async fn look_for(&self, key: &str) -> Result<(), KeysError> {
        let mut absent = self.0.absent.lock().await;
        absent.retain(|_, at| at.elapsed() < ABSENT_FOR);
        if absent.contains_key(key) || self.has_key(key) {
            return Ok(());
        }
        self.refresh().await?;
        if !self.has_key(key) {
            absent.insert(key.to_owned(), Instant::now());
        }
        Ok(())
    }

    fn has_key(&self, key: &str) -> bool {
        self.keys().is_some_and(|keys| keys.names().any(|name| name == key))
    }

    /// Verifies the signature of bytes.
    pub fn verify(&self, name: &str, key: &str, text: &str, signature: Option<&str>) -> Result<(), RecordFault> {
        let keys = self.0.keys.read().unwrap_or_else(PoisonError::into_inner);
        match keys.as_ref() {
            Some(keys) => keys.verify(self.0.mode, &self.place(name, key), text, signature),
            None => Ok(()),
        }
    }

    /// Verifies that a record is not older than the newest one seen in its place.
    pub fn accept(
        &self,
        (name, key): (&str, &'static str),
        (uid, resource_version): (&str, u64),
        record: &Record,
    ) -> Result<(), RecordFault> {
        if self.0.mode == Hmac::None {
            return Ok(());
        }
        let read = Newest::new(uid, resource_version, record);
        let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.newest.entry(Place::new(name, key)).or_insert_with(|| read.clone()).see(read)
    }

    /// Returns the largest sequence that was seen in a ConfigMap. The next write continues from it.
    pub fn newest_sequence(&self, name: &str, uid: &str) -> u64 {
        let seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = Place::all(name).into_iter().filter_map(|place| seen.newest.get(&place));
        seen.filter(|seen| seen.is_in(uid)).map(Newest::sequence).max().unwrap_or_default()
    }

    /// Takes note that a ConfigMap was deleted. Its sequence is remembered for some time.
    pub fn on_deleted(&self, name: &str, uid: &str) {
        if self.0.mode != Hmac::None {
            self.0.seen.lock().unwrap_or_else(PoisonError::into_inner).deleted(name, uid);
        }
    }

    /// Signs bytes. Returns `None` if the settings require no signature.
    pub fn sign(&self, name: &str, key: &str, text: &str) -> Result<Option<String>, CannotSign> {
        if self.0.mode == Hmac::None {
            return Ok(None);
        }
        let signature = self.keys().and_then(|keys| keys.sign(&self.place(name, key), text));
        signature.map(Some).ok_or(CannotSign)
    }

    /// Whether bytes with this signature must be signed again.
    pub fn is_behind(&self, signature: Option<&str>) -> bool {
        let keys = self.0.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.as_ref().is_some_and(|keys| !keys.is_current(signature))
    }

    fn place<'a>(&'a self, name: &'a str, key: &'a str) -> SignedLocation<'a> {
        SignedLocation { namespace: &self.0.namespace, name, key }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn newest(uid: &str) -> Newest {
        let record = json!({"version": 1, "sequence": 9, "node": {}, "capturedAt": "2026-01-01T00:00:00Z"});
        Newest::new(uid, 5, &Record::from_value(record).unwrap())
    }

    #[test]
    fn deleted_config_maps_without_a_record_make_nothing_forgotten() {
        let mut seen = SeenRecords::default();
        for name in ["node-a", "node-b"] {
            seen.newest.insert(Place::new(name, RECORD_KEY), newest("u"));
        }
        seen.deleted("node-a", "u");

        for i in 0..=DELETED {
            seen.deleted(&format!("fake-{i}"), "u");
            seen.deleted("node-b", "another");
        }

        assert_eq!(seen.newest.len(), 2);
        assert_eq!(seen.deleted, [("node-a".to_owned(), "u".to_owned())]);
    }
}
