//! The stream of committed changes.

use std::time::Duration;

use bytes::BytesMut;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use crate::{
    client::Client,
    error::Error,
    transport::{Answer, MIN_BACKOFF, Request, backoff, problem},
};

/// The server sends a comment at least this often; a longer silence is a broken connection.
const MAX_SILENCE: Duration = Duration::from_mins(1);
const MAX_LINE_BYTES: usize = 1 << 20;

/// One event of the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// `ready`, `job`, `removed`, `queue`, `job_type`, `worker` or `skipped`.
    pub name: String,
    /// For [`StreamOptions::after`] of a later stream; it may be empty.
    pub id: String,
    /// JSON text, as the API describes it: a [`JobChange`](tidegate_api::JobChange) and the like.
    pub data: String,
}

impl Change {
    /// Returns the data, read as a `T`.
    ///
    /// # Errors
    ///
    /// [`Error::UnexpectedAnswer`] if it is not one.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_str(&self.data).map_err(|err| Error::UnexpectedAnswer(err.to_string()))
    }
}

/// Which changes a stream has; the default is all.
#[derive(Clone, Debug, Default)]
pub struct StreamOptions {
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only of this job type.
    pub job_type: Option<String>,
    /// Only of these jobs.
    pub ids: Vec<String>,
    /// The [`Change::id`] of the last event that was read before.
    pub after: Option<String>,
}

/// The changes of jobs, queues, types and workers as they are committed; see [`Client::stream`].
#[derive(Debug)]
pub struct Stream {
    client: Client,
    options: StreamOptions,
    answer: Option<reqwest::Response>,
    buffer: BytesMut,
    change: Change,
    has_data: bool,
    failures: u32,
}

impl Client {
    /// Returns the changes of jobs, queues, types and workers as they are committed. The stream
    /// connects again after a break, and goes on behind the last event.
    pub fn stream(&self, options: StreamOptions) -> Stream {
        Stream {
            client: self.clone(),
            options,
            answer: None,
            buffer: BytesMut::new(),
            change: Change::default(),
            has_data: false,
            failures: 0,
        }
    }
}

impl Stream {
    /// Returns the next change. It waits until there is one.
    ///
    /// # Errors
    ///
    /// The server refused the stream.
    pub async fn next(&mut self) -> Result<Change, Error> {
        loop {
            match self.read().await {
                Ok(Some(change)) => {
                    self.failures = 0;
                    if !change.id.is_empty() {
                        self.options.after = Some(change.id.clone());
                    }
                    return Ok(change);
                }
                Err(err) if !err.is_retryable() => return Err(err),
                // A proxy may end each stream at once.
                Ok(None) | Err(_) => {
                    self.disconnect();
                    self.failures += 1;
                    sleep(backoff(self.failures, MIN_BACKOFF)).await;
                }
            }
        }
    }

    fn disconnect(&mut self) {
        self.answer = None;
        self.buffer.clear();
        self.change = Change::default();
        self.has_data = false;
    }

    /// The next change of this connection; none at its end.
    async fn read(&mut self) -> Result<Option<Change>, Error> {
        if self.answer.is_none() {
            self.answer = Some(self.connect().await?);
        }
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                let line = String::from_utf8_lossy(&line);
                if let Some(change) = self.take(line.trim_end_matches(['\n', '\r'])) {
                    return Ok(Some(change));
                }
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                return Err(Error::UnexpectedAnswer("an event has more than 1 MiB".to_owned()));
            }
            let Some(answer) = &mut self.answer else { return Ok(None) };
            let broken = |cause: String| Error::Unreachable {
                url: self.client.url().to_owned(),
                cause: format!("the stream broke: {cause}"),
            };
            let part = timeout(MAX_SILENCE, answer.chunk())
                .await
                .map_err(|_| broken("no event for a minute".to_owned()))?
                .map_err(|err| broken(err.to_string()))?;
            let Some(part) = part else { return Ok(None) };
            self.buffer.extend_from_slice(&part);
        }
    }

    async fn connect(&self) -> Result<reqwest::Response, Error> {
        let ids = Some(self.options.ids.join(",")).filter(|ids| !ids.is_empty());
        let mut request = Request::get("/v1/stream");
        for (name, value) in
            [("queue", &self.options.queue), ("type", &self.options.job_type), ("id", &ids)]
        {
            if let Some(value) = value {
                request = request.query(name, value);
            }
        }
        if let Some(after) = &self.options.after {
            request = request.header("last-event-id", after);
        }
        let transport = &self.client.transport;
        let answer = transport.open(&request, "text/event-stream", None).await?;
        let status = answer.status().as_u16();
        if status < 300 {
            return Ok(answer);
        }
        let headers = answer.headers().clone();
        Err(problem(&Answer { status, headers, body: transport.read(answer).await? }))
    }

    /// Takes a line; returns the change that it ends.
    fn take(&mut self, line: &str) -> Option<Change> {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.change.name),
            "id" => value.clone_into(&mut self.change.id),
            "data" => {
                if self.has_data {
                    self.change.data.push('\n');
                }
                self.change.data.push_str(value);
                self.has_data = true;
            }
            "" if line.is_empty() && self.has_data => {
                self.has_data = false;
                return Some(std::mem::take(&mut self.change));
            }
            _ => {}
        }
        None
    }
}
