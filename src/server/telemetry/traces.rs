//! The spans of a job's way, from its enqueue to its result.
//!
//! ```text
//!   (the caller's span) ─▶ enqueue ─┬▶ wait        until attempt 1 is claimed
//!                                   ├▶ attempt 1 ─┬▶ (the worker's spans)
//!                                   │             └▶ report
//!                                   ├▶ wait        until attempt 2 is claimed
//!                                   └▶ attempt 2 ...
//! ```
//!
//! The one thing to know: no span is ever open here. A job keeps the context of its enqueue among its headers, and the ids of
//! the spans below it are digests of the trace, the job and the attempt. So the process that settles an attempt writes its span
//! whole, also after a crash of the one that began it, and a span that is written twice has one id.

use std::{collections::BTreeMap, sync::Arc};

use sha2::{Digest as _, Sha256};

use tidegate_core::{
    job::{
        Job, Outcome, State, TraceContext,
        lifecycle::{self, AttemptRecord},
        trace::{PARENT, STATE, named},
    },
    port::{
        Entropy,
        spans::{Attribute, Parent, Span, SpanKind, Spans},
    },
    time::Timestamp,
};
use tidegate_engine::{Error, request::Enqueued};

/// Most bytes of what a span says went wrong.
const MESSAGE_BYTES: usize = 512;

/// Writes spans of the traces that are recorded. A server without one does nothing for them.
pub(crate) struct Traces {
    spans: Arc<dyn Spans>,
    /// How many of the traces that begin here are recorded, 0 to 1.
    ratio: f64,
}

/// An enqueue under way: the trace it belongs to.
pub(crate) struct Begun {
    /// The caller's span.
    parent: Option<TraceContext>,
    /// The enqueue's own.
    own: TraceContext,
}

/// What a job's headers are, before or after its type's are added.
type Headers = BTreeMap<String, String>;

impl Traces {
    pub(crate) fn new(spans: Arc<dyn Spans>, ratio: f64) -> Self {
        Self { spans, ratio }
    }

    /// Begins an enqueue in the trace that the job's own `headers` name, or the request's headers in `trace`, or a new one. The
    /// job will carry the enqueue's context in the caller's place.
    pub(crate) fn begin(
        &self,
        headers: &mut Headers,
        trace: &mut Headers,
        entropy: &dyn Entropy,
    ) -> Begun {
        let said = named(headers, PARENT).map(|(name, text)| (name.clone(), text.parse().ok()));
        let parent = match said {
            Some((name, parent)) => {
                headers.remove(&name);
                // The request's state belongs to the request's own trace.
                trace.remove(STATE);
                parent
            }
            None => TraceContext::of(trace),
        };
        let drawn = entropy.bits();
        let span = (drawn as u64).max(1);
        let own = match parent {
            Some(parent) if parent.sampled => parent.with_span(span),
            // Nobody records it: what is passed on is what came.
            Some(parent) => parent,
            None => {
                let trace = entropy.bits().max(1);
                TraceContext { trace, span, sampled: is_chosen(trace, self.ratio) }
            }
        };
        trace.insert(PARENT.to_owned(), own.to_string());
        Begun { parent, own }
    }

