//! Plugins that exceed a bound or trap: each call ends as a fault within its bound, and leaves
//! nothing behind.

use std::sync::Arc;

use tidegate_core::{
    job::PluginName,
    port::policy::{FaultKind, Plugin, Policy as _, Purpose, ThrottleCall},
    queue::plugin::Role,
};
use tidegate_engine::testkit::builders::{at, name};

use super::{
    NOW, PATIENCE, Plugged, assert_fault, compiled, fault_of,
    guest::{COUNT, DATA, FOREVER, GROUPS, Guest, LOG, PAGE, SET},
    new_host, offer, plugin,
};

#[tokio::test]
async fn an_endless_loop_is_ended() {
    assert_fault(&fault_of(Guest::throttler().decide(FOREVER)).await, FaultKind::Timeout, "");
    // Work costs fuel, which runs out before the time does.
    let body = "(loop $forever (memory.fill (i32.const 4096) (i32.const 1) (i32.const 60000)) (br $forever)) (unreachable)";
    assert_fault(
        &fault_of(Guest::throttler().decide(body)).await,
        FaultKind::Timeout,
        "used more than 500 million units of fuel",
    );
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "what is measured is a real call")]
async fn an_endless_loop_in_a_check_is_ended() {
    let plugged = Plugged::new(Guest::throttler().check(FOREVER)).await;
    let start = std::time::Instant::now();
    let fault = plugged.host.check(&plugged.plugin, Role::Throttler, "{}").await.unwrap_err();
    assert_fault(&fault, FaultKind::Timeout, "used more than 250 ms of processor time");
    assert!(start.elapsed() < PATIENCE);
    plugged.throttle(offer(3, 3)).await.unwrap();
}

#[tokio::test]
async fn a_memory_bomb_is_refused_its_memory() {
    let body = "(loop $more (drop (memory.grow (i32.const 100))) (br $more)) (unreachable)";
    assert_fault(
        &fault_of(Guest::throttler().decide(body)).await,
        FaultKind::ResourceExhausted,
        "requested more than 64 MiB of memory",
    );
}

#[tokio::test]
async fn a_table_bomb_is_refused_its_table() {
    let guest = Guest::throttler()
        .items("(table $t 1 funcref)")
        .decide("(table.grow $t (ref.null func) (i32.const 1000000))");
    assert_fault(
        &fault_of(guest).await,
        FaultKind::ResourceExhausted,
        "requested a table of more than 100000 elements",
    );
}

#[tokio::test]
async fn endless_recursion_is_ended() {
    let guest = Guest::throttler()
        .items("(func $deep (param i32) (result i32) (i32.add (call $deep (local.get 0)) (i32.const 1)))")
        .decide("(call $deep (i32.const 0))");
    assert_fault(
        &fault_of(guest).await,
        FaultKind::ResourceExhausted,
        "used more than 512 KiB of stack",
    );
}

#[tokio::test]
async fn a_trap_is_named() {
    let fault =
        fault_of(Guest::throttler().decide("(i32.div_u (i32.const 1) (i32.const 0))")).await;
    assert_fault(&fault, FaultKind::Trapped, "integer divide by zero");
    let fault = fault_of(Guest::throttler().decide("(i32.load (i32.const -8))")).await;
    assert_fault(&fault, FaultKind::Trapped, "out of bounds memory access");
}

#[tokio::test]
async fn a_panic_is_reported_with_its_message() {
    let guest = Guest::throttler()
        .import(LOG)
        .items(r#"(data (i32.const 2048) "panicked at src/lib.rs:7:9: no customer") (data (i32.const 2148) "before")"#)
        .decide("(call $log (i32.const 3) (i32.const 2048) (i32.const 39)) (call $log (i32.const 1) (i32.const 2148) (i32.const 6)) (unreachable)");
    let fault = fault_of(guest).await;
    assert_eq!(
        (fault.kind, fault.message.as_str()),
        (FaultKind::Trapped, "panicked at src/lib.rs:7:9: no customer")
    );
}

#[tokio::test]
async fn what_is_logged_over_the_bound_is_dropped_and_counted() {
    let line = r#"(data (i32.const 2048) "a line of the log")"#;
    let body = "(loop $each (call $log (i32.const 1) (i32.const 2048) (i32.const 17))
        (br_if $each (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 1000)))) (call $run (local.get $n))";
    let plugged = Plugged::new(Guest::throttler().import(LOG).items(line).decide(body)).await;
    plugged.throttle(offer(3, 3)).await.unwrap();
    let seen = plugged.seen();
    assert_eq!(seen.log.len(), 101);
    assert_eq!(seen.log[0].text, "a line of the log");
    assert_eq!(seen.log[100].text, "900 more lines of this call were not kept");
    for _ in 0..100 {
        plugged.throttle(offer(3, 3)).await.unwrap();
    }
    assert_eq!(plugged.seen().log.len(), 500);
}

