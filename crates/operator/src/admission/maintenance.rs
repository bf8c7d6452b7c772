//! Rotates the served certificate and repairs the webhook configurations, in every replica, without
//! leader election.
//!
//! Owns the order of requests: the configurations are read first, then the certificates, and a
//! write to the configurations is conditional on what was read. So no replica with a stale view
//! removes an authority from a bundle.

use super::ca_bundle::{Others, carries};
use super::certificates::{CertsError, Directory, SecretStore, Served, StoredCertificates};
use super::configuration::{ConfigurationError, ConfigurationSettings, Configurations, Present, Repair, is_carried};
use super::issue::{self, IssueError};
use crate::runtime::{clock::Clock, error_chain::Chain, jitter::nominal_pause};
use perennial_core::certs::{Certificates, Lifetimes, Next, next};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Maximum number of rotation steps at a time. A rotation needs a few; more would be a loop.
const STEPS: usize = 6;
/// Longest pause between two checks.
const PERIOD: Duration = Duration::from_secs(10);
/// Delay between adding an authority to the configurations and serving its certificate: API servers
/// need a moment to notice.
const NOTICED_AFTER: Duration = Duration::from_secs(2);

/// Number of repairs within [`REPAIR_MEMORY`] that are followed by another check at once. An
/// installation and a rotation need a few.
const MANY: u32 = 8;
/// A repair that was not needed for this long is not counted any more.
const REPAIR_MEMORY: Duration = Duration::from_mins(5);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_mins(2);

/// Recent repairs of the configurations. Where another controller undoes them, they become rare.
#[derive(Debug, Default)]
struct Repairs {
    count: u32,
    last: Option<Instant>,
}

