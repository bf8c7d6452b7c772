//! Addresses that the ports are bound to.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use perennial_harness::{Operator, TestCluster, Webhooks};
use rstest::rstest;

/// Another address of this machine.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn ports(operator: &Operator) -> [u16; 2] {
    let line = operator.log().into_iter().find(|line| line["message"] == "serving admission").unwrap();
    let address: SocketAddr = line["address"].as_str().unwrap().parse().unwrap();
    [operator.port(), address.port()]
}

#[rstest]
#[case::all_addresses("", true)]
#[case::loopback("127.0.0.1", false)]
#[tokio::test]
async fn ports_are_bound_to_the_configured_address(#[case] address: &str, #[case] elsewhere: bool) {
    let cluster = TestCluster::new().await;
    let builder = cluster.operator().webhooks(Webhooks::On);
    let operator = builder.set("metrics.address", address).set("webhook.address", address).start().await;

    for port in ports(&operator) {
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok(), "{port}");
        assert_eq!(TcpStream::connect((OTHER, port)).is_ok(), elsewhere, "{port}");
    }
}
