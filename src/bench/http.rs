//! A client with minimal cost, because it shares the machine with the server under test. It has one
//! connection, writes a request at once, and reads an answer by its `content-length`.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, bail, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::clock;

/// Most bytes of an answer's head.
const MAX_HEADER_BYTES: usize = 16 << 10;

/// A persistent connection.
pub(super) struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

/// An answer.
pub(super) struct RawResponse<'a> {
    pub status: u16,
    pub body: &'a [u8],
}

impl RawResponse<'_> {
    /// Returns the body of an answer below 400.
    ///
    /// # Errors
    ///
    /// Returns the error with the body of the response.
    pub(super) fn ok(&self) -> anyhow::Result<&[u8]> {
        ensure!(
            (200..300).contains(&self.status),
            "the server answered {}: {}",
            self.status,
            String::from_utf8_lossy(self.body)
        );
        Ok(self.body)
    }
}

/// Returns a whole request as text.
pub(super) fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

impl Connection {
    /// A connection to `address`.
    pub(super) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("no connection to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::with_capacity(4096) })
    }

    /// Sends a whole request and returns the answer.
    pub(super) async fn send(&mut self, request: &[u8]) -> anyhow::Result<RawResponse<'_>> {
        self.stream.write_all(request).await?;
        self.read.clear();
        let mut seen = 0;
        let head = loop {
            ensure!(
                self.stream.read_buf(&mut self.read).await? > 0,
                "the server closed the connection"
            );
            let from = seen;
            if let Some(end) = self.read[from..].windows(4).position(|four| four == b"\r\n\r\n") {
                break from + end + 4;
            }
            seen = self.read.len().saturating_sub(3);
            ensure!(self.read.len() < MAX_HEADER_BYTES, "the head of an answer does not end");
        };
        let (status, length) = read_head(&self.read[..head])?;
        while self.read.len() < head + length {
            ensure!(
                self.stream.read_buf(&mut self.read).await? > 0,
                "the server closed the connection"
            );
        }
        Ok(RawResponse { status, body: &self.read[head..head + length] })
    }
}

/// Returns the status of an answer and the length of its body.
fn read_head(head: &[u8]) -> anyhow::Result<(u16, usize)> {
    let text = std::str::from_utf8(head)?;
    let status = text
        .get(9..12)
        .and_then(|status| status.parse().ok())
        .context("an answer without a status")?;
    let length = text
        .split("\r\n")
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let Some((_, length)) = length else { bail!("an answer without a content-length") };
    Ok((status, length.trim().parse()?))
}

/// The results of many connections.
pub(super) struct Load {
    pub requests: u64,
    pub wall: Duration,
    pub latencies: Vec<Duration>,
}

impl Load {
    /// Returns the requests per second.
    pub(super) fn rate(&self) -> f64 {
        self.requests as f64 / self.wall.as_secs_f64()
    }
}

/// Sends `request` repeatedly on `connections` connections for `window`.
///
/// # Errors
///
/// The first rejected request.
pub(super) async fn load(
    address: SocketAddr,
    connections: usize,
    window: Duration,
    request: Vec<u8>,
) -> anyhow::Result<Load> {
    let mut open = Vec::with_capacity(connections);
    for _ in 0..connections {
        open.push(Connection::open(address).await?);
    }
    let start = clock::instant();
    let senders: Vec<_> = open
        .into_iter()
        .map(|mut connection| {
            let request = request.clone();
            tokio::spawn(async move {
                let mut latencies = Vec::with_capacity(4096);
                loop {
                    let sent = clock::instant();
                    if sent.duration_since(start) >= window {
                        return anyhow::Ok(latencies);
                    }
                    connection.send(&request).await?.ok()?;
                    latencies.push(sent.elapsed());
                }
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for sender in senders {
        latencies.extend(sender.await??);
    }
    Ok(Load { requests: latencies.len() as u64, wall: start.elapsed(), latencies })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_an_answer_has_its_status_and_length() {
        let head = b"HTTP/1.1 201 Created\r\nContent-Length: 17\r\nserver: x\r\n\r\n";
        assert_eq!(read_head(head).unwrap(), (201, 17));
        assert!(read_head(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(read_head(b"nonsense\r\n\r\n").is_err());
    }
}
