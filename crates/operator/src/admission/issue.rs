//! Issues authorities and serving certificates (ECDSA on P-256).
//!
//! Owns everything that needs a private key. [`perennial_core::certs`] decides when to issue which.

use perennial_core::certs::{Authority, Certificates, Lifetimes, Serving, VERSION, serving_expires};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// A certificate could not be issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    #[error("could not generate a key")]
    MakeKey(#[source] rcgen::Error),
    #[error("could not create authority {id}")]
    MakeAuthority { id: String, source: rcgen::Error },
    #[error("the key of authority {id} is missing or invalid")]
    ReadKey { id: String, source: Option<rcgen::Error> },
    #[error("{name:?} is not a valid name in a certificate")]
    Name { name: String, source: rcgen::Error },
    #[error("authority {id} could not sign a serving certificate")]
    Sign { id: String, source: rcgen::Error },
}

/// Creates an authority and a serving certificate signed by it.
pub fn create(names: &[String], lifetimes: &Lifetimes, now: i64) -> Result<Certificates, IssueError> {
    let authority = authority(lifetimes, now)?;
    let serving = serving(&authority, names, lifetimes, now)?;
    Ok(Certificates { version: VERSION, authorities: vec![authority], serving, rotation: None })
}

/// Creates an authority.
pub fn authority(lifetimes: &Lifetimes, now: i64) -> Result<Authority, IssueError> {
    let id = format!("{:016x}", RandomState::new().build_hasher().finish());
    let key = KeyPair::generate().map_err(IssueError::MakeKey)?;
    let expires = now + lifetimes.authority;
    let mut params = authority_params(&id);
    params.not_before = rcgen::date_time_ymd(1970, 1, 1) + since_1970(now - lifetimes.backdate);
    params.not_after = rcgen::date_time_ymd(1970, 1, 1) + since_1970(expires);
    let certificate =
        params.self_signed(&key).map_err(|source| IssueError::MakeAuthority { id: id.clone(), source })?;
    Ok(Authority {
        certificate: certificate.pem(),
        key: Some(key.serialize_pem()),
        issued: now,
        expires,
        confirmed: false,
        revoked: false,
        id,
    })
}

/// Issues a serving certificate, signed by this authority.
pub fn serving(
    authority: &Authority,
    names: &[String],
    lifetimes: &Lifetimes,
    now: i64,
) -> Result<Serving, IssueError> {
    let id = authority.id.clone();
    let pem = authority.key.as_deref().ok_or_else(|| IssueError::ReadKey { id: id.clone(), source: None })?;
    let signing =
        KeyPair::from_pem(pem).map_err(|source| IssueError::ReadKey { id: id.clone(), source: Some(source) })?;
    let issuer = Issuer::new(authority_params(&id), signing);

    let key = KeyPair::generate().map_err(IssueError::MakeKey)?;
    let expires = serving_expires(lifetimes, authority, now);
    let bad_name = |source| IssueError::Name { name: names.join(", "), source };
    let mut params = CertificateParams::new(names.to_vec()).map_err(bad_name)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "perennial-webhook");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.not_before = rcgen::date_time_ymd(1970, 1, 1)
        + since_1970((now - lifetimes.backdate).max(authority.issued - lifetimes.backdate));
    params.not_after = rcgen::date_time_ymd(1970, 1, 1) + since_1970(expires);
    let certificate = params.signed_by(&key, &issuer).map_err(|source| IssueError::Sign { id: id.clone(), source })?;
    Ok(Serving {
        authority: id,
        certificate: certificate.pem(),
        key: key.serialize_pem(),
        issued: now,
        expires,
        names: names.to_vec(),
    })
}

/// Returns the parameters of an authority, which depend on its id alone: its certificate need not
/// be parsed to sign.
fn authority_params(id: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("perennial-webhook-ca-{id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params
}

/// Returns seconds since 1970 as a duration, to be added to that date: rcgen does not export the
/// type of its dates.
fn since_1970(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
