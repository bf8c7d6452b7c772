//! Alternatives to Perennial, measured by the same driver in the same run.

pub(crate) mod kopf;
pub(crate) mod plain;
