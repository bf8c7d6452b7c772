//! `AdmissionReview`, reduced to the fields that are used here.
//!
//! Owns reading a review and writing its response. Fails open: a review that cannot be decoded is allowed unchanged as long
//! as it has a uid.

use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    #[serde(default)]
    pub object: Option<Value>,
    #[serde(default)]
    pub old_object: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct UserInfo {
    #[serde(default, deserialize_with = "or_default")]
    pub username: String,
    #[serde(default, deserialize_with = "or_default")]
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
}

impl AdmissionResponse {
    /// Allows the request unchanged.
    pub fn allowed() -> Self {
        Self { allowed: true, message: None, warnings: Vec::new(), patch: Vec::new() }
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
    /// Not decodable, but with a uid, so that it can be allowed.
    Malformed {
        uid: String,
    },
    /// Not answerable: the failure policy of the webhook applies.
    Unreadable,
}

/// Decodes a review.
pub fn read(body: &[u8]) -> Review {
    if let Ok(incoming) = serde_json::from_slice::<Incoming>(body)
        && !incoming.request.uid.is_empty()
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
    serde_json::from_slice::<Outer>(body).ok().map(|outer| outer.request.uid).filter(|uid| !uid.is_empty())
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let vectors = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));

        assert_eq!(vectors, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }

    #[test]
    fn a_delete_without_a_name_is_understood() {
        let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "operation": "DELETE", "dryRun": null, "object": null, "unknown": 1,
            "userInfo": {"username": "system:node:n1", "groups": ["system:nodes"], "extra": {"x": ["y"]}},
            "resource": {"group": "", "version": "v1", "resource": "nodes"},
            "oldObject": {"metadata": {"name": "n1"}},
        }});

        let Review::Request(request) = read(body.to_string().as_bytes()) else { panic!("not understood") };

        assert_eq!((request.operation.as_str(), request.name, request.dry_run), ("DELETE", None, false));
        assert_eq!(request.user_info.groups, ["system:nodes"]);
        assert_eq!(request.old_object.unwrap()["metadata"]["name"], "n1");
        assert_eq!(request.object, None);
    }

    #[test]
    fn what_is_strange_is_still_answered_by_its_uid() {
        let body = json!({"request": {"uid": "u", "operation": 7}});

        assert_eq!(read(body.to_string().as_bytes()), Review::Malformed { uid: "u".to_owned() });
    }

    #[test]
    fn what_has_no_uid_cannot_be_answered() {
        for body in ["", "{}", "[]", "null", r#"{"request":{}}"#, r#"{"request":{"uid":""}}"#, r#"{"request":{"uid":"#]
        {
            assert_eq!(read(body.as_bytes()), Review::Unreadable, "{body}");
        }
    }

    #[test]
    fn an_answer_without_changes_has_no_patch() {
        let answer: Value = serde_json::from_slice(&write("u", &AdmissionResponse::allowed())).unwrap();

        assert_eq!(
            answer,
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": "u", "allowed": true}})
        );
    }

    #[test]
    fn a_patch_is_typed_and_encoded() {
        let response = AdmissionResponse::patched(vec![json!({"op": "add", "path": "/a", "value": 1})]).warn("careful");
        let answer: Value = serde_json::from_slice(&write("u", &response)).unwrap();

        assert_eq!(answer["response"]["patchType"], "JSONPatch");
        assert_eq!(answer["response"]["patch"], base64(br#"[{"op":"add","path":"/a","value":1}]"#));
        assert_eq!(answer["response"]["warnings"], json!(["careful"]));
    }

    #[test]
    fn a_refusal_says_why_and_changes_nothing() {
        let response = AdmissionResponse { patch: vec![json!({})], ..AdmissionResponse::denied("no") };
        let answer: Value = serde_json::from_slice(&write("u", &response)).unwrap();

        assert_eq!(answer["response"]["status"]["message"], "no");
        assert!(answer["response"].get("patch").is_none());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_fail(body in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&body);
        }
    }
}
