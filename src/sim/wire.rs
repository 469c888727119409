//! Connections that can be broken on purpose: by a reset (RST), or by an end where none belongs.
//!
//! Every connection has a `Wire`, which a handler finds in its request. A handler cannot reach the socket
//! that hyper owns, so it leaves word here and the next write or flush does the deed.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
};

use axum::{
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};

const RESET: u8 = 1;
const CLOSE: u8 = 2;

#[derive(Clone, Debug, Default)]
pub(crate) struct Wire(Arc<AtomicU8>);

impl Wire {
    /// Whatever is written next is not sent; the peer sees a reset.
    pub(crate) fn reset(&self) {
        self.0.store(RESET, Ordering::SeqCst);
    }

    /// What was written so far still leaves; then the connection ends, whatever was promised.
    pub(crate) fn close_once_flushed(&self) {
        self.0.store(CLOSE, Ordering::SeqCst);
    }

    fn state(&self) -> u8 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Connected<IncomingStream<'_, Breakable>> for Wire {
    fn connect_info(stream: IncomingStream<'_, Breakable>) -> Self {
        stream.io().wire.clone()
    }
}

/// A listener whose connections have a `Wire`.
pub(crate) struct Breakable(pub(crate) TcpListener);

impl Listener for Breakable {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, peer) = <TcpListener as Listener>::accept(&mut self.0).await;
        // Results that trickle are meant to leave piece by piece.
        let _ = stream.set_nodelay(true);
        (Connection { stream, wire: Wire::default() }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

pub(crate) struct Connection {
    stream: TcpStream,
    wire: Wire,
}

impl Connection {
    /// With a linger of zero the coming close is a reset.
    fn check_reset(&self) -> io::Result<()> {
        if self.wire.state() == RESET {
            self.stream.set_zero_linger()?;
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check_reset()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_reset()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_reset()?;
        if self.wire.state() == CLOSE {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.wire.state() == RESET {
            return Poll::Ready(Ok(())); // a proper end would come before the reset and hide it
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
