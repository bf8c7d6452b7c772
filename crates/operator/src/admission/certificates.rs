//! The served certificate and its sources: Perennial's Secret, or a directory.
//!
//! Owns the swap of the served certificate, which drops no connection: a handshake uses the
//! certificate that is current when it begins. The keys in the Secret are shared by all replicas.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, PostParams};
use perennial_core::certs::{Certificates, not_after};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Name of the Secret.
pub const SECRET: &str = "perennial-webhook-certs";
const STATE: &str = "certificates.json";
/// Annotation of the Secret that requests a new authority. Each new value is one request.
pub const ROTATE: &str = "perennial.dev/rotate";

/// A certificate could not be read, written or served.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    #[error("could not read Secret {secret}")]
    ReadSecret { secret: String, source: kube::Error },
    #[error("could not write Secret {secret}")]
    WriteSecret { secret: String, source: kube::Error },
    #[error(
        "there is no Secret {secret}: no operator with webhooks runs, or its certificates come from webhook.certDir"
    )]
    NoSecret { secret: String },
    #[error("no response about Secret {secret}")]
    Unanswered { secret: String },
    #[error("could not encode the certificates for the Secret")]
    Encode(#[source] serde_json::Error),
    #[error("could not read file {}", path.display())]
    ReadFile { path: PathBuf, source: std::io::Error },
    #[error("could not decode the certificate from {origin}: {reason}")]
    Certificate { origin: String, reason: String },
    #[error("could not serve the certificate and key from {origin}")]
    Unusable { origin: String, source: rustls::Error },
}

/// The certificate for TLS handshakes.
#[derive(Debug, Default)]
pub struct Served {
    current: RwLock<Option<Arc<CertifiedKey>>>,
}

impl Served {
    /// Serves a certificate from the next handshake on.
    pub fn install(&self, certificate: &[u8], key: &[u8], origin: &str) -> Result<(), CertsError> {
        self.serve(certified(certificate, key, origin)?);
        Ok(())
    }

    fn serve(&self, certified: Arc<CertifiedKey>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(certified);
    }

