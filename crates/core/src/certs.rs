//! Certificates of the webhook server that Perennial issues itself: their stored state and the next
//! step of a rotation.
//!
//! Owns the order of the steps. Never creates keys, never reads a clock.
//!
//! The states of an authority: *added* to the bundle → *confirmed* (every webhook configuration
//! contains it) → *signing* (after a delay in which all API servers load the bundle) → *retired* (a
//! newer one signs; its key is erased, its certificate stays in the bundle) → *dropped* (it has
//! expired). After a rotation on request, the older authorities are *revoked*: dropped as soon as
//! every replica serves a certificate of the new one.
//!
//! # Guarantees
//! No serving certificate is signed by an authority before the webhook configurations contain that
//! authority. None is in use whose authority is no longer in the bundle.

mod expiry;

use serde::{Deserialize, Serialize};

pub use expiry::not_after;

/// Lifetimes and delays, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    pub authority: i64,
    pub serving: i64,
    /// Time in which all API servers load a new bundle.
    pub settle: i64,
    /// Time by which certificates are backdated, for hosts whose clocks are behind.
    pub backdate: i64,
}

impl Default for Lifetimes {
    fn default() -> Self {
        const DAY: i64 = 24 * 3600;
        Self { authority: 3650 * DAY, serving: 90 * DAY, settle: 60, backdate: 600 }
    }
}

/// A certificate authority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Authority {
    pub id: String,
    /// PEM.
    pub certificate: String,
    /// PEM. Erased when a newer authority signs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub issued: i64,
    pub expires: i64,
    /// True if all webhook configurations contain it.
    #[serde(default)]
    pub confirmed: bool,
    /// True if a rotation on request replaces it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
}

/// The certificate that all replicas serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Serving {
    /// Id of the authority that signed it.
    pub authority: String,
    /// PEM.
    pub certificate: String,
    /// PEM.
    pub key: String,
    pub issued: i64,
    pub expires: i64,
    /// Host names and addresses that it is valid for.
    pub names: Vec<String>,
}

/// Content of the Secret. Oldest authority first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificates {
    pub version: u32,
    pub authorities: Vec<Authority>,
    pub serving: Serving,
    /// The last request for a rotation that was carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<String>,
}

/// The only supported version.
pub const VERSION: u32 = 1;

impl Certificates {
    /// Reads the content of the Secret. `None` if it is unusable.
    pub fn read(json: &[u8]) -> Option<Self> {
        let read: Self = serde_json::from_slice(json).ok()?;
        let signer = read.authorities.iter().any(|authority| authority.id == read.serving.authority);
        (read.version == VERSION && signer).then_some(read)
    }

    /// Returns the certificates that the API servers must trust, in PEM.
    pub fn bundle(&self) -> String {
        let mut bundle = String::new();
        for authority in &self.authorities {
            bundle.push_str(authority.certificate.trim_end());
            bundle.push('\n');
        }
        bundle
    }

    pub fn authority(&self, id: &str) -> Option<&Authority> {
        self.authorities.iter().find(|authority| authority.id == id)
    }

    /// Adds an authority to the bundle.
    #[must_use]
    pub fn with(mut self, authority: Authority) -> Self {
        self.authorities.push(authority);
        self
    }

    /// Marks all authorities as confirmed.
    #[must_use]
    pub fn confirm(mut self) -> Self {
        for authority in &mut self.authorities {
            authority.confirmed = true;
        }
        self
    }

    /// Replaces the serving certificate, and erases the keys of authorities older than its own.
    #[must_use]
    pub fn serve(mut self, serving: Serving) -> Self {
        let signer = self.authorities.iter().position(|authority| authority.id == serving.authority).unwrap_or(0);
        for authority in &mut self.authorities[..signer] {
            authority.key = None;
        }
        self.serving = serving;
        self
    }

    /// Returns whether a request for a rotation is not carried out yet. One rotation ends before
    /// the next begins.
    pub fn must_rotate(&self, request: Option<&str>) -> bool {
        let in_progress = self.authorities.iter().any(|authority| authority.revoked);
        request.is_some() && self.rotation.as_deref() != request && !in_progress
    }

    /// Begins a rotation: adds an authority and revokes all others.
    #[must_use]
    pub fn rotate(mut self, authority: Authority, request: Option<&str>) -> Self {
        for older in &mut self.authorities {
            older.revoked = true;
        }
        self.rotation = request.map(ToOwned::to_owned).or(self.rotation);
        self.with(authority)
    }

