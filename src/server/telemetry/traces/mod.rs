//! The spans of a job, from its enqueue to its result.
//!
//! ```text
//!   (the caller's span) ─▶ enqueue ─┬▶ wait        until attempt 1 is claimed
//!                                   ├▶ attempt 1 ─┬▶ (the worker's spans)
//!                                   │             └▶ report
//!                                   ├▶ wait        until attempt 2 is claimed
//!                                   └▶ attempt 2 ...
//! ```
//!
//! The one thing to know: a span is recorded whole, at its end. The headers of a job contain the
//! context of its enqueue, and the ids of the spans below it are digests of the trace, the job and
//! the attempt. So any process can settle an attempt and record its span, also after a crash of the
//! process that started it, and a span that is recorded twice has one id.

use std::{collections::BTreeMap, sync::Arc};

use sha2::{Digest as _, Sha256};

use tidegate_core::{
    job::{
        Job, State, TraceContext,
        lifecycle::{self, AttemptRecord, EndedAs},
        trace::{PARENT, STATE, named},
    },
    port::{
        Entropy,
        spans::{Attribute, Parent, Span, SpanKind, Spans},
    },
    time::Timestamp,
};
use tidegate_engine::{Error, request::Enqueued};

/// Most bytes of the error message of a span.
const MAX_MESSAGE_BYTES: usize = 512;

/// Records the spans of sampled traces. A server without it records none.
pub(crate) struct Traces {
    spans: Arc<dyn Spans>,
    /// The share of new traces that are sampled, 0 to 1.
    ratio: f64,
}

/// An enqueue in progress, with its place in a trace.
pub(crate) struct EnqueueSpan {
    /// The context of the caller's span.
    parent: Option<TraceContext>,
    /// The context of the enqueue's span.
    own: TraceContext,
}

/// The headers of a job.
type Headers = BTreeMap<String, String>;

impl Traces {
    pub(crate) fn new(spans: Arc<dyn Spans>, ratio: f64) -> Self {
        Self { spans, ratio }
    }

    /// Begins an enqueue in the trace of the job's own `headers`, else of the request's headers in
    /// `trace`, else in a new one. In the job's headers, the context of the enqueue replaces that
    /// of the caller.
    pub(crate) fn begin(
        &self,
        headers: &mut Headers,
        trace: &mut Headers,
        entropy: &dyn Entropy,
    ) -> EnqueueSpan {
        let own_parent =
            named(headers, PARENT).map(|(name, text)| (name.clone(), text.parse().ok()));
        let parent = match own_parent {
            Some((name, parent)) => {
                headers.remove(&name);
                // The request's trace state belongs to the request's trace.
                trace.remove(STATE);
                parent
            }
            None => TraceContext::of(trace),
        };
        let drawn = entropy.bits();
        let span = (drawn as u64).max(1);
        let own = match parent {
            Some(parent) if parent.sampled => parent.with_span(span),
            // The trace is not sampled, so its context is passed on unchanged.
            Some(parent) => parent,
            None => {
                let trace = entropy.bits().max(1);
                TraceContext { trace, span, sampled: is_chosen(trace, self.ratio) }
            }
        };
        trace.insert(PARENT.to_owned(), own.to_string());
        EnqueueSpan { parent, own }
    }

    /// Records the span of an enqueue. `link` is the context of the job that a replay repeats.
    pub(crate) fn enqueued(
        &self,
        begun: &EnqueueSpan,
        answer: &Result<Enqueued, Error>,
        link: Option<TraceContext>,
        from: Timestamp,
        to: Timestamp,
    ) {
        if !begun.own.sampled {
            return;
        }
        let mut span = Span {
            name: "enqueue".to_owned(),
            kind: SpanKind::Server,
            context: begun.own,
            parent: begun.parent.map(|parent| Parent { span: parent.span, remote: true }),
            link,
            started_at: from,
            ended_at: to,
            failure: None,
            attributes: Vec::new(),
        };
        match answer {
            Ok(Enqueued { job, new, .. }) => {
                span.name = format!("enqueue {}", job.spec.queue);
                span.attributes = about(job, "enqueue");
                span.attributes.push(("messaging.operation.type", text("send")));
                if !new {
                    // The job runs in the trace of the request that created it.
                    span.link = TraceContext::of(&job.spec.headers);
                    span.attributes.push(("tidegate.job.repeated", text("true")));
                }
            }
            Err(error) => {
                span.attributes = vec![
                    ("messaging.system", text("tidegate")),
                    ("messaging.operation.name", text("enqueue")),
                    ("messaging.operation.type", text("send")),
                    ("error.type", text(error.code().as_str())),
                ];
                span.failure = Some(shortened(&error.to_string()));
            }
        }
        self.spans.record(span);
    }

