//! Serves what listens, each connection within bounds: one whose client sends no whole head, or takes nothing of its
//! answer, is closed, so that nobody holds one for ever. (A body that brings nothing is broken off where it is read.)
//!
//! And only so many at once, for each is a descriptor, which Redis and the providers need too. Those above wait in the
//! system's queue, where they take none, until one of the others closes: closed at once, a client would see a fault where
//! in a crowd there is only a short wait.

use axum::{Router, serve::Listener};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Sleep,
};
use tokio_util::sync::CancellationToken;

/// A listener that is to be served.
pub struct Door {
    /// `api` or `metrics`: what its metrics are labelled with.
    pub name: &'static str,
    pub listener: TcpListener,
    pub bounds: Bounds,
}

/// What clients get of us: how many at once, and how long one is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections that are open at once; at least 1. More wait.
    pub connections: usize,
    /// Until the head of its next request is whole. Between two requests too, so it is longer than proxies keep a
    /// connection idle (a minute, mostly): they must be the first to close it.
    pub head: Duration,
    /// While it takes nothing of an answer that is ready to be sent.
    pub stalled: Duration,
}

impl Default for Bounds {
    /// 4,096 connections, which take some ten KiB each; 90 s for a head, 60 s for a client that stands still.
    fn default() -> Bounds {
        Bounds { connections: 4_096, head: Duration::from_secs(90), stalled: Duration::from_secs(60) }
    }
}

/// Serves until `closing`, then until the requests in hand are answered. Dropping it closes all connections.
pub async fn serve(door: Door, router: Router, closing: CancellationToken) {
    let Door { name, mut listener, bounds } = door;
    let (graceful, mut connections) = (GracefulShutdown::new(), JoinSet::new());
    metrics::gauge!("batchgate_connections_max", "listener" => name).set(bounds.connections as f64);
    let open = metrics::gauge!("batchgate_connections_open", "listener" => name);
    loop {
        open.set(connections.len() as f64);
        let stream = tokio::select! {
            (stream, _) = Listener::accept(&mut listener), if connections.len() < bounds.connections => stream,
            Some(_) = connections.join_next() => continue,
            () = closing.cancelled() => break,
        };
        // Small answers must not wait for a full packet.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "set TCP_NODELAY");
        }
        let client = TokioIo::new(Client { stream, patience: bounds.stalled, stalled: None });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head)
            .serve_connection(client, TowerToHyperService::new(router.clone()));
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// A connection whose writes fail once its client has taken nothing for too long.
struct Client {
    stream: TcpStream,
    patience: Duration,
    /// Runs while there is something that the client does not take.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Client {
    fn within_patience<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        stalled.as_mut().poll(cx).map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl AsyncRead for Client {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.within_patience(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.within_patience(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::Body, routing::get};
    use bytes::Bytes;
    use futures_util::stream;
    use std::time::Instant;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::sync::DropGuard;

    const SHORT: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_secs(60);

    fn bounds(head: Duration, stalled: Duration) -> Bounds {
        Bounds { head, stalled, ..Bounds::default() }
    }

    /// A server that answers `/` at once, and `/endless` until nobody reads; its client, and what tells that an endless
    /// answer was given up.
    async fn world(bounds: Bounds) -> (TcpStream, CancellationToken, CancellationToken) {
        let (given_up, closing) = (CancellationToken::new(), CancellationToken::new());
        let told = given_up.clone();
        let endless = move || async move {
            let pieces = stream::unfold(told.drop_guard(), |guard: DropGuard| async move {
                Some((Ok::<_, io::Error>(Bytes::from(vec![b'x'; 64 << 10])), guard))
            });
            Body::from_stream(pieces)
        };
        let router = Router::new().route("/", get(async || "well")).fallback(endless);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(Door { name: "test", listener, bounds }, router, closing.clone()));
        tasks.detach_all(); // it ends with the test's runtime
        (TcpStream::connect(address).await.expect("it listens"), given_up, closing)
    }

    async fn ask(client: &mut TcpStream, path: &str) {
        let head = format!("GET {path} HTTP/1.1\r\nhost: here\r\n\r\n");
        client.write_all(head.as_bytes()).await.expect("it reads");
    }

    /// All it says until it closes.
    async fn rest(client: &mut TcpStream) -> String {
        let mut said = Vec::new();
        let read = tokio::time::timeout(LONG, client.read_to_end(&mut said)).await.expect("it closes");
        read.expect("an orderly end");
        String::from_utf8(said).expect("text")
    }

    #[tokio::test]
    async fn half_a_head_holds_no_connection() {
        let (mut client, ..) = world(bounds(SHORT, LONG)).await;
        client.write_all(b"GET / HTTP/1.1\r\nhost: he").await.expect("it reads");
        assert_eq!(rest(&mut client).await, "");
        // Nor does a client that was answered, and asks nothing more.
        let (mut client, ..) = world(bounds(SHORT, LONG)).await;
        ask(&mut client, "/").await;
        let said = rest(&mut client).await;
        assert!(said.starts_with("HTTP/1.1 200") && said.ends_with("well"), "{said}");
    }

    #[tokio::test]
    async fn who_takes_nothing_of_an_answer_loses_it() {
        let (mut client, given_up, _) = world(bounds(LONG, SHORT)).await;
        ask(&mut client, "/endless").await;
        tokio::time::timeout(LONG, given_up.cancelled()).await.expect("the answer is given up");
    }

    #[tokio::test]
    async fn who_takes_a_little_all_the_time_keeps_it() {
        let (mut client, given_up, _) = world(bounds(LONG, SHORT * 3)).await;
        ask(&mut client, "/endless").await;
        let (began, mut piece) = (Instant::now(), vec![0; 1 << 20]);
        while began.elapsed() < SHORT * 10 {
            client.read_exact(&mut piece).await.expect("more of it");
        }
        assert!(!given_up.is_cancelled(), "it was read all the time");
    }

    #[tokio::test]
    async fn what_is_in_hand_at_the_end_is_answered() {
        let (mut client, _, closing) = world(Bounds::default()).await;
        ask(&mut client, "/").await;
        let mut first = [0; 12];
        client.read_exact(&mut first).await.expect("an answer");
        closing.cancel();
        assert!(rest(&mut client).await.ends_with("well"), "and then it is closed");
    }

    #[tokio::test]
    async fn those_above_the_bound_wait_for_a_place() {
        let (mut first, _, closing) = world(Bounds { connections: 1, ..Bounds::default() }).await;
        first.write_all(b"GET / HTTP/1.1\r\nhost: he").await.expect("it reads");
        let address = first.peer_addr().expect("it is connected");
        let mut second = TcpStream::connect(address).await.expect("the system takes it in");
        ask(&mut second, "/").await;
        let mut said = [0; 12];
        let waiting = tokio::time::timeout(SHORT, second.read_exact(&mut said)).await;
        assert!(waiting.is_err(), "the one place is taken: {waiting:?}");
        // The first one was there all the time, and goes on where it was.
        first.write_all(b"re\r\nconnection: close\r\n\r\n").await.expect("it reads");
        assert!(rest(&mut first).await.ends_with("well"));
        tokio::time::timeout(LONG, second.read_exact(&mut said)).await.expect("its turn").expect("an answer");
        assert_eq!(&said, b"HTTP/1.1 200");
        closing.cancel();
        assert!(rest(&mut second).await.ends_with("well"), "and at the end who has a place is answered");
    }
}