    /// Returns the expiry of the served certificate, in seconds since 1970.
    pub fn expires(&self) -> Option<i64> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        not_after(current.cert.first()?)
    }

    /// Whether a certificate is served.
    pub fn is_ready(&self) -> bool {
        self.current.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// Decodes a certificate and its key and checks that they match.
fn certified(certificate: &[u8], key: &[u8], origin: &str) -> Result<Arc<CertifiedKey>, CertsError> {
    let bad = |reason: String| CertsError::Certificate { origin: origin.to_owned(), reason };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<_, _>>()
        .map_err(|error| bad(error.to_string()))?;
    if chain.is_empty() {
        return Err(bad("there is none".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| bad(format!("its key: {error}")))?;
    let certified = CertifiedKey::from_der(chain, key, &provider())
        .map_err(|source| CertsError::Unusable { origin: origin.to_owned(), source })?;
    Ok(Arc::new(certified))
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The cryptography provider of every TLS connection.
pub(super) fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

/// Reads and writes the Secret.
#[derive(Debug, Clone)]
pub struct SecretStore {
    api: Api<Secret>,
    deadline: Duration,
}

/// The content of the Secret.
#[derive(Debug, Clone, Default)]
pub struct StoredCertificates {
    pub certificates: Option<Certificates>,
    secret: Option<Secret>,
}

impl StoredCertificates {
    /// Whether the Secret exists, valid or not.
    pub fn exists(&self) -> bool {
        self.secret.is_some()
    }

    /// Returns the last request for a rotation.
    pub fn rotation(&self) -> Option<&str> {
        self.secret.as_ref()?.metadata.annotations.as_ref()?.get(ROTATE).map(String::as_str)
    }
}

impl SecretStore {
    pub fn new(client: kube::Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), deadline: Duration::from_secs(10) }
    }

    pub async fn read(&self) -> Result<StoredCertificates, CertsError> {
        let failed = |source| CertsError::ReadSecret { secret: SECRET.to_owned(), source };
        let secret = self.within(self.api.get_opt(SECRET)).await?.map_err(failed)?;
        let state = secret.as_ref().and_then(|secret| secret.data.as_ref()?.get(STATE));
        let certificates = state.and_then(|state| Certificates::read(&state.0));
        Ok(StoredCertificates { certificates, secret })
    }

    /// Writes the Secret. Returns `None` on a conflict: the caller reads it again.
    pub async fn write(
        &self,
        kept: &StoredCertificates,
        certificates: &Certificates,
    ) -> Result<Option<StoredCertificates>, CertsError> {
        let secret = secret(kept.secret.as_ref(), certificates)?;
        let params = PostParams { field_manager: Some("perennial".to_owned()), ..PostParams::default() };
        let answer = if kept.exists() {
            self.within(self.api.replace(SECRET, &params, &secret)).await?
        } else {
            self.within(self.api.create(&params, &secret)).await?
        };
        match answer {
            Ok(secret) => {
                Ok(Some(StoredCertificates { certificates: Some(certificates.clone()), secret: Some(secret) }))
            }
            Err(kube::Error::Api(status)) if status.code == 409 || (status.code == 404 && kept.exists()) => Ok(None),
            Err(source) => Err(CertsError::WriteSecret { secret: SECRET.to_owned(), source }),
        }
    }

    /// Requests a new authority from the running operator.
    pub async fn request_rotation(&self) -> Result<(), CertsError> {
        let request = serde_json::json!({ROTATE: jiff::Timestamp::now().to_string()});
        let patch = Patch::Merge(serde_json::json!({"metadata": {"annotations": request}}));
        match self.within(self.api.patch_metadata(SECRET, &PatchParams::default(), &patch)).await? {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                Err(CertsError::NoSecret { secret: SECRET.to_owned() })
            }
            Err(source) => Err(CertsError::WriteSecret { secret: SECRET.to_owned(), source }),
        }
    }

    async fn within<T>(&self, request: impl Future<Output = T>) -> Result<T, CertsError> {
        let unanswered = |_| CertsError::Unanswered { secret: SECRET.to_owned() };
        tokio::time::timeout(self.deadline, request).await.map_err(unanswered)
    }
}

/// The state, and the same under the usual keys for people and other tools.
fn secret(before: Option<&Secret>, certificates: &Certificates) -> Result<Secret, CertsError> {
    let state = serde_json::to_vec(certificates).map_err(CertsError::Encode)?;
    let text = |text: &str| ByteString(text.as_bytes().to_vec());
    let mut metadata = before.map_or_else(ObjectMeta::default, |secret| secret.metadata.clone());
    metadata.name = Some(SECRET.to_owned());
    metadata.managed_fields = None;
    let managed = ("app.kubernetes.io/managed-by".to_owned(), "perennial".to_owned());
    metadata.labels.get_or_insert_default().extend([managed]);
    Ok(Secret {
        metadata,
        type_: before.and_then(|secret| secret.type_.clone()).or_else(|| Some("Opaque".to_owned())),
        data: Some(BTreeMap::from([
            (STATE.to_owned(), ByteString(state)),
            ("ca.crt".to_owned(), ByteString(certificates.bundle().into_bytes())),
            ("tls.crt".to_owned(), text(&certificates.serving.certificate)),
            ("tls.key".to_owned(), text(&certificates.serving.key)),
        ])),
        ..Secret::default()
    })
}

/// A directory with certificates of another tool, such as cert-manager: `tls.crt`, `tls.key` and
/// optionally `ca.crt`.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// The matching pair that was read last.
    last: Option<Files>,
    /// A pair that was read and is not served yet.
    waiting: Option<Arc<CertifiedKey>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authority: Option<Vec<u8>>,
}

