//! Alternatives to Perennial and floors, measured by the same driver in the same run.

pub(crate) mod kopf;
pub(crate) mod no_op;
pub(crate) mod plain;
