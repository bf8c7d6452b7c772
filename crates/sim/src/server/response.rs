//! Responses without an object: the errors of the API server, with its messages where the operator
//! reads them.

use serde_json::{Value, json};

use super::kinds::Kind;

/// A failed request.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub retry_after: Option<u32>,
}

impl ApiError {
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

fn refusal(code: u16, reason: &'static str, message: String) -> ApiError {
    ApiError { code, reason, message, retry_after: None }
}

pub fn not_found(kind: &Kind, name: &str) -> ApiError {
    refusal(404, "NotFound", format!("{} \"{name}\" not found", kind.qualified()))
}

pub fn no_such_page() -> ApiError {
    refusal(404, "NotFound", "the server could not find the requested resource".to_owned())
}

pub fn exists(kind: &Kind, name: &str) -> ApiError {
    refusal(409, "AlreadyExists", format!("{} \"{name}\" already exists", kind.qualified()))
}

pub fn conflict(kind: &Kind, name: &str, why: &str) -> ApiError {
    refusal(409, "Conflict", format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.qualified()))
}

pub fn invalid(kind: &Kind, name: &str, why: &str) -> ApiError {
    refusal(422, "Invalid", format!("{} \"{name}\" is invalid: {why}", kind.kind))
}

pub fn forbidden(kind: &Kind, name: &str, why: &str) -> ApiError {
    refusal(403, "Forbidden", format!("{} \"{name}\" is forbidden: {why}", kind.qualified()))
}

pub fn bad_request(why: &str) -> ApiError {
    refusal(400, "BadRequest", why.to_owned())
}

pub fn expired(why: &str) -> ApiError {
    refusal(410, "Expired", why.to_owned())
}

pub fn internal(why: &str) -> ApiError {
    refusal(500, "InternalError", format!("Internal error occurred: {why}"))
}

pub fn unavailable() -> ApiError {
    refusal(503, "ServiceUnavailable", "the server is currently unable to handle the request".to_owned())
}

pub fn timeout() -> ApiError {
    refusal(504, "Timeout", "Timeout: request did not complete within the allotted timeout".to_owned())
}

pub fn too_many(seconds: u32) -> ApiError {
    let message = "the server has received too many requests and has asked us to try again later".to_owned();
    ApiError { retry_after: Some(seconds), ..refusal(429, "TooManyRequests", message) }
}

pub fn disruption_budget() -> ApiError {
    let message = "Cannot evict pod as it would violate the pod's disruption budget.".to_owned();
    ApiError { retry_after: Some(10), ..refusal(429, "TooManyRequests", message) }
}

/// Returns the Status of a successful request without an object.
pub fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
}
