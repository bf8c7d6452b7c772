//! One address for several replicas, as a Service is: connections go to them in turn, and past those that are away.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::{OperatorBuilder, TestCluster, running::free_port};

/// An address in front of several replicas.
#[derive(Debug)]
pub struct Balancer {
    port: u16,
    replicas: Vec<u16>,
    task: JoinHandle<()>,
}

impl Balancer {
    /// In front of so many replicas to be.
    pub async fn of(replicas: usize) -> Self {
        let ports: Vec<u16> = (0..replicas).map(|_| free_port()).collect();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let task = tokio::spawn(serve(listener, Arc::from(ports.clone())));
        Self { port, replicas: ports, task }
    }

    /// Where the API server finds them.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The settings of one of them, counted from 0.
    pub fn operator(&self, cluster: &TestCluster, number: usize) -> OperatorBuilder {
        let url = self.url();
        let port = self.replicas[number].to_string();
        cluster.operator().set("webhook.enabled", "true").set("webhook.port", &port).set("webhook.url", &url)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, replicas: Arc<[u16]>) {
    let mut turn = 0;
    loop {
        let Ok((mut from, _)) = listener.accept().await else { return };
        let replicas = Arc::clone(&replicas);
        turn += 1;
        tokio::spawn(async move {
            for number in 0..replicas.len() {
                let port = replicas[(turn + number) % replicas.len()];
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                if let Ok(mut to) = TcpStream::connect(address).await {
                    let _ = copy_bidirectional(&mut from, &mut to).await;
                    return;
                }
            }
        });
    }
}

/// A connection of its own, which trusts exactly these certificates; an error where what is served is not by one of them.
pub fn handshake(url: &str, bundle: &[u8]) -> Result<(), String> {
    let roots = parse_pem(bundle).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let tls = TlsConfig::builder().root_certs(RootCerts::from(roots.collect::<Vec<_>>())).build();
    let agent = ureq::Agent::config_builder().tls_config(tls).timeout_global(Some(Duration::from_secs(5))).build();
    agent.new_agent().get(format!("{url}/healthz")).call().map(|_| ()).map_err(|error| error.to_string())
}
