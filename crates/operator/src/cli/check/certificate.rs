//! The serving certificate: whether it exists, and when it expires.

use jiff::Timestamp;
use perennial_core::certs::Certificates;

use super::{CheckResult, remedy};
use crate::{
    admission::certificates::{CertsError, SecretStore},
    inspect::{format::span, session::Session},
    manifests::Features,
    runtime::{error_category::Category, error_chain::Chain},
};

const DAY: i64 = 24 * 3600;

pub(super) async fn check(session: &Session) -> CheckResult {
    let what = "certificate";
    if session.settings.controller.dry_run {
        return CheckResult::pass(what, "not needed: a dry run serves no admission");
    }
    if !Features::of(&session.settings).webhooks {
        return CheckResult::pass(what, "not needed: webhooks are off");
    }
    if session.settings.webhook.cert_dir.is_some() {
        return CheckResult::pass(what, "read from webhook.certDir; renewed by its issuer");
    }
    match SecretStore::new(session.client.clone(), session.settings.namespace.as_str()).read().await {
        Err(error) => {
            let fix = remedy(category_of(&error), "get the Secret, which contains the expiry date");
            CheckResult::warn(what, Chain(&error).to_string(), fix)
        }
        Ok(kept) => match kept.certificates {
            None if kept.exists() => CheckResult::fail(
                what,
                "the Secret contains no certificates of Perennial",
                "delete the Secret; the operator creates a new one",
            ),
            None => CheckResult::warn(
                what,
                "not created yet",
                "the operator creates it when it starts with webhooks enabled",
            ),
            Some(found) => expiry(&found, Timestamp::now().as_second()),
        },
    }
}

fn category_of(error: &CertsError) -> Category {
    match error {
        CertsError::ReadSecret { source, .. } => Category::of(source),
        CertsError::Unanswered { .. } => Category::Unreachable,
        _ => Category::Refused,
    }
}

fn expiry(found: &Certificates, now: i64) -> CheckResult {
    let left = found.serving.expires - now;
    let message = format!("the serving certificate expires in {}", span(left));
    match left {
        ..=0 => CheckResult::fail(
            "certificate",
            "the serving certificate has expired",
            "read the operator's log; it renews the certificate automatically",
        ),
        left if left < 10 * DAY => CheckResult::warn(
            "certificate",
            message,
            "the certificate should have been renewed; read the operator's log",
        ),
        _ => CheckResult::pass("certificate", message),
    }
}

#[cfg(test)]
mod tests {
    use perennial_core::certs::Serving;

    use super::{super::CheckSeverity, *};

    #[test]
    fn only_a_refused_read_needs_a_permission() {
        let fix = |error: &CertsError| remedy(category_of(error), "get the Secret");
        let forbidden = kube::core::Status::failure("no", "Forbidden").with_code(403);
        let source = kube::Error::Api(Box::new(forbidden));
        assert_eq!(
            fix(&CertsError::ReadSecret { secret: String::new(), source }),
            "grant permission to get the Secret"
        );
        let silent = fix(&CertsError::Unanswered { secret: String::new() });
        assert_eq!(silent, "check the API server, then run this check again");
    }

    #[test]
    fn certificate_result_depends_on_its_remaining_lifetime() {
        let serving = Serving {
            authority: String::new(),
            certificate: String::new(),
            key: String::new(),
            issued: 0,
            expires: 100 * DAY,
            names: Vec::new(),
        };
        let found = Certificates { version: 1, authorities: Vec::new(), serving, rotation: None };
        let at = |now: i64| expiry(&found, now).severity;
        assert_eq!(
            [at(0), at(95 * DAY), at(101 * DAY)],
            [CheckSeverity::Pass, CheckSeverity::Warn, CheckSeverity::Fail]
        );
    }
}