/// By the count of its calls or by its time, whichever this machine comes to first.
async fn assert_flood_ends(guest: Guest) {
    let plugged = Plugged::new(guest).await;
    let fault = plugged.throttle(offer(1, 1000)).await.unwrap_err();
    let (most, late) = (
        "called what it imports more than 100000 times",
        "used more than 250 ms of processor time",
    );
    assert!(
        [most, late, "paged through more than 100000 running jobs"]
            .contains(&fault.message.as_str()),
        "{fault:?}"
    );
    assert!(plugged.seen().live.last.unwrap().took < PATIENCE);
}

#[tokio::test]
async fn a_flood_of_the_log_is_ended() {
    let body = "(loop $forever (call $log (i32.const 1) (i32.const 4096) (i32.const 0)) (br $forever)) (unreachable)";
    assert_flood_ends(Guest::throttler().import(LOG).decide(body)).await;
    // A line of 32 MiB at once.
    let body = "(call $log (i32.const 1) (call $alloc (i32.const 33554432)) (i32.const 33554432)) (unreachable)";
    assert_fault(
        &fault_of(Guest::throttler().import(LOG).decide(body)).await,
        FaultKind::ResourceExhausted,
        "passed more than 4 MiB to the host at once",
    );
}

/// Sets the keys 00 to 98 to a value of `len` bytes, ignoring its input.
fn filler(len: usize) -> Guest {
    let body = format!(
        "(memory.fill (i32.const 4096) (i32.const 118) (i32.const {len}))
         (loop $each
           (i32.store8 (i32.const 2048) (i32.add (i32.const 48) (i32.div_u (local.get $i) (i32.const 10))))
           (i32.store8 (i32.const 2049) (i32.add (i32.const 48) (i32.rem_u (local.get $i) (i32.const 10))))
           (call $set (i32.const 2048) (i32.const 2) (i32.const 4096) (i32.const {len}) (i32.const 0) (i64.const 0) (i32.const 2056))
           (br_if $each (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 99))))
         (call $run (local.get $n))"
    );
    Guest::throttler().import(SET).decide(&body)
}

#[tokio::test]
async fn the_state_has_bounds() {
    let kept = async |guest| {
        Plugged::new(guest).await.throttle(offer(1, 0)).await.unwrap().state.unwrap_or_default()
    };
    let count = async |guest| kept(guest).await.iter().count();
    assert_eq!(kept(filler(8)).await.text("63"), Some("vvvvvvvv"));
    assert_eq!(count(filler(16_000)).await, 16, "256 KiB in all");
    assert_eq!(count(filler(20_000)).await, 0, "16 KiB in a value");
    let body = "(memory.fill (i32.const 4096) (i32.const 107) (i32.const 129)) (call $set (i32.const 4096) (i32.const 129) (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0) (i32.const 2056))
                (if (i32.ne (i32.load16_u (i32.const 2056)) (i32.const 1)) (then (unreachable))) (call $run (local.get $n))";
    assert_eq!(
        count(Guest::throttler().import(SET).decide(body)).await,
        0,
        "the key is too long, and the call returns this error"
    );
}

#[tokio::test]
async fn a_state_of_a_call_that_failed_is_not_kept() {
    let set = "(call $set (i32.const 4096) (i32.const 1) (i32.const 4096) (i32.const 1) (i32.const 0) (i64.const 0) (i32.const 2056))";
    let guest = Guest::throttler()
        .import(SET)
        .decide(&format!("{set} (call $run (i32.wrap_i64 (local.get $seed)))"));
    let plugged = Plugged::new(guest).await;
    let with_seed = |seed| ThrottleCall { seed, ..offer(3, 0) };
    plugged.throttle(with_seed(2)).await.unwrap_err();
    assert_eq!(plugged.throttle(with_seed(3)).await.unwrap().state.unwrap().iter().count(), 1);
}

#[tokio::test]
async fn a_flood_of_host_calls_is_ended() {
    let body = "(loop $forever (drop (call $count)) (br $forever)) (unreachable)";
    assert_flood_ends(Guest::throttler().import(COUNT).decide(body)).await;
    let body =
        "(loop $forever (global.set $top (i32.const 65536)) (call $page (i32.const 0) (i32.const -1) (i32.const 2048)) (br $forever))
        (unreachable)";
    assert_flood_ends(Guest::throttler().import(PAGE).needs(true, false, false).decide(body)).await;
    let body = "(loop $forever (call $set (i32.const 4096) (i32.const 1) (i32.const 4096) (i32.const 4) (i32.const 0) (i64.const 0) (i32.const 2056))
        (i32.store (i32.const 4096) (i32.and (i32.add (i32.load (i32.const 4096)) (i32.const 1)) (i32.const 0x7f7f7f7f))) (br $forever)) (unreachable)";
    assert_flood_ends(Guest::throttler().import(SET).decide(body)).await;
}

