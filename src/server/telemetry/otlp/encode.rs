//! Encodes spans in the protobuf format of OTLP.
//!
//! The encoder is written by hand: there are few messages, their field numbers never change, and
//! the library for them has seven dependencies. The tests decode the result with that library. Each
//! function writes the message of its name; the field numbers are those of
//! `opentelemetry/proto/trace/v1/trace.proto` and `common/v1/common.proto`.

use tidegate_core::{
    job::TraceContext,
    port::spans::{Attribute, Span, SpanKind},
    time::Timestamp,
};

/// An `ExportTraceServiceRequest` with `spans`, sent by `service_name`.
pub(super) fn request(service_name: &str, spans: &[Span]) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + spans.len() * 512);
    nested(&mut out, 1, |resource_spans| {
        nested(resource_spans, 1, |resource| {
            nested(resource, 1, |pair| {
                key_value(pair, "service.name", |value| text(value, 1, service_name));
            });
        });
        nested(resource_spans, 2, |scope_spans| {
            nested(scope_spans, 1, |scope| {
                text(scope, 1, "tidegate");
                text(scope, 2, env!("CARGO_PKG_VERSION"));
            });
            for one in spans {
                nested(scope_spans, 2, |out| span(out, one));
            }
        });
    });
    out
}

fn span(out: &mut Vec<u8>, span: &Span) {
    ids(out, span.context);
    if let Some(parent) = span.parent {
        bytes(out, 4, &parent.span.to_be_bytes());
    }
    text(out, 5, &span.name);
    let kind = match span.kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Client => 3,
    };
    number(out, 6, kind);
    fixed64(out, 7, nanos(span.started_at));
    fixed64(out, 8, nanos(span.ended_at));
    for (name, value) in &span.attributes {
        nested(out, 9, |pair| {
            key_value(pair, name, |out| match value {
                Attribute::Text(value) => text(out, 1, value),
                Attribute::Number(value) => number(out, 3, *value as u64),
                Attribute::Seconds(value) => fixed64(out, 4, value.to_bits()),
            });
        });
    }
    if let Some(link) = span.link {
        nested(out, 13, |out| {
            ids(out, link);
            fixed32(out, 6, flags(link));
        });
    }
    if let Some(failure) = &span.failure {
        nested(out, 15, |status| {
            text(status, 2, failure);
            // STATUS_CODE_ERROR.
            number(status, 3, 2);
        });
    }
    // The flags 0x100 and 0x200: whether the parent is remote is known, and it is remote.
    let remote = span.parent.map_or(0, |parent| 0x100 | u32::from(parent.remote) << 9);
    fixed32(out, 16, flags(span.context) | remote);
}

/// The first two fields of spans and of links.
fn ids(out: &mut Vec<u8>, context: TraceContext) {
    bytes(out, 1, &context.trace.to_be_bytes());
    bytes(out, 2, &context.span.to_be_bytes());
}

fn flags(context: TraceContext) -> u32 {
    u32::from(context.sampled)
}

fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.millis()).unwrap_or(0) * 1_000_000
}

fn key_value(out: &mut Vec<u8>, key: &str, value: impl FnOnce(&mut Vec<u8>)) {
    text(out, 1, key);
    nested(out, 2, value);
}

// The primitives of protobuf: a field is its number with the wire type of its value, then the
// value.

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;
const FIXED32: u32 = 5;

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn tag(out: &mut Vec<u8>, field: u32, wire_type: u32) {
    varint(out, (field << 3 | wire_type).into());
}

fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    tag(out, field, VARINT);
    varint(out, value);
}

fn fixed32(out: &mut Vec<u8>, field: u32, value: u32) {
    tag(out, field, FIXED32);
    out.extend_from_slice(&value.to_le_bytes());
}

fn fixed64(out: &mut Vec<u8>, field: u32, value: u64) {
    tag(out, field, FIXED64);
    out.extend_from_slice(&value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    tag(out, field, BYTES);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn text(out: &mut Vec<u8>, field: u32, value: &str) {
    bytes(out, field, value.as_bytes());
}

/// Writes a message in another. Its length comes first, so it is written to a buffer of its own.
fn nested(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    write(&mut inner);
    bytes(out, field, &inner);
}
