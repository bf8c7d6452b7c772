//! A hostile client of the webhook port: TLS without verification, HTTP/1.1 by hand and HTTP/2.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use perennial_harness::Operator;
use rustls::{
    DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Accepts every certificate.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A client of the webhook port.
#[derive(Clone)]
pub(crate) struct Attacker {
    port: u16,
    from: Ipv4Addr,
    http1: TlsConnector,
    http2: TlsConnector,
}

impl Attacker {
    pub(crate) fn of(operator: &Operator) -> Self {
        let line = operator.log().into_iter().find(|line| line["message"] == "serving admission").unwrap();
        let port = line["address"].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
        let provider = Arc::new(ring::default_provider());
        let connector = |protocol: &[u8]| {
            let mut config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
                .with_safe_default_protocol_versions()
                .unwrap()
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Unverified(Arc::clone(&provider))))
                .with_no_client_auth();
            config.alpn_protocols = vec![protocol.to_vec()];
            TlsConnector::from(Arc::new(config))
        };
        Self { port, from: Ipv4Addr::LOCALHOST, http1: connector(b"http/1.1"), http2: connector(b"h2") }
    }

    /// Returns a client at another address of this machine.
    pub(crate) fn at(&self, from: Ipv4Addr) -> Self {
        Self { from, ..self.clone() }
    }

    async fn connect(&self, connector: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((self.from, 0)))?;
        let stream = socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))).await?;
        connector.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await
    }

    /// Opens a connection for HTTP/1.1.
    pub(crate) async fn http1(&self) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect(&self.http1).await
    }

    /// Opens a connection for HTTP/2.
    pub(crate) async fn http2_stream(&self) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect(&self.http2).await
    }

    /// Opens a connection for HTTP/2 and returns the handle for its requests.
    pub(crate) async fn http2(&self) -> std::io::Result<h2::client::SendRequest<hyper::body::Bytes>> {
        let stream = self.http2_stream().await?;
        let (requests, connection) = h2::client::handshake(stream).await.map_err(std::io::Error::other)?;
        tokio::spawn(connection);
        Ok(requests)
    }

    /// Sends a body with HTTP/1.1 and returns the response, or what arrived of it.
    pub(crate) async fn post(&self, path: &str, body: &[u8]) -> std::io::Result<String> {
        let mut stream = self.http1().await?;
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        let mut answer = Vec::new();
        let ended = stream.read_to_end(&mut answer).await;
        if answer.is_empty() {
            ended?;
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Sends a review and returns its response.
    pub(crate) async fn review(&self, path: &str, request: &Value) -> Value {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let answer = self.post(path, review.to_string().as_bytes()).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        serde_json::from_str::<Value>(body).unwrap()["response"].clone()
    }
}
