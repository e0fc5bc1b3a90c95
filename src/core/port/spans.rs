//! Where spans go: what happened, from when to when, under which other span.

use crate::{job::TraceContext, time::Timestamp};

/// A piece of a trace, over and whole: nothing of it is known before its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// What happened, such as `enqueue mail`.
    pub name: String,
    /// Who acted for whom.
    pub kind: SpanKind,
    /// Its own place in the trace.
    pub context: TraceContext,
    /// The span that it is a part of.
    pub parent: Option<Parent>,
    /// The span of another trace that this one goes back to.
    pub link: Option<TraceContext>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it was over.
    pub ended_at: Timestamp,
    /// What went wrong, for people; none if nothing did.
    pub failure: Option<String>,
    /// What else is known, by name.
    pub attributes: Vec<(&'static str, Attribute)>,
}

/// The span above another, in the same trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Its id.
    pub span: u64,
    /// Whether another program wrote it.
    pub remote: bool,
}

/// Who acted for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// The server answered somebody.
    Server,
    /// The server had somebody else do something.
    Client,
    /// Nobody else took part.
    Internal,
}

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
    /// A span of time, in seconds.
    Seconds(f64),
}

/// Takes spans.
pub trait Spans: Send + Sync {
    /// Takes `span` without waiting for anything. What there is no room for is lost, and counted by whoever lost it.
    fn record(&self, span: Span);
}
