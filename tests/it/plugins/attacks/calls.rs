//! Attacks in `decide`.

use tidegate_core::port::policy::FaultKind::{InvalidAnswer, ResourceExhausted, Timeout, Trapped};

use super::{
    End::{self, Answer, Fault},
    compare,
};
use crate::plugins::{
    PATIENCE, Plugged,
    guest::{FOREVER, Guest, LOG},
    offer,
};

/// A throttler whose answer runs everything, after `edit` has changed it. `$r` is the address of
/// the answer, `$d` that of its first decision.
fn answers(edit: &str) -> Guest {
    let edit = edit.replace("$d", "(call $first (local.get $r))");
    Guest::throttler()
        .decide(&format!("(local.set $r (call $run (local.get $n))) {edit} (local.get $r)"))
}

fn decides(body: &str) -> Guest {
    Guest::throttler().decide(body)
}

/// Malformed answers.
fn answered() -> Vec<(&'static str, Guest, End)> {
    let stores = |offset: u32, value: &str| {
        answers(&format!("(i32.store offset={offset} $d (i32.const {value}))"))
    };
    let reason = |place: &str, len: &str| {
        answers(&format!(
            "(i32.store8 offset=24 $d (i32.const 1)) (i32.store offset=28 $d (i32.const {place}))
             (i32.store offset=32 $d (i32.const {len}))"
        ))
    };
    let list = |place: &str, len: &str| {
        answers(&format!(
            "(i32.store offset=4 (local.get $r) {place}) (i32.store offset=8 (local.get $r) {len})"
        ))
    };
    let error = |place: &str, len: &str| {
        answers(&format!(
            "(i32.store8 (local.get $r) (i32.const 1)) (i32.store offset=4 (local.get $r)
                (i32.const {place}))
             (i32.store offset=8 (local.get $r) (i32.const {len}))"
        ))
    };
    let first = "(i32.load offset=4 (local.get $r))";
    vec![
        (
            "a result of no case",
            answers(
                "(i32.store8 (local.get $r)
            (i32.const 2))",
            ),
            Fault(InvalidAnswer, ""),
        ),
        ("an action of no case", stores(0, "4"), Fault(InvalidAnswer, "")),
        ("an action of case 255", stores(0, "-1"), Fault(InvalidAnswer, "")),
        (
            "a time to hold until of no case",
            answers("(i32.store8 $d (i32.const 1)) (i32.store8 offset=8 $d (i32.const 2))"),
            Fault(InvalidAnswer, ""),
        ),
        (
            "a reason of no case",
            answers(
                "(i32.store8 offset=24 $d
            (i32.const 2))",
            ),
            Fault(InvalidAnswer, ""),
        ),
        (
            "another number for true",
            answers(
                "(i32.store8 offset=12 (local.get $r)
            (i32.const 7))",
            ),
            Answer,
        ),
        (
            "an answer at an odd address",
            decides(
                "(i32.add (call $run (local.get $n))
            (i32.const 1))",
            ),
            Fault(InvalidAnswer, ""),
        ),
        ("an answer past the memory", decides("(i32.const -4)"), Fault(InvalidAnswer, "")),
        (
            "an answer across the end of the memory",
            decides("(i32.sub (i32.mul (memory.size) (i32.const 65536)) (i32.const 4))"),
            Fault(InvalidAnswer, ""),
        ),
        (
            "an answer at the address 0",
            decides("(i32.const 0)"),
            Fault(InvalidAnswer, "0 decisions for 3"),
        ),
        (
            "decisions at an odd address",
            list(
                &format!(
                    "(i32.add {first}
            (i32.const 4))"
                ),
                "(i32.const 3)",
            ),
            Fault(InvalidAnswer, ""),
        ),
        (
            "decisions past the memory",
            list("(i32.const 0x7ffffff8)", "(i32.const 3)"),
            Fault(InvalidAnswer, ""),
        ),
        (
            "decisions across the end of the address space",
            list("(i32.const -8)", "(i32.const 3)"),
            Fault(InvalidAnswer, ""),
        ),
        ("2^32 decisions", list(first, "(i32.const -1)"), Fault(InvalidAnswer, "")),
        (
            "2^27 decisions, whose size is more than 2^32",
            list(first, "(i32.const 0x8000000)"),
            Fault(InvalidAnswer, ""),
        ),
        ("a reason past the memory", reason("-16", "8"), Fault(InvalidAnswer, "")),
        ("a reason of 2^32 bytes", reason("2048", "-1"), Fault(InvalidAnswer, "")),
        (
            "a reason across the end of the memory",
            reason("65536", "0x7fffffff"),
            Fault(InvalidAnswer, ""),
        ),
        ("an error past the memory", error("-16", "8"), Fault(InvalidAnswer, "")),
        ("an error of 2^31 bytes", error("0", "0x7fffffff"), Fault(InvalidAnswer, "")),
        (
            "an error of 5 MiB",
            answers(
                "(i32.store8 (local.get $r) (i32.const 1)) (i32.store offset=8 (local.get $r)
                    (i32.const 5242880))
                 (i32.store offset=4 (local.get $r) (call $alloc (i32.const 5242880)))",
            ),
            Fault(ResourceExhausted, "passed more than 4 MiB to the host at once"),
        ),
        (
            "an error that is not UTF-8",
            error("2048", "2").items(r#"(data (i32.const 2048) "\c3\28")"#),
            Fault(InvalidAnswer, "invalid utf-8"),
        ),
    ]
}

