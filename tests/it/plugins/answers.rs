//! Plugins that give invalid answers, or are called in a role that they lack: each call ends as a
//! fault that names what is wrong.

use tidegate_core::port::policy::FaultKind;

use super::{
    Plugged, assert_fault, failure, fault_of,
    guest::{GET, Guest},
    offer,
};

#[tokio::test]
async fn there_is_one_decision_for_each_candidate() {
    for (body, wrong) in [
        ("(call $run (i32.const 2))", "2 decisions for 3"),
        ("(call $run (i32.const 4))", "4 decisions for 3"),
        ("(call $run (i32.const 0))", "0 decisions"),
    ] {
        assert_fault(
            &fault_of(Guest::throttler().decide(body)).await,
            FaultKind::InvalidAnswer,
            wrong,
        );
    }
}

/// 20,000 reasons of 1 MiB each, all at one place in the guest's memory: 20 GB if they were read.
#[tokio::test]
async fn a_gigabyte_of_answer_is_not_read() {
    let body = "(local.set $r (call $run (i32.const 20000)))
        (local.set $p (call $alloc (i32.const 1048576)))
        (loop $each
          (local.set $config (i32.add (call $first (local.get $r)) (i32.mul (local.get $i) (i32.const 40))))
          (i32.store8 offset=24 (local.get $config) (i32.const 1))
          (i32.store offset=28 (local.get $config) (local.get $p))
          (i32.store offset=32 (local.get $config) (i32.const 1048576))
          (br_if $each (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 20000))))
        (local.get $r)";
    assert_fault(
        &fault_of(Guest::throttler().decide(body)).await,
        FaultKind::ResourceExhausted,
        "passed more than 4 MiB to the host at once",
    );
}

#[tokio::test]
async fn a_long_list_of_decisions_is_not_read() {
    assert_fault(
        &fault_of(Guest::throttler().decide("(call $run (i32.const 1000000))")).await,
        FaultKind::ResourceExhausted,
        "passed more than 4 MiB to the host at once",
    );
}

/// One reason, at an address in the data section, of `len` bytes.
fn reason(items: &str, len: usize) -> Guest {
    let body = format!(
        "(local.set $r (call $run (local.get $n)))
         (i32.store8 offset=24 (call $first (local.get $r)) (i32.const 1))
         (i32.store offset=28 (call $first (local.get $r)) (i32.const 2048))
         (i32.store offset=32 (call $first (local.get $r)) (i32.const {len}))
         (local.get $r)"
    );
    Guest::throttler().items(items).decide(&body)
}

