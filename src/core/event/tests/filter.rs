//! Which events a filter matches.

use serde_json::json;

use super::{carrying, event, trigger};
use crate::event::Triggers;

#[test]
fn filters_compare_the_whole_of_a_long_text() {
    let url = format!("https://x/{}", "y".repeat(5000));
    let event = carrying(json!({"url": url}));
    for (filter, passes) in [
        (json!({"data": {"/url": {"prefix": "https://x"}}}), true),
        (json!({"data": {"/url": {"exists": false}}}), false),
        (json!({"not": {"data": {"/url": {"prefix": "https://x"}}}}), false),
        (json!({"data": {"/url": {"gt": "https://x/z"}}}), false),
    ] {
        let rule = trigger(json!({"filter": filter, "enqueue": {"type": "x"}})).unwrap();
        assert_eq!(!Triggers::new(vec![rule]).decide(&event).is_empty(), passes, "{filter}");
    }
}

#[test]
fn filters_compare_attributes_and_data() {
    let event = event();
    for (filter, passes) in [
        (json!({}), true),
        (json!({"type": "order.paid"}), true),
        (json!({"type": ["a", "order.paid"]}), true),
        (
            json!({"type": {"prefix": "order."}, "source": "/shop", "subject": {"exists": true}}),
            true,
        ),
        (json!({"type": "order"}), false),
        (json!({"source": {"prefix": "/warehouse"}}), false),
        (json!({"attribute": {"region": "east", "count": {"gte": 3}, "flag": true}}), true),
        (json!({"attribute": {"region": "west"}}), false),
        (json!({"attribute": {"nothing": {"exists": false}}}), true),
        (json!({"attribute": {"nothing": "x"}}), false),
        (json!({"attribute": {"datacontenttype": "application/json"}}), true),
        (json!({"data": {"/total": {"gt": 12, "lt": 13}, "/lines/1/sku": "b", "/ok": true}}), true),
        (json!({"data": {"/total": {"gt": 13}}}), false),
        (json!({"data": {"/lines": {"exists": true}}}), false),
        (json!({"data": {"/missing": {"exists": false}}}), true),
        (
            json!({
                "any": [{"type": "x"}, {"data": {"/id": "o-7"}}],
                "all": [{"subject": "o-7"}],
                "not": {"attribute": {"region": "west"}},
            }),
            true,
        ),
        (json!({"not": {"data": {"/id": "o-7"}}}), false),
    ] {
        let rule = trigger(json!({"filter": filter, "enqueue": {"type": "x"}})).unwrap();
        assert_eq!(Triggers::new(vec![rule]).decide(&event).len(), usize::from(passes), "{filter}");
    }
}
