//! One address for several replicas, like a Service: connections go to the replicas in turn and
//! skip those that are down.

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

use crate::{OperatorBuilder, TestCluster, ports::free_port};

/// Load balancer in front of several replicas.
#[derive(Debug)]
pub struct LoadBalancer {
    port: u16,
    replicas: Vec<u16>,
    task: JoinHandle<()>,
}

impl LoadBalancer {
    /// Reserves a port for each of `replicas` operators that are started later.
    pub async fn of(replicas: usize) -> Self {
        let ports: Vec<u16> = (0..replicas).map(|_| free_port()).collect();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let task = tokio::spawn(serve(listener, Arc::from(ports.clone())));
        Self { port, replicas: ports, task }
    }

    /// Webhook URL for the API server.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Settings of one replica, counted from 0.
    pub fn operator(&self, cluster: &TestCluster, number: usize) -> OperatorBuilder {
        let url = self.url();
        let port = self.replicas[number].to_string();
        cluster.operator().set("webhook.enabled", "true").set("webhook.port", &port).set("webhook.url", &url)
    }
}

impl Drop for LoadBalancer {
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

/// Opens a TLS connection that trusts exactly these certificates. Fails if the served certificate
/// is not signed by one of them.
pub fn handshake(url: &str, bundle: &[u8]) -> Result<(), String> {
    let roots = parse_pem(bundle).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let tls = TlsConfig::builder().root_certs(RootCerts::from(roots.collect::<Vec<_>>())).build();
    let agent = ureq::Agent::config_builder().tls_config(tls).timeout_global(Some(Duration::from_secs(5))).build();
    agent.new_agent().get(format!("{url}/healthz")).call().map(|_| ()).map_err(|error| error.to_string())
}
