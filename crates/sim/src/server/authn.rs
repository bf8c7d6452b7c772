//! Who sends a request.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// An admin with kubectl, or anybody else who decides about labels.
    Person,
    /// The kubelet of a node.
    Kubelet,
    /// A controller of Kubernetes itself, the scheduler included.
    Controller,
    /// One process of the operator, counted from the start of the history.
    Operator(usize),
}

impl Who {
    pub fn is_operator(self) -> bool {
        matches!(self, Self::Operator(_))
    }

    /// The groups that admission is told.
    pub fn groups(self) -> &'static [&'static str] {
        match self {
            Self::Kubelet => &["system:nodes", "system:authenticated"],
            _ => &["system:authenticated"],
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Person => f.write_str("person"),
            Self::Kubelet => f.write_str("kubelet"),
            Self::Controller => f.write_str("controller"),
            Self::Operator(id) => write!(f, "operator-{id}"),
        }
    }
}
