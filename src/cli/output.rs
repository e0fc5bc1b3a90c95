//! The output for terminals: times, spans, tables. Pure: the current instant is an argument.
//!
//! The name of a field decides its format: `…_at` is an instant, printed relative to now. Every
//! other field is printed unchanged, so fields unknown to this version are printed, too.

use std::time::Duration;

use comfy_table::{Attribute, Cell, Color, ColumnConstraint, ContentArrangement, Table, presets};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::Value;

use super::safe::{line, shown};
use tidegate_api::FailureView;
use tidegate_core::time::Timestamp;

/// The capabilities of the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputStyle {
    /// Whether text may be coloured.
    pub color: bool,
    /// Columns of the terminal; unlimited where there is none, so that pipes get whole lines.
    pub width: Option<u16>,
}

/// Returns a table of `rows` under `headers`, without lines, so that `cut` and `awk` can read it.
/// Line feeds in a cell are escaped.
pub fn table<const N: usize>(
    look: OutputStyle,
    headers: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = plain(look);
    table.set_header(headers.map(|text| label(look, text)));
    for row in rows {
        table.add_row(row.map(|text| tinted(look, &line(&text))));
    }
    finish(table)
}

/// The fields of one thing, one per line, absent ones left out.
pub fn fields(look: OutputStyle, fields: &Fields, except: &[&str], now: Timestamp) -> String {
    let mut table = plain(look);
    for (name, value) in &fields.0 {
        if !value.is_null() && !except.contains(&name.as_str()) {
            table.add_row([label(look, name), tinted(look, &self::value(name, value, now))]);
        }
    }
    finish(table)
}

/// A JSON object with its fields in the order they came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields(pub Vec<(String, Value)>);

impl Fields {
    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    fields.push(entry);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// One field's value: text without quotes, instants with their distance, the rest as JSON.
pub fn value(name: &str, value: &Value, now: Timestamp) -> String {
    match value {
        Value::String(text) => match text.parse::<Timestamp>() {
            Ok(at) if name.ends_with("_at") => format!("{at} ({})", when(at, now)),
            _ => text.clone(),
        },
        other => other.to_string(),
    }
}

/// How far `at` is from `now`: `in 3 s`, `2 min ago`, `now`.
pub fn when(at: Timestamp, now: Timestamp) -> String {
    let (ahead, behind) = (at.since(now), now.since(at));
    match ahead.max(behind) {
        near if near < Duration::from_secs(1) => "now".to_owned(),
        far if ahead > behind => format!("in {}", rough(far)),
        far => format!("{} ago", rough(far)),
    }
}

/// Returns a failure in one line: its reason and the last line of its message.
pub fn failure_line(failure: &FailureView<'_>) -> String {
    let (reason, message) = (failure.reason.as_str(), failure.message.as_deref());
    match message.and_then(|message| message.trim().lines().last()) {
        Some(last) => format!("{reason}: {last}"),
        None => reason.to_owned(),
    }
}

/// [`when`], or a dash.
pub fn when_known(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map_or_else(dash, |at| when(at, now))
}

/// Returns the placeholder of an unknown value.
pub fn dash() -> String {
    "-".to_owned()
}

/// A span in its largest unit, whole.
fn rough(span: Duration) -> String {
    let seconds = span.as_secs();
    let (size, unit) = match seconds {
        0..60 => (1, "s"),
        60..3600 => (60, "min"),
        3600..86_400 => (3600, "h"),
        _ => (86_400, "d"),
    };
    format!("{} {unit}", seconds / size)
}

/// How long something took: `350 ms`, `1.2 s`, `2 min 5 s`, `1 h 3 min`.
pub fn took(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{} ms", span.as_millis()),
        1..60 => format!("{:.1} s", span.as_millis() as f64 / 1000.0),
        60..3600 => whole_and_rest((seconds / 60, "min"), (seconds % 60, "s")),
        _ => whole_and_rest((seconds / 3600, "h"), (seconds % 3600 / 60, "min")),
    }
}

