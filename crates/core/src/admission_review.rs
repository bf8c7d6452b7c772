//! `AdmissionReview`, reduced to the fields that are used here.
//!
//! Owns reading a review and writing its response. Fails open: a review that cannot be decoded is
//! allowed unchanged as long as it has a uid.
//!
//! # Guarantees
//! Anyone who reaches the port can send a review. The names of a decoded request are valid names of
//! Kubernetes objects, so that they can be used in the path of a request. Its objects contain only
//! the fields that handlers read.

mod pruned;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::names::{is_dns_label, is_dns_subdomain};

pub use pruned::MAX_VALUES;

/// Maximum length of a uid, which is repeated in the response. The API server sends 36 bytes.
pub const MAX_UID: usize = 128;

#[derive(Debug, Clone, Deserialize)]
struct Incoming {
    request: AdmissionRequest,
}

/// The request of a review.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionRequest {
    pub uid: String,
    #[serde(default, deserialize_with = "or_default")]
    pub operation: String,
    /// Absent on create with generateName and on DeleteCollection.
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub namespace: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub dry_run: bool,
    #[serde(default, deserialize_with = "or_default")]
    pub user_info: UserInfo,
    #[serde(default, deserialize_with = "or_default")]
    pub resource: Resource,
    #[serde(default, deserialize_with = "or_default")]
    pub sub_resource: String,
    /// Reduced to the fields that handlers read.
    #[serde(default, deserialize_with = "pruned::object")]
    pub object: Option<Value>,
    #[serde(default, deserialize_with = "pruned::object")]
    pub old_object: Option<Value>,
}

impl AdmissionRequest {
    /// Returns the approximate memory of the decoded request, in bytes.
    pub fn footprint(&self) -> usize {
        let Resource { group, version, resource } = &self.resource;
        let texts =
            [&self.uid, &self.operation, &self.sub_resource, &self.user_info.username, group, version, resource];
        let names = [&self.name, &self.namespace].into_iter().flatten();
        let strings = texts.into_iter().chain(names).chain(&self.user_info.groups);
        let objects = [&self.object, &self.old_object].into_iter().flatten();
        strings.map(|text| pruned::string_footprint(text)).sum::<usize>()
            + objects.map(pruned::footprint).sum::<usize>()
    }

    /// Returns whether every name could be that of an object. An absent or empty name is valid: the
    /// API server has not generated it yet.
    fn has_valid_names(&self) -> bool {
        let is_valid = |name: Option<&str>, namespace: Option<&str>| {
            name.is_none_or(|name| name.is_empty() || is_dns_subdomain(name))
                && namespace.is_none_or(|namespace| namespace.is_empty() || is_dns_label(namespace))
        };
        let text = |object: &Value, field: &str| -> Option<String> {
            object.pointer("/metadata")?.get(field)?.as_str().map(ToOwned::to_owned)
        };
        is_valid(self.name.as_deref(), self.namespace.as_deref())
            && [&self.object, &self.old_object]
                .into_iter()
                .flatten()
                .all(|object| is_valid(text(object, "name").as_deref(), text(object, "namespace").as_deref()))
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct UserInfo {
    #[serde(default, deserialize_with = "or_default")]
    pub username: String,
    #[serde(default, deserialize_with = "pruned::strings")]
    pub groups: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Resource {
    #[serde(default, deserialize_with = "or_default")]
    pub group: String,
    #[serde(default, deserialize_with = "or_default")]
    pub version: String,
    #[serde(default, deserialize_with = "or_default")]
    pub resource: String,
}

/// The response to a review.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionResponse {
    pub allowed: bool,
    /// The reason of a denial.
    pub message: Option<String>,
    /// Shown to the client that made the request.
    pub warnings: Vec<String>,
    /// Operations of a JSON patch.
    pub patch: Vec<Value>,
    /// Set if the request is allowed only because the handler could not decide. Not part of the
    /// response that is sent.
    pub fail_open: Option<FailOpen>,
}

/// The reason for which a handler allowed a request without a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailOpen {
    /// The deadline of the handler was exceeded.
    Deadline,
    /// Something that the decision depends on could not be read or written.
    Error,
}

impl AdmissionResponse {
    /// Allows the request unchanged.
    pub fn allowed() -> Self {
        Self { allowed: true, message: None, warnings: Vec::new(), patch: Vec::new(), fail_open: None }
    }