    /// An enqueue is answered. `link` is what its job does again.
    pub(crate) fn enqueued(
        &self,
        begun: &Begun,
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
            Ok(Enqueued { job, new }) => {
                span.name = format!("enqueue {}", job.spec.queue);
                span.attributes = about(job, "enqueue");
                span.attributes.push(("messaging.operation.type", text("send")));
                if !new {
                    // The job runs in the trace of the request that made it.
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

    /// A job was claimed, due at `run_at`: its wait is over, and its worker is to take the attempt for its parent.
    pub(crate) fn claimed(&self, job: &mut Job, run_at: Timestamp) {
        let Some(enqueue) = recorded(job) else { return };
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

    /// A report was taken between `from` and `to`, by which `job` stands as it does: its attempt is over. `asked` says whether a
    /// worker's request brought it; otherwise it is the answer to a push, or a handler's.
    pub(crate) fn reported(&self, job: &Job, asked: bool, from: Timestamp, to: Timestamp) {
        // What was reported before was written before.
        let Some(entry) = job.life.history.last().filter(|entry| entry.ended_at >= from) else {
            return;
        };
        let Some(enqueue) = recorded(job) else { return };
        self.attempt(job, enqueue, entry);
        if !asked {
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

    /// An attempt, or a wait, came to an end without a report: a lease was over, somebody cancelled, it was too late.
    pub(crate) fn over(&self, job: &Job) {
        let Some(enqueue) = recorded(job) else { return };
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
        let outcome = lifecycle::word(&State::Ended { at: entry.ended_at, outcome: entry.outcome });
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
        if entry.outcome != Outcome::Succeeded {
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
            failure: (entry.outcome != Outcome::Succeeded).then(|| failure(error, outcome)),
            attributes,
        });
    }
}

/// The wait for `attempt`, which ended at `until`.
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

/// The context of a job's enqueue, if its trace is recorded.
fn recorded(job: &Job) -> Option<TraceContext> {
    TraceContext::of(&job.spec.headers).filter(|context| context.sampled)
}

/// The context of an attempt.
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

/// Whether a trace that begins here is among the `ratio` that are recorded: by its id, as other programs decide too.
fn is_chosen(trace: u128, ratio: f64) -> bool {
    let low = trace as u64 >> 1;
    // The highest ids become a double that is no less than all of them.
    ratio >= 1.0 || (low as f64) < ratio * (1u64 << 63) as f64
}

/// What every span of a job says, by the conventions for messaging where they have a name for it.
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

/// What went wrong, in one line: the message if there is one.
fn failure(error: Option<&lifecycle::Failure>, word: &str) -> String {
    shortened(error.and_then(|error| error.message.as_deref()).unwrap_or(word))
}

fn shortened(message: &str) -> String {
    message[..message.floor_char_boundary(MESSAGE_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use tidegate_engine::memory::SeededEntropy;

    const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[derive(Default)]
    struct Kept(Mutex<Vec<Span>>);

    impl Spans for Kept {
        fn record(&self, span: Span) {
            self.0.lock().push(span);
        }
    }

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// What an enqueue with these headers of its own and of its request begins: the caller's context, its own, what is left.
    fn begun(
        own: &[(&str, &str)],
        request: &[(&str, &str)],
        ratio: f64,
    ) -> (Option<String>, TraceContext, Headers, Headers) {
        let traces = Traces::new(Arc::new(Kept::default()), ratio);
        let (mut headers, mut trace) = (headers(own), headers(request));
        let begun = traces.begin(&mut headers, &mut trace, &SeededEntropy::new(1));
        assert_eq!(
            trace.get(PARENT),
            Some(&begun.own.to_string()),
            "the job carries the enqueue's context"
        );
        (begun.parent.map(|parent| parent.to_string()), begun.own, headers, trace)
    }

    #[test]
    fn an_enqueue_is_a_part_of_its_callers_trace() {
        let (parent, own, _, trace) = begun(&[], &[(PARENT, CALLER), (STATE, "a=b")], 0.0);
        let caller: TraceContext = CALLER.parse().unwrap();
        assert_eq!((parent.as_deref(), own.trace, own.sampled), (Some(CALLER), caller.trace, true));
        assert_ne!(own.span, caller.span);
        assert_eq!(trace[STATE], "a=b");
    }

    #[test]
    fn a_job_s_own_trace_comes_before_the_request_s() {
        let other = CALLER.replace("0af", "1af");
        let (parent, _, headers, trace) =
            begun(&[("TraceParent", &other), ("x", "y")], &[(PARENT, CALLER), (STATE, "a=b")], 1.0);
        assert_eq!(parent, Some(other));
        assert_eq!(
            headers.into_iter().collect::<Vec<_>>(),
            [("x".to_owned(), "y".to_owned())],
            "it is not sent twice"
        );
        assert!(!trace.contains_key(STATE), "the state is another trace's");
        let (parent, own, ..) = begun(&[(PARENT, "malformed")], &[], 1.0);
        assert_eq!((parent, own.sampled), (None, true));
    }

    #[test]
    fn a_trace_that_its_caller_does_not_record_goes_on_untouched() {
        let caller = CALLER.replace("-01", "-00");
        let (_, own, ..) = begun(&[], &[(PARENT, &caller)], 1.0);
        assert_eq!(own.to_string(), caller);
    }

    #[test]
    fn of_the_traces_that_begin_here_the_ratio_is_recorded() {
        let entropy = SeededEntropy::new(7);
        let share = |ratio: f64| (0..10_000).filter(|_| is_chosen(entropy.bits(), ratio)).count();
        assert_eq!((share(0.0), share(1.0)), (0, 10_000));
        assert!((2_300..2_700).contains(&share(0.25)), "{}", share(0.25));
        assert!(is_chosen(u128::MAX, 1.0));
    }

    #[test]
    fn a_message_is_cut_where_a_character_ends() {
        let long = "ä".repeat(MESSAGE_BYTES);
        assert_eq!(shortened(&format!("x{long}")).len(), MESSAGE_BYTES - 1);
        assert_eq!(shortened("short"), "short");
    }
}
