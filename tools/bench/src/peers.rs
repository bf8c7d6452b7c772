//! What people use instead, measured by the same driver in the same run.

pub(crate) mod kopf;
pub(crate) mod plain;
