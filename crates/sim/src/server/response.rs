//! Answers that are not objects: the API server's refusals, in its own words as far as anybody reads them.

use serde_json::{Value, json};

use super::kinds::Kind;

/// A refused request.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub retry_after: Option<u32>,
}

impl Refusal {
    pub fn body(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(seconds) = self.retry_after {
            status["details"] = json!({"retryAfterSeconds": seconds});
        }
        status
    }
}

fn refusal(code: u16, reason: &'static str, message: String) -> Refusal {
    Refusal { code, reason, message, retry_after: None }
}

pub fn not_found(kind: &Kind, name: &str) -> Refusal {
    refusal(404, "NotFound", format!("{} \"{name}\" not found", kind.qualified()))
}

pub fn no_such_page() -> Refusal {
    refusal(404, "NotFound", "the server could not find the requested resource".to_owned())
}

pub fn exists(kind: &Kind, name: &str) -> Refusal {
    refusal(409, "AlreadyExists", format!("{} \"{name}\" already exists", kind.qualified()))
}

pub fn conflict(kind: &Kind, name: &str, why: &str) -> Refusal {
    refusal(409, "Conflict", format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.qualified()))
}

pub fn invalid(kind: &Kind, name: &str, why: &str) -> Refusal {
    refusal(422, "Invalid", format!("{} \"{name}\" is invalid: {why}", kind.kind))
}

pub fn forbidden(kind: &Kind, name: &str, why: &str) -> Refusal {
    refusal(403, "Forbidden", format!("{} \"{name}\" is forbidden: {why}", kind.qualified()))
}

pub fn bad_request(why: &str) -> Refusal {
    refusal(400, "BadRequest", why.to_owned())
}

pub fn expired(why: &str) -> Refusal {
    refusal(410, "Expired", why.to_owned())
}

pub fn internal(why: &str) -> Refusal {
    refusal(500, "InternalError", format!("Internal error occurred: {why}"))
}

pub fn unavailable() -> Refusal {
    refusal(503, "ServiceUnavailable", "the server is currently unable to handle the request".to_owned())
}

pub fn timeout() -> Refusal {
    refusal(504, "Timeout", "Timeout: request did not complete within the allotted timeout".to_owned())
}

pub fn too_many(seconds: u32) -> Refusal {
    let message = "the server has received too many requests and has asked us to try again later".to_owned();
    Refusal { retry_after: Some(seconds), ..refusal(429, "TooManyRequests", message) }
}

pub fn disruption_budget() -> Refusal {
    let message = "Cannot evict pod as it would violate the pod's disruption budget.".to_owned();
    Refusal { retry_after: Some(10), ..refusal(429, "TooManyRequests", message) }
}

/// What a successful request without an object is answered with.
pub fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
}
