//! The bytes of a connection. Three things are seen only here:
//!
//! - what the connection waits for, for [`Connections`](super::connections::Connections);
//! - the answers of the HTTP library itself to a head that it cannot read, which have no body: a
//!   problem document replaces them;
//! - a client that still sends a body after the last response. The system would reset a connection
//!   that is closed before everything is read, and the client might lose that response.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use axum::{body::Bytes, http::StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connections::{Connection, Phase};
use crate::handlers::RefusedHead;

/// Most bytes that are read and discarded after the last response.
const MAX_DISCARDED_BYTES: usize = 16 << 20;
/// How many bytes are discarded at once.
const DISCARD_BYTES: usize = 8 << 10;
/// A header of the responses of the library.
const EMPTY: &str = "content-length: 0\r\n";
/// A header of every response of the routes.
const MARK: &[u8] = b"\r\nx-request-id: ";

/// Makes the problem document of a head that was refused with a status.
pub(super) type Refusal = Arc<dyn Fn(StatusCode) -> RefusedHead + Send + Sync>;

/// A connection's bytes.
pub(super) struct Stream<S> {
    inner: S,
    connection: Arc<Connection>,
    refusal: Refusal,
    /// Whether everything that was written so far was flushed, so that a response begins next.
    flushed: bool,
    /// What replaces a response of the HTTP library, as far as it is not written.
    instead: Bytes,
    /// How many bytes were discarded at the end.
    discarded: usize,
}

impl<S> Stream<S> {
    pub fn new(inner: S, connection: Arc<Connection>, refusal: Refusal) -> Self {
        let (flushed, instead, discarded) = (true, Bytes::new(), 0);
        Self { inner, connection, refusal, flushed, instead, discarded }
    }
}

/// The status of a response that the HTTP library wrote itself: `written` is its head, and it has
/// no body.
fn own_status(written: &[u8]) -> Option<StatusCode> {
    let status = written.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    let is_own = status[0] == b'4'
        && written.ends_with(b"\r\n\r\n")
        && !written.windows(MARK.len()).any(|part| part == MARK);
    if is_own { StatusCode::from_bytes(status).ok() } else { None }
}

/// The response with the head `written`, which has no body, with a body.
fn with_document(written: &[u8], refused: &RefusedHead) -> Bytes {
    let head = String::from_utf8_lossy(written);
    let (before, after) = head.split_once(EMPTY).unwrap_or((head.trim_end(), "\r\n\r\n"));
    let headers = &refused.headers;
    Bytes::from([before.as_bytes(), headers.as_bytes(), after.as_bytes(), &refused.body].concat())
}

impl<S: AsyncWrite + Unpin> Stream<S> {
    /// Writes what is left of a replaced response.
    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.instead.is_empty() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.instead))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let _ = self.instead.split_to(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Whether `written`, the first part of what is written next, is a response that is replaced.
    fn replaces(&mut self, written: &[u8]) -> bool {
        if !self.flushed {
            return false;
        }
        let Some(status) = own_status(written) else {
            return false;
        };
        self.instead = with_document(written, &(self.refusal)(status));
        self.connection.unread.store(true, Ordering::Relaxed);
        self.connection.begin(Phase::Response);
        true
    }

    /// Notes that a part of a stream is written: now the client must read on.
    fn writes(&self) {
        let connection = &self.connection;
        if connection.streams.load(Ordering::Relaxed) && connection.phase() == Phase::Request {
            connection.begin(Phase::Response);
        }
    }

    /// Notes that the client reads on.
    fn wrote(&mut self) {
        self.flushed = false;
        if self.connection.phase() == Phase::Response {
            self.connection.begin(Phase::Response);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        if buffer.filled().len() > before && self.connection.phase() == Phase::Idle {
            self.connection.begin(Phase::Head);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(cx))?;
        if self.replaces(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        self.writes();
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, bytes))?;
        self.wrote();
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(cx))?;
        if let [head] = parts
            && self.replaces(head)
        {
            return Poll::Ready(Ok(head.len()));
        }
        self.writes();
        let written = ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, parts))?;
        self.wrote();
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(cx))?;
        ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        if !self.flushed {
            self.flushed = true;
            if let Some(leases) = self.connection.leases.lock().take() {
                leases.written();
            }
            if self.connection.phase() == Phase::Response {
                // The server has yet to produce the rest of a stream.
                let streams = self.connection.streams.load(Ordering::Relaxed);
                self.connection.begin(if streams { Phase::Request } else { Phase::Idle });
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(cx))?;
        ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
        if !self.connection.unread.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        if self.connection.phase() != Phase::Closing {
            self.connection.begin(Phase::Closing);
        }
        let mut space = [0; DISCARD_BYTES];
        while self.discarded < MAX_DISCARDED_BYTES {
            let mut buffer = ReadBuf::new(&mut space);
            let read = ready!(Pin::new(&mut self.inner).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
            self.discarded += buffer.filled().len();
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_responses_of_the_library_itself_are_replaced() {
        let own = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\
                    content-length: 0\r\ndate: Mon, 23 Nov 2026 15:00:00 GMT\r\n\r\n";
        assert_eq!(own_status(own), Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
        for other in [
            &b"HTTP/1.1 404 Not Found\r\nx-request-id: 1\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 400 Bad Request\r\n\r\n{}",
            b"HTTP/1.1 4",
            b"",
        ] {
            assert_eq!(own_status(other), None, "{}", String::from_utf8_lossy(other));
        }
    }
}
