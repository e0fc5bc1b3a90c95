//! JMESPath expressions and templates of triggers.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::driver::{fuzz, json, soup, text};
use crate::event::{
    Event, Template,
    event_view::EventView,
    expression::{Expression, TEXT_BYTES, variable},
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

/// Expressions that every event of these tests can fill.
const VALID: &[&str] =
    &["data", "data.a", "data.items[*].a", "length(data.items)", "region", "nothing"];

/// A template filled by its definition: each expression alone. None if one is refused or fails.
fn filled(template: &Value, event: &jmespath::Rcvar, left: &mut usize) -> Option<Value> {
    match template {
        Value::Object(fields) if fields.contains_key("$expr") => {
            let text = fields["$expr"].as_str().filter(|_| fields.len() == 1)?;
            Expression::read(text).ok()?.evaluate(event, left).ok()
        }
        Value::Object(fields) => fields
            .iter()
            .map(|(name, inner)| Some((name.clone(), filled(inner, event, left)?)))
            .collect::<Option<serde_json::Map<_, _>>>()
            .map(Value::Object),
        Value::Array(items) => items
            .iter()
            .map(|inner| filled(inner, event, left))
            .collect::<Option<Vec<_>>>()
            .map(Value::Array),
        literal => Some(literal.clone()),
    }
}

#[test]
fn a_template_is_refused_or_filled_as_by_its_definition() {
    let event = event();
    let pointers = BTreeMap::new();
    let view = EventView::new(&event, &pointers);
    let text = prop_oneof![
        6 => prop::sample::select(VALID).prop_map(str::to_owned),
        1 => soup(TOKENS, 4),
    ];
    let expression = text.prop_map(|text| json!({"$expr": text}));
    let literal = json(&["$expr", "data", "a"]);
    let leaf = prop_oneof![2 => expression, 1 => Just(Value::Null), 1 => literal];
    let template = leaf.prop_recursive(3, 12, 4, |inner| {
        let name = prop::sample::select(&["a", "b", "list"][..]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name, inner, 0..4).prop_map(|fields| json!(fields)),
        ]
    });
    let whole = serde_json::to_vec(&event).unwrap();
    let whole = jmespath::Rcvar::new(variable(&whole).unwrap());
    fuzz((template, 0..2000usize), |(written, budget)| {
        let (mut left, mut expected_left) = (budget, budget);
        let expected = filled(&written, &whole, &mut expected_left);
        let compiled = Template(written).compile();
        let read = compiled.ok().and_then(|compiled| view.fill(&compiled, &mut left).ok());
        prop_assert_eq!(&read, &expected);
        if read.is_some() {
            prop_assert_eq!(left, expected_left);
        }
        Ok(())
    });
}
