//! Sends spans to a collector by OTLP over HTTP.
//!
//! ```text
//!   record ─▶ a queue of 16,384 ─▶ batches of up to 512, after at most 1 s ─▶ POST /v1/traces
//! ```
//!
//! The one thing to know: a caller that records a span never waits. While the collector is
//! unavailable the queue fills, and further spans are lost. The log reports the loss once a minute,
//! and `tidegate_spans_lost_total` counts it.

mod encode;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use reqwest::{
    Client,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
    redirect,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, timeout},
};
use url::Url;

use tidegate_core::{
    error_chain::ErrorChain,
    port::spans::{Span, Spans},
};

/// Most spans in the queue.
const MAX_QUEUED_SPANS: usize = 16_384;
/// Most spans of one request.
const MAX_BATCH_SPANS: usize = 512;
/// The longest wait for more spans before a request.
const MAX_BATCH_DELAY: Duration = Duration::from_secs(1);
/// The timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The waits before a failed request is repeated.
const RETRY_WAITS: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// The least time between two warnings in the log.
const MIN_WARNING_INTERVAL: Duration = Duration::from_mins(1);

/// The collector that receives the spans.
#[derive(Clone)]
pub struct Collector {
    /// The URL. `/v1/traces` is appended unless the path ends with it.
    pub endpoint: Url,
    /// Headers of every request.
    pub headers: Vec<(String, String)>,
    /// The service name in every request.
    pub service_name: String,
}

/// Why the exporter cannot start.
#[derive(Debug, thiserror::Error)]
#[error("spans cannot be sent: {0}")]
pub struct CannotExport(String);

/// Queues spans and sends them in the background.
pub struct Exporter {
    queue: mpsc::Sender<QueueEntry>,
    lost: Arc<AtomicU64>,
    stopping: watch::Sender<bool>,
    sending: Mutex<Option<JoinHandle<()>>>,
}

enum QueueEntry {
    Span(Box<Span>),
    /// The exporter ends after the spans before this message.
    Stop,
}

impl Exporter {
    /// Starts an exporter to `collector` on the current runtime.
    ///
    /// # Errors
    ///
    /// A header is not valid, or the TLS library cannot start.
    pub fn start(collector: &Collector) -> Result<Self, CannotExport> {
        let mut headers = HeaderMap::new();
        for (name, value) in &collector.headers {
            let bad = || {
                CannotExport(format!(
                    "the header {name:?} has characters that HTTP does not permit"
                ))
            };
            let mut value = HeaderValue::from_str(value).map_err(|_| bad())?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let builder = || {
            let agent = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
            Client::builder()
                .user_agent(agent)
                .default_headers(headers.clone())
                .timeout(REQUEST_TIMEOUT)
                .redirect(redirect::Policy::none())
        };
        // A container without certificates can still send to a collector over plain HTTP.
        let client = builder().build().or_else(|_| builder().tls_certs_only([]).build());
        let client = client.map_err(|error| CannotExport(ErrorChain(&error).to_string()))?;
        let (queue, spans) = mpsc::channel(MAX_QUEUED_SPANS);
        let lost = Arc::new(AtomicU64::new(0));
        let (stopping, stop) = watch::channel(false);
        let sender = Sender {
            client,
            endpoint: traces(&collector.endpoint),
            service_name: collector.service_name.clone(),
            lost: Arc::clone(&lost),
            warned_at: None,
            stop,
        };
        let sending = Mutex::new(Some(tokio::spawn(sender.run(spans))));
        Ok(Self { queue, lost, stopping, sending })
    }

    /// Sends the recorded spans and stops, within `wait`. Spans that are recorded later are lost.
    pub async fn stop(&self, wait: Duration) {
        let Some(mut sending) = self.sending.lock().take() else {
            return;
        };
        self.stopping.send_replace(true);
        let sent = timeout(wait, async {
            if self.queue.send(QueueEntry::Stop).await.is_ok() {
                let _ = (&mut sending).await;
            }
        });
        if sent.await.is_err() {
            sending.abort();
            tracing::warn!("the stop timed out before all spans were sent");
        }
    }
}

impl Spans for Exporter {
    fn record(&self, span: Span) {
        if self.queue.try_send(QueueEntry::Span(Box::new(span))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            metrics::counter!("tidegate_spans_lost_total").increment(1);
        }
    }
}

/// The URL for traces of an endpoint.
fn traces(endpoint: &Url) -> Url {
    let mut url = endpoint.clone();
    let path = url.path().trim_end_matches('/').to_owned();
    if !path.ends_with("/v1/traces") {
        url.set_path(&format!("{path}/v1/traces"));
    }
    url
}

/// The task that sends.
struct Sender {
    client: Client,
    endpoint: Url,
    service_name: String,
    /// Spans lost since the last warning.
    lost: Arc<AtomicU64>,
    warned_at: Option<Instant>,
    /// Whether a stop was requested: then no retry waits.
    stop: watch::Receiver<bool>,
}

/// Why a request failed.
struct FailedRequest {
    why: String,
    /// Whether a repeated request may succeed.
    transient: bool,
}

impl Sender {
    async fn run(mut self, mut queue: mpsc::Receiver<QueueEntry>) {
        loop {
            let (batch, stop) = gather(&mut queue).await;
            if !batch.is_empty() {
                self.send(&batch).await;
            }
            if stop {
                return;
            }
        }
    }