impl Directory {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), last: None, waiting: None }
    }

    /// Reads the files again.
    ///
    /// Compares contents: mounted Secrets swap a link, so modification times are useless. A pair
    /// that does not match (one file replaced, the other not yet) is rejected; the old certificate
    /// stays in use until the next attempt.
    pub async fn read(&mut self) -> Result<(), CertsError> {
        let files = Files {
            certificate: read_file(&self.path.join("tls.crt")).await?,
            key: read_file(&self.path.join("tls.key")).await?,
            authority: match read_file(&self.path.join("ca.crt")).await {
                Ok(bytes) => Some(bytes),
                Err(CertsError::ReadFile { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
        };
        if self.last.as_ref() != Some(&files) {
            let origin = self.path.display().to_string();
            self.waiting = Some(certified(&files.certificate, &files.key, &origin)?);
            self.last = Some(files);
        }
        Ok(())
    }

    /// Whether the pair that was read last is not served yet.
    pub fn is_new(&self) -> bool {
        self.waiting.is_some()
    }

    /// Serves the pair that was read last.
    pub fn install(&mut self, served: &Served) {
        if let Some(certified) = self.waiting.take() {
            served.serve(certified);
        }
    }

    /// Returns the CA bundle, where the directory has one.
    pub fn bundle(&self) -> Option<Vec<u8>> {
        self.last.as_ref()?.authority.clone()
    }
}

async fn read_file(path: &Path) -> Result<Vec<u8>, CertsError> {
    tokio::fs::read(path).await.map_err(|source| CertsError::ReadFile { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::issue;
    use perennial_core::certs::Lifetimes;

    fn certificates() -> Certificates {
        issue::create(&["localhost".to_owned(), "127.0.0.1".to_owned()], &Lifetimes::default(), 1_800_000_000).unwrap()
    }

    fn place(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("perennial-certs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn current(served: &Served) -> Vec<u8> {
        served.current.read().unwrap().as_ref().unwrap().cert[0].to_vec()
    }

    #[test]
    fn issued_certificates_can_be_served() {
        let made = certificates();
        let served = Served::default();
        assert!(!served.is_ready());

        served.install(made.serving.certificate.as_bytes(), made.serving.key.as_bytes(), "test").unwrap();

        assert!(served.is_ready());
        assert_eq!(served.expires(), Some(made.serving.expires));
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let (one, other) = (certificates(), certificates());
        let served = Served::default();

        let error =
            served.install(one.serving.certificate.as_bytes(), other.serving.key.as_bytes(), "test").unwrap_err();

        assert!(matches!(error, CertsError::Unusable { .. }), "{error:?}");
        assert!(!served.is_ready());
    }

    #[test]
    fn certificates_survive_the_round_trip_through_the_secret() {
        let made = certificates();
        let written = secret(None, &made).unwrap();
        let data = written.data.unwrap();

        assert_eq!(Certificates::read(&data[STATE].0), Some(made.clone()));
        assert_eq!(data["ca.crt"].0, made.bundle().into_bytes());
    }

    #[tokio::test]
    async fn a_directory_is_served_again_when_its_files_change() {
        let (one, two) = (certificates(), certificates());
        let path = place("change");
        let put = |made: &Certificates| {
            std::fs::write(path.join("tls.crt"), &made.serving.certificate).unwrap();
            std::fs::write(path.join("tls.key"), &made.serving.key).unwrap();
        };
        let (served, mut directory) = (Served::default(), Directory::new(&path));

        put(&one);
        directory.read().await.unwrap();
        assert!(directory.is_new());
        directory.install(&served);
        directory.read().await.unwrap();
        assert!(!directory.is_new());
        let before = current(&served);
        put(&two);
        directory.read().await.unwrap();
        assert!(directory.is_new());
        assert_eq!(before, current(&served));
        directory.install(&served);

        assert_ne!(before, current(&served));
        assert_eq!(directory.bundle(), None);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[tokio::test]
    async fn a_half_replaced_pair_changes_nothing() {
        let (one, two) = (certificates(), certificates());
        let path = place("half");
        std::fs::write(path.join("tls.crt"), &one.serving.certificate).unwrap();
        std::fs::write(path.join("tls.key"), &one.serving.key).unwrap();
        std::fs::write(path.join("ca.crt"), one.bundle()).unwrap();
        let (served, mut directory) = (Served::default(), Directory::new(&path));
        directory.read().await.unwrap();
        directory.install(&served);
        let before = current(&served);

        std::fs::write(path.join("tls.crt"), &two.serving.certificate).unwrap();
        assert!(directory.read().await.is_err());
        assert!(!directory.is_new());
        assert_eq!(before, current(&served));
        assert_eq!(directory.bundle(), Some(one.bundle().into_bytes()));

        std::fs::write(path.join("tls.key"), &two.serving.key).unwrap();
        directory.read().await.unwrap();
        assert!(directory.is_new());
        std::fs::remove_dir_all(path).unwrap();
    }
}
