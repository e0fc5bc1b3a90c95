//! Telemetry of a Lambda function: a log, and metrics for CloudWatch at the end of each invocation.
//!
//! CloudWatch bills each metric with each set of labels, so metrics are written only if a namespace
//! is set.

use std::{future::Future, sync::Arc};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    filter::Targets, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::{
    lambda::{CloudSettings, SqsEvent},
    telemetry::{
        emf::{Emf, write_stdout},
        series::BoundedRecorder,
    },
};
use tidegate_backends::{sqs::Message, system::SystemClock};
use tidegate_core::port::Clock as _;

/// The metrics of a function; empty if it collects none.
#[derive(Clone)]
pub struct Metrics(Option<Arc<Emf>>);

/// Starts the log, one JSON object a line without a time, which CloudWatch adds; and metrics if
/// `settings` name a namespace.
pub fn observe(settings: &CloudSettings) -> Metrics {
    let filter =
        Targets::new().with_default(LevelFilter::WARN).with_target("tidegate", settings.log_level);
    // A second call in one process, as in tests, keeps the first subscriber.
    let _ = tracing_subscriber::registry()
        .with(fmt::layer().json().without_time())
        .with(filter)
        .try_init();
    let metrics =
        Metrics(settings.metrics_namespace.as_ref().map(|namespace| Arc::new(Emf::new(namespace))));
    if let Some(emf) = &metrics.0 {
        let _ = metrics::set_global_recorder(BoundedRecorder::new(Arc::clone(emf)));
    }
    metrics
}

impl Metrics {
    /// No metrics.
    pub fn off() -> Self {
        Self(None)
    }

    /// Runs `call`, then writes what it recorded.
    pub fn instrument<T>(&self, call: impl Future<Output = T>) -> impl Future<Output = T> {
        let call = Box::pin(call);
        async move {
            let output = call.await;
            if let Some(emf) = &self.0 {
                metrics::counter!("tidegate_lambda_invocations_total").increment(1);
                write(&emf.flush(SystemClock.now()));
            }
            output
        }
    }
}

fn write(lines: &[u8]) {
    if let Err(error) = write_stdout(lines) {
        tracing::warn!(%error, "metrics cannot be written; jobs are not affected");
    }
}

/// Counts the SQS requests that Lambda makes for an invocation: one receive and one delete.
pub(crate) fn count_sqs_requests(event: &SqsEvent) {
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
