//! The W3C trace context of requests.

tokio::task_local! {
    static TRACEPARENT: String;
}

/// Runs a future whose requests carry a W3C trace context. A worker does so with each handler, so
/// what a handler enqueues belongs to the trace of its job.
///
/// Tasks that the future spawns do not inherit it: wrap their futures, too.
pub async fn with_traceparent<F: Future>(traceparent: impl Into<String>, future: F) -> F::Output {
    TRACEPARENT.scope(traceparent.into(), future).await
}

/// Returns the trace context that requests of this task carry.
pub fn traceparent() -> Option<String> {
    TRACEPARENT.try_with(Clone::clone).ok()
}
