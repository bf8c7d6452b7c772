//! Kinds of objects that the server stores, and their paths.

/// A kind of object.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::struct_excessive_bools, reason = "kinds differ in that many ways")]
pub struct Kind {
    pub plural: &'static str,
    pub kind: &'static str,
    pub group: &'static str,
    pub version: &'static str,
    pub namespaced: bool,
    /// The status is written through the subresource only.
    pub status: bool,
    /// `metadata.generation` counts changes of the spec.
    pub generation: bool,
    /// A PUT creates a missing object, and requires the version of an existing one.
    pub strict_put: bool,
}

const fn kind(plural: &'static str, kind: &'static str, group: &'static str, version: &'static str) -> Kind {
    Kind { plural, kind, group, version, namespaced: true, status: false, generation: false, strict_put: false }
}

pub static NODES: Kind = Kind { namespaced: false, status: true, ..kind("nodes", "Node", "", "v1") };
pub static CONFIG_MAPS: Kind = kind("configmaps", "ConfigMap", "", "v1");
pub static LEASES: Kind = Kind { strict_put: true, ..kind("leases", "Lease", "coordination.k8s.io", "v1") };
pub static EVENTS: Kind = kind("events", "Event", "", "v1");
pub static PODS: Kind = Kind { status: true, generation: true, ..kind("pods", "Pod", "", "v1") };
pub static NAMESPACES: Kind = Kind { namespaced: false, status: true, ..kind("namespaces", "Namespace", "", "v1") };
pub static DEPLOYMENTS: Kind =
    Kind { status: true, generation: true, ..kind("deployments", "Deployment", "apps", "v1") };
pub static REPLICA_SETS: Kind =
    Kind { status: true, generation: true, ..kind("replicasets", "ReplicaSet", "apps", "v1") };
pub static STATEFUL_SETS: Kind =
    Kind { status: true, generation: true, ..kind("statefulsets", "StatefulSet", "apps", "v1") };
pub static PDBS: Kind =
    Kind { status: true, generation: true, ..kind("poddisruptionbudgets", "PodDisruptionBudget", "policy", "v1") };
pub static KEEP_POLICIES: Kind = Kind {
    namespaced: false,
    status: true,
    generation: true,
    ..kind("keeppolicies", "KeepPolicy", "perennial.dev", "v1alpha1")
};

static ALL: [&Kind; 11] = [
    &NODES,
    &CONFIG_MAPS,
    &LEASES,
    &EVENTS,
    &PODS,
    &NAMESPACES,
    &DEPLOYMENTS,
    &REPLICA_SETS,
    &STATEFUL_SETS,
    &PDBS,
    &KEEP_POLICIES,
];

impl Kind {
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Name in messages: `nodes`, `leases.coordination.k8s.io`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }
}

/// Target of a request, parsed from its path.
#[derive(Clone, Debug)]
pub struct Target {
    pub kind: &'static Kind,
    pub namespace: String,
    pub name: Option<String>,
    pub sub: Option<String>,
}

impl Target {
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts = path.trim_matches('/').split('/');
        let group = match parts.next()? {
            "api" => "",
            "apis" => parts.next()?,
            _ => return None,
        };
        let version = parts.next()?;
        let mut rest: Vec<&str> = parts.collect();
        let mut namespace = "";
        if rest.first() == Some(&"namespaces") && rest.len() > 2 {
            namespace = rest[1];
            rest.drain(..2);
        }
        let mut rest = rest.into_iter();
        let plural = rest.next()?;
        let kind = ALL.into_iter().find(|k| k.plural == plural && k.group == group && k.version == version)?;
        let name = rest.next().map(str::to_owned);
        let sub = rest.next().map(str::to_owned);
        Some(Self { kind, namespace: namespace.to_owned(), name, sub })
    }
}
