//! Accepted connections: their limit, their memory, their share and the verified certificate of
//! their client.

use std::{
    future::Ready,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Extension, middleware::AddExtension};
use axum_server::{accept::Accept, tls_rustls::RustlsAcceptor};
use futures::{FutureExt as _, future::BoxFuture};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tower::Layer as _;

use super::super::{
    fair_share::{Client, FairShares},
    memory::{ConnectionMemory, Memory},
    write_timeout::WriteTimeout,
};
use crate::runtime::connection_limit::{ConnectionLimit, ConnectionUse, LimitedStream};

/// Limits connections, and gives each its memory and its share.
#[derive(Clone, Debug)]
pub(super) struct Acceptor {
    pub(super) limit: ConnectionLimit,
    pub(super) memory: Memory,
    pub(super) shares: FairShares,
    pub(super) write: Duration,
}

pub(super) type ConnectionService<S> =
    AddExtension<AddExtension<AddExtension<S, ConnectionUse>, ConnectionMemory>, Client>;

impl<S> Accept<TcpStream, S> for Acceptor {
    type Stream = Accepted;
    type Service = ConnectionService<S>;
    type Future = Ready<io::Result<(Accepted, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let client = self.shares.client(stream.peer_addr().ok().map(|peer| peer.ip()));
        let accepted = self.limit.accept(stream, service).into_inner().map(|(stream, service)| {
            let service = Extension(self.memory.connection()).layer(service);
            let service = Extension(client.clone()).layer(service);
            let used = stream.usage().clone();
            (Accepted { stream: WriteTimeout::new(stream, self.write), used, client }, service)
        });
        std::future::ready(accepted)
    }
}

/// An accepted connection, before TLS.
#[derive(Debug)]
pub(super) struct Accepted {
    stream: WriteTimeout<LimitedStream>,
    used: ConnectionUse,
    client: Client,
}

impl AsyncRead for Accepted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Marks connections whose client has shown a certificate, which TLS has verified.
#[derive(Clone, Debug)]
pub(super) struct VerifyingAcceptor(pub(super) RustlsAcceptor<Acceptor>);

impl<S: Send + 'static> Accept<TcpStream, S> for VerifyingAcceptor {
    type Stream = <RustlsAcceptor<Acceptor> as Accept<TcpStream, S>>::Stream;
    type Service = ConnectionService<S>;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let accepted = self.0.accept(stream, service);
        async move {
            let (stream, service) = accepted.await?;
            let (accepted, tls) = stream.get_ref();
            if tls.peer_certificates().is_some_and(|certificates| !certificates.is_empty()) {
                accepted.client.verify();
                accepted.used.prefer();
            }
            Ok((stream, service))
        }
        .boxed()
    }
}