    /// Sends a batch, with retries after transient failures. If the last one fails, the batch is
    /// lost.
    async fn send(&mut self, batch: &[Span]) {
        let body = Bytes::from(encode::request(&self.service_name, batch));
        let mut waits = RETRY_WAITS.iter();
        let failed = loop {
            let Err(failed) = self.post(body.clone()).await else {
                self.warn_of_losses(None);
                return;
            };
            match waits.next().filter(|_| failed.transient) {
                Some(wait) => {
                    let _ = timeout(*wait, self.stop.wait_for(|stop| *stop)).await;
                }
                None => break failed,
            }
        };
        self.lost.fetch_add(batch.len() as u64, Ordering::Relaxed);
        metrics::counter!("tidegate_spans_lost_total").increment(batch.len() as u64);
        self.warn_of_losses(Some(&failed.why));
    }

    async fn post(&self, body: Bytes) -> Result<(), FailedRequest> {
        let answer = self.client.post(self.endpoint.clone()).body(body).send().await;
        let status = answer
            .map_err(|error| FailedRequest {
                why: ErrorChain(&error.without_url()).to_string(),
                transient: true,
            })?
            .status();
        if status.is_success() {
            return Ok(());
        }
        let transient = matches!(status.as_u16(), 429 | 502..=504);
        Err(FailedRequest { why: format!("the collector answered {status}"), transient })
    }

    /// Logs the number of lost spans, unless there are none or the last warning is recent.
    fn warn_of_losses(&mut self, why: Option<&str>) {
        if self.lost.load(Ordering::Relaxed) == 0
            || self.warned_at.is_some_and(|at| at.elapsed() < MIN_WARNING_INTERVAL)
        {
            return;
        }
        self.warned_at = Some(Instant::now());
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let why = why.unwrap_or("they were recorded faster than the collector accepts them");
        tracing::warn!(lost, why, "spans were lost; jobs are not affected");
    }
}

/// The spans of the next request, and whether it is the last request.
async fn gather(queue: &mut mpsc::Receiver<QueueEntry>) -> (Vec<Span>, bool) {
    let mut batch = Vec::new();
    let mut stop = take(queue.recv().await, &mut batch);
    // A timeout drops this future. The spans in the batch remain.
    let more = async {
        while !stop && batch.len() < MAX_BATCH_SPANS {
            stop = take(queue.recv().await, &mut batch);
        }
    };
    let _ = timeout(MAX_BATCH_DELAY, more).await;
    (batch, stop)
}

/// Adds a span to the batch. Returns whether the queue ended instead.
fn take(message: Option<QueueEntry>, batch: &mut Vec<Span>) -> bool {
    match message {
        Some(QueueEntry::Span(span)) => {
            batch.push(*span);
            false
        }
        Some(QueueEntry::Stop) | None => true,
    }
}

#[cfg(test)]
mod tests;
