//! The certificates of a plane: its CAs (Kubernetes, etcd, front proxy) and the certificates that
//! they sign.
//!
//! There are three CAs, as in production: a cluster identity must not be accepted by etcd or as a
//! front proxy.

use std::{
    fs, io,
    io::Write,
    net::{IpAddr, Ipv4Addr},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::der;

/// First address of the service range, at which pods would reach the API server.
const SERVICE_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("cannot create a certificate for {subject}")]
    Make { subject: String, source: rcgen::Error },
    #[error("cannot parse the key {path}", path = path.display())]
    Key { path: PathBuf, source: rcgen::Error },
    #[error("cannot {act} {path}", path = path.display())]
    File { act: &'static str, path: PathBuf, source: io::Error },
}

/// Subject of a client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub user: String,
    pub groups: Vec<String>,
}

impl Identity {
    pub fn new(user: impl Into<String>, groups: &[&str]) -> Self {
        Self { user: user.into(), groups: groups.iter().map(|&g| g.to_owned()).collect() }
    }

    /// Returns an identity with all permissions.
    pub fn admin() -> Self {
        Self::new("admin", &["system:masters"])
    }

    /// Returns the identity of the kubelet of this node.
    pub fn kubelet(node: &str) -> Self {
        Self::new(format!("system:node:{node}"), &["system:nodes"])
    }
}

/// A certificate and its private key, both PEM encoded.
#[derive(Debug, Clone)]
pub struct Credentials {
    pub certificate: String,
    pub key: String,
}

/// The `pki` folder of a plane.
#[derive(Debug, Clone)]
pub(crate) struct Pki {
    folder: PathBuf,
}

impl Pki {
    /// Opens the folder and creates its content if it is incomplete.
    pub(crate) fn ensure(folder: PathBuf) -> Result<Self, PkiError> {
        fs::create_dir_all(&folder).map_err(|source| PkiError::File { act: "create", path: folder.clone(), source })?;
        let pki = Self { folder };
        if pki.path("sa.pub").exists() {
            return Ok(pki);
        }
        for authority in [Authority::KUBERNETES, Authority::ETCD, Authority::FRONT_PROXY] {
            authority.create(&pki)?;
        }
        let server = |authority: &Authority, name: &str| pki.issue_server(authority, name);
        server(&Authority::KUBERNETES, "apiserver")?;
        server(&Authority::ETCD, "etcd-server")?;
        let client = pki.issue(&Authority::ETCD, &Identity::new("kube-apiserver", &[]))?;
        pki.store("etcd-client", &client)?;
        let client = pki.issue(&Authority::FRONT_PROXY, &Identity::new("front-proxy-client", &[]))?;
        pki.store("front-proxy-client", &client)?;
        // Written last: its presence marks the folder as complete.
        let signer = generate("service accounts")?;
        pki.write("sa.key", &signer.serialize_pem())?;
        pki.write("sa.pub", &signer.public_key_pem())?;
        Ok(pki)
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    pub(crate) fn read(&self, file: &str) -> Result<String, PkiError> {
        let path = self.path(file);
        fs::read_to_string(&path).map_err(|source| PkiError::File { act: "read", path, source })
    }

    /// Returns the CA certificate that clients trust.
    pub(crate) fn ca(&self) -> Result<String, PkiError> {
        self.read("ca.crt")
    }

    /// Issues a client certificate for any identity.
    pub(crate) fn client(&self, identity: &Identity) -> Result<Credentials, PkiError> {
        self.issue(&Authority::KUBERNETES, identity)
    }

    /// Issues a client certificate and stores it under this name.
    pub(crate) fn issue_client(&self, name: &str, identity: &Identity) -> Result<(), PkiError> {
        self.store(name, &self.client(identity)?)
    }

    fn issue(&self, authority: &Authority, identity: &Identity) -> Result<Credentials, PkiError> {
        let fail = |source| PkiError::Make { subject: identity.user.clone(), source };
        let issuer = authority.load(self)?;
        let key = generate(&identity.user)?;
        let mut params = CertificateParams::default();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &issuer).map_err(fail)?;
        let der = der::with_subject(certificate.der(), &identity.user, &identity.groups, issuer.key()).map_err(fail)?;
        Ok(Credentials { certificate: der::pem("CERTIFICATE", &der), key: key.serialize_pem() })
    }

    fn issue_server(&self, authority: &Authority, name: &str) -> Result<(), PkiError> {
        let fail = |source| PkiError::Make { subject: name.to_owned(), source };
        let issuer = authority.load(self)?;
        let key = generate(name)?;
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let mut params = CertificateParams::new(names.map(str::to_owned)).map_err(fail)?;
        params.subject_alt_names.extend([IpAddr::V4(Ipv4Addr::LOCALHOST), SERVICE_ADDRESS].map(SanType::IpAddress));
        params.distinguished_name = common_name(name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // etcd's gateway uses the server certificate as a client certificate.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &issuer).map_err(fail)?;
        self.store(name, &Credentials { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    fn store(&self, name: &str, credentials: &Credentials) -> Result<(), PkiError> {
        self.write(&format!("{name}.crt"), &credentials.certificate)?;
        self.write(&format!("{name}.key"), &credentials.key)
    }

    fn write(&self, file: &str, text: &str) -> Result<(), PkiError> {
        let path = self.path(file);
        write_private(&path, text).map_err(|source| PkiError::File { act: "write", path, source })
    }
}

/// A CA, identified by the name of its files.
struct Authority {
    file: &'static str,
    name: &'static str,
}

impl Authority {
    const KUBERNETES: Self = Self { file: "ca", name: "localplane" };
    const ETCD: Self = Self { file: "etcd-ca", name: "localplane etcd" };
    const FRONT_PROXY: Self = Self { file: "front-proxy-ca", name: "localplane front proxy" };

    fn params(&self) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(self.name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        params
    }

    fn create(&self, pki: &Pki) -> Result<(), PkiError> {
        let key = generate(self.name)?;
        let fail = |source| PkiError::Make { subject: self.name.to_owned(), source };
        let certificate = self.params().self_signed(&key).map_err(fail)?;
        pki.store(self.file, &Credentials { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Loads the CA for signing. Signing needs only the name, which is constant, and the key.
    fn load(&self, pki: &Pki) -> Result<Issuer<'static, KeyPair>, PkiError> {
        let file = format!("{}.key", self.file);
        let key =
            KeyPair::from_pem(&pki.read(&file)?).map_err(|source| PkiError::Key { path: pki.path(&file), source })?;
        Ok(Issuer::new(self.params(), key))
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn generate(subject: &str) -> Result<KeyPair, PkiError> {
    KeyPair::generate().map_err(|source| PkiError::Make { subject: subject.to_owned(), source })
}

/// Writes a file atomically, readable only by its owner.
pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = PathBuf::from(name);
    let _ = fs::remove_file(&temporary);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&temporary, path)
}