    /// Records the wait of a claimed job that was due at `run_at`, and makes its attempt the parent
    /// of the worker's spans.
    pub(crate) fn claimed(&self, job: &mut Job, run_at: Timestamp) {
        let Some(enqueue) = sampled(job) else { return };
        let (attempt, now) = (job.life.attempt, job.life.started_at.unwrap_or(run_at));
        let mut span = wait(job, enqueue, attempt, now);
        span.attributes.push(("tidegate.job.attempt", Attribute::Number(attempt.into())));
        span.attributes
            .push(("tidegate.job.lateness", Attribute::Seconds(now.since(run_at).as_secs_f64())));
        if let Some(worker) = job.life.running().and_then(|run| run.worker.as_deref()) {
            span.attributes.push(("messaging.client.id", text(worker)));
        }
        self.spans.record(span);
        let context = attempt_of(enqueue, job, attempt).to_string();
        let headers = &mut Arc::make_mut(&mut job.spec).headers;
        let name =
            named(headers, PARENT).map_or_else(|| PARENT.to_owned(), |(name, _)| name.clone());
        headers.insert(name, context);
    }

    /// Records the attempt that a report ended, and the report, which was processed between `from`
    /// and `to`. `by_request`: a worker sent the report. Otherwise it is the response to a push, or
    /// the result of a handler, and has no span.
    pub(crate) fn reported(&self, job: &Job, by_request: bool, from: Timestamp, to: Timestamp) {
        // An earlier report ended the attempt, and recorded its span.
        let Some(entry) = job.life.history.last().filter(|entry| entry.ended_at >= from) else {
            return;
        };
        let Some(enqueue) = sampled(job) else { return };
        self.attempt(job, enqueue, entry);
        if !by_request {
            return;
        }
        let attempt = attempt_of(enqueue, job, entry.attempt);
        let mut attributes = about(job, "report");
        attributes.push(("messaging.operation.type", text("settle")));
        attributes.push(("tidegate.job.attempt", Attribute::Number(entry.attempt.into())));
        attributes.push(("tidegate.job.state", text(lifecycle::word(&job.life.state))));
        self.spans.record(Span {
            name: format!("report {}", job.spec.queue),
            kind: SpanKind::Server,
            context: enqueue.with_span(id("report", enqueue, job, entry.attempt)),
            parent: Some(Parent { span: attempt.span, remote: false }),
            link: None,
            started_at: from,
            ended_at: to,
            failure: None,
            attributes,
        });
    }

    /// Records an attempt or a wait that ended without a report: by the end of the lease, a cancel,
    /// or a deadline.
    pub(crate) fn over(&self, job: &Job) {
        let Some(enqueue) = sampled(job) else { return };
        let last = job.life.history.last();
        match (&job.life.state, last) {
            (State::Ended { at, .. }, last) if last.is_none_or(|entry| entry.ended_at != *at) => {
                let mut span = wait(job, enqueue, job.life.attempt.saturating_add(1), *at);
                let state = lifecycle::word(&job.life.state);
                span.attributes.push(("tidegate.job.state", text(state)));
                span.attributes.push(("error.type", text(state)));
                span.failure = Some(failure(job.life.error.as_ref(), state));
                self.spans.record(span);
            }
            (_, Some(entry)) => self.attempt(job, enqueue, entry),
            (_, None) => {}
        }
    }