fn whole_and_rest(whole: (u64, &str), rest: (u64, &str)) -> String {
    let text = format!("{} {}", whole.0, whole.1);
    if rest.0 == 0 { text } else { format!("{text} {} {}", rest.0, rest.1) }
}

fn plain(look: OutputStyle) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    if look.color {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    if let Some(width) = look.width {
        table.set_width(width);
    }
    table
}

/// The first column, which users copy, is never wrapped.
fn finish(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    if let Some(first) = table.column_mut(0) {
        first.set_constraint(ColumnConstraint::ContentWidth);
    }
    table.trim_fmt()
}

/// A title, or the name of a field.
fn label(look: OutputStyle, text: &str) -> Cell {
    let cell = Cell::new(shown(text));
    if look.color { cell.add_attribute(Attribute::Dim) } else { cell }
}

/// The words that matter most to an operator have a colour.
fn tinted(look: OutputStyle, text: &str) -> Cell {
    let text = shown(text);
    let color = match text.as_ref() {
        "failed" | "expired" | "dropped" | "NO" => Some(Color::Red),
        "succeeded" | "yes" => Some(Color::Green),
        "running" => Some(Color::Cyan),
        "cancelled" | "paused" => Some(Color::Yellow),
        _ => None,
    };
    match color {
        Some(color) if look.color => Cell::new(text).fg(color),
        _ => Cell::new(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_is_said_in_its_largest_unit() {
        let now = Timestamp::from_millis(1_000_000_000_000);
        let ahead = |seconds: u64| when(now + Duration::from_secs(seconds), now);
        let behind = |seconds: u64| when(now - Duration::from_secs(seconds), now);
        assert_eq!(
            [ahead(0), ahead(3), ahead(119), ahead(7200)],
            ["now", "in 3 s", "in 1 min", "in 2 h"]
        );
        assert_eq!([behind(1), behind(120), behind(200_000)], ["1 s ago", "2 min ago", "2 d ago"]);
        assert_eq!(when(now + Duration::from_millis(999), now), "now");
    }

    #[test]
    fn a_stretch_is_said_finer_the_shorter_it_is() {
        let said = [350, 1200, 125_000, 3_780_000, 86_400_000]
            .map(|millis| took(Duration::from_millis(millis)));
        assert_eq!(said, ["350 ms", "1.2 s", "2 min 5 s", "1 h 3 min", "24 h"]);
    }

    #[test]
    fn table_has_no_lines_and_is_not_wrapped_in_a_pipe() {
        let rows = [
            ["01j-a-long-identifier-that-must-stay-whole".to_owned(), "failed".to_owned()],
            ["b".to_owned(), dash()],
        ];
        insta::assert_snapshot!(table(OutputStyle::default(), ["id", "state"], rows));
    }

    #[test]
    fn narrow_terminal_wraps_texts_but_not_ids() {
        let look = OutputStyle { color: false, width: Some(40) };
        let rows = [[
            "01j-a-long-identifier".to_owned(),
            "a message that does not fit into what is left".to_owned(),
        ]];
        insta::assert_snapshot!(table(look, ["id", "error"], rows));
    }

    #[test]
    fn colour_is_used_only_where_it_is_allowed() {
        let rows = || [["failed".to_owned()]];
        assert!(
            table(OutputStyle { color: true, width: None }, ["state"], rows()).contains('\u{1b}')
        );
        assert!(!table(OutputStyle::default(), ["state"], rows()).contains('\u{1b}'));
    }

    #[test]
    fn fields_keep_their_order() {
        let body = r#"{"id":"a","zeta":[1,2],"run_at":"2001-09-09T01:46:43Z","note":null,
            "history":[],"data":{"x":1}}"#;
        let parsed: Fields = serde_json::from_str(body).unwrap();
        insta::assert_snapshot!(fields(
            OutputStyle::default(),
            &parsed,
            &["history"],
            Timestamp::from_millis(1_000_000_000_000)
        ));
    }
}
