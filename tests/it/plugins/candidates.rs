//! Candidates by column: the world in which a plugin reads them instead of receiving a list.

use tidegate_core::port::policy::FaultKind;

use super::{
    Plugged, assert_fault,
    guest::{CANDIDATES, Guest, LOG, PACKED, VALUES, WEIGHTS},
    offer,
};

/// A field that is a text: its case, and where the list goes.
const TEXTS: &str =
    r#"(import "tidegate:plugin/candidates@0.2.0" "texts" (func $texts (param i32 i32)))"#;
/// A field that is an instant: its case, and where the list goes.
const INSTANTS: &str =
    r#"(import "tidegate:plugin/candidates@0.2.0" "instants" (func $instants (param i32 i32)))"#;
/// All attributes of a candidate: its index, and where the list goes.
const ATTRIBUTES: &str = r#"(import "tidegate:plugin/candidates@0.2.0" "attributes"
    (func $attributes (param i32 i32)))"#;

/// A throttler that reads its candidates by column.
fn by_column(decide: &str) -> Guest {
    let imports = [LOG, CANDIDATES, TEXTS, WEIGHTS, INSTANTS, VALUES, ATTRIBUTES, PACKED];
    imports
        .into_iter()
        .fold(Guest::throttler().world("throttler-by-column", ""), Guest::import)
        .items(r#"(data (i32.const 2048) "region")"#)
        .decide(decide)
}

/// Logs the text of an option at an address, and traps if it has none.
fn log_option(at: &str) -> String {
    format!(
        "(if (i32.eqz (i32.load8_u {at})) (then (unreachable)))
         (call $log (i32.const 1) (i32.load offset=4 {at}) (i32.load offset=8 {at}))"
    )
}

/// Traps unless a value in WAT is this one.
fn is(kind: &str, value: &str, wanted: i64) -> String {
    format!("(if ({kind}.ne {value} ({kind}.const {wanted})) (then (unreachable)))")
}

async fn lines(decide: &str, candidates: usize) -> Vec<String> {
    let plugged = Plugged::new(by_column(decide)).await;
    let answer = plugged.throttle(offer(candidates, 0)).await.unwrap();
    assert_eq!(answer.decisions.len(), candidates);
    plugged.seen().log.into_iter().map(|line| line.text).collect()
}

#[tokio::test]
async fn a_plugin_may_read_its_candidates_by_column() {
    let list = "(i32.load (i32.const 2064))";
    let at = |bytes: u32| format!("(i32.add {list} (i32.const {bytes}))");
    let none = |bytes: u32| is("i32", &format!("(i32.load8_u {})", at(bytes)), 0);
    let body = [
        is("i32", "(local.get $n)", 0),
        "(call $texts (i32.const 0) (i32.const 2064))".into(),
        is("i32", "(i32.load (i32.const 2068))", 3),
        log_option(&at(24)),
        "(call $texts (i32.const 1) (i32.const 2064))".into(),
        log_option(&at(0)),
        "(call $texts (i32.const 4) (i32.const 2064))".into(),
        none(0),
        "(call $values (i32.const 2048) (i32.const 6) (i32.const 2064))".into(),
        log_option(&at(12)),
        "(call $weights (i32.const 1) (i32.const 2064))".into(),
        is("i32", &format!("(i32.load {})", at(8)), 1),
        "(call $instants (i32.const 3) (i32.const 2064))".into(),
        none(16),
        "(call $attributes (i32.const 2) (i32.const 2064))".into(),
        is("i32", "(i32.load (i32.const 2068))", 2),
        "(call $attributes (i32.const 3) (i32.const 2064))".into(),
        is("i32", "(i32.load (i32.const 2068))", 0),
        "(call $run (call $offered))".into(),
    ];
    assert_eq!(lines(&body.concat(), 3).await, ["j2", "work", "north"]);
}

#[tokio::test]
async fn packed_candidates_have_all_fields() {
    // The words of a job without optional fields: 6 numbers, no flag, the bytes of id and type, the
    // number of attributes, and the bytes of `region`, its value, `size` and its value.
    let word = |place: u32| format!("(i64.load offset={} (i32.load (i32.const 2064)))", place * 8);
    let mut body = vec![
        "(call $packed (i32.const 2064))".to_owned(),
        "(call $log (i32.const 1) (i32.load (i32.const 2072)) (i32.load (i32.const 2076)))".into(),
        is("i32", "(i32.load (i32.const 2068))", 28),
    ];
    let run_at = "(i64.load offset=8 (i32.load (i32.const 2080)))";
    body.push("(call $instants (i32.const 1) (i32.const 2080))".into());
    body.push(format!("(if (i64.ne {} {run_at}) (then (unreachable)))", word(5)));
    for (place, wanted) in [(1, 1), (2, 1), (6, 0), (7, 2), (8, 4), (9, 2)] {
        body.push(is("i64", &word(place), wanted));
    }
    for (place, wanted) in [(10, 6), (11, 4), (12, 4), (13, 1), (21, 2), (25, 5)] {
        body.push(is("i64", &word(place), wanted));
    }
    body.push("(call $run (call $offered))".into());
    assert_eq!(lines(&body.concat(), 2).await, ["j0workregioneastsize0j1workregionnorthsize1"]);
}

#[tokio::test]
async fn no_candidate_has_a_value_of_an_unknown_attribute() {
    // The first four letters alone.
    let body = "(call $values (i32.const 2048) (i32.const 4) (i32.const 2064))
        (if (i32.load8_u (i32.load (i32.const 2064))) (then (unreachable)))
        (call $run (call $offered))";
    assert_eq!(lines(body, 1).await, [""; 0]);
}

#[tokio::test]
async fn instants_of_candidates_are_those_of_the_records() {
    // The due time, as the field of the first record has it.
    let record = "(i64.load offset=48 (local.get $candidates))";
    let column = "(i64.load offset=8 (i32.load (i32.const 2064)))";
    let body = format!(
        "(call $instants (i32.const 1) (i32.const 2064))
         (if (i64.ne {record} {column}) (then (unreachable)))
         (call $run (local.get $n))"
    );
    let plugged = Plugged::new(by_column(&body).needs_earlier()).await;
    let answer = plugged.throttle(offer(2, 0)).await.unwrap();
    assert_eq!(answer.decisions.len(), 2);
}

#[tokio::test]
async fn earlier_attempts_come_with_a_list_of_candidates() {
    let guest = || by_column("(call $run (local.get $n))");
    let fault = Plugged::new(guest()).await.throttle(offer(3, 0)).await.unwrap_err();
    assert_fault(&fault, FaultKind::InvalidAnswer, "0 decisions for 3 candidates");
    Plugged::new(guest().needs_earlier()).await.throttle(offer(3, 0)).await.unwrap();
}
