//! The default list of protected keys.

/// Patterns of the keys that are restored only to the same machine (G4), unless `keeper.protected`
/// replaces the list.
pub const PROTECTED_KEYS: &[&str] =
    &["node-restriction.kubernetes.io/*", "*.node-restriction.kubernetes.io/*", "node-role.kubernetes.io/*"];
