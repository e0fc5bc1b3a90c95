//! Attacks in `describe`, which a push calls, and in `check-config`, which a configuration does.

use tidegate_core::{
    port::policy::{
        FaultKind::{InvalidAnswer, ResourceExhausted, Timeout, Trapped},
        Policy as _,
    },
    queue::plugin::Role,
};

use super::{
    End::{self, Answer, Fault},
    all_are_refused, compare,
};
use crate::plugins::{
    Plugged,
    guest::{FOREVER, Guest},
};

/// A name of 65 letters.
const LONG: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
/// A function that never ends because it calls itself.
const DEEP: &str =
    "(func $deep (param i32) (result i32) (i32.add (call $deep (local.get 0)) (i32.const 1)))";

fn checks() -> Vec<(&'static str, Guest, End)> {
    let check = |body: &str| Guest::throttler().check(body);
    let list = |place: &str, len: &str| {
        check(&format!(
            "(local.set $r (call $alloc (i32.const 8))) (i32.store (local.get $r) {place})
             (i32.store offset=4 (local.get $r) (i32.const {len})) (local.get $r)"
        ))
    };
    // Each problem has the same path and message, of `len` bytes.
    let problems = |count: u32, len: u32| {
        check(&format!(
            "(local.set $r (call $alloc (i32.const 8))) (local.set $p (call $alloc (i32.const {})))
             (i32.store (local.get $r) (local.get $p))
             (i32.store offset=4 (local.get $r) (i32.const {count}))
             (local.set $config (call $alloc (i32.const {len})))
             (loop $each
               (i32.store offset=8 (local.get $p) (local.get $config))
               (i32.store offset=12 (local.get $p) (i32.const {len}))
               (local.set $p (i32.add (local.get $p) (i32.const 16)))
               (local.set $i (i32.add (local.get $i) (i32.const 1)))
               (br_if $each (i32.lt_u (local.get $i) (i32.const {count}))))
             (local.get $r)",
            count * 16
        ))
    };
    let exhausted = |part| Fault(ResourceExhausted, part);
    let text = r#"(data (i32.const 2048) "\00\08\00\00\02\00\00\00\00\08\00\00\02\00\00\00")
        (data (i32.const 2048) "\ff\fe")"#;
    vec![
        ("a loop", check(FOREVER), Fault(Timeout, "used more than 250 ms of processor time")),
        (
            "recursion",
            check("(call $deep (i32.const 0))").items(DEEP),
            exhausted("512 KiB of stack"),
        ),
        ("a trap", check("(unreachable)"), Fault(Trapped, "unreachable")),
        (
            "a bomb of memory",
            check("(loop $more (drop (memory.grow (i32.const 100))) (br $more)) (unreachable)"),
            exhausted("more than 64 MiB of memory"),
        ),
        ("2^32 problems", list("(i32.const 2048)", "-1"), Fault(InvalidAnswer, "")),
        ("problems past the memory", list("(i32.const -16)", "1"), Fault(InvalidAnswer, "")),
        ("problems at an odd address", list("(i32.const 2049)", "1"), Fault(InvalidAnswer, "")),
        ("a list at an odd address", check("(i32.const 2049)"), Fault(InvalidAnswer, "")),
        (
            "a path that is not UTF-8",
            list("(i32.const 2064)", "1").items(
                r#"(data
            (i32.const 2048) "\ff\fe") (data (i32.const 2064) "\00\08\00\00\02\00\00\00")"#,
            ),
            Fault(InvalidAnswer, "invalid utf-8"),
        ),
        (
            "a message that points at itself",
            list("(i32.const 2048)", "1").items(text),
            Fault(InvalidAnswer, ""),
        ),
        (
            "many long problems",
            problems(1000, 100_000),
            exhausted("passed more than 4 MiB to the host at once"),
        ),
        (
            "a problem of 5 MiB",
            problems(1, 5 << 20),
            exhausted("passed more than 4 MiB to the host at once"),
        ),
        ("a thousand problems: the first 50 count", problems(1000, 3), Answer),
    ]
}

#[tokio::test]
async fn attacks_in_check_config_end_as_faults() {
    let mut wrong = Vec::new();
    for (attack, guest, expected) in checks() {
        let plugged = Plugged::new(guest).await;
        let checked = plugged.host.check(&plugged.plugin, Role::Throttler, "{}").await;
        let kept = checked.as_ref().map_or(0, Vec::len);
        if kept > 50 {
            wrong.push(format!("{attack}: {kept} problems"));
        }
        compare(&mut wrong, attack, expected, &checked.map(drop));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn attacks_in_describe_are_refused_at_the_push() {
    let describe = |body: &str| Guest::throttler().describe(body);
    // The fields of the description, at their addresses.
    let word = |at: u32, value: &str| {
        describe(&format!("(i32.store (i32.const {at}) (i32.const {value})) (i32.const 256)"))
    };
    let text = |at: u32, place: u32, len: u32| {
        describe(&format!(
            "(drop (call $alloc (i32.const 6000000)))
             (i32.store (i32.const {at}) (i32.const {place}))
             (i32.store (i32.const {}) (i32.const {len})) (i32.const 256)",
            at + 4
        ))
    };
    let attacks = [
        ("a loop", describe(FOREVER), "used more than 250 ms of processor time"),
        ("recursion", describe("(call $deep (i32.const 0))").items(DEEP), "512 KiB of stack"),
        ("a trap", describe("(unreachable)"), "unreachable"),
        (
            "a bomb of memory",
            describe("(loop $more (drop (memory.grow (i32.const 100))) (br $more)) (unreachable)"),
            "more than 64 MiB of memory",
        ),
        ("a description past the memory", describe("(i32.const -8)"), "pointer out of bounds"),
        (
            "a description at an odd address",
            describe("(i32.const 257)"),
            "return pointer not aligned",
        ),
        ("a schema of no case", word(264, "2"), "invalid option discriminant"),
        (
            "an `about` past the memory",
            text(256, u32::MAX - 7, 4),
            "string pointer/length out of bounds",
        ),
        ("an `about` of 5 MB", text(256, 65_536, 5_000_000), "more than 4 MiB"),
        ("2^32 attributes", word(284, "-1"), "list pointer/length out of bounds"),
        (
            "an `about` that is not UTF-8",
            describe("(i32.store8 (i32.load (i32.const 256)) (i32.const 255)) (i32.const 256)"),
            "invalid utf-8",
        ),
        (
            "a schema of 65 KiB",
            describe(
                "(memory.fill (call $alloc (i32.const 70000)) (i32.const 32) (i32.const 70000))
             (i32.store8 (i32.const 65536) (i32.const 123))
             (i32.store8 (i32.const 65537) (i32.const 125))
             (i32.store8 (i32.const 264) (i32.const 1))
             (i32.store (i32.const 268) (i32.const 65536))
             (i32.store (i32.const 272) (i32.const 65537)) (i32.const 256)",
            ),
            "at most 65536 are taken",
        ),
        ("an attribute of 65 letters", Guest::throttler().group_by(&[LONG]), "1 to 64 bytes"),
    ];
    let uploads = attacks.map(|(attack, guest, part)| (attack, guest.component(), part));
    all_are_refused(uploads.into()).await;
}