/// Code that takes what it can get.
fn run() -> Vec<(&'static str, Guest, End)> {
    let exhausted = |part| Fault(ResourceExhausted, part);
    let through_table = "(type $deep (func (param i32) (result i32)))
        (table $t 1 funcref) (elem (i32.const 0) $deep)
        (func $deep (param i32) (result i32)
          (i32.add (call_indirect (type $deep) (local.get 0) (i32.const 0)) (i32.const 1)))";
    let big_frames = format!(
        "(func $deep (param i64) (result i64) (local {})
           (i64.add (call $deep (i64.add (local.get 0) (local.get 900))) (local.get 0)))",
        "i64 ".repeat(900)
    );
    let tail = "(func $spin (param i32) (result i32) (return_call $spin (local.get 0)))";
    let memories = "(memory 1)".repeat(3);
    let grow = |at: u32| format!("(drop (memory.grow {at} (i32.const 400)))");
    let grow_all = (1..=3).map(grow).collect::<Vec<_>>().concat();
    let loops =
        |body: &str| decides(&format!("(loop $forever {body} (br $forever)) (unreachable)"));
    vec![
        (
            "a loop of square roots",
            decides(FOREVER),
            Fault(Timeout, "used more than 250 ms of processor time"),
        ),
        (
            "a loop of tail calls",
            decides("(call $spin (i32.const 0))").items(tail),
            Fault(Timeout, ""),
        ),
        (
            "a loop that copies memory",
            loops("(memory.copy (i32.const 4096) (i32.const 8192) (i32.const 60000))"),
            Fault(Timeout, ""),
        ),
        (
            "a loop that fills a table",
            loops("(table.fill $t (i32.const 0) (ref.null func) (i32.const 90000))")
                .items("(table $t 90000 funcref)"),
            Fault(Timeout, ""),
        ),
        (
            "a loop that grows nothing",
            loops("(drop (memory.grow (i32.const 0)))"),
            Fault(Timeout, ""),
        ),
        (
            "recursion through a table",
            decides("(call $deep (i32.const 0))").items(through_table),
            exhausted("used more than 512 KiB of stack"),
        ),
        (
            "recursion with large frames",
            decides("(i32.wrap_i64 (call $deep (i64.const 0)))").items(&big_frames),
            exhausted("used more than 512 KiB of stack"),
        ),
        (
            "growth of four memories",
            decides(&format!("{grow_all} (call $run (local.get $n))")).items(&memories),
            exhausted("requested more than 64 MiB of memory"),
        ),
        (
            "growth by 4 GiB at once",
            decides("(drop (memory.grow (i32.const 65535))) (call $run (local.get $n))"),
            exhausted("requested more than 64 MiB of memory"),
        ),
        (
            "tables that grow again and again",
            loops("(drop (table.grow $t (ref.null func) (i32.const 50000)))")
                .items("(table $t 1 funcref)"),
            exhausted("requested a table of more than 100000 elements"),
        ),
        (
            "a call of no function",
            decides("(call_indirect (result i32) (i32.const 0))").items("(table 1 funcref)"),
            Fault(Trapped, ""),
        ),
        (
            "a call of another type",
            decides("(call_indirect (result i32) (i32.const 0))")
                .items("(table 1 funcref) (elem (i32.const 0) $alloc)"),
            Fault(Trapped, "indirect call type mismatch"),
        ),
        (
            "a quotient that has no number",
            decides("(i32.div_s (i32.const 0x80000000) (i32.const -1))"),
            Fault(Trapped, "integer overflow"),
        ),
        (
            "a number of no integer",
            decides("(i32.trunc_f64_s (f64.const nan))"),
            Fault(Trapped, "invalid conversion to integer"),
        ),
        (
            "data behind the memory",
            decides("(memory.init $none (i32.const 0) (i32.const 0) (i32.const 9)) (i32.const 0)")
                .items(r#"(data $none "")"#),
            Fault(Trapped, "out of bounds memory access"),
        ),
    ]
}