#[tokio::test]
async fn a_text_that_is_no_text_is_refused() {
    assert_fault(
        &fault_of(reason(r#"(data (i32.const 2048) "\ff\fe")"#, 2)).await,
        FaultKind::InvalidAnswer,
        "passed a value to the host that cannot be read: invalid utf-8",
    );
}

#[tokio::test]
async fn a_long_reason_is_cut_between_two_letters() {
    let letters = "\\c3\\a4".repeat(150);
    let plugged =
        Plugged::new(reason(&format!(r#"(data (i32.const 2048) "x{letters}")"#), 301)).await;
    let answer = plugged.throttle(offer(2, 0)).await.unwrap();
    assert_eq!(
        answer.decisions[0].reason.as_deref(),
        Some(format!("x{}", "ä".repeat(99)).as_str())
    );
    assert_eq!(answer.decisions[1].reason, None);
}

/// The first decision has this case of `action` and this time.
fn timed(case: u32, at: &str) -> Guest {
    let (flag, offset) = if case == 1 {
        ("(i32.store8 offset=8 (call $first (local.get $r)) (i32.const 1))", 16)
    } else {
        ("", 8)
    };
    let body = format!(
        "(local.set $r (call $run (local.get $n))) (i32.store8 (call $first (local.get $r)) (i32.const {case})) {flag}
         (i64.store offset={offset} (call $first (local.get $r)) {at}) (local.get $r)"
    );
    Guest::throttler().decide(&body)
}

#[tokio::test]
async fn a_time_in_the_past_or_in_the_year_3000_is_refused() {
    for (case, does) in [(1, "holds until"), (2, "reschedules to")] {
        let past = fault_of(timed(case, "(i64.const 1000)")).await;
        let words = format!(
            "decision 1 (job j0) {does} 1970-01-01T00:00:01.000Z, which is not after the time of the call, 2026-03-01T08:00:00.000Z"
        );
        assert_fault(&past, FaultKind::InvalidAnswer, &words);
        assert_fault(
            &fault_of(timed(case, "(local.get $now)")).await,
            FaultKind::InvalidAnswer,
            "which is not after the time of the call",
        );
        let far = fault_of(timed(case, "(i64.const 32503680000000)")).await;
        assert_fault(
            &far,
            FaultKind::InvalidAnswer,
            "3000-01-01T00:00:00.000Z, which is more than 366 days after the time of the call",
        );
        assert_fault(
            &fault_of(timed(case, "(i64.const -1)")).await,
            FaultKind::InvalidAnswer,
            " ms after 1970",
        );
        Plugged::new(timed(case, "(i64.add (local.get $now) (i64.const 1))"))
            .await
            .throttle(offer(3, 0))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_retry_strategy_s_plan_is_held_against_its_bounds() {
    let plan = |items: &str, body: &str| {
        Guest::retry().items(items).on_failure(&format!(
            "(local.set $r (call $alloc (i32.const 96))) {body} (local.get $r)"
        ))
    };
    let fault = async |guest| Plugged::new(guest).await.retry(failure()).await.unwrap_err();
    let far =
        fault(plan("", "(i64.store offset=16 (local.get $r) (i64.const 32503680000000))")).await;
    assert_fault(
        &far,
        FaultKind::InvalidAnswer,
        "plans the next attempt for 3000-01-01T00:00:00.000Z, which is more than 366 days after",
    );
    let data = |len: usize| {
        format!(
            "(i32.store8 offset=24 (local.get $r) (i32.const 1)) (i32.store offset=28 (local.get $r) (i32.const 2048)) (i32.store offset=32 (local.get $r) (i32.const {len}))"
        )
    };
    let wrong = fault(plan(r#"(data (i32.const 2048) "{nope}")"#, &data(6))).await;
    assert_fault(
        &wrong,
        FaultKind::InvalidAnswer,
        "replaces the data by text that is not JSON of at most 64 levels",
    );
    let deep = format!(r#"(data (i32.const 2048) "{}{}")"#, "[".repeat(65), "]".repeat(65));
    assert_fault(&fault(plan(&deep, &data(130))).await, FaultKind::InvalidAnswer, "64 levels");
    let none = "(i32.store8 offset=52 (local.get $r) (i32.const 1))";
    assert_fault(&fault(plan("", none)).await, FaultKind::InvalidAnswer, "0 attempts left");
    let timeout = "(i32.store8 offset=64 (local.get $r) (i32.const 1))";
    let wrong = fault(plan("", timeout)).await;
    assert_fault(&wrong, FaultKind::InvalidAnswer, "the timeout of its plan must be");
}

#[tokio::test]
async fn a_retry_strategy_declares_its_state() {
    let guest = Guest::retry().import(GET).stateless();
    let guest = guest.on_failure(
        "(call $get (i32.const 2048) (i32.const 1) (i32.const 2056)) (call $alloc (i32.const 96))",
    );
    let fault = Plugged::new(guest).await.retry(failure()).await.unwrap_err();
    assert_fault(
        &fault,
        FaultKind::InvalidAnswer,
        "used `state`, for which the `state-version` of a retry strategy must be at least 1",
    );
}

#[tokio::test]
async fn a_plugin_is_not_asked_in_a_role_that_it_lacks() {
    let retry = Plugged::new(Guest::retry()).await;
    assert_fault(
        &retry.throttle(offer(1, 0)).await.unwrap_err(),
        FaultKind::Unavailable,
        "it is not a throttler",
    );
    let throttler = Plugged::new(Guest::throttler()).await;
    assert_fault(
        &throttler.retry(failure()).await.unwrap_err(),
        FaultKind::Unavailable,
        "it is not a retry strategy",
    );
}
