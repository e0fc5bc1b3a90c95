//! JMESPath expressions and templates of triggers.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::driver::{fuzz, json, soup, text};
use crate::event::{
    Event, Template,
    event_view::EventView,
    expression::{Expression, MOST_OUTPUT, TEXT_BYTES, variable},
    read,
};

const TOKENS: &[&str] = &[
    "data",
    "type",
    "a",
    "items",
    "@",
    ".",
    "*",
    "[*]",
    "[]",
    "[0]",
    "[-1]",
    "[::2]",
    "[::-1]",
    "[?",
    "]",
    "(",
    ")",
    "{",
    "}",
    ":",
    ",",
    "|",
    "||",
    "&&",
    "!",
    "==",
    "!=",
    "<",
    ">=",
    "&",
    "`1`",
    "`[1,2]`",
    "`{\"a\":1}`",
    "'x'",
    "\"a\"",
    "join",
    "sort_by",
    "map",
    "max_by",
    "to_string",
    "length",
    "keys",
    "values",
    "merge",
    "not_null",
    "reverse",
    "contains",
    "sum",
    "avg",
    "type(@)",
    "join(',', keys(@))",
    "sort_by(items, &a)",
    "map(&@, items)",
    "to_string(@)",
    "2147483647",
    "-2147483648",
    " ",
    "\\",
    "'",
    "`",
    "é",
];

fn event() -> Event {
    let event = json!({
        "specversion": "1.0", "id": "1", "source": "s", "type": "t", "region": "east",
        "data": {"a": 1.5, "items": [{"a": 3}, {"a": 1}, "x", null, [1, [2]]], "text": "é\u{0}"},
    });
    read::structured(&event.to_string().into()).unwrap()
}

/// The bytes that a value takes by the rule of [`Expression::evaluate`], at least.
fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(size).sum::<usize>(),
        Value::Object(fields) => {
            2 + fields.iter().map(|(name, inner)| name.len() + 3 + size(inner)).sum::<usize>()
        }
    }
}

#[test]
fn an_expression_is_refused_or_stays_within_its_bounds() {
    let event = json!({
        "type": "t", "data": {"a": 1.5, "items": [{"a": 3}, {"a": 1}, "x", null, [1, [2]]]},
        "items": [{"a": 3}, {"a": 1}], "a": "é",
    });
    let event = jmespath::Rcvar::new(variable(event.to_string().as_bytes()).unwrap());
    fuzz(
        (prop_oneof![6 => soup(TOKENS, 12), 1 => soup(TOKENS, 300), 1 => text(40)], 0..4000usize),
        |(written, budget)| {
            let Ok(expression) = Expression::read(&written) else { return Ok(()) };
            prop_assert!(written.len() <= TEXT_BYTES);
            prop_assert_eq!(Expression::read(expression.as_str()), Ok(expression.clone()));
            let (mut left, mut again) = (budget, budget);
            let answer = expression.evaluate(&event, &mut left);
            if let Ok(answer) = &answer {
                prop_assert_eq!(size(answer), budget - left);
            }
            prop_assert!(left <= budget);
            prop_assert_eq!(expression.evaluate(&event, &mut again), answer);
            Ok(())
        },
    );
}

#[test]
fn a_template_without_expressions_is_filled_with_itself() {
    let event = event();
    let pointers = BTreeMap::new();
    let view = EventView::new(&event, &pointers);
    fuzz(json(&["a", "data", "$", "$exp", "x"]), |written| {
        let compiled = Template(written.clone()).compile().unwrap();
        prop_assert_eq!(view.fill(&compiled, &mut 0), Ok(written));
        Ok(())
    });
}

#[test]
fn a_template_is_refused_or_filled_within_its_bounds() {
    let event = event();
    let pointers = BTreeMap::new();
    let view = EventView::new(&event, &pointers);
    let expression = soup(TOKENS, 4).prop_map(|text| json!({"$expr": text}));
    let template = (json(&["$expr", "data", "data.items[*].a", "a"]), expression)
        .prop_map(|(around, expression)| json!({"around": around, "list": [expression, 1]}));
    fuzz(template, |written| {
        let Ok(compiled) = Template(written).compile() else { return Ok(()) };
        let mut left = MOST_OUTPUT;
        if let Ok(filled) = view.fill(&compiled, &mut left) {
            prop_assert_eq!(&filled["list"][1], &json!(1));
        }
        prop_assert!(left <= MOST_OUTPUT);
        Ok(())
    });
}
