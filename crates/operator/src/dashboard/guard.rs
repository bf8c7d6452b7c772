//! Who may have the page, and what the browser may do with it.
//!
//! Whoever asks must have asked for this machine by name (so that no other site can be pointed at it) and, where there is
//! a token, know it. Every answer carries the policy under which the browser shows it.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderName, HeaderValue, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

/// Only what this server serves itself, no script or style in the markup, and no text that becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// What is asked of whoever wants the page.
#[derive(Clone, Debug, Default)]
pub struct Guard(Option<Arc<str>>);

impl Guard {
    /// Everyone on this machine: where the way to it is guarded already.
    pub fn open() -> Self {
        Self(None)
    }

    /// Whoever has the address, which nobody can guess.
    pub fn random() -> Self {
        let parts: [u64; 3] = rand::random();
        let token = format!("{:016x}{:016x}{:016x}", parts[0], parts[1], parts[2]);
        Self(Some(Arc::from(token)))
    }

    pub fn token(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Where the page is under an origin.
    pub fn path(&self) -> String {
        self.token().map_or_else(|| "/".to_owned(), |token| format!("/{token}/"))
    }

    fn admits(&self, uri: &Uri) -> bool {
        let Some(token) = &self.0 else { return true };
        let said = uri.path().split('/').nth(1).unwrap_or_default();
        // In the same time, whatever was said.
        said.len() == token.len() && said.bytes().zip(token.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
    }
}

/// Under a name that no other site can have: a name that somebody else owns may point at this machine as well.
fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    matches!(name, "127.0.0.1" | "[::1]") || name.eq_ignore_ascii_case("localhost")
}

pub(super) async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let mut answer = if !is_this_machine(host) {
        let why = "This page is for this machine only: ask for it as localhost or 127.0.0.1.\n";
        (StatusCode::MISDIRECTED_REQUEST, why).into_response()
    } else if guard.admits(request.uri()) {
        next.run(request).await
    } else {
        (StatusCode::NOT_FOUND, "Nothing is here. The whole address is the one that was printed.\n").into_response()
    };
    for (name, value) in HEADERS {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_asked_for() {
        for host in ["localhost", "localhost:8081", "127.0.0.1:1", "[::1]:80", "[::1]", "LOCALHOST:9"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in ["", "example.com", "localhost.example.com:80", "127.0.0.1.nip.io", "10.0.0.1:80", "::1"] {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_token_is_the_first_part_of_the_path() {
        let guard = Guard::random();
        let token = guard.token().unwrap().to_owned();
        let admits = |path: String| guard.admits(&path.parse().unwrap());
        assert_eq!(token.len(), 48);
        assert!(admits(format!("/{token}/")) && admits(format!("/{token}/api/nodes?q=a")));
        assert!(!admits("/".to_owned()) && !admits(format!("/{}/", &token[1..])) && !admits(format!("/x/{token}/")));
        assert!(!admits(format!("/{}/", token.replace(&token[..1], "x"))));
        assert_ne!(Guard::random().token(), Some(token.as_str()));
    }
}
