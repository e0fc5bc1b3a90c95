//! The input of a plugin's call, the effect of its answer, and what operators see of it.

use std::sync::Arc;

use tidegate_backends::wasm::{Run, diagnostics::LogLevel, record};
use tidegate_core::port::policy::Call;
use tidegate_core::{
    job::lifecycle::AttemptRecord,
    port::policy::{
        Action, Decision, FaultKind, Policy as _, PolicyState, Problem, Purpose, RetryAnswer,
        RetryPlan, ThrottleCall,
    },
    queue::{
        plugin::Role,
        waiting::{Waiting, WaitingCount},
    },
    time::Seconds,
};
use tidegate_engine::testkit::builders::{at, name};

use super::{
    NOW, Plugged, assert_fault, failure,
    guest::{
        COUNT, DATA, GET, GROUPS, Guest, INSTANT, LOCAL, LOG, NEXT, NOW_OF, OTHERS, PAGE, SET,
        WAITING,
    },
    offer,
};

/// Logs the `len` bytes at an address, both in WAT.
fn log(at: &str, len: &str) -> String {
    format!("(call $log (i32.const 1) {at} {len})")
}

/// Logs a text whose address and length stand at `place`.
fn log_text(place: &str) -> String {
    log(&format!("(i32.load {place})"), &format!("(i32.load offset=4 {place})"))
}

impl Plugged {
    fn lines(&self) -> Vec<String> {
        self.seen().log.into_iter().map(|line| line.text).collect()
    }
}

