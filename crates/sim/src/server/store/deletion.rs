//! Options and preconditions of a delete.

use serde_json::Value;

use super::{Condition, text};
use crate::server::{
    kinds::Kind,
    response::{self, ApiError},
};

/// Options of a delete.
#[derive(Clone, Debug, Default)]
pub struct Deletion {
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub rv: Option<String>,
}

impl Deletion {
    pub fn parse(body: &Value) -> Self {
        let of = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        Self {
            grace: body["gracePeriodSeconds"].as_i64(),
            uid: of("/preconditions/uid"),
            rv: of("/preconditions/resourceVersion"),
        }
    }

    pub fn condition(&self) -> Condition {
        Condition { rv: self.rv.is_some(), uid: self.uid.is_some() }
    }

    pub fn check(&self, kind: &Kind, name: &str, object: &Value) -> Result<(), ApiError> {
        let same = |wanted: &Option<String>, pointer: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == text(object, pointer))
        };
        if same(&self.uid, "/metadata/uid") && same(&self.rv, "/metadata/resourceVersion") {
            Ok(())
        } else {
            Err(response::conflict(kind, name, "Precondition failed"))
        }
    }
}