#[tokio::test]
async fn what_is_not_declared_is_not_given() {
    let by_customer = "(call $groups (i32.const 2) (i32.const 2048) (i32.const 8) (i32.const 2064)) (call $run (local.get $n))";
    let guest = || {
        Guest::throttler()
            .import(GROUPS)
            .items(r#"(data (i32.const 2048) "customer")"#)
            .decide(by_customer)
    };
    assert_fault(
        &fault_of(guest()).await,
        FaultKind::InvalidAnswer,
        "queried the running set by `customer`, which its `group-by` does not name",
    );
    Plugged::new(guest().group_by(&["customer"])).await.throttle(offer(3, 3)).await.unwrap();

    let page =
        "(call $page (i32.const 0) (i32.const 10) (i32.const 2048)) (call $run (local.get $n))";
    assert_fault(
        &fault_of(Guest::throttler().import(PAGE).decide(page)).await,
        FaultKind::InvalidAnswer,
        "`needs-running-jobs`",
    );

    let data =
        "(call $data (i32.const 2048) (i32.const 2) (i32.const 2064)) (call $run (local.get $n))";
    assert_fault(
        &fault_of(Guest::throttler().import(DATA).decide(data)).await,
        FaultKind::InvalidAnswer,
        "`needs-data`",
    );
}

#[tokio::test]
async fn a_job_that_is_not_there_has_no_data() {
    // It runs one more than there are if it is given something.
    let body = "(call $data (i32.const 2048) (i32.const 2) (i32.const 2064)) (call $run (i32.add (local.get $n) (i32.load8_u (i32.const 2064))))";
    let guest = Guest::throttler()
        .import(DATA)
        .needs(false, true, false)
        .items(r#"(data (i32.const 2048) "j9")"#)
        .decide(body);
    let plugged = Plugged::new(guest).await;
    plugged.throttle(offer(3, 0)).await.unwrap();
    let mut call = offer(3, 0);
    call.data.insert(name("j9"), "{}".into());
    plugged.throttle(call).await.unwrap_err();
}

#[tokio::test]
async fn code_that_is_not_what_was_compiled_is_not_loaded() {
    use object_store::{ObjectStoreExt as _, memory::InMemory};
    let objects: Arc<InMemory> = Arc::default();
    let artifact = compiled(Guest::throttler().component()).await.unwrap();
    artifact.put(&*objects).await.unwrap();
    let mut plugin = plugin(&artifact);
    let asked = async |plugin: &Plugin| {
        new_host(&objects).throttle(plugin, Arc::new(offer(1, 0)), Purpose::Live).await
    };
    asked(&plugin).await.unwrap();

    let mut code = artifact.code.to_vec();
    let middle = code.len() / 2;
    code[middle] ^= 1;
    let place = tidegate_backends::wasm::code_object(&artifact.compiled.sha256);
    objects.put(&place, code.into()).await.unwrap();
    assert_fault(
        &asked(&plugin).await.unwrap_err(),
        FaultKind::Unavailable,
        "its compiled code is not what was compiled",
    );
    objects.delete(&place).await.unwrap();
    assert_fault(
        &asked(&plugin).await.unwrap_err(),
        FaultKind::Unavailable,
        "its compiled code cannot be read",
    );

    let mut version = artifact.version(2, at(NOW));
    version.compiled[0].engine = "wasmtime 1".into();
    plugin.version = Arc::new(version);
    assert_fault(
        &asked(&plugin).await.unwrap_err(),
        FaultKind::Unavailable,
        "it is not compiled for this program",
    );
    let seen = new_host(&objects).seen(&PluginName::clone(&plugin.name));
    assert_eq!(seen.live.calls, 0);
}

/// Resident pages of this process.
#[cfg(target_os = "linux")]
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn ten_thousand_calls_good_and_bad_leave_nothing_behind() {
    let line = r#"(data (i32.const 2048) "a line of the log, and another one, and one more")"#;
    // By the seed: runs, answers too few, traps after a line, floods the state, wants too much
    // memory.
    let body = "(local.set $i (i32.rem_u (i32.wrap_i64 (local.get $seed)) (i32.const 5)))
        (call $log (i32.const 3) (i32.const 2048) (i32.const 48))
        (call $set (i32.const 2048) (i32.const 40) (i32.const 4096) (i32.const 9000) (i32.const 0) (i64.const 0) (i32.const 2056))
        (if (i32.eq (local.get $i) (i32.const 1)) (then (return (call $run (i32.const 1)))))
        (if (i32.eq (local.get $i) (i32.const 2)) (then (unreachable)))
        (if (i32.eq (local.get $i) (i32.const 3)) (then (return (call $run (i32.const 110000)))))
        (if (i32.eq (local.get $i) (i32.const 4)) (then (drop (memory.grow (i32.const 2000)))))
        (call $run (local.get $n))";
    let plugged =
        Plugged::new(Guest::throttler().import(LOG).import(SET).items(line).decide(body)).await;
    let call = offer(5, 5);
    let round = async |calls: std::ops::Range<u64>| {
        for seed in calls {
            let answer = plugged.throttle(ThrottleCall { seed, ..call.clone() }).await;
            assert_eq!(answer.is_ok(), seed % 5 == 0, "{answer:?}");
        }
    };
    round(0..1000).await;
    let before = resident_bytes();
    round(0..10_000).await;
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes");
    let seen = plugged.seen();
    assert_eq!((seen.live.calls, seen.live.failed.len(), seen.log.len()), (11_000, 8, 500));
    assert_eq!(seen.live.faults.values().sum::<u64>(), 8800);
}
