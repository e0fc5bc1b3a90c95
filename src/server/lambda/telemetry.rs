//! What a function tells of itself: a log, and metrics for CloudWatch at the end of each call, if the deployment wants them.
//!
//! The one thing to know: CloudWatch is paid by the metric, and each with other labels is one, so none are written unless a namespace is set.

use std::{
    future::Future,
    io::{self, Write as _},
    sync::Arc,
};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    filter::Targets, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use super::{event::Event, settings::CloudSettings};
use crate::telemetry::emf::Emf;
use tidegate_backends::{sqs::Message, system::SystemClock};
use tidegate_core::port::Clock as _;

/// What collects metrics, if anything does.
#[derive(Clone)]
pub struct Metrics(Option<Arc<Emf>>);

/// Starts logging, a JSON object a line, the time left to whoever collects them; and metrics, if `settings` name a namespace.
pub fn observe(settings: &CloudSettings) -> Metrics {
    let filter =
        Targets::new().with_default(LevelFilter::WARN).with_target("tidegate", settings.log_level);
    // A second call in one process, as tests make, leaves the first one's.
    let _ = tracing_subscriber::registry()
        .with(fmt::layer().json().without_time())
        .with(filter)
        .try_init();
    let metrics =
        Metrics(settings.metrics_namespace.as_ref().map(|namespace| Arc::new(Emf::new(namespace))));
    if let Some(emf) = &metrics.0 {
        let _ = metrics::set_global_recorder(Arc::clone(emf));
    }
    metrics
}

impl Metrics {
    /// None.
    pub fn off() -> Self {
        Self(None)
    }

    /// Makes the `call`, and writes what was measured meanwhile.
    pub fn instrument<T>(&self, call: impl Future<Output = T>) -> impl Future<Output = T> {
        let call = Box::pin(call);
        async move {
            let done = call.await;
            if let Some(emf) = &self.0 {
                metrics::counter!("tidegate_lambda_invocations_total").increment(1);
                write(&emf.flush(SystemClock.now()));
            }
            done
        }
    }
}

fn write(lines: &[u8]) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = stdout.write_all(lines).and_then(|()| stdout.flush()) {
        tracing::warn!(%error, "metrics cannot be written; jobs are not affected");
    }
}

/// Counts what Lambda asks a queue on behalf of a call with its messages: it receives them, and deletes what is done.
pub(super) fn received(event: &Event) {
    let Some(first) = event.records.first() else {
        return;
    };
    let kind = if matches!(Message::parse(&first.body), Ok(Message::Hints(_))) {
        "fifo"
    } else {
        "standard"
    };
    metrics::counter!("tidegate_sqs_requests_total", "kind" => kind).increment(2);
}
