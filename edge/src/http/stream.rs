//! A client's connection as HTTP sees it: bounded also where the client does not read.
//!
//! hyper limits how long a request may take to come, and nothing about how long its answer may take to go. A client that
//! asks and never reads would hold its connection for ever, and one that goes on asking would be answered into memory. So
//! while an answer cannot be written nothing more is read, and after a while the connection fails.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// A client that takes nothing of its answer for this long is cut off; as long as sockets have by default.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct ClientStream {
    stream: TcpStream,
    stalled: Option<Stalled>,
}

/// The client takes nothing now.
struct Stalled {
    until: Pin<Box<Sleep>>,
    /// Who wanted to read meanwhile.
    reader: Option<Waker>,
}

impl ClientStream {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, stalled: None }
    }

    pub(crate) fn into_inner(self) -> TcpStream {
        self.stream
    }

    /// What a write came to, with its time limited.
    fn wrote(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            if let Some(reader) = self.stalled.take().and_then(|stalled| stalled.reader) {
                reader.wake();
            }
            return written;
        }
        let stalled = self
            .stalled
            .get_or_insert_with(|| Stalled { until: Box::pin(sleep(WRITE_TIMEOUT)), reader: None });
        stalled.until.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(stalled) = &mut self.stalled {
            stalled.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
