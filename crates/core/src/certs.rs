//! Our own certificates: what is kept about them, and what has to happen next.
//!
//! Owns the order of a rotation. Makes no keys and reads no clock.
//!
//! An authority goes through: *added* to the bundle → *confirmed* (every webhook configuration was seen to carry it) →
//! *signing* (after a while in which all API servers will have noticed) → *retired* (a newer one signs; its key is erased,
//! its certificate stays in the bundle) → *dropped* when it has expired.
//!
//! # Guarantees
//! No serving certificate is signed by an authority before the webhook configurations carry that authority; none is in
//! use whose authority has left the bundle.

mod expiry;

use serde::{Deserialize, Serialize};

pub use expiry::not_after;

/// How long things last, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    pub authority: i64,
    pub serving: i64,
    /// How long API servers may take to notice a new bundle.
    pub settle: i64,
    /// How far certificates are dated back, for clocks that are behind ours.
    pub backdate: i64,
}

impl Default for Lifetimes {
    fn default() -> Self {
        const DAY: i64 = 24 * 3600;
        Self { authority: 3650 * DAY, serving: 90 * DAY, settle: 60, backdate: 600 }
    }
}

/// One of our authorities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Authority {
    pub id: String,
    /// PEM.
    pub certificate: String,
    /// PEM; erased once a newer one signs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub issued: i64,
    pub expires: i64,
    /// Whether all webhook configurations were seen to carry it.
    #[serde(default)]
    pub confirmed: bool,
}

/// What the replicas serve with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Serving {
    /// The id of the authority that signed it.
    pub authority: String,
    /// PEM.
    pub certificate: String,
    /// PEM.
    pub key: String,
    pub issued: i64,
    pub expires: i64,
    /// Host names and addresses that it is for.
    pub names: Vec<String>,
}

/// All of it, as kept in the Secret. Oldest authority first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificates {
    pub version: u32,
    pub authorities: Vec<Authority>,
    pub serving: Serving,
}

/// The only version that is understood.
pub const VERSION: u32 = 1;

impl Certificates {
    /// Reads what is kept; `None` where it cannot be used.
    pub fn read(json: &[u8]) -> Option<Self> {
        let read: Self = serde_json::from_slice(json).ok()?;
        let signer = read.authorities.iter().any(|authority| authority.id == read.serving.authority);
        (read.version == VERSION && signer).then_some(read)
    }

    /// The certificates that the API servers are to trust, in PEM.
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

    /// With one more authority in the bundle.
    #[must_use]
    pub fn with(mut self, authority: Authority) -> Self {
        self.authorities.push(authority);
        self
    }

    /// With every authority marked as carried by the webhook configurations.
    #[must_use]
    pub fn confirm(mut self) -> Self {
        for authority in &mut self.authorities {
            authority.confirmed = true;
        }
        self
    }

    /// With another serving certificate; older authorities than its own will sign nothing any more.
    #[must_use]
    pub fn serve(mut self, serving: Serving) -> Self {
        let signer = self.authorities.iter().position(|authority| authority.id == serving.authority).unwrap_or(0);
        for authority in &mut self.authorities[..signer] {
            authority.key = None;
        }
        self.serving = serving;
        self
    }

    /// Without authorities that are over.
    #[must_use]
    pub fn drop_expired(mut self, now: i64) -> Self {
        let signer = self.serving.authority.clone();
        self.authorities.retain(|authority| authority.expires > now || authority.id == signer);
        self
    }
}

/// What has to happen next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Make an authority and a serving certificate: there are none, or none that are of use.
    Create,
    /// Make an authority and add it to the bundle.
    AddAuthority,
    /// Bring the bundle into the webhook configurations and, when they carry it, confirm.
    Confirm,
    /// Sign a serving certificate by this authority.
    Serve { authority: String },
    /// Remove authorities that are over.
    DropExpired,
    /// Nothing before that time.
    Wait { until: i64 },
}

/// What has to happen next, given what is kept.
///
/// `known_for` is for how many seconds *this* process has known that an authority is confirmed, by its monotonic clock.
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
    // Where the present signer is over, an authority that is not confirmed is still better than none.
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
    let settles =
        (newest.id != serving.authority).then(|| now + (lifetimes.settle - known_for(&newest.id).unwrap_or(0)).max(1));
    let until = [Some(renewal(newest.issued, newest.expires)), Some(renewal(serving.issued, serving.expires)), settles]
        .into_iter()
        .flatten()
        .filter(|time| *time > now)
        .chain(kept.authorities.iter().map(|authority| authority.expires).filter(|time| *time > now))
        .min()
        .unwrap_or(now + 1);
    Next::Wait { until }
}

/// When a serving certificate made now is to end: never after its authority.
pub fn serving_expires(lifetimes: &Lifetimes, authority: &Authority, now: i64) -> i64 {
    (now + lifetimes.serving).min(authority.expires)
}

/// At two thirds of its life.
fn renewal(issued: i64, expires: i64) -> i64 {
    issued + (expires - issued).max(0) * 2 / 3
}

fn is_newer(kept: &Certificates, id: &str) -> bool {
    let place = |id: &str| kept.authorities.iter().position(|authority| authority.id == id);
    place(id) > place(&kept.serving.authority)
}

#[cfg(test)]
mod tests;