    /// Removes revoked authorities, except the one that signed the serving certificate.
    #[must_use]
    pub fn drop_revoked(mut self) -> Self {
        let signer = self.serving.authority.clone();
        self.authorities.retain(|authority| !authority.revoked || authority.id == signer);
        self
    }

    /// Removes expired authorities.
    #[must_use]
    pub fn drop_expired(mut self, now: i64) -> Self {
        let signer = self.serving.authority.clone();
        self.authorities.retain(|authority| authority.expires > now || authority.id == signer);
        self
    }
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Create an authority and a serving certificate: there are no usable ones.
    Create,
    /// Create an authority and add it to the bundle.
    AddAuthority,
    /// Write the bundle to the webhook configurations, and confirm once all contain it.
    Confirm,
    /// Sign a serving certificate with this authority.
    Serve { authority: String },
    /// Remove expired authorities.
    DropExpired,
    /// Remove the authorities that a rotation replaced.
    DropRevoked,
    /// Do nothing before this time.
    Wait { until: i64 },
}

/// Returns the next step, given the content of the Secret.
///
/// `known_for` returns for how many seconds *this* process has seen an authority as confirmed, by
/// its monotonic clock.
pub fn next(
    kept: Option<&Certificates>,
    names: &[String],
    lifetimes: &Lifetimes,
    now: i64,
    known_for: impl Fn(&str) -> Option<i64>,
) -> Next {
    let Some(kept) = kept else { return Next::Create };
    let usable = |authority: &&Authority| authority.key.is_some() && authority.expires > now;
    let Some(newest) = kept.authorities.iter().rev().find(usable) else { return Next::Create };
    let ready = |authority: &&Authority| {
        authority.confirmed && known_for(&authority.id).is_some_and(|known| known >= lifetimes.settle)
    };
    let signs_now = kept.authority(&kept.serving.authority).filter(usable);
    // If the current signer has expired, an unconfirmed authority is better than none.
    let signer = kept.authorities.iter().rev().filter(usable).find(ready).or(signs_now).unwrap_or(newest);

    let serving = &kept.serving;
    let is_due = now >= renewal(serving.issued, serving.expires) && serving.expires < signer.expires;
    let others = names.iter().any(|name| !serving.names.contains(name));
    if is_due || others || serving.expires <= now || serving.authority != signer.id && is_newer(kept, &signer.id) {
        return Next::Serve { authority: signer.id.clone() };
    }
    if now >= renewal(newest.issued, newest.expires) {
        return Next::AddAuthority;
    }
    if kept.authorities.iter().any(|authority| !authority.confirmed) {
        return Next::Confirm;
    }
    if kept.authorities.iter().any(|authority| authority.expires <= now && authority.id != serving.authority) {
        return Next::DropExpired;
    }
    let revoked = kept.authorities.iter().any(|authority| authority.revoked && authority.id != serving.authority);
    // Replicas read the Secret more often than that: all of them serve the new certificate by then.
    let unused = known_for(&serving.authority).unwrap_or(0) - 2 * lifetimes.settle;
    if revoked && unused >= 0 {
        return Next::DropRevoked;
    }
    let settles =
        (newest.id != serving.authority).then(|| now + (lifetimes.settle - known_for(&newest.id).unwrap_or(0)).max(1));
    let until = [Some(renewal(newest.issued, newest.expires)), Some(renewal(serving.issued, serving.expires)), settles]
        .into_iter()
        .chain([revoked.then_some(now - unused)])
        .flatten()
        .filter(|time| *time > now)
        .chain(kept.authorities.iter().map(|authority| authority.expires).filter(|time| *time > now))
        .min()
        .unwrap_or(now + 1);
    Next::Wait { until }
}

/// Returns the end of a serving certificate that is issued now: never after that of its authority.
pub fn serving_expires(lifetimes: &Lifetimes, authority: &Authority, now: i64) -> i64 {
    (now + lifetimes.serving).min(authority.expires)
}

/// Returns the time of renewal: after two thirds of the lifetime.
fn renewal(issued: i64, expires: i64) -> i64 {
    issued + (expires - issued).max(0) * 2 / 3
}

fn is_newer(kept: &Certificates, id: &str) -> bool {
    let place = |id: &str| kept.authorities.iter().position(|authority| authority.id == id);
    place(id) > place(&kept.serving.authority)
}

#[cfg(test)]
mod tests;
