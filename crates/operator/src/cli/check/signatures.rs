//! Signatures: the keys can be read, and every record is signed by the newest.

use perennial_core::{config::settings::Hmac, keeper::signature::SECRET};

use super::Line;
use crate::inspect::session::Session;

/// None where records are not signed.
pub(super) async fn check(session: &Session) -> Option<Line> {
    let signatures = session.cluster.signatures();
    if signatures.mode() == Hmac::None {
        return None;
    }
    let what = "signatures";
    let Some(key) = signatures.key_names().pop() else {
        let fix = format!("create the Secret {SECRET} as docs/security.md says; you need to be allowed to get it");
        return Some(Line::fail(what, "the keys of records cannot be read", fix));
    };
    let (mut all, mut unsigned) = (0usize, 0usize);
    let counted = session.each_record(|page| {
        all += page.len();
        unsigned += page.iter().filter(|held| held.is_unsigned()).count();
        Ok(())
    });
    Some(match counted.await {
        Err(error) => Line::warn(what, format!("{error:#}"), "you need to be allowed to list configmaps there"),
        Ok(()) if unsigned == 0 => {
            let mode = signatures.mode();
            Line::pass(what, format!("all {all} records that can be trusted are signed by key {key} (hmac: {mode})"))
        }
        Ok(()) => {
            let fix = "a running operator signs them; until then keep older keys, and records.hmac at `sign`";
            Line::warn(what, format!("{unsigned} of {all} records are not signed by key {key} yet"), fix)
        }
    })
}
