//! What expressions yield, and their bounds.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{carrying, event, trigger};
use crate::event::{Decision, event_view::EventView, expression::Expression};

#[test]
fn expressions_yield_values() {
    let event = event();
    let view = EventView::new(&event, &BTreeMap::new());
    for (text, wanted) in [
        ("id", json!("1")),
        ("type", json!("order.paid")),
        ("region", json!("east")),
        ("count", json!(3)),
        ("flag", json!(true)),
        ("nothing", json!(null)),
        ("data.id", json!("o-7")),
        ("data.total", json!(12.5)),
        ("data.lines[*].sku", json!(["a", "b"])),
        ("data.lines[?n > `1`].sku | [0]", json!("a")),
        ("sum(data.lines[*].n)", json!(3)),
        ("length(data.lines)", json!(2)),
        ("join('-', [source, data.id])", json!("/shop-o-7")),
        ("data.{order: id, first: lines[0].sku}", json!({"order": "o-7", "first": "a"})),
        ("data.missing || 'default'", json!("default")),
        ("data.ok && 'succeeded' || 'failed'", json!("succeeded")),
        ("to_number(data.id)", json!(null)),
        ("data.lines[::-1].sku", json!(["b", "a"])),
        ("sort_by(data.lines, &n)[0].sku", json!("b")),
        ("`{\"a\": [1]}`", json!({"a": [1]})),
    ] {
        let rule = trigger(json!({"enqueue": {"type": "x", "data": [{"$expr": text}]}})).unwrap();
        let Some(Decision::Enqueue(wanted_job)) = rule.decide(&view) else {
            panic!("{text}: {:?}", rule.decide(&view))
        };
        let yielded: Value = serde_json::from_slice(&wanted_job.data.bytes).unwrap();
        assert_eq!(yielded, json!([wanted]), "{text}");
    }
}

#[test]
fn an_invalid_or_unbounded_expression_is_refused() {
    for (text, why) in [
        ("", "must be a JMESPath expression"),
        ("data.", "must be a JMESPath expression"),
        ("data..id", "must be a JMESPath expression"),
        ("data[", "must be a JMESPath expression"),
        ("nofunction(data)", "not a function of JMESPath"),
        ("length()", "takes at least 1"),
        ("length(data, data)", "but it takes 1"),
        ("data[2147483647]", "indexes and steps of at most"),
        ("data[::2147483647]", "indexes and steps of at most"),
        ("data[::0]", "step 0"),
        (&format!("data{}", ".a".repeat(600)), "at most 1024 bytes"),
        (&format!("a{}", ".a".repeat(200)), "at most 128 levels"),
        (&format!("{}a{}", "(".repeat(65), ")".repeat(65)), "at most 64 brackets"),
        (&format!("{}a", "!".repeat(65)), "at most 64 brackets"),
        (&format!("a{}", "[*]".repeat(340)), "at most 64 brackets"),
        (&format!("a{}", ".*".repeat(500)), "at most 64 brackets"),
        ("[@,@]|".repeat(20).trim_end_matches('|'), "more than 200 times"),
        (&format!("data{}", "[].[@,@][]".repeat(9)), "more than 200 times"),
        (
            "map(&map(&map(&[@,@,@,@,@,@], [@,@,@,@,@,@]), [@,@,@,@,@,@]), data)",
            "more than 200 times",
        ),
    ] {
        let error = Expression::read(text).expect_err(text);
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn an_expression_with_a_large_result_is_stopped() {
    let data =
        json!({"glue": "g".repeat(2000), "list": vec!["x"; 2000], "long": "y".repeat(200_000)});
    for text in [
        "join(data.glue, data.list)",
        "[data.long, data.long, data.long, data.long, data.long, data.long]",
    ] {
        let rule = trigger(json!({"enqueue": {"type": "x", "data": {"$expr": text}}})).unwrap();
        let event = carrying(data.clone());
        let decision = rule.decide(&EventView::new(&event, &BTreeMap::new()));
        let Some(Decision::Failed(why)) = decision else { panic!("{text}: {decision:?}") };
        assert!(why.contains("more than 1048576 bytes"), "{text}: {why}");
    }
}

/// Reading any text ends, and so does the evaluation of every accepted expression.
#[test]
fn any_expression_ends_without_a_panic() {
    let event = event();
    let parts = [
        "data", "lines", ".", "[*]", "[]", "[?", "]", "(", ")", "&", "|", "||", "&&", "!", "@",
        "*", "`1`", "'x'", "length(", "map(&", ",", "{a:", "}", "[0]", "[-1:]", "==",
    ];
    proptest::proptest!(|(picks in proptest::collection::vec(0..parts.len(), 0..24))| {
        let text: String = picks.iter().map(|pick| parts[*pick]).collect();
        let config = json!({"enqueue": {"type": "x", "data": {"$expr": text}}});
        if let Ok(rule) = trigger(config) {
            let _ = rule.decide(&EventView::new(&event, &BTreeMap::new()));
        }
    });
}
