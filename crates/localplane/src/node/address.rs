//! Addresses of nodes and pods. They exist only in the namespaces of a plane, so planes never
//! conflict with each other or with this machine.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Address at which pods reach the API server: the first of the service range.
pub(crate) const API_SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 96, 0, 1), 443);

/// Address of the gateway of all nodes.
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 210, 0, 1);

/// Addresses of one node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeAddress {
    number: u8,
}

impl NodeAddress {
    pub(crate) fn new(number: usize) -> Self {
        Self { number: u8::try_from(number).unwrap_or(u8::MAX).min(200) }
    }

    /// Returns the address of the node.
    pub(crate) fn node(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 210, 0, 10 + self.number)
    }

    /// Returns the addresses of its pods.
    pub(crate) fn pods(self) -> String {
        format!("10.210.{}.0/24", self.number + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_their_pods_have_separate_addresses() {
        let (first, second) = (NodeAddress::new(0), NodeAddress::new(1));

        assert_eq!((first.node().to_string(), first.pods()), ("10.210.0.10".into(), "10.210.1.0/24".into()));
        assert_eq!((second.node().to_string(), second.pods()), ("10.210.0.11".into(), "10.210.2.0/24".into()));
    }
}
