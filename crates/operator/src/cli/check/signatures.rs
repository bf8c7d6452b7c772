//! Signatures: whether the keys can be read and every record is signed with the newest one.

use perennial_core::{config::settings::Hmac, keeper::signature::SECRET};

use super::CheckResult;
use crate::{inspect::session::Session, runtime::error_chain::Chain};

/// Returns `None` if records are not signed.
pub(super) async fn check(session: &Session) -> Option<CheckResult> {
    let signatures = session.cluster.signatures();
    if signatures.mode() == Hmac::None {
        return None;
    }
    let what = "signatures";
    let Some(key) = signatures.key_names().pop() else {
        let fix = format!(
            "create the Secret {SECRET} as described in docs/explain/security.md, and grant permission to get it"
        );
        return Some(CheckResult::fail(what, "the signing keys cannot be read", fix));
    };
    let (mut all, mut unsigned) = (0usize, 0usize);
    let counted = session.each_record(|page| {
        all += page.len();
        unsigned += page.iter().filter(|held| held.is_unsigned()).count();
        Ok(())
    });
    Some(match counted.await {
        Err(error) => {
            let fix = super::remedy(super::category_of(&error), "list configmaps in this namespace");
            CheckResult::warn(what, Chain(error.as_ref()).to_string(), fix)
        }
        Ok(()) if unsigned == 0 => {
            let mode = signatures.mode();
            CheckResult::pass(what, format!("all {all} valid records are signed by key {key} (hmac: {mode})"))
        }
        Ok(()) => {
            let fix = "wait for the operator to sign them; keep older keys and records.hmac: sign until then";
            CheckResult::warn(what, format!("{unsigned} of {all} records are not signed by key {key} yet"), fix)
        }
    })
}
