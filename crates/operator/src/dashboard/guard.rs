//! Access to the page, and the security headers of every response.
//!
//! A request must name localhost as its host, which prevents DNS rebinding, and contain the token
//! if there is one.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderName, HeaderValue, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

/// Allows only files of this server, no inline script or style, and no strings that become markup.
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

/// Token that requests must contain, if any.
#[derive(Clone, Debug, Default)]
pub struct Guard(Option<Arc<str>>);

impl Guard {
    /// Admits every request to localhost. For servers that are reached through an authorized
    /// port-forward.
    pub fn open() -> Self {
        Self(None)
    }

    /// Admits requests with a random token in their path.
    pub fn random() -> Self {
        let parts: [u64; 3] = rand::random();
        let token = format!("{:016x}{:016x}{:016x}", parts[0], parts[1], parts[2]);
        Self(Some(Arc::from(token)))
    }

    pub fn token(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Path of the page.
    pub fn path(&self) -> String {
        self.token().map_or_else(|| "/".to_owned(), |token| format!("/{token}/"))
    }

    fn admits(&self, uri: &Uri) -> bool {
        let Some(token) = &self.0 else { return true };
        let token_of_request = uri.path().split('/').nth(1).unwrap_or_default();
        // In constant time.
        token_of_request.len() == token.len()
            && token_of_request.bytes().zip(token.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
    }
}

/// Returns whether a host name always means this machine. Any other name may resolve to it as well.
fn is_localhost(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    matches!(name, "127.0.0.1" | "[::1]") || name.eq_ignore_ascii_case("localhost")
}

pub(super) async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let mut response = if !is_localhost(host) {
        let why = "The dashboard is served on localhost only; use localhost or 127.0.0.1 in the address.\n";
        (StatusCode::MISDIRECTED_REQUEST, why).into_response()
    } else if guard.admits(request.uri()) {
        next.run(request).await
    } else {
        (StatusCode::NOT_FOUND, "Not found. Use the complete address that was printed.\n").into_response()
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_localhost_is_admitted() {
        for host in ["localhost", "localhost:8081", "127.0.0.1:1", "[::1]:80", "[::1]", "LOCALHOST:9"] {
            assert!(is_localhost(host), "{host}");
        }
        for host in ["", "example.com", "localhost.example.com:80", "127.0.0.1.nip.io", "10.0.0.1:80", "::1"] {
            assert!(!is_localhost(host), "{host}");
        }
    }

    #[test]
    fn token_must_be_the_first_part_of_the_path() {
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