impl Repairs {
    /// Counts a repair. Returns the pause until the next check.
    fn pause(&mut self, now: Instant) -> Duration {
        if self.last.is_none_or(|last| now.duration_since(last) > REPAIR_MEMORY) {
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.last = Some(now);
        nominal_pause(self.count.saturating_sub(MANY), FIRST_PAUSE, LONGEST_PAUSE)
    }
}

/// A check failed. The served certificate stays in use.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    #[error("could not update the served certificate")]
    Certs(#[source] CertsError),
    #[error("could not issue a certificate")]
    Issue(#[source] IssueError),
    #[error("could not repair the webhook configurations")]
    Configuration(#[source] ConfigurationError),
}

/// Source of the certificate.
#[derive(Debug, Clone)]
pub enum CertificateOrigin {
    /// Perennial's own authority, in a Secret that all replicas share.
    Secret { lifetimes: Lifetimes },
    /// `webhook.certDir`.
    Directory(PathBuf),
}

/// Settings of the maintenance.
#[derive(Debug, Clone)]
pub struct MaintenanceSettings {
    pub namespace: String,
    pub origin: CertificateOrigin,
    /// Names for the certificate: [`ConfigurationSettings::names`], and any others.
    pub names: Vec<String>,
    /// `None` where another tool writes the configurations.
    pub configuration: Option<ConfigurationSettings>,
    pub clock: Clock,
}

/// Maintains the certificate and the configurations.
#[derive(Debug)]
pub struct Maintenance {
    settings: MaintenanceSettings,
    served: Arc<Served>,
    store: SecretStore,
    configurations: Configurations,
    directory: Option<Directory>,
    /// Authorities in the configurations that are not in the directory.
    others: Others,
    /// Time since which the configurations contain every authority of the directory.
    trusted: Option<Instant>,
    lifetimes: Lifetimes,
    installed: Option<Certificates>,
    /// Time since which each authority is known to be confirmed.
    confirmed: BTreeMap<String, Instant>,
}

impl Maintenance {
    pub fn new(client: kube::Client, settings: MaintenanceSettings, served: Arc<Served>) -> Self {
        let (directory, lifetimes) = match &settings.origin {
            CertificateOrigin::Secret { lifetimes } => (None, *lifetimes),
            CertificateOrigin::Directory(path) => (Some(Directory::new(path)), Lifetimes::default()),
        };
        Self {
            store: SecretStore::new(client.clone(), &settings.namespace),
            configurations: Configurations::new(client),
            directory,
            others: Others::default(),
            trusted: None,
            lifetimes,
            installed: None,
            confirmed: BTreeMap::new(),
            settings,
            served,
        }
    }

    /// Checks periodically until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut repairs = Repairs::default();
        let mut reported = None;
        while !stop.is_cancelled() {
            let looked = self.look().await;
            if looked.is_ok() {
                reported = None;
            }
            let again = match looked {
                Ok(Repair::Right) if !self.is_busy() => self.period(),
                Ok(Repair::Right) => self.period().min(NOTICED_AFTER / 4),
                Ok(Repair::Changed) => {
                    let pause = repairs.pause(Instant::now());
                    if repairs.count == MANY {
                        warn!("another controller changes the webhook configurations; they are repaired less often");
                    }
                    if repairs.count < MANY { self.period().min(pause) } else { pause }
                }
                Err(error) => {
                    // Once while it lasts.
                    let text = Chain(&error).to_string();
                    if reported.as_ref() != Some(&text) {
                        warn!(error = text, "could not maintain certificates and webhook configurations, retrying");
                        reported = Some(text);
                    }
                    self.period().min(Duration::from_secs(1))
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(again) => {}
            }
        }
    }

    /// Checks once and does what is due.
    pub async fn look(&mut self) -> Result<Repair, MaintenanceError> {
        let present = match self.settings.configuration {
            Some(_) => Some(self.configurations.read().await.map_err(MaintenanceError::Configuration)?),
            None => None,
        };
        let bundle = match self.directory {
            Some(_) => self.foreign(present.as_ref()).await.map_err(MaintenanceError::Certs)?,
            None => Some(self.own(present.as_ref()).await?.bundle().into_bytes()),
        };
        let (Some(settings), Some(present)) = (&self.settings.configuration, present) else {
            return Ok(Repair::Right);
        };
        let repair = self.configurations.repair(settings, &present, bundle.as_deref());
        repair.await.map_err(MaintenanceError::Configuration)
    }

    /// Serves the certificate of the directory once it is trusted. Returns the bundle for the
    /// configurations.
    async fn foreign(&mut self, present: Option<&Present>) -> Result<Option<Vec<u8>>, CertsError> {
        let Some(directory) = &mut self.directory else { return Ok(None) };
        directory.read().await?;
        let (ours, now) = (directory.bundle(), Instant::now());
        let carried = present.map(Present::bundle);
        let trusted = match (&ours, &carried) {
            (Some(ours), Some(carried)) => carries(carried, ours),
            // Another tool writes the bundle.
            _ => true,
        };
        self.trusted = if trusted { self.trusted.or(Some(now)) } else { None };
        let noticed = ours.is_none() || self.trusted.is_some_and(|since| now.duration_since(since) >= NOTICED_AFTER);
        if directory.is_new() && (noticed || !self.served.is_ready()) {
            directory.install(&self.served);
            info!("serving the certificate from the directory");
        }
        Ok(ours.map(|ours| self.others.beside(&ours, &carried.unwrap_or_default(), now)))
    }

    /// Whether the next check is due soon.
    fn is_busy(&self) -> bool {
        self.directory.as_ref().is_some_and(Directory::is_new)
    }

    /// Advances the rotation of Perennial's own certificates and serves the current one.
    async fn own(&mut self, present: Option<&Present>) -> Result<Certificates, MaintenanceError> {
        let mut kept = self.store.read().await.map_err(MaintenanceError::Certs)?;
        for _ in 0..STEPS {
            let now = self.settings.clock.now().as_second();
            self.note(&kept);
            if let Some(rotated) = self.rotated(&kept, now)? {
                info!("rotating the authority of the webhooks");
                kept = self.write(&kept, &rotated).await?;
                continue;
            }
            let known_for = |id: &str| {
                self.confirmed.get(id).map(|since| i64::try_from(since.elapsed().as_secs()).unwrap_or(i64::MAX))
            };
            let current = kept.certificates.as_ref().or(self.installed.as_ref());
            let step = next(current, &self.settings.names, &self.lifetimes, now, known_for);
            let Some(changed) = self.changed(&step, current, present, now)? else {
                if kept.certificates.is_some() {
                    break;
                }
                // The Secret was corrupted: the served certificate is still valid.
                let Some(installed) = self.installed.clone() else { break };
                kept = self.write(&kept, &installed).await?;
                continue;
            };
            info!(step = ?step, "webhook certificate rotation step");
            kept = self.write(&kept, &changed).await?;
        }
        let Some(certificates) = kept.certificates else {
            let secret = super::certificates::SECRET.to_owned();
            return Err(MaintenanceError::Certs(CertsError::Unanswered { secret }));
        };
        self.install(&certificates)?;
        Ok(certificates)
    }

    /// Returns the certificates at the begin of a rotation, or `None` where none is due. A Secret
    /// that was deleted is such a request: the served certificate is still valid, and is replaced
    /// without a lost request.
    fn rotated(&self, kept: &StoredCertificates, now: i64) -> Result<Option<Certificates>, MaintenanceError> {
        let current = match (&kept.certificates, &self.installed) {
            (Some(current), _) if current.must_rotate(kept.rotation()) => current,
            (None, Some(installed)) if !kept.exists() => installed,
            _ => return Ok(None),
        };
        let authority = issue::authority(&self.lifetimes, now).map_err(MaintenanceError::Issue)?;
        Ok(Some(current.clone().rotate(authority, kept.rotation())))
    }

    /// Returns the certificates after a step, or `None` where it changes nothing.
    fn changed(
        &self,
        step: &Next,
        current: Option<&Certificates>,
        present: Option<&Present>,
        now: i64,
    ) -> Result<Option<Certificates>, MaintenanceError> {
        let (names, lifetimes) = (&self.settings.names, &self.lifetimes);
        let Some(current) = current else {
            return issue::create(names, lifetimes, now).map(Some).map_err(MaintenanceError::Issue);
        };
        Ok(match step {
            Next::Create => Some(issue::create(names, lifetimes, now).map_err(MaintenanceError::Issue)?),
            Next::AddAuthority => {
                let authority = issue::authority(lifetimes, now).map_err(MaintenanceError::Issue)?;
                Some(current.clone().with(authority))
            }
            Next::Serve { authority } => match current.authority(authority) {
                Some(signer) => {
                    let serving = issue::serving(signer, names, lifetimes, now).map_err(MaintenanceError::Issue)?;
                    Some(current.clone().serve(serving))
                }
                None => None,
            },
            Next::Confirm => {
                let carried = match (&self.settings.configuration, present) {
                    (Some(settings), Some(present)) => is_carried(settings, present, current.bundle().as_bytes()),
                    _ => true,
                };
                carried.then(|| current.clone().confirm())
            }
            Next::DropExpired => Some(current.clone().drop_expired(now)),
            Next::DropRevoked => Some(current.clone().drop_revoked()),
            Next::Wait { .. } => None,
        })
    }

    /// Writes the Secret. On a conflict, returns the certificates that another replica wrote.
    async fn write(
        &self,
        kept: &StoredCertificates,
        certificates: &Certificates,
    ) -> Result<StoredCertificates, MaintenanceError> {
        match self.store.write(kept, certificates).await.map_err(MaintenanceError::Certs)? {
            Some(kept) => Ok(kept),
            None => self.store.read().await.map_err(MaintenanceError::Certs),
        }
    }

    fn note(&mut self, kept: &StoredCertificates) {
        let Some(certificates) = &kept.certificates else { return };
        let confirmed = certificates.authorities.iter().filter(|authority| authority.confirmed);
        let ids: Vec<String> = confirmed.map(|authority| authority.id.clone()).collect();
        self.confirmed.retain(|id, _| ids.contains(id));
        for id in ids {
            self.confirmed.entry(id).or_insert_with(Instant::now);
        }
    }

    fn install(&mut self, certificates: &Certificates) -> Result<(), MaintenanceError> {
        let serving = &certificates.serving;
        if self.installed.as_ref().is_none_or(|installed| installed.serving != *serving) {
            self.served
                .install(serving.certificate.as_bytes(), serving.key.as_bytes(), super::certificates::SECRET)
                .map_err(MaintenanceError::Certs)?;
            info!(authority = serving.authority, expires = serving.expires, "serving a new certificate");
        }
        self.installed = Some(certificates.clone());
        Ok(())
    }

    /// Returns the pause until the next check, which is short enough for the lifetimes. Tests use
    /// lifetimes of seconds.
    fn period(&self) -> Duration {
        let shortest = self.lifetimes.serving.min(self.lifetimes.settle * 10).max(0);
        let seconds = Duration::from_secs(u64::try_from(shortest).unwrap_or(u64::MAX));
        (seconds / 20).clamp(Duration::from_millis(200), PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_that_are_undone_become_rare() {
        let (mut repairs, mut now) = (Repairs::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..30 {
            pauses.push(repairs.pause(now));
            now += *pauses.last().unwrap();
        }
        assert!(pauses[..usize::try_from(MANY).unwrap()].iter().all(|pause| *pause == FIRST_PAUSE), "{pauses:?}");
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]), "{pauses:?}");
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE));

        now += REPAIR_MEMORY * 2;
        assert_eq!(repairs.pause(now), FIRST_PAUSE, "a repair after a quiet time is done at once");
    }
}