    fn attempt(&self, job: &Job, enqueue: TraceContext, entry: &AttemptRecord) {
        let mut attributes = about(job, "deliver");
        let outcome = entry.ended_as().as_str();
        let failed =
            !matches!(entry.ended_as(), EndedAs::Succeeded | EndedAs::Released | EndedAs::Snoozed);
        attributes.push(("messaging.operation.type", text("process")));
        attributes.push(("tidegate.job.attempt", Attribute::Number(entry.attempt.into())));
        attributes.push(("tidegate.attempt.outcome", text(outcome)));
        if let Some(at) = entry.retry_at {
            attributes.push((
                "tidegate.attempt.retry_after",
                Attribute::Seconds(at.since(entry.ended_at).as_secs_f64()),
            ));
        }
        let error = entry.error.as_ref();
        if failed {
            attributes
                .push(("error.type", text(error.map_or(outcome, |error| error.reason.as_str()))));
        }
        if let Some(status) = error.and_then(|error| error.status) {
            attributes.push(("http.response.status_code", Attribute::Number(status.into())));
        }
        self.spans.record(Span {
            name: format!("deliver {}", job.spec.queue),
            kind: SpanKind::Client,
            context: attempt_of(enqueue, job, entry.attempt),
            parent: Some(Parent { span: enqueue.span, remote: false }),
            link: None,
            started_at: entry.started_at,
            ended_at: entry.ended_at,
            failure: failed.then(|| failure(error, outcome)),
            attributes,
        });
    }
}

/// The span of the wait for `attempt`, which ended at `until`.
fn wait(job: &Job, enqueue: TraceContext, attempt: u16, until: Timestamp) -> Span {
    let from = job.life.history.last().map_or(job.spec.created_at, |entry| entry.ended_at);
    Span {
        name: format!("wait {}", job.spec.queue),
        kind: SpanKind::Internal,
        context: enqueue.with_span(id("wait", enqueue, job, attempt)),
        parent: Some(Parent { span: enqueue.span, remote: false }),
        link: None,
        started_at: from,
        ended_at: until.max(from),
        failure: None,
        attributes: about(job, "wait"),
    }
}

/// The context of a job's enqueue, if its trace is sampled.
fn sampled(job: &Job) -> Option<TraceContext> {
    TraceContext::of(&job.spec.headers).filter(|context| context.sampled)
}

/// The context of the span of an attempt.
fn attempt_of(enqueue: TraceContext, job: &Job, attempt: u16) -> TraceContext {
    enqueue.with_span(id("attempt", enqueue, job, attempt))
}

/// The id of a span below a job's enqueue.
fn id(what: &str, enqueue: TraceContext, job: &Job, attempt: u16) -> u64 {
    let mut hash = Sha256::new();
    hash.update(enqueue.trace.to_be_bytes());
    hash.update(attempt.to_be_bytes());
    hash.update([what.len() as u8]);
    hash.update(what);
    hash.update(job.id.as_str());
    let mut short = [0; 8];
    short.copy_from_slice(&hash.finalize()[..8]);
    u64::from_be_bytes(short).max(1)
}

/// Whether a new trace is sampled. As in other programs, the id of the trace decides.
fn is_chosen(trace: u128, ratio: f64) -> bool {
    let low = trace as u64 >> 1;
    // As a double, the highest ids can equal 2^63, so a ratio of 1 is compared first.
    ratio >= 1.0 || (low as f64) < ratio * (1u64 << 63) as f64
}

/// The attributes of every span of a job, named by the semantic conventions for messaging as far as
/// they go.
fn about(job: &Job, operation: &'static str) -> Vec<(&'static str, Attribute)> {
    let mut attributes = vec![
        ("messaging.system", text("tidegate")),
        ("messaging.destination.name", text(job.spec.queue.as_str())),
        ("messaging.operation.name", text(operation)),
        ("messaging.message.id", text(job.id.as_str())),
        ("tidegate.job.type", text(job.spec.job_type.as_str())),
    ];
    if let Some(key) = &job.spec.correlation_key {
        attributes.push(("messaging.message.conversation_id", text(key)));
    }
    attributes
}

fn text(text: &str) -> Attribute {
    Attribute::Text(text.to_owned())
}

/// The error message of a span: the message of the failure, else `word`.
fn failure(error: Option<&lifecycle::Failure>, word: &str) -> String {
    shortened(error.and_then(|error| error.message.as_deref()).unwrap_or(word))
}

fn shortened(message: &str) -> String {
    message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned()
}

#[cfg(test)]
mod tests;
