//! Attacks in `on-failure`.

use tidegate_core::port::policy::FaultKind::{
    InvalidAnswer, Rejected, ResourceExhausted, Timeout, Trapped,
};

use super::{
    End::{self, Answer, Fault},
    compare,
};
use crate::plugins::{
    Plugged, failure,
    guest::{FOREVER, Guest},
};

/// A strategy whose verdict, at `$r`, is to retry now, after `edit` has changed it.
fn plans(edit: &str) -> Guest {
    Guest::retry()
        .on_failure(&format!("(local.set $r (call $alloc (i32.const 80))) {edit} (local.get $r)"))
}

fn attacks() -> Vec<(&'static str, Guest, End)> {
    let deep =
        "(func $deep (param i32) (result i32) (i32.add (call $deep (local.get 0)) (i32.const 1)))";
    let byte = |at: u32, value: &str| {
        plans(&format!("(i32.store8 offset={at} (local.get $r) (i32.const {value}))"))
    };
    let text = |flag: &str, at: u32, place: &str, len: &str| {
        plans(&format!(
            "{flag} (i32.store offset={at} (local.get $r) {place}) (i32.store offset={}
                (local.get $r) (i32.const {len}))",
            at + 4
        ))
    };
    let data = "(i32.store8 offset=24 (local.get $r) (i32.const 1))";
    let gives_up = "(i32.store8 offset=8 (local.get $r) (i32.const 1)) (i32.store8 offset=16
        (local.get $r) (i32.const 1))";
    let error = "(i32.store8 (local.get $r) (i32.const 1))";
    let numbers =
        r#"(data (i32.const 2048) "1e999999999999") (data (i32.const 2080) "{\"a\":1,\"a\":2}")"#;
    let big = || Fault(ResourceExhausted, "passed more than 4 MiB to the host at once");
    vec![
        (
            "a loop",
            Guest::retry().on_failure(FOREVER),
            Fault(Timeout, "used more than 250 ms of processor time"),
        ),
        (
            "recursion",
            Guest::retry().on_failure("(call $deep (i32.const 0))").items(deep),
            Fault(ResourceExhausted, "512 KiB of stack"),
        ),
        ("a trap", Guest::retry().on_failure("(unreachable)"), Fault(Trapped, "unreachable")),
        (
            "a bomb of memory",
            Guest::retry().on_failure(
                "(loop $more (drop (memory.grow (i32.const 100))) (br $more)) (unreachable)",
            ),
            Fault(ResourceExhausted, "64 MiB of memory"),
        ),
        ("a result of no case", byte(0, "2"), Fault(InvalidAnswer, "")),
        ("a verdict of no case", byte(8, "2"), Fault(InvalidAnswer, "")),
        ("data of no case", byte(24, "2"), Fault(InvalidAnswer, "")),
        ("a priority of no case", byte(36, "2"), Fault(InvalidAnswer, "")),
        ("a weight of no case", byte(44, "2"), Fault(InvalidAnswer, "")),
        (
            "a verdict at an odd address",
            Guest::retry().on_failure("(i32.const 2049)"),
            Fault(InvalidAnswer, ""),
        ),
        (
            "a verdict past the memory",
            Guest::retry().on_failure("(i32.const -8)"),
            Fault(InvalidAnswer, ""),
        ),
        (
            "a time at 2^64",
            plans("(i64.store offset=16 (local.get $r) (i64.const -1))"),
            Fault(InvalidAnswer, "ms after 1970"),
        ),
        ("data past the memory", text(data, 28, "(i32.const -8)", "8"), Fault(InvalidAnswer, "")),
        ("data of 2^32 bytes", text(data, 28, "(i32.const 0)", "-1"), Fault(InvalidAnswer, "")),
        ("data of 5 MiB", text(data, 28, "(call $alloc (i32.const 5242880))", "5242880"), big()),
        (
            "data that is empty",
            text(data, 28, "(i32.const 2048)", "0"),
            Fault(InvalidAnswer, "is not JSON"),
        ),
        (
            "data that is not UTF-8",
            text(data, 28, "(i32.const 2048)", "2").items(r#"(data (i32.const 2048) "\ff\fe")"#),
            Fault(InvalidAnswer, "invalid utf-8"),
        ),
        (
            "data with a huge exponent",
            text(data, 28, "(i32.const 2048)", "14").items(numbers),
            Fault(InvalidAnswer, "number out of range"),
        ),
        ("data with a key twice", text(data, 28, "(i32.const 2080)", "13").items(numbers), Answer),
        (
            "2^32 attempts left: a job has at most 65,535",
            plans(
                "(i32.store8 offset=52 (local.get $r) (i32.const 1)) (i32.store offset=56
                    (local.get $r) (i32.const -1))",
            ),
            Answer,
        ),
        (
            "a timeout of 2^64 ms",
            plans(
                "(i32.store8 offset=64 (local.get $r) (i32.const 1)) (i64.store offset=72
                    (local.get $r) (i64.const -1))",
            ),
            Fault(InvalidAnswer, "timeout"),
        ),
        (
            "a message past the memory",
            text(gives_up, 20, "(i32.const -8)", "8"),
            Fault(InvalidAnswer, ""),
        ),
        (
            "a message of 5 MiB",
            text(gives_up, 20, "(call $alloc (i32.const 5242880))", "5242880"),
            big(),
        ),
        (
            "a message of 3 MiB, which is cut",
            text(gives_up, 20, "(call $alloc (i32.const 3145728))", "3145728"),
            Answer,
        ),
        (
            "an error of 3 MiB, which is cut",
            text(error, 8, "(call $alloc (i32.const 3145728))", "3145728"),
            Fault(Rejected, ""),
        ),
        (
            "an error past the memory",
            text(error, 8, "(i32.const -8)", "8"),
            Fault(InvalidAnswer, ""),
        ),
    ]
}

#[tokio::test]
async fn attacks_in_on_failure_end_as_faults() {
    let mut wrong = Vec::new();
    for (attack, guest, expected) in attacks() {
        let plugged = Plugged::new(guest).await;
        let ended = plugged.retry(failure()).await;
        if let Err(fault) = &ended
            && fault.message.len() > 2000
        {
            wrong.push(format!("{attack}: a message of {} bytes", fault.message.len()));
        }
        compare(&mut wrong, attack, expected, &ended.map(drop));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
