//! The users that send requests.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum User {
    /// An admin, or any other author of labels.
    Person,
    /// The kubelet of a node.
    Kubelet,
    /// A controller of Kubernetes, or the scheduler.
    Controller,
    /// A process of the operator, numbered from the start of the history.
    Operator(usize),
}

impl User {
    pub fn is_operator(self) -> bool {
        matches!(self, Self::Operator(_))
    }

    /// Groups of the user in admission reviews.
    pub fn groups(self) -> &'static [&'static str] {
        match self {
            Self::Kubelet => &["system:nodes", "system:authenticated"],
            _ => &["system:authenticated"],
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Person => f.write_str("person"),
            Self::Kubelet => f.write_str("kubelet"),
            Self::Controller => f.write_str("controller"),
            Self::Operator(id) => write!(f, "operator-{id}"),
        }
    }
}
