//! What the parser accepts, refuses and reports.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::*;

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Config {
    shares: BTreeMap<String, u32>,
    #[serde(default)]
    steps: Vec<Step>,
    #[serde(default)]
    days: BTreeMap<u8, Option<f64>>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Step {
    Stop,
    Wait(u32),
    Copy { from: String, to: Raw },
}

fn problem(text: &str) -> (String, String) {
    let Problem { path, message } = parse::<Config>(text).unwrap_err();
    (path, message)
}

#[test]
fn what_fits_is_read() {
    let text = r#" { "shares": {"e\u00e4\"": 1},
        "steps": ["stop", {"wait": 2}, {"copy": {"from": "a", "to": [1.50, {}] }}],
        "days": {"3": 1.5, "4": null} } "#;
    let steps = vec![
        Step::Stop,
        Step::Wait(2),
        Step::Copy { from: "a".into(), to: Raw("[1.50, {}]".into()) },
    ];
    let days = [(3, Some(1.5)), (4, None)].into();
    assert_eq!(parse(text), Ok(Config { shares: [("eä\"".to_owned(), 1)].into(), steps, days }));
}

#[test]
fn a_value_that_does_not_fit_is_named_by_its_pointer() {
    let cases = [
        (r#"{"shares": {"a/b": "x"}}"#, "/shares/a~1b", "expected u32, not a text"),
        (r#"{"shares": {"a": -1}}"#, "/shares/a", "expected u32, not -1"),
        (r#"{"shares": {"a": 1.5}}"#, "/shares/a", "expected u32, not a number with a fraction"),
        (r#"{"shares": {"a": 5000000000}}"#, "/shares/a", "expected u32, not 5000000000"),
        (r#"{"shares": []}"#, "/shares", "expected a map, not a list"),
        ("{}", "", "missing field `shares`"),
        (
            r#"{"share": {}}"#,
            "/share",
            "unknown field `share`, expected one of `shares`, `steps`, `days`",
        ),
        (r#"{"steps": [{"wait": 1}, {"wait": null}]}"#, "/steps/1/wait", "expected u32, not null"),
        (
            r#"{"steps": [{"walk": 1}]}"#,
            "/steps/0/walk",
            "unknown variant `walk`, expected one of `stop`, `wait`, `copy`",
        ),
        (
            r#"{"steps": [{"copy": {"from": 1}}]}"#,
            "/steps/0/copy/from",
            "expected a string, not a whole number",
        ),
        (r#"{"days": {"mon": 1}}"#, "/days/mon", "expected u8, not \"mon\""),
        ("[]", "", "expected struct Config, not a list"),
    ];
    for (text, path, message) in cases {
        assert_eq!(problem(text), (path.to_owned(), message.to_owned()), "{text}");
    }
}

#[test]
fn invalid_json_is_refused_and_valid_json_is_parsed() {
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let good = [
        "null",
        "[1,-2,3.5,1e3,-0.25E-2,0]",
        r#"{"a":{"b":[true,false,null]}}"#,
        r#""\ud83d\ude00\n\/\u0041""#,
        " [ ] ",
        "{ }",
        "18446744073709551616",
        "[[],{}]",
        deep.as_str(),
    ];
    for text in good {
        assert_eq!(
            parse::<Value>(text),
            Ok(serde_json::from_str::<Value>(text).unwrap()),
            "{text}"
        );
        assert_eq!(parse::<Raw>(text), Ok(Raw(text.trim().to_owned())));
    }
    let deeper = format!("[{deep}]");
    let bad = [
        "",
        "nul",
        "[1,]",
        "[1 2]",
        "{\"a\" 1}",
        "{\"a\":1,}",
        "{a:1}",
        "01",
        "1.",
        ".5",
        "-",
        "1e",
        "+1",
        "\"",
        "\"\\x\"",
        "\"\\ud800\"",
        "\"\u{1}\"",
        "[",
        "{",
        "1 2",
        "[1}",
        "\"\\u12\"",
        "\"\\u+123\"",
        deeper.as_str(),
    ];
    for text in bad {
        assert!(parse::<Value>(text).is_err(), "{text}");
        assert!(parse::<Raw>(text).is_err(), "{text}");
    }
}

#[test]
fn a_tuple_takes_as_many_as_it_has() {
    assert_eq!(parse("[1, [2, 3]]"), Ok((1u8, (2u8, 3u8))));
    assert!(parse::<(u8, u8)>("[1, 2, 3]").is_err());
    assert!(parse::<(u8, u8)>("[1]").is_err());
}

#[test]
fn a_quoted_text_is_read_back() {
    for text in ["", "plain", "\"\\\n\u{1}ä😀"] {
        assert_eq!(parse(&quote(text)), Ok(text.to_owned()));
    }
}
