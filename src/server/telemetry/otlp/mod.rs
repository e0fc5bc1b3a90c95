//! Sends spans to a collector by OTLP over HTTP.
//!
//! ```text
//!   record ─▶ a queue of 16,384 ─▶ batches of at most 512, a second old at most ─▶ POST /v1/traces
//! ```
//!
//! The one thing to know: whoever records a span waits for nothing. While the collector cannot be reached the queue fills, and
//! what there is no room for is lost; the log says so once a minute, and `tidegate_spans_lost_total` counts it.

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

/// Most spans that wait to be sent.
const QUEUE: usize = 16_384;
/// Most spans of one request.
const BATCH: usize = 512;
/// How long a span waits for others.
const LINGER: Duration = Duration::from_secs(1);
/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The waits before a request that the collector did not take is sent again.
const WAITS: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// The least time between two lines in the log.
const QUIET: Duration = Duration::from_mins(1);

/// Where spans are sent.
#[derive(Clone)]
pub struct Collector {
    /// Its address; `/v1/traces` is added unless it ends so.
    pub endpoint: Url,
    /// Headers of every request.
    pub headers: Vec<(String, String)>,
    /// What the sender is called.
    pub service_name: String,
}

/// Why spans cannot be sent at all.
#[derive(Debug, thiserror::Error)]
#[error("spans cannot be sent: {0}")]
pub struct CannotExport(String);

/// Takes spans and sends them in the background.
pub struct Exporter {
    queue: mpsc::Sender<Message>,
    lost: Arc<AtomicU64>,
    stopping: watch::Sender<bool>,
    sending: Mutex<Option<JoinHandle<()>>>,
}

enum Message {
    Span(Box<Span>),
    /// Everything before it is to be sent, and nothing else.
    Stop,
}

impl Exporter {
    /// An exporter to `collector`, on the current runtime.
    ///
    /// # Errors
    ///
    /// A header that cannot be one; the TLS library could not be set up.
    pub fn start(collector: &Collector) -> Result<Self, CannotExport> {
        let mut headers = HeaderMap::new();
        for (name, value) in &collector.headers {
            let bad =
                || CannotExport(format!("the header {name:?} has characters that HTTP has not"));
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
                .timeout(TIMEOUT)
                .redirect(redirect::Policy::none())
        };
        // A bare container has no certificates; a collector on plain HTTP is to be reached all the same.
        let client = builder().build().or_else(|_| builder().tls_certs_only([]).build());
        let client = client.map_err(|fault| CannotExport(fault.to_string()))?;
        let (queue, spans) = mpsc::channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let (stopping, stop) = watch::channel(false);
        let sender = Sender {
            client,
            endpoint: traces(&collector.endpoint),
            service_name: collector.service_name.clone(),
            lost: Arc::clone(&lost),
            told_at: None,
            stop,
        };
        let sending = Mutex::new(Some(tokio::spawn(sender.run(spans))));
        Ok(Self { queue, lost, stopping, sending })
    }

    /// Sends what was recorded so far and stops, within `wait`. What is recorded later is lost.
    pub async fn stop(&self, wait: Duration) {
        let Some(mut sending) = self.sending.lock().take() else {
            return;
        };
        self.stopping.send_replace(true);
        let sent = timeout(wait, async {
            if self.queue.send(Message::Stop).await.is_ok() {
                let _ = (&mut sending).await;
            }
        });
        if sent.await.is_err() {
            sending.abort();
            tracing::warn!("some spans were not sent before the stop");
        }
    }
}

impl Spans for Exporter {
    fn record(&self, span: Span) {
        if self.queue.try_send(Message::Span(Box::new(span))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            metrics::counter!("tidegate_spans_lost_total").increment(1);
        }
    }
}

/// Where a collector takes traces.
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
    /// How many spans were lost since the log said so.
    lost: Arc<AtomicU64>,
    told_at: Option<Instant>,
    /// Whether there is no time to wait any more.
    stop: watch::Receiver<bool>,
}

/// Why a request failed.
struct Failed {
    why: String,
    /// Whether it may go better soon.
    passes: bool,
}

impl Sender {
    async fn run(mut self, mut queue: mpsc::Receiver<Message>) {
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

    /// Sends a batch, again if that may help. What the collector does not take then is lost.
    async fn send(&mut self, batch: &[Span]) {
        let body = Bytes::from(encode::request(&self.service_name, batch));
        let mut waits = WAITS.iter();
        let failed = loop {
            let Err(failed) = self.post(body.clone()).await else {
                self.tell(None);
                return;
            };
            match waits.next().filter(|_| failed.passes) {
                Some(wait) => {
                    let _ = timeout(*wait, self.stop.wait_for(|stop| *stop)).await;
                }
                None => break failed,
            }
        };
        self.lost.fetch_add(batch.len() as u64, Ordering::Relaxed);
        metrics::counter!("tidegate_spans_lost_total").increment(batch.len() as u64);
        self.tell(Some(&failed.why));
    }

    async fn post(&self, body: Bytes) -> Result<(), Failed> {
        let answer = self.client.post(self.endpoint.clone()).body(body).send().await;
        let status = answer
            .map_err(|fault| Failed {
                why: ErrorChain(&fault.without_url()).to_string(),
                passes: true,
            })?
            .status();
        if status.is_success() {
            return Ok(());
        }
        let passes = matches!(status.as_u16(), 429 | 502..=504);
        Err(Failed { why: format!("the collector answered {status}"), passes })
    }

    /// Says in the log how many spans were lost, if some were and nothing was said lately.
    fn tell(&mut self, why: Option<&str>) {
        if self.lost.load(Ordering::Relaxed) == 0
            || self.told_at.is_some_and(|at| at.elapsed() < QUIET)
        {
            return;
        }
        self.told_at = Some(Instant::now());
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let why = why.unwrap_or("they came faster than the collector takes them");
        tracing::warn!(lost, why, "spans were lost; jobs are not affected");
    }
}

/// The spans of the next request, and whether it is the last.
async fn gather(queue: &mut mpsc::Receiver<Message>) -> (Vec<Span>, bool) {
    let mut batch = Vec::new();
    let mut stop = take(queue.recv().await, &mut batch);
    // What is in the batch stays there if the time is over first.
    let more = async {
        while !stop && batch.len() < BATCH {
            stop = take(queue.recv().await, &mut batch);
        }
    };
    let _ = timeout(LINGER, more).await;
    (batch, stop)
}

/// Puts a span into the batch; whether there is none and nothing follows.
fn take(message: Option<Message>, batch: &mut Vec<Span>) -> bool {
    match message {
        Some(Message::Span(span)) => {
            batch.push(*span);
            false
        }
        Some(Message::Stop) | None => true,
    }
}

#[cfg(test)]
mod tests;
