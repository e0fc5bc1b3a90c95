//! Text of others on a terminal: control characters are shown, and have no effect.
//!
//! [`Context::print`](super::Context::print) and `print_error` pass everything through [`shown`],
//! so no command can leave it out. Tables pass each cell through it before they colour the cell,
//! and
//! `Context::print_tables` keeps the colours alone.

use std::{borrow::Cow, fmt::Write as _};

/// `text` with its control characters escaped as in JSON. A line feed stays.
///
/// Escaped are all that move the cursor, colour or hide text, or change its direction. In JSON they
/// are always inside a string, which keeps its value.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    text.chars().for_each(|c| push(&mut safe, c));
    Cow::Owned(safe)
}

/// `text` in one line: as [`shown`], and line feeds are escaped too.
pub fn line(text: &str) -> String {
    shown(text).replace('\n', "\\n")
}

/// `text` as [`shown`], with its later lines indented, so that none of them looks like a line of
/// its own.
pub fn indented(text: &str) -> String {
    shown(text).replace('\n', "\n    ")
}

/// `text` as [`shown`], but with the colours that this program gives its tables.
pub(super) fn styled(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let style = STYLES.iter().find(|style| rest.starts_with(**style));
        match style {
            Some(style) => safe.push_str(style),
            None => push(&mut safe, c),
        }
        rest = &rest[style.map_or(c.len_utf8(), |style| style.len())..];
    }
    Cow::Owned(safe)
}

/// The sequences that tables contain: dim, red, green, yellow, cyan, and their ends.
const STYLES: [&str; 8] = [
    "\u{1b}[2m",
    "\u{1b}[38;5;9m",
    "\u{1b}[38;5;10m",
    "\u{1b}[38;5;11m",
    "\u{1b}[38;5;14m",
    "\u{1b}[39m",
    "\u{1b}[22m",
    "\u{1b}[0m",
];

fn push(safe: &mut String, c: char) {
    if is_unsafe(c) {
        let mut units = [0; 2];
        for unit in c.encode_utf16(&mut units) {
            let _ = write!(safe, "\\u{unit:04x}");
        }
    } else {
        safe.push(c);
    }
}

/// Whether a terminal does something else with `c` than show it: control characters, line and
/// paragraph separators, and marks of the direction of text.
fn is_unsafe(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        _ => c.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::{
        ExitCode, output,
        output::OutputStyle,
        testing::{FakeServer, sample},
    };

    const EVIL: &str = "a\u{1b}[2Jb\u{1b}[2mc\0d\u{202e}e\u{9b}2Jf\u{7f}g\r";
    const SAFE: &str = "a\\u001b[2Jb\\u001b[2mc\\u0000d\\u202ee\\u009b2Jf\\u007fg\\u000d";

    #[test]
    fn control_characters_are_shown() {
        assert_eq!(shown(EVIL), SAFE);
        assert_eq!(styled("a\u{1b}[2J\u{1b}[2mb"), "a\\u001b[2J\u{1b}[2mb");
        assert_eq!(shown("ä\tö\n\u{1f600}"), "ä\tö\n\u{1f600}");
        assert_eq!(line("a\nERROR b"), "a\\nERROR b");
        assert_eq!(indented("a\nERROR b"), "a\n    ERROR b");
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = json!({"message": EVIL});
        let text = value.to_string();
        assert_ne!(shown(&text), text);
        assert_eq!(serde_json::from_str::<Value>(&shown(&text)).unwrap(), value);
    }

    #[test]
    fn every_colour_of_a_table_is_kept() {
        let words = ["failed", "succeeded", "running", "cancelled", EVIL];
        let rows = words.map(|word| [word.to_owned(), word.to_owned()]);
        let table = output::table(OutputStyle { color: true, width: None }, ["a", EVIL], rows);
        assert!(table.contains('\u{1b}'));
        assert_eq!(styled(&table), table);
        assert!(table.contains(SAFE), "{table:?}");
    }

    #[tokio::test]
    async fn no_command_writes_a_control_character_of_others() {
        let evil = format!("first\n2026-01-01T00:00:00.000Z v2 ERROR forged {EVIL}");
        let log = json!({"logs": [{
            "number": 1, "at": "2026-01-01T00:00:00Z", "version": 2, "role": "throttler",
            "level": "info", "message": evil,
        }]});
        let explained = json!({
            "state": "scheduled", "phase": "ready", "reason": evil, "since": null,
            "held_by": {"kind": "constraint", "name": evil, "value": evil}, "earliest_at": null,
        });
        let queue = json!({
            "reason": evil, "examined": 1, "more": false, "next_due_at": null, "running": [],
            "constraints": [], "workers": [], "held": [{
                "kind": "throttler", "name": evil, "jobs": 1, "types": {"mail": 1}, "since": null,
                "reason": evil, "earliest_at": null,
            }],
        });
        let error = json!({"reason": "failed", "message": evil, "details": null});
        let job = sample::job(json!({"deferral_reason": evil, "error": error}));
        let jobs = json!({"jobs": [job]});
        let server = FakeServer::answering(move |seen| {
            let answer = match seen.path.rsplit('/').next() {
                Some("explain") if seen.path.starts_with("/v1/queues/") => &queue,
                Some("explain") => &explained,
                Some(last) if last.starts_with("jobs") => &jobs,
                Some(last) if last.starts_with("logs") => &log,
                _ => &job,
            };
            (200, answer.clone())
        })
        .await;
        let commands: [&[&str]; 5] = [
            &["plugin", "logs", "share"],
            &["queues", "explain", "q"],
            &["jobs", "explain", "j"],
            &["jobs", "get", "j"],
            &["jobs", "list"],
        ];
        for args in commands {
            let (code, output) = server.run(args).await;
            assert_eq!(code, ExitCode::Ok, "{args:?} {output}");
            assert!(output.contains("a\\u001b[2Jb"), "{args:?} {output:?}");
            assert!(!output.contains(is_unsafe), "{args:?} {output:?}");
            assert!(!output.contains("\n2026-01-01T00:00:00.000Z v2 ERROR"), "{output}");
        }
    }

    #[tokio::test]
    async fn a_body_on_a_terminal_has_no_control_character() {
        let result = json!(EVIL);
        let answer = result.clone();
        let server = FakeServer::answering(move |seen| match seen.path.as_str() {
            "/v1/jobs/j" => (200, sample::job(json!({"state": "succeeded"}))),
            _ => (200, answer.clone()),
        })
        .await;
        let args = ["jobs", "result", "j"];
        let json = [&args[..], &["--json"]].concat();
        // serde_json leaves these.
        let kept = ["\u{9b}", "\u{202e}", "\u{7f}"];
        let (_, piped) = server.run(&json).await;
        assert!(kept.iter().all(|raw| piped.contains(raw)), "{piped:?}");
        for output in [
            server.run(&args).await.1,
            server.run_on_terminal(&args).await.1,
            server.run_on_terminal(&json).await.1,
        ] {
            assert!(!output.trim_end().contains(is_unsafe), "{output:?}");
            assert_eq!(serde_json::from_str::<Value>(&output).unwrap(), result);
        }
    }
}