    /// Allows the request unchanged, because the handler could not decide.
    pub fn failed_open(reason: FailOpen) -> Self {
        Self { fail_open: Some(reason), ..Self::allowed() }
    }

    /// Allows the request with the operations of a JSON patch.
    pub fn patched(patch: Vec<Value>) -> Self {
        Self { patch, ..Self::allowed() }
    }

    /// Denies the request.
    pub fn denied(message: impl Into<String>) -> Self {
        Self { allowed: false, message: Some(message.into()), ..Self::allowed() }
    }

    #[must_use]
    pub fn warn(mut self, warning: impl Into<String>) -> Self {
        self.warnings.push(warning.into());
        self
    }
}

/// A decoded review.
#[derive(Debug, Clone, PartialEq)]
pub enum Review {
    Request(Box<AdmissionRequest>),
    /// Not decodable, or with an invalid name, but with a uid, so that it can be allowed.
    Malformed {
        uid: String,
    },
    /// Not answerable: the failure policy of the webhook applies.
    Unreadable,
}

/// Decodes a review. Its memory is bounded, whatever the body contains.
pub fn read(body: &[u8]) -> Review {
    if let Ok(incoming) = serde_json::from_slice::<Incoming>(body)
        && is_valid_uid(&incoming.request.uid)
        && incoming.request.has_valid_names()
    {
        return Review::Request(Box::new(incoming.request));
    }
    read_uid(body).map_or(Review::Unreadable, |uid| Review::Malformed { uid })
}

/// Decodes only the uid, without building the objects in memory, to allow a request quickly.
pub fn read_uid(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Outer {
        request: Inner,
    }
    #[derive(Deserialize)]
    struct Inner {
        uid: String,
    }
    serde_json::from_slice::<Outer>(body).ok().map(|outer| outer.request.uid).filter(|uid| is_valid_uid(uid))
}

fn is_valid_uid(uid: &str) -> bool {
    !uid.is_empty() && uid.len() <= MAX_UID
}

/// Encodes the response to the review with this uid.
pub fn write(uid: &str, response: &AdmissionResponse) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Outgoing<'a> {
        api_version: &'a str,
        kind: &'a str,
        response: Answer<'a>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer<'a> {
        uid: &'a str,
        allowed: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<Value>,
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        warnings: &'a [String],
        #[serde(skip_serializing_if = "Option::is_none")]
        patch_type: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        patch: Option<String>,
    }

    let patch = (response.allowed && !response.patch.is_empty())
        .then(|| serde_json::to_vec(&response.patch).ok())
        .flatten()
        .map(|bytes| base64(&bytes));
    let status = (!response.allowed)
        .then(|| serde_json::json!({"code": 403, "message": response.message.as_deref().unwrap_or("refused")}));
    let answer = Answer {
        uid,
        allowed: response.allowed,
        status,
        warnings: &response.warnings,
        patch_type: patch.as_ref().map(|_| "JSONPatch"),
        patch,
    };
    let outgoing = Outgoing { api_version: "admission.k8s.io/v1", kind: "AdmissionReview", response: answer };
    serde_json::to_vec(&outgoing).unwrap_or_default()
}

/// `null` counts as absent: Go writes it for what is empty.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// RFC 4648, with padding: what Go expects of a `[]byte`.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = [chunk[0], *chunk.get(1).unwrap_or(&0), *chunk.get(2).unwrap_or(&0)];
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for place in 0..4 {
            let digit = (bits >> (18 - 6 * place)) & 63;
            text.push(if place <= chunk.len() { char::from(DIGITS[digit as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests;
