//! Signing keys of records from their Secret, and the verification of records.
//!
//! The only reader of the Secret. `perennial_core::keeper::signature` defines what a signature
//! covers.

use std::{
    fmt,
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
        record::{Fault, RECORD_KEY, RECOVERED_KEY, Record},
        signature::{BadKeys, Keys, Newest, Place, SECRET},
    },
};
use tokio::time::Instant;
use tracing::{info, warn};

use super::Priority;
use crate::runtime::{
    budget::Budget,
    error_category::Category,
    map::HashMap,
    request::{Failure, ask},
};

/// Time for which a key that is not in the Secret is not looked up again.
const ABSENT_FOR: Duration = Duration::from_millis(200);
/// Pause between attempts to read the keys at startup.
const TRY_EVERY: Duration = Duration::from_secs(2);

/// Why the keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    #[error("could not read the Secret {SECRET} in namespace {namespace}, which `records.hmac` asks for")]
    Read { namespace: String, source: Failure },
    #[error(
        "`records.hmac` asks for the Secret {SECRET} in namespace {namespace}, which is not there: \
         kubectl create secret generic {SECRET} -n {namespace} --from-literal=key-1=\"$(openssl rand -hex 32)\""
    )]
    Missing { namespace: String },
    #[error("the Secret {SECRET} in namespace {namespace} cannot be used")]
    Bad { namespace: String, source: BadKeys },
}

/// A record must be signed, and the keys could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`records.hmac` asks for a signature, and the Secret {SECRET} could not be read: you need to be allowed to get it"
)]
pub struct CannotSign;

/// Signs and verifies records. Clones share the keys.
#[derive(Clone, Debug)]
pub struct Signatures(Arc<Inner>);

struct Inner {
    mode: Hmac,
    namespace: String,
    secrets: Option<Api<Secret>>,
    /// `None` if they could not be read, in commands only. Nothing is verified or signed then.
    keys: RwLock<Option<Keys>>,
    /// Number of changes of the keys.
    changes: AtomicU64,
    /// The newest record seen under each data key of each ConfigMap.
    newest: Mutex<HashMap<(String, &'static str), Newest>>,
    asked: tokio::sync::Mutex<Option<Instant>>,
    /// Keys that are not in the Secret.
    absent: tokio::sync::Mutex<HashMap<String, Instant>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Signatures {
    /// Neither signs nor verifies.
    pub fn none() -> Self {
        Self::new(Hmac::None, String::new(), None)
    }

    fn new(mode: Hmac, namespace: String, secrets: Option<Api<Secret>>) -> Self {
        Self(Arc::new(Inner {
            mode,
            namespace,
            secrets,
            keys: RwLock::default(),
            changes: AtomicU64::new(0),
            newest: Mutex::default(),
            asked: tokio::sync::Mutex::default(),
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
        let read = ask(&Budget::unlimited(), Priority::Restore, secrets.get_opt(SECRET)).await;
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
        let mut asked = self.0.asked.lock().await;
        if asked.is_some_and(|at| at.elapsed() < age) {
            return Ok(());
        }
        let refreshed = self.refresh().await;
        *asked = Some(Instant::now());
        refreshed
    }

    /// Looks up a key that signed a record: another replica may have read a new key earlier. On an
    /// error it is not known whether the key exists.
    pub async fn look_for(&self, key: &str) -> Result<(), KeysError> {
        let mut absent = self.0.absent.lock().await;
        absent.retain(|_, at| at.elapsed() < ABSENT_FOR);
        if absent.contains_key(key) || self.knows(key) {
            return Ok(());
        }
        self.refresh().await?;
        if !self.knows(key) {
            absent.insert(key.to_owned(), Instant::now());
        }
        Ok(())
    }

    fn knows(&self, key: &str) -> bool {
        self.keys().is_some_and(|keys| keys.names().any(|name| name == key))
    }

    /// Verifies the signature of bytes.
    pub fn vouch(&self, name: &str, key: &str, text: &str, signature: Option<&str>) -> Result<(), Fault> {
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
    ) -> Result<(), Fault> {
        if self.0.mode == Hmac::None {
            return Ok(());
        }
        let mut newest = self.0.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence = record.sequence;
        let first = || Newest { uid: uid.to_owned(), resource_version, sequence };
        newest.entry((name.to_owned(), key)).or_insert_with(first).see(uid, resource_version, sequence)
    }

    /// Returns the largest sequence that was seen in a ConfigMap. The next write continues from it.
    pub fn newest_sequence(&self, name: &str, uid: &str) -> u64 {
        let newest = self.0.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = [RECORD_KEY, RECOVERED_KEY].into_iter().filter_map(|key| newest.get(&(name.to_owned(), key)));
        seen.filter(|seen| seen.uid == uid).map(|seen| seen.sequence).max().unwrap_or_default()
    }

    /// Forgets a deleted ConfigMap.
    pub fn forget(&self, name: &str) {
        let mut newest = self.0.newest.lock().unwrap_or_else(PoisonError::into_inner);
        for key in [RECORD_KEY, RECOVERED_KEY] {
            newest.remove(&(name.to_owned(), key));
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

    fn place<'a>(&'a self, name: &'a str, key: &'a str) -> Place<'a> {
        Place { namespace: &self.0.namespace, name, key }
    }
}