#[tokio::test]
async fn a_throttler_sees_its_call() {
    // The id, the type, the first attribute's name and value of the last candidate, the queue, and
    // the configuration.
    let last = "(i32.add (local.get $candidates) (i32.mul (i32.sub (local.get $n) (i32.const 1)) (i32.const 136)))";
    let attributes = format!("(i32.load offset=24 {last})");
    let body = [
        log_text(last),
        log_text(&format!("(i32.add {last} (i32.const 8))")),
        log_text(&attributes),
        log_text(&format!("(i32.add {attributes} (i32.const 8))")),
        log_text(&format!("(i32.add {attributes} (i32.const 24))")),
        log("(local.get $queue)", "(local.get $queue_len)"),
        log("(local.get $config)", "(local.get $config_len)"),
        "(call $run (local.get $n))".into(),
    ];
    let plugged = Plugged::new(Guest::throttler().import(LOG).decide(&body.concat())).await;
    plugged
        .throttle(ThrottleCall { config: r#"{"limit":2}"#.into(), ..offer(3, 0) })
        .await
        .unwrap();
    assert_eq!(plugged.lines(), ["j2", "work", "region", "west", "2", "orders", r#"{"limit":2}"#]);
}

#[tokio::test]
async fn numbers_of_a_call_arrive() {
    // now, seed, room and the limit, each compared; a wrong one traps.
    let same = |what: &str, kind: &str, wanted: i64| {
        format!("(if ({kind}.ne (local.get ${what}) ({kind}.const {wanted})) (then (unreachable)))")
    };
    let body = same("now", "i64", NOW)
        + &same("seed", "i64", 7)
        + &same("room", "i32", 10)
        + &same("limited", "i32", 1)
        + &same("limit", "i32", 100);
    let plugged =
        Plugged::new(Guest::throttler().decide(&(body + "(call $run (local.get $n))"))).await;
    plugged.throttle(offer(3, 0)).await.unwrap();
    plugged.throttle(ThrottleCall { room: 11, ..offer(3, 0) }).await.unwrap_err();
}

#[tokio::test]
async fn the_running_set_is_divided_by_what_is_asked() {
    // Logs the value and traps unless there are as many as the second byte of the result says.
    let body = format!(
        "(call $groups (i32.const 2) (i32.const 2048) (i32.const 6) (i32.const 2064))
         (local.set $p (i32.load (i32.const 2064)))
         (loop $each {}
           (if (i32.ne (i32.load offset=8 (local.get $p)) (i32.const 2)) (then (unreachable)))
           (if (i64.ne (i64.load offset=16 (local.get $p)) (i64.const 2)) (then (unreachable)))
           (local.set $p (i32.add (local.get $p) (i32.const 24)))
           (br_if $each (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.load offset=4 (i32.const 2064)))))
         (if (i32.ne (call $count) (i32.const 6)) (then (unreachable)))
         (call $run (local.get $n))",
        log_text("(local.get $p)")
    );
    let guest = Guest::throttler().import(LOG).import(GROUPS).import(COUNT).group_by(&["region"]);
    let plugged =
        Plugged::new(guest.items(r#"(data (i32.const 2048) "region")"#).decide(&body)).await;
    plugged.throttle(offer(1, 6)).await.unwrap();
    assert_eq!(plugged.lines(), ["east", "north", "west"]);
}

/// What waits: of the region `east` with a count, and of `west`; and the others.
fn waiting() -> ThrottleCall {
    let count = |jobs| WaitingCount {
        jobs,
        weight: 2 * u64::from(jobs),
        oldest_due_at: at(NOW - 5),
        at_least: true,
    };
    let regions = [("east".to_owned(), count(3000)), ("west".to_owned(), count(7))];
    let waiting = Waiting {
        counted_at: Some(at(NOW - 1)),
        groups: [("region".to_owned(), regions.into())].into(),
        others: Some(count(12)),
    };
    ThrottleCall { waiting: Arc::new(waiting), ..offer(1, 0) }
}

#[tokio::test]
async fn what_waits_comes_in_groups() {
    let is = |place: u32, value: u32| {
        format!(
            "(if (i32.ne (i32.load (i32.const {place})) (i32.const {value})) (then (unreachable)))"
        )
    };
    let body = format!(
        "(call $waiting (i32.const 2048) (i32.const 6) (i32.const 2064)) {two}
         (local.set $p (i32.load (i32.const 2064))) {east}
         (memory.copy (i32.const 2100) (local.get $p) (i32.const 40)) {count} {weight} {at_least}
         (call $others (i32.const 2160)) {some} {others}
         (call $run (local.get $n))",
        two = is(2068, 2),
        east = log_text("(local.get $p)"),
        count = is(2108, 3000),
        weight = is(2116, 6000),
        at_least = is(2132, 1),
        some = is(2160, 1),
        others = is(2176, 12),
    );
    let guest = |names: &[&'static str]| {
        Guest::throttler()
            .import(LOG)
            .import(WAITING)
            .import(OTHERS)
            .waiting_by(names)
            .items(r#"(data (i32.const 2048) "region")"#)
            .decide(&body)
    };
    for names in [["region"], ["*"]] {
        let plugged = Plugged::new(guest(&names)).await;
        plugged.throttle(waiting()).await.unwrap();
        assert_eq!(plugged.lines(), ["east"]);
        let fault = plugged.throttle(offer(1, 0)).await.unwrap_err();
        assert_fault(&fault, FaultKind::InvalidAnswer, "neither `partition_by` nor");
    }
    let fault = Plugged::new(guest(&["tenant"])).await.throttle(waiting()).await.unwrap_err();
    assert_fault(
        &fault,
        FaultKind::InvalidAnswer,
        "`region`, which its `waiting-by` does not name",
    );
}

#[tokio::test]
async fn running_jobs_come_in_pages() {
    let body = format!(
        "(call $page (i32.const 4) (i32.const 10) (i32.const 2064))
         (if (i32.ne (i32.load offset=4 (i32.const 2064)) (i32.const 2)) (then (unreachable)))
         {} (call $run (local.get $n))",
        log_text("(i32.load (i32.const 2064))")
    );
    let plugged = Plugged::new(
        Guest::throttler().import(LOG).import(PAGE).needs(true, false, false).decide(&body),
    )
    .await;
    plugged.throttle(offer(1, 6)).await.unwrap();
    assert_eq!(plugged.lines(), ["r4"]);
}

#[tokio::test]
async fn data_is_given_by_id() {
    let body = format!(
        "(call $data (i32.const 2048) (i32.const 2) (i32.const 2064)) {} (call $run (local.get $n))",
        log_text("(i32.const 2068)")
    );
    let guest = Guest::throttler()
        .import(LOG)
        .import(DATA)
        .needs(false, true, false)
        .items(r#"(data (i32.const 2048) "j1")"#)
        .decide(&body);
    let plugged = Plugged::new(guest).await;
    let mut call = offer(2, 0);
    call.data.insert(name("j1"), r#"{"rows":12}"#.into());
    plugged.throttle(call).await.unwrap();
    assert_eq!(plugged.lines(), [r#"{"rows":12}"#]);
}

#[tokio::test]
async fn ended_attempts_are_given_to_whom_they_are_declared() {
    let call = || ThrottleCall { ended: Arc::new(vec![super::ended()]), ..offer(2, 0) };
    // As many more decisions as attempts ended.
    let guest =
        || Guest::throttler().decide("(call $run (i32.add (local.get $n) (local.get $ended_len)))");
    Plugged::new(guest()).await.throttle(call()).await.unwrap();
    let fault =
        Plugged::new(guest().needs(false, false, true)).await.throttle(call()).await.unwrap_err();
    assert_fault(&fault, FaultKind::InvalidAnswer, "3 decisions for 2 candidates");
}

#[tokio::test]
async fn actions_and_more_become_an_answer() {
    // hold; hold until; reschedule; drop with a reason; run. And more.
    let each = |index: u32, code: &str| {
        format!(
            "(local.set $p (i32.add (call $first (local.get $r)) (i32.const {}))) {code}",
            index * 40
        )
    };
    let later = "(i64.add (local.get $now) (i64.const 1000))";
    let body = [
        "(local.set $r (call $run (local.get $n))) (i32.store8 offset=12 (local.get $r) (i32.const 1))".to_owned(),
        each(0, "(i32.store8 (local.get $p) (i32.const 1))"),
        each(
            1,
            &format!(
                "(i32.store8 (local.get $p) (i32.const 1)) (i32.store8 offset=8 (local.get $p) (i32.const 1)) (i64.store offset=16 (local.get $p) {later})"
            ),
        ),
        each(2, &format!("(i32.store8 (local.get $p) (i32.const 2)) (i64.store offset=8 (local.get $p) {later})")),
        each(
            3,
            "(i32.store8 (local.get $p) (i32.const 3)) (i32.store8 offset=24 (local.get $p) (i32.const 1)) (i32.store offset=28 (local.get $p) (i32.const 2048)) (i32.store offset=32 (local.get $p) (i32.const 3))",
        ),
        "(local.get $r)".into(),
    ];
    let plugged = Plugged::new(
        Guest::throttler().items(r#"(data (i32.const 2048) "old")"#).decide(&body.concat()),
    )
    .await;
    let answer = plugged.throttle(offer(5, 0)).await.unwrap();
    let later = at(NOW + 1000);
    let actions = [
        Action::Hold(None),
        Action::Hold(Some(later)),
        Action::Reschedule(later),
        Action::Drop,
        Action::Run,
    ];
    let reason = |index| (index == 3).then(|| "old".to_owned());
    let wanted: Vec<_> = actions
        .into_iter()
        .enumerate()
        .map(|(index, action)| Decision { action, reason: reason(index) })
        .collect();
    assert_eq!(answer.decisions, wanted);
    assert!(answer.more && answer.state.is_none());
}

#[tokio::test]
async fn a_plugin_may_decline() {
    let body = "(local.set $r (call $alloc (i32.const 16))) (i32.store8 (local.get $r) (i32.const 1))
        (i32.store offset=4 (local.get $r) (i32.const 2048)) (i32.store offset=8 (local.get $r) (i32.const 11)) (local.get $r)";
    let plugged = Plugged::new(
        Guest::throttler().items(r#"(data (i32.const 2048) "no schedule")"#).decide(body),
    )
    .await;
    let fault = plugged.throttle(offer(1, 0)).await.unwrap_err();
    assert_eq!((fault.kind, fault.message.as_str()), (FaultKind::Rejected, "no schedule"));
}

#[tokio::test]
async fn a_configuration_is_refused_by_its_own_check() {
    let body = "(local.set $r (call $alloc (i32.const 8))) (i32.store (local.get $r) (i32.const 2048)) (i32.store offset=4 (local.get $r) (i32.gt_u (local.get $config_len) (i32.const 2)))
        (local.get $r)";
    let problem = r#"(data (i32.const 2048) "\20\08\00\00\06\00\00\00\26\08\00\00\10\00\00\00") (data (i32.const 2080) "/limitmust be positive")"#;
    let plugged = Plugged::new(Guest::throttler().items(problem).check(body)).await;
    assert_eq!(plugged.host.check(&plugged.plugin, Role::Throttler, "{}").await, Ok(Vec::new()));
    let wanted = Problem { path: "/limit".into(), message: "must be positive".into() };
    assert_eq!(
        plugged.host.check(&plugged.plugin, Role::Throttler, r#"{"limit":-1}"#).await,
        Ok(vec![wanted])
    );
    let fault = plugged.host.check(&plugged.plugin, Role::Retry, "{}").await.unwrap_err();
    assert_fault(&fault, FaultKind::Unavailable, "it is not a retry strategy");
    assert!(
        plugged.seen().live.calls == 0 && plugged.seen().live.faults.is_empty(),
        "a configuration check is not counted as a call"
    );
}

#[tokio::test]
async fn a_configuration_check_does_not_count_as_a_queue_call() {
    let failing = Plugged::new(Guest::throttler().decide("(unreachable)")).await;
    failing.throttle(offer(1, 0)).await.unwrap_err();
    failing.host.check(&failing.plugin, Role::Throttler, "{}").await.unwrap();
    assert!(failing.seen().live.failing);
    let bad_check = Plugged::new(Guest::throttler().check("(unreachable)")).await;
    bad_check.throttle(offer(1, 0)).await.unwrap();
    bad_check.host.check(&bad_check.plugin, Role::Throttler, "{}").await.unwrap_err();
    assert!(!bad_check.seen().live.failing);
}

#[tokio::test]
async fn a_retry_strategy_sees_the_failure_and_plans() {
    // A plan in the past that changes everything; the status of the last failure is the priority.
    let body = "(local.set $r (call $alloc (i32.const 96)))
        (i32.store8 offset=44 (local.get $r) (i32.const 1)) (i32.store offset=48 (local.get $r) (i32.const 5))
        (i32.store8 offset=52 (local.get $r) (i32.const 1)) (i32.store offset=56 (local.get $r) (i32.const 6))
        (i32.store8 offset=64 (local.get $r) (i32.const 1)) (i64.store offset=72 (local.get $r) (i64.const 7000))
        (i32.store8 offset=24 (local.get $r) (i32.const 1)) (i32.store offset=28 (local.get $r) (i32.const 2048)) (i32.store offset=32 (local.get $r) (i32.const 7))
        (i32.store8 offset=36 (local.get $r) (i32.const 1))
        (i32.store offset=40 (local.get $r) (i32.load16_u offset=194 (local.get $args)))
        (local.get $r)";
    let plugged = Plugged::new(
        Guest::retry().items(r#"(data (i32.const 2048) "{\"a\":1}")"#).on_failure(body),
    )
    .await;
    let answer = plugged.retry(failure()).await.unwrap();
    assert_eq!(
        answer,
        RetryAnswer::Retry(RetryPlan {
            data: Some(r#"{"a":1}"#.into()),
            priority: Some(503),
            weight: Some(5),
            attempts_left: Some(6),
            timeout: Some(Seconds::new(7)),
            ..RetryPlan::new(at(0))
        })
    );
}

#[tokio::test]
async fn a_retry_strategy_gives_up() {
    let body = "(local.set $r (call $alloc (i32.const 96))) (i32.store8 offset=8 (local.get $r) (i32.const 1)) (i32.store8 offset=16 (local.get $r) (i32.const 1))
        (i32.store offset=20 (local.get $r) (i32.const 2048)) (i32.store offset=24 (local.get $r) (i32.const 8)) (local.get $r)";
    let plugged = Plugged::new(
        Guest::retry().items(r#"(data (i32.const 2048) "hopeless")"#).on_failure(body),
    )
    .await;
    assert_eq!(plugged.retry(failure()).await, Ok(RetryAnswer::GiveUp(Some("hopeless".into()))));
}

#[tokio::test]
async fn operators_see_logs_usage_and_faults_with_their_calls() {
    // Logs, and answers one decision too many for an odd seed.
    let body = log("(i32.const 2048)", "(i32.const 5)")
        + "(call $run (i32.add (local.get $n) (i32.wrap_i64 (i64.and (local.get $seed) (i64.const 1)))))";
    let plugged = Plugged::new(
        Guest::throttler().import(LOG).items(r#"(data (i32.const 2048) "hello")"#).decide(&body),
    )
    .await;
    assert_eq!(plugged.seen().live.calls, 0);
    plugged.throttle(ThrottleCall { seed: 2, ..offer(2, 1) }).await.unwrap();
    plugged.throttle(ThrottleCall { seed: 3, ..offer(2, 1) }).await.unwrap_err();

    let seen = plugged.seen();
    assert_eq!((seen.live.calls, seen.live.faults.get("invalid_answer")), (2, Some(&1)));
    let usage = seen.live.last.unwrap();
    assert!(
        usage.fuel.unwrap() > 0
            && usage.memory_bytes >= 2 << 16
            && usage.host_calls == 1
            && !usage.took.is_zero(),
        "{usage:?}"
    );
    let line = &seen.log[0];
    assert_eq!(
        (line.at, line.version, line.role, line.level, line.text.as_str()),
        (at(NOW), 1, Role::Throttler, LogLevel::Info, "hello")
    );
    let failed = seen.live.failed.back().unwrap();
    let fault = failed.answer.clone().unwrap_err();
    assert_eq!((failed.at, fault.kind), (at(NOW), FaultKind::InvalidAnswer));
    assert_eq!(failed.log, [(LogLevel::Info, "hello".to_owned())]);

    // What is kept is enough to make the call again.
    let json = failed.call.as_deref().unwrap();
    let Call::Throttle(again) = record::from_json(json).unwrap() else { panic!("{json}") };
    assert_eq!(
        plugged.host.throttle(&plugged.plugin, again, Purpose::Live).await.unwrap_err(),
        fault
    );

    plugged.host.forget(&plugged.plugin.name);
    assert_eq!(plugged.seen().live.calls, 0);
}

#[tokio::test]
async fn shadow_calls_are_counted_apart_and_explain_calls_not_at_all() {
    let plugged = Plugged::new(Guest::throttler().decide("(call $run (i32.const 9))")).await;
    let ask = async |purpose| {
        plugged.host.throttle(&plugged.plugin, Arc::new(offer(1, 0)), purpose).await.unwrap_err()
    };
    ask(Purpose::Live).await;
    for _ in 0..20 {
        ask(Purpose::Shadow).await;
        ask(Purpose::Explain).await;
    }
    let seen = plugged.seen();
    assert_eq!(
        (seen.live.calls, seen.live.failed.len(), seen.shadow.calls, seen.shadow.failed.len()),
        (1, 1, 20, 8)
    );
    // The next shadow starts from zero.
    let next = tidegate_core::queue::plugin::PluginVersion {
        number: 2,
        ..(*plugged.plugin.version).clone()
    };
    let next =
        tidegate_core::port::policy::Plugin { version: Arc::new(next), ..plugged.plugin.clone() };
    plugged.host.throttle(&next, Arc::new(offer(1, 0)), Purpose::Shadow).await.unwrap_err();
    assert_eq!((plugged.seen().shadow.version, plugged.seen().shadow.calls), (2, 1));
}

#[tokio::test]
async fn much_data_is_left_out_of_what_is_kept_of_a_fault() {
    let mut call = offer(3, 0);
    for (id, bytes) in [("j0", 40_000), ("j1", 40_000), ("j2", 100)] {
        call.data.insert(name(id), format!("\"{}\"", "x".repeat(bytes)));
    }
    let plugged = Plugged::new(
        Guest::throttler().needs(false, true, false).decide("(call $run (i32.const 9))"),
    )
    .await;
    plugged.throttle(call).await.unwrap_err();
    let retrying =
        Plugged::new(Guest::retry().needs(false, true, false).on_failure("(unreachable)")).await;
    let data = Some(format!("\"{}\"", "x".repeat(100_000)));
    retrying.retry(tidegate_core::port::policy::RetryCall { data, ..failure() }).await.unwrap_err();
    let kept = |plugged: &Plugged| plugged.seen().live.failed.back().unwrap().call.clone().unwrap();
    let json: serde_json::Value = serde_json::from_str(&kept(&plugged)).unwrap();
    assert_eq!(
        json["throttle"]["data"].as_object().unwrap().keys().collect::<Vec<_>>(),
        ["j0", "j2"]
    );
    assert_eq!(json["throttle"]["data-left-out"], serde_json::json!({"j1": 40_002}));
    assert!(kept(&retrying).len() < 10_000 && kept(&retrying).contains("\"data-left-out\":100002"));
    for plugged in [&plugged, &retrying] {
        record::from_json(&kept(plugged)).expect("it can be made again, as far as it is there");
    }
}

#[tokio::test]
async fn calls_are_made_aside_of_a_runtime_that_serves() {
    let objects: Arc<object_store::memory::InMemory> = Arc::default();
    let artifact = super::compiled(Guest::throttler().component()).await.unwrap();
    artifact.put(&*objects).await.unwrap();
    let clock = Arc::new(tidegate_engine::memory::FakeClock::new(at(NOW)));
    let host = tidegate_backends::wasm::PluginHost::new(objects, clock, Run::Aside).unwrap();
    let plugin = super::plugin(&artifact);
    host.load(&plugin).await.unwrap();
    let calls = (0..20).map(|n| host.throttle(&plugin, Arc::new(offer(n, 0)), Purpose::Live));
    let answers = futures_util::future::join_all(calls).await;
    assert!(
        answers.into_iter().enumerate().all(|(n, answer)| answer.unwrap().decisions.len() == n)
    );
}

/// Traps unless a condition in WAT holds.
const EXPECT: &str = "(func $expect (param i32) (if (i32.eqz (local.get 0)) (then (unreachable))))";

#[tokio::test]
async fn the_clock_and_random_numbers_are_those_of_the_call() {
    // The first numbers of splitmix64 with the seed 7.
    let body = "(call $expect (i64.eq (call $now_of) (local.get $now)))
        (call $expect (i64.eq (call $next) (i64.const 0x63cbe1e459320dd7)))
        (call $expect (i64.ne (call $next) (i64.const 0x63cbe1e459320dd7)))
        (call $run (local.get $n))";
    let guest = Guest::throttler().import(NOW_OF).import(NEXT).items(EXPECT).decide(body);
    let plugged = Plugged::new(guest).await;
    let call = offer(1, 0);
    plugged.throttle(ThrottleCall { seed: 7, ..call.clone() }).await.unwrap();
    plugged.throttle(ThrottleCall { seed: 8, ..call }).await.unwrap_err();
}

#[tokio::test]
async fn local_time_is_that_of_the_zone() {
    // 2026-03-01T08:00:00Z is a Sunday. On the 29th, Berlin skips the hour from two to three.
    let body = "(call $local (i32.const 2048) (i32.const 13) (local.get $now) (i32.const 3072))
        (call $expect (i32.eqz (i32.load8_u (i32.const 3072))))
        (call $expect (i32.eq (i32.load offset=4 (i32.const 3072)) (i32.const 2026)))
        (call $expect (i32.eq (i32.load offset=8 (i32.const 3072)) (i32.const 0x00090103)))
        (call $expect (i32.eqz (i32.load offset=12 (i32.const 3072))))
        (call $expect (i32.eq (i32.load8_u offset=16 (i32.const 3072)) (i32.const 7)))
        (call $expect (i32.eq (i32.load offset=20 (i32.const 3072)) (i32.const 3600)))
        (call $instant (i32.const 2048) (i32.const 13) (i32.const 2026) (i32.const 3) (i32.const 29)
            (i32.const 2) (i32.const 30) (i32.const 0) (i32.const 0) (i32.const 3072))
        (call $expect (i32.eqz (i32.load8_u (i32.const 3072))))
        (call $expect (i64.eq (i64.load offset=8 (i32.const 3072)) (i64.const 1774746000000)))
        (call $instant (i32.const 2048) (i32.const 13) (i32.const 2026) (i32.const 2) (i32.const 29)
            (i32.const 2) (i32.const 30) (i32.const 0) (i32.const 0) (i32.const 3072))
        (call $log (i32.const 1) (i32.load offset=8 (i32.const 3072)) (i32.load offset=12 (i32.const 3072)))
        (call $local (i32.const 2055) (i32.const 6) (local.get $now) (i32.const 3072))
        (call $log (i32.const 1) (i32.load offset=4 (i32.const 3072)) (i32.load offset=8 (i32.const 3072)))
        (call $local (i32.const 2048) (i32.const 13) (i64.const -1) (i32.const 3072))
        (call $log (i32.const 1) (i32.load offset=4 (i32.const 3072)) (i32.load offset=8 (i32.const 3072)))
        (call $run (local.get $n))";
    let zone = r#"(data (i32.const 2048) "Europe/Berlin")"#;
    let guest = Guest::throttler().import(LOCAL).import(INSTANT).import(LOG);
    let plugged = Plugged::new(guest.items(&format!("{EXPECT} {zone}")).decide(body)).await;
    plugged.throttle(offer(1, 0)).await.unwrap();
    assert_eq!(
        plugged.lines(),
        [
            "time: must be a date from 1970 to 9998",
            "zone: must be the IANA name of a time zone such as Europe/Berlin",
            "at: must be before the year 10000",
        ]
    );
}

#[tokio::test]
async fn a_value_of_the_state_ends_at_its_expiry() {
    // Sets k until now + 5, l without an end, and m until now; then looks for k as it was before.
    let set = |key: u32, expires: &str| {
        format!(
            "(call $set (i32.const {key}) (i32.const 1) (i32.const 2048) (i32.const 1) {expires}
             (i32.const 3072)) (call $expect (i32.eqz (i32.load8_u (i32.const 3072))))"
        )
    };
    let soon = "(i32.const 1) (i64.add (local.get $now) (i64.const 5))";
    let body = [
        "(call $get (i32.const 2048) (i32.const 1) (i32.const 3072))
         (call $log (i32.const 1) (i32.const 2049) (i32.load8_u (i32.const 3072)))"
            .to_owned(),
        set(2048, soon),
        set(2049, "(i32.const 0) (i64.const 0)"),
        set(2050, "(i32.const 1) (local.get $now)"),
        "(call $run (local.get $n))".into(),
    ];
    let items = format!(r#"{EXPECT} (data (i32.const 2048) "klm")"#);
    let guest = Guest::throttler().import(GET).import(SET).import(LOG).items(&items);
    let plugged = Plugged::new(guest.decide(&body.concat())).await;
    let call = |now: i64, state: Option<PolicyState>| ThrottleCall {
        now: at(now),
        state: Arc::new(state.unwrap_or_default()),
        ..offer(1, 0)
    };
    let first = plugged.throttle(call(NOW, None)).await.unwrap().state.unwrap();
    let kept: Vec<_> = first.iter().map(|(key, value)| (key.as_str(), value.expires_at)).collect();
    let mut kept = kept;
    kept.sort();
    assert_eq!(kept, [("k", Some(at(NOW + 5))), ("l", None)]);
    for (now, found) in [(NOW + 4, "l"), (NOW + 5, "")] {
        plugged.throttle(call(now, Some(first.clone()))).await.unwrap();
        assert_eq!(plugged.lines().last().unwrap(), found, "{now}");
    }
}

#[tokio::test]
async fn earlier_attempts_are_given_to_whom_they_are_declared() {
    // As many more decisions as the first candidate has earlier attempts.
    let guest = || {
        Guest::throttler().decide(
            "(call $run (i32.add (local.get $n) (i32.load offset=128 (local.get $candidates))))",
        )
    };
    let call = || ThrottleCall { candidates: vec![failure().job], ..offer(1, 0) };
    Plugged::new(guest()).await.throttle(call()).await.unwrap();
    let fault = Plugged::new(guest().needs_earlier()).await.throttle(call()).await.unwrap_err();
    assert_fault(&fault, FaultKind::InvalidAnswer, "3 decisions for 1 candidates");
}

#[tokio::test]
async fn the_details_of_earlier_attempts_are_bounded() {
    // One more decision if the failure at the index has details.
    let with_details = |index: u32| {
        let place = 72 * index + 28;
        Guest::throttler().needs_earlier().decide(&format!(
            "(call $run (i32.add (local.get $n) (i32.load8_u offset={place}
                (i32.load offset=124 (local.get $candidates)))))"
        ))
    };
    let mut job = failure().job;
    let entry = job.life.history[0].clone();
    let mut error = entry.error.clone().unwrap();
    error.details = Some(format!("\"{}\"", "x".repeat(30_000)));
    let entry = |attempt| AttemptRecord { attempt, error: Some(error.clone()), ..entry.clone() };
    job.life.history = (1..=50).map(entry).collect();
    let call = || ThrottleCall { candidates: vec![job.clone()], ..offer(1, 0) };
    for (index, has_details) in [(0, true), (33, true), (34, false), (49, false)] {
        let answered = Plugged::new(with_details(index)).await.throttle(call()).await;
        assert_eq!(answered.is_err(), has_details, "{index}");
    }
}

#[tokio::test]
async fn recorded_faults_have_bounded_texts_of_attempts() {
    let mut ended = super::ended();
    ended.details = Some(format!("\"{}\"", "x".repeat(10_000)));
    let call = ThrottleCall { ended: Arc::new(vec![ended; 100]), ..offer(1, 0) };
    let plugged = Plugged::new(Guest::throttler().decide("(unreachable)")).await;
    plugged.throttle(call).await.unwrap_err();
    let kept = plugged.seen().live.failed.back().unwrap().call.clone().unwrap();
    assert!(kept.len() < 128 << 10, "{}", kept.len());
    let json: serde_json::Value = serde_json::from_str(&kept).unwrap();
    assert_eq!(json["throttle"]["texts-left-out"], 94);
    record::from_json(&kept).expect("it can be made again, as far as it is there");
}
