//! Text of others on a terminal: control characters are shown, and have no effect.
//!
//! [`Context::print`](super::Context::print) and `print_error` pass everything through
//! [`styled`], so no command can leave it out. Tables pass each cell through [`shown`] before they
//! colour it.

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

    const EVIL: &str = "a\u{1b}[2Jb\u{1b}[31mc\0d\u{202e}e\u{9b}2Jf\u{7f}g\r";
    const SAFE: &str = "a\\u001b[2Jb\\u001b[31mc\\u0000d\\u202ee\\u009b2Jf\\u007fg\\u000d";

    #[test]
    fn control_characters_are_shown() {
        assert_eq!((shown(EVIL).as_ref(), styled(EVIL).as_ref()), (SAFE, SAFE));
        assert_eq!(shown("ä\tö\n\u{1f600}"), "ä\tö\n\u{1f600}");
        assert_eq!(line("a\nERROR b"), "a\\nERROR b");
        assert_eq!(indented("a\nERROR b"), "a\n    ERROR b");
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = json!({"message": EVIL});
        let text = value.to_string();
        assert_ne!(styled(&text), text);
        assert_eq!(serde_json::from_str::<Value>(&styled(&text)).unwrap(), value);
    }

    #[test]
    fn every_colour_of_a_table_is_kept() {
        let words = ["failed", "succeeded", "running", "cancelled", EVIL];
        let rows = words.map(|word| [word.to_owned(), word.to_owned()]);
        let table = output::table(OutputStyle { color: true, width: None }, ["a", "b"], rows);
        assert!(table.contains('\u{1b}'));
        assert_eq!(styled(&table), table);
        assert!(table.contains(SAFE), "{table:?}");
    }

    #[tokio::test]
    async fn no_command_writes_a_control_character_of_others() {
        let log = json!({"logs": [{
            "number": 1, "at": "2026-01-01T00:00:00Z", "version": 2, "role": "throttler",
            "level": "info", "message": format!("{EVIL}\n2026-01-01T00:00:00.000Z v2 ERROR forged"),
        }]});
        let explained = json!({
            "state": "scheduled", "phase": "ready", "reason": EVIL, "since": null,
            "held_by": {"kind": "throttler", "name": EVIL}, "earliest_at": null,
        });
        let job = sample::job(json!({"deferral_reason": EVIL}));
        let server = FakeServer::answering(move |seen| {
            let answer = match seen.path.rsplit('/').next() {
                Some("explain") => &explained,
                Some(last) if last.starts_with("logs") => &log,
                _ => &job,
            };
            (200, answer.clone())
        })
        .await;
        let commands: [&[&str]; 3] =
            [&["plugin", "logs", "share"], &["jobs", "explain", "j"], &["jobs", "get", "j"]];
        for args in commands {
            let (code, output) = server.run(args).await;
            assert_eq!(code, ExitCode::Ok, "{args:?} {output}");
            assert!(output.contains("a\\u001b[2Jb"), "{args:?} {output:?}");
            assert!(!output.contains(is_unsafe), "{args:?} {output:?}");
            assert!(!output.contains("\n2026-01-01T00:00:00.000Z v2 ERROR"), "{output}");
        }
    }
}
