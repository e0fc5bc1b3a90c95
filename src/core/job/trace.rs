//! The context of a trace, as in W3C Trace Context: the parent of the next span.
//!
//! ```text
//!   traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
//!                version   trace                        span          flags
//! ```
//!
//! A malformed context is ignored without an error, so that a caller's broken tracing does not
//! refuse its jobs.

use std::{collections::BTreeMap, fmt, str::FromStr};

/// The header that carries a context.
pub const PARENT: &str = "traceparent";
/// The header with additions of tracing systems; it has no meaning without [`PARENT`].
pub const STATE: &str = "tracestate";

/// The flag of a recorded trace.
const SAMPLED: u8 = 1;
/// The length of a context of version 0; later ones may be longer.
const LENGTH: usize = 55;

/// A trace, one of its spans, and whether it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace; never 0.
    pub trace: u128,
    /// The span; never 0.
    pub span: u64,
    /// Whether the program that started the trace records it.
    pub sampled: bool,
}

/// The text is not a trace context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a traceparent such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
pub struct NotATrace;

impl TraceContext {
    /// The context in `headers`, in any letter case of its name.
    pub fn of(headers: &BTreeMap<String, String>) -> Option<Self> {
        named(headers, PARENT).and_then(|(_, text)| text.parse().ok())
    }

    /// The context of another span of the same trace.
    #[must_use]
    pub fn with_span(self, span: u64) -> Self {
        Self { span, ..self }
    }
}

/// The header `name` (lower case) among `headers`, whose names may be written in any case.
pub fn named<'a>(
    headers: &'a BTreeMap<String, String>,
    name: &str,
) -> Option<(&'a String, &'a String)> {
    headers.iter().find(|(have, _)| have.eq_ignore_ascii_case(name))
}

impl FromStr for TraceContext {
    type Err = NotATrace;

    fn from_str(text: &str) -> Result<Self, NotATrace> {
        let bytes = text.as_bytes();
        let version = hex(text.get(..2)).ok_or(NotATrace)?;
        let fits = match version {
            0 => bytes.len() == LENGTH,
            // The one version that is forbidden.
            0xff => false,
            _ => bytes.len() == LENGTH || bytes.get(LENGTH) == Some(&b'-'),
        };
        let dashes = [2, 35, 52].iter().all(|at| bytes.get(*at) == Some(&b'-'));
        if !fits || !dashes {
            return Err(NotATrace);
        }
        let trace = hex(text.get(3..35)).filter(|trace| *trace != 0).ok_or(NotATrace)?;
        let span = hex(text.get(36..52)).filter(|span| *span != 0).ok_or(NotATrace)?;
        let flags = hex(text.get(53..55)).ok_or(NotATrace)?;
        Ok(Self { trace, span: span as u64, sampled: flags as u8 & SAMPLED != 0 })
    }
}

/// The number of lower-case hexadecimal digits; `from_str_radix` alone would accept signs and
/// capitals.
fn hex(digits: Option<&str>) -> Option<u128> {
    let digits = digits
        .filter(|digits| digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')))?;
    u128::from_str_radix(digits, 16).ok()
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_written_context_is_read_back() {
        let context: TraceContext = GOOD.parse().unwrap();
        assert_eq!(
            (context.trace, context.span),
            (0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, 0xb7ad_6b71_6920_3331)
        );
        assert!(context.sampled);
        assert_eq!(context.to_string(), GOOD);
        let other = context.with_span(1).to_string();
        assert_eq!(other, "00-0af7651916cd43dd8448eb211c80319c-0000000000000001-01");
    }

    #[test]
    fn only_the_sampling_flag_counts() {
        for (flags, sampled) in
            [("00", false), ("01", true), ("02", false), ("03", true), ("ff", true)]
        {
            let text = format!("{}{flags}", &GOOD[..53]);
            assert_eq!(text.parse::<TraceContext>().unwrap().sampled, sampled, "{text}");
        }
    }

    #[test]
    fn the_known_part_of_a_later_version_is_read() {
        for text in [format!("01{}", &GOOD[2..]), format!("cc{}-what-comes", &GOOD[2..])] {
            assert_eq!(text.parse::<TraceContext>(), GOOD.parse(), "{text}");
        }
    }

    #[test]
    fn a_malformed_context_is_refused() {
        let swapped = |from: &str, to: &str| GOOD.replace(from, to);
        for text in [
            String::new(),
            "00".to_owned(),
            GOOD[..54].to_owned(),
            format!("{GOOD}-more"),
            format!("{GOOD} "),
            format!("ff{}", &GOOD[2..]),
            format!("01{}x", &GOOD[2..]),
            swapped("-01", "_01"),
            swapped("-01", "-0g"),
            swapped("af", "AF"),
            swapped("0af", "+af"),
            swapped("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            swapped("b7ad6b7169203331", &"0".repeat(16)),
            swapped("b7ad6b716920333", "b7ad6b7169203é"),
        ] {
            assert_eq!(text.parse::<TraceContext>(), Err(NotATrace), "{text:?}");
        }
    }

    #[test]
    fn a_header_is_found_in_any_letter_case() {
        let headers = [("TraceParent".to_owned(), GOOD.to_owned())].into();
        assert_eq!(TraceContext::of(&headers), GOOD.parse().ok());
        assert_eq!(TraceContext::of(&[("traceparent".to_owned(), "x".to_owned())].into()), None);
    }
}
