//! The trace of an enqueue, sampling, and the bounds of messages.

use parking_lot::Mutex;

use super::*;
use tidegate_engine::memory::SeededEntropy;

const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[derive(Default)]
struct RecordedSpans(Mutex<Vec<Span>>);

impl Spans for RecordedSpans {
    fn record(&self, span: Span) {
        self.0.lock().push(span);
    }
}

fn headers(pairs: &[(&str, &str)]) -> Headers {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Begins an enqueue with these headers of the job and of its request. Returns the context of the
/// caller, the context of the enqueue, and the headers that remain.
fn begun(
    own: &[(&str, &str)],
    request: &[(&str, &str)],
    ratio: f64,
) -> (Option<String>, TraceContext, Headers, Headers) {
    let traces = Traces::new(Arc::new(RecordedSpans::default()), ratio);
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
fn an_enqueue_joins_the_trace_of_its_caller() {
    let (parent, own, _, trace) = begun(&[], &[(PARENT, CALLER), (STATE, "a=b")], 0.0);
    let caller: TraceContext = CALLER.parse().unwrap();
    assert_eq!((parent.as_deref(), own.trace, own.sampled), (Some(CALLER), caller.trace, true));
    assert_ne!(own.span, caller.span);
    assert_eq!(trace[STATE], "a=b");
}

#[test]
fn the_trace_of_the_job_wins_over_that_of_the_request() {
    let other = CALLER.replace("0af", "1af");
    let (parent, _, headers, trace) =
        begun(&[("TraceParent", &other), ("x", "y")], &[(PARENT, CALLER), (STATE, "a=b")], 1.0);
    assert_eq!(parent, Some(other));
    assert_eq!(
        headers.into_iter().collect::<Vec<_>>(),
        [("x".to_owned(), "y".to_owned())],
        "the context is not sent twice"
    );
    assert!(!trace.contains_key(STATE), "the state belongs to another trace");
    let (parent, own, ..) = begun(&[(PARENT, "malformed")], &[], 1.0);
    assert_eq!((parent, own.sampled), (None, true));
}

#[test]
fn the_context_of_an_unsampled_trace_is_unchanged() {
    let caller = CALLER.replace("-01", "-00");
    let (_, own, ..) = begun(&[], &[(PARENT, &caller)], 1.0);
    assert_eq!(own.to_string(), caller);
}

#[test]
fn the_ratio_decides_the_share_of_sampled_traces() {
    let entropy = SeededEntropy::new(7);
    let share = |ratio: f64| (0..10_000).filter(|_| is_chosen(entropy.bits(), ratio)).count();
    assert_eq!((share(0.0), share(1.0)), (0, 10_000));
    assert!((2_300..2_700).contains(&share(0.25)), "{}", share(0.25));
    assert!(is_chosen(u128::MAX, 1.0));
}

#[test]
fn a_long_message_is_cut_between_characters() {
    let long = "ä".repeat(MAX_MESSAGE_BYTES);
    assert_eq!(shortened(&format!("x{long}")).len(), MAX_MESSAGE_BYTES - 1);
    assert_eq!(shortened("short"), "short");
}
