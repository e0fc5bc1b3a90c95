//! Spans of traces, and where they go.

use crate::{job::TraceContext, time::Timestamp};

/// A finished span of a trace. A span is recorded only after its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// What happened, such as `enqueue mail`.
    pub name: String,
    /// The role of the server.
    pub kind: SpanKind,
    /// Its own context in the trace.
    pub context: TraceContext,
    /// Its parent span.
    pub parent: Option<Parent>,
    /// The span of another trace that caused this one.
    pub link: Option<TraceContext>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// The failure, for people; none if there was none.
    pub failure: Option<String>,
    /// Further attributes, by name.
    pub attributes: Vec<(&'static str, Attribute)>,
}

/// The parent of a span, in the same trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Its id.
    pub span: u64,
    /// Whether another program recorded it.
    pub remote: bool,
}

/// The role of the server in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// The server answered a client.
    Server,
    /// The server called another process.
    Client,
    /// No other process took part.
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

/// Records spans.
pub trait Spans: Send + Sync {
    /// Records `span` without waiting. A span that does not fit into the buffer is lost; the
    /// implementation counts it.
    fn record(&self, span: Span);
}
