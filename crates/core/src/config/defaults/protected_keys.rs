//! The default list of protected keys.

/// Patterns of the keys that are restored only to the same machine (G4), unless `keeper.protected`
/// replaces the list. Of these domains, only the labels are protected that a kubelet may not set
/// itself.
pub const PROTECTED_KEYS: &[&str] = RESERVED_DOMAINS;

/// Patterns of the domains in which NodeRestriction limits the labels of kubelets.
pub const RESERVED_DOMAINS: &[&str] = &["kubernetes.io/*", "*.kubernetes.io/*", "k8s.io/*", "*.k8s.io/*"];
