//! Attacks by the arguments of imports.

use tidegate_core::port::policy::FaultKind::{InvalidAnswer, ResourceExhausted};

use super::{
    End::{self, Answer, Fault, Flood},
    compare,
};
use crate::plugins::{
    Plugged,
    guest::{DATA, GET, GROUPS, Guest, INSTANT, LOCAL, LOG, PAGE, SET},
    offer,
};

const IN_GROUP: &str = r#"(import "tidegate:plugin/running@0.2.0" "in-group"
    (func $in_group (param i32 i32 i32 i32 i32 i32)))"#;
const KEYS: &str =
    r#"(import "tidegate:plugin/state@0.2.0" "keys" (func $keys (param i32 i32 i32)))"#;
const ADD: &str =
    r#"(import "tidegate:plugin/metrics@0.2.0" "add" (func $add (param i32 i32 i32 i32 f64)))"#;

/// Calls in WAT, each before a valid answer.
fn attacks() -> Vec<(&'static str, &'static str, String, End)> {
    let bad = || Fault(InvalidAnswer, "");
    let utf8 = || Fault(InvalidAnswer, "invalid utf-8");
    let big = || Fault(ResourceExhausted, "passed more than 4 MiB to the host at once");
    // The two bytes at 2048 are no UTF-8; from 65536 on there are five MiB.
    let place = |text: &str| text.to_owned();
    let set = |key: &str, value: &str, expires: &str, result: &str| {
        format!("(call $set {key} {value} {expires} (i32.const {result}))")
    };
    let (key, never) = ("(i32.const 2052) (i32.const 1)", "(i32.const 0) (i64.const 0)");
    vec![
        (
            "a level of no case",
            LOG,
            place(
                "(call $log (i32.const 4) (i32.const 2052)
            (i32.const 1))",
            ),
            bad(),
        ),
        (
            "a line that is not UTF-8",
            LOG,
            place(
                "(call $log (i32.const 1) (i32.const 2048)
            (i32.const 2))",
            ),
            utf8(),
        ),
        (
            "a line past the memory",
            LOG,
            place(
                "(call $log (i32.const 1) (i32.const -2)
            (i32.const 2))",
            ),
            bad(),
        ),
        (
            "a line of 2^32 bytes",
            LOG,
            place(
                "(call $log (i32.const 1) (i32.const 0)
            (i32.const -1))",
            ),
            bad(),
        ),
        (
            "a line of 5 MiB",
            LOG,
            place(
                "(call $log (i32.const 1) (i32.const 65536)
            (i32.const 5242880))",
            ),
            big(),
        ),
        (
            "a key that is not UTF-8",
            SET,
            set(
                "(i32.const 2048)
            (i32.const 2)",
                key,
                never,
                "3000",
            ),
            utf8(),
        ),
        (
            "a value that is not UTF-8",
            SET,
            set(
                key,
                "(i32.const 2048)
            (i32.const 2)",
                never,
                "3000",
            ),
            utf8(),
        ),
        (
            "a value of 5 MiB",
            SET,
            set(
                key,
                "(i32.const 65536)
            (i32.const 5242880)",
                never,
                "3000",
            ),
            big(),
        ),
        ("an expiry of no case", SET, set(key, key, "(i32.const 2) (i64.const 0)", "3000"), bad()),
        ("an expiry at 2^64", SET, set(key, key, "(i32.const 1) (i64.const -1)", "3000"), Answer),
        ("a result past the memory", SET, set(key, key, never, "-1"), bad()),
        ("an empty key", SET, set("(i32.const 2052) (i32.const 0)", key, never, "3000"), Answer),
        (
            "a key to read that is not UTF-8",
            GET,
            place(
                "(call $get (i32.const 2048)
            (i32.const 2) (i32.const 3000))",
            ),
            utf8(),
        ),
        (
            "a place of a result at an odd address",
            GET,
            place(
                "(call $get (i32.const 2052)
            (i32.const 1) (i32.const 3001))",
            ),
            bad(),
        ),
        (
            "a prefix of 5 MiB",
            KEYS,
            place(
                "(call $keys (i32.const 65536) (i32.const 5242880)
            (i32.const 3000))",
            ),
            big(),
        ),
        (
            "a dimension of no case",
            GROUPS,
            place(
                "(call $groups (i32.const 3) (i32.const 0)
            (i32.const 0) (i32.const 3000))",
            ),
            bad(),
        ),
        (
            "an attribute that is not UTF-8",
            GROUPS,
            place(
                "(call $groups (i32.const 2)
            (i32.const 2048) (i32.const 2) (i32.const 3000))",
            ),
            utf8(),
        ),
        (
            "a value of a group that is not UTF-8",
            IN_GROUP,
            place(
                "(call $in_group (i32.const 0)
            (i32.const 0) (i32.const 0) (i32.const 2048) (i32.const 2) (i32.const 3000))",
            ),
            utf8(),
        ),
        (
            "a page behind all jobs",
            PAGE,
            place(
                "(call $page (i32.const -1) (i32.const -1)
            (i32.const 3000))",
            ),
            Answer,
        ),
        (
            "a job that is not UTF-8",
            DATA,
            place(
                "(call $data (i32.const 2048) (i32.const 2)
            (i32.const 3000))",
            ),
            utf8(),
        ),
        (
            "a zone of 5 MiB",
            LOCAL,
            place(
                "(call $local (i32.const 65536) (i32.const 5242880)
            (i64.const 0) (i32.const 3000))",
            ),
            big(),
        ),
        (
            "a path for a zone",
            LOCAL,
            place(
                "(call $local (i32.const 2053) (i32.const 11)
            (i64.const 0) (i32.const 3000))
            (call $expect_error)",
            ),
            Answer,
        ),
        (
            "local time at 2^64",
            LOCAL,
            place(
                "(call $local (i32.const 2064) (i32.const 3)
            (i64.const -1) (i32.const 3000))
            (call $expect_error)",
            ),
            Answer,
        ),
        (
            "the month 300 of the year -2^31",
            INSTANT,
            place(
                "(call $instant (i32.const 2064)
            (i32.const 3) (i32.const -2147483648) (i32.const 300)
            (i32.const 99) (i32.const 99) (i32.const 99) (i32.const 99) (i32.const -1)
            (i32.const 3000))
            (call $expect_error)",
            ),
            Answer,
        ),
        (
            "a metric that is no number",
            ADD,
            place(
                "(call $add (i32.const 2052) (i32.const 1)
            (i32.const 2052) (i32.const 1) (f64.const nan:0x123))",
            ),
            Answer,
        ),
        (
            "a metric with a bad name",
            ADD,
            place(
                "(call $add (i32.const 2053) (i32.const 11)
            (i32.const 2052) (i32.const 1) (f64.const 1))",
            ),
            Answer,
        ),
        (
            "a metric whose name is not UTF-8",
            ADD,
            place(
                "(call $add (i32.const 2048)
            (i32.const 2) (i32.const 2052) (i32.const 1) (f64.const 1))",
            ),
            utf8(),
        ),
        (
            "a flood of metrics",
            ADD,
            place(
                "(loop $each (call $add (i32.const 2052) (i32.const 1)
            (i32.const 2052) (i32.const 1) (f64.const 1))
            (br $each))",
            ),
            Flood,
        ),
        (
            "a flood of time zones",
            LOCAL,
            place(
                "(loop $each (call $local (i32.const 2064)
            (i32.const 3) (local.get $now) (i32.const 3000)) (br $each))",
            ),
            Flood,
        ),
    ]
}

#[tokio::test]
async fn attacks_by_arguments_of_imports_end_as_faults() {
    let items = r#"(data (i32.const 2048) "\ff\fe") (data (i32.const 2052) "k../etc/pass")
        (data (i32.const 2064) "UTC")
        (func $expect_error
          (if (i32.ne (i32.load8_u (i32.const 3000)) (i32.const 1)) (then (unreachable))))"#;
    let mut wrong = Vec::new();
    for (attack, import, body, expected) in attacks() {
        let guest = Guest::throttler().import(import).items(items).group_by(&["region"]);
        let body =
            format!("(drop (call $alloc (i32.const 6000000))) {body} (call $run (local.get $n))");
        let plugged = Plugged::new(guest.needs(true, true, false).decide(&body)).await;
        let ended = plugged.throttle(offer(3, 3)).await.map(drop);
        compare(&mut wrong, attack, expected, &ended);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