/// The allocator and the cleaning function, which the host calls.
fn called_back() -> Vec<(&'static str, Guest, End)> {
    let allocates = |body: &str| Guest::throttler().realloc(body);
    vec![
        ("an allocator past the memory", allocates("(i32.const -8)"), Fault(InvalidAnswer, "")),
        ("an odd allocator", allocates("(i32.const 65537)"), Fault(InvalidAnswer, "")),
        (
            "an allocator that gives the same place to all",
            allocates("(i32.const 65536)"),
            Fault(InvalidAnswer, "cannot be read"),
        ),
        ("an allocator that traps", allocates("(unreachable)"), Fault(Trapped, "unreachable")),
        ("an allocator that never returns", allocates(FOREVER), Fault(Timeout, "")),
        (
            "an allocator that calls the host",
            allocates(
                "(call $log (i32.const 1) (i32.const 0) (i32.const 0))
                (i32.const 65536)",
            )
            .import(LOG),
            Fault(Trapped, "cannot leave component instance"),
        ),
        (
            "a cleaning function that traps",
            Guest::throttler().items(
                r#"(func (export "cabi_post_tidegate:plugin/throttle@0.2.0#decide")
                    (param i32) (unreachable))"#,
            ),
            Fault(Trapped, ""),
        ),
        (
            "a cleaning function that never returns",
            Guest::throttler().items(&format!(
                r#"(func (export "cabi_post_tidegate:plugin/throttle@0.2.0#decide")
                    (param i32) {FOREVER})"#
            )),
            Fault(Timeout, ""),
        ),
    ]
}

#[tokio::test]
async fn attacks_in_decide_end_as_faults_within_the_bounds() {
    let mut wrong = Vec::new();
    for (attack, guest, expected) in answered().into_iter().chain(run()).chain(called_back()) {
        let plugged = Plugged::new(guest).await;
        let ended = plugged.throttle(offer(3, 3)).await.map(drop);
        compare(&mut wrong, attack, expected, &ended);
        let took = plugged.seen().live.last.unwrap().took;
        if took >= PATIENCE {
            wrong.push(format!("{attack}: took {took:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
