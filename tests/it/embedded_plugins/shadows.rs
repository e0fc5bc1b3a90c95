//! Shadow versions on the embedded server: they decide nothing, and their differences are reported.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_core::{
    job::{Payload, PluginName, retry::Retry, type_config::TypeConfig},
    port::policy::{RetryAnswer, RetryPlan, ThrottleAnswer},
    queue::{
        QueueConfig,
        plugin::{OnFailure, Throttler},
    },
};
use tidegate_engine::{
    plugins::registry::Stage,
    request::NewJob,
    testkit::{
        FnPolicy,
        builders::name,
        policies::{each, fault, hold, run},
    },
};
use tidegate_server::runtime::{Server, ShadowDecision};

use super::{server, until, version};

/// Has `plugin` throttle the queue of the type `work`.
pub(super) async fn throttle(server: &Server, plugin: &PluginName) {
    let throttler = Throttler {
        plugin: plugin.clone(),
        config: Arc::new(serde_json::json!({})),
        on_failure: OnFailure::Hold,
    };
    let config = QueueConfig { throttler: Some(throttler), ..QueueConfig::default() };
    server.put_queue(&name("default"), config, None).await.unwrap();
    let once = TypeConfig { max_attempts: Some(1), ..TypeConfig::default() };
    server.put_type(&name("work"), once, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_strategy_reports_differences_and_pauses_on_failure() {
    // The new version waits an hour for every other job and changes the data of another; then it
    // crashes.
    let (crashes, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (switch, count) = (Arc::clone(&crashes), Arc::clone(&asked));
    let policy = FnPolicy::default().retrying(move |plugin, call| {
        let now = RetryAnswer::Retry(RetryPlan::new(call.now));
        if plugin.version.number == 1 {
            return Ok(now);
        }
        let turn = count.fetch_add(1, Ordering::Relaxed);
        if switch.load(Ordering::Relaxed) {
            return Err(fault("it divided by zero"));
        }
        Ok(match turn {
            1 => RetryAnswer::Retry(RetryPlan::new(call.now + Duration::from_hours(1))),
            2 => RetryAnswer::Retry(RetryPlan {
                data: Some("[2]".into()),
                priority: Some(7),
                ..RetryPlan::new(call.now)
            }),
            3 => RetryAnswer::GiveUp(None),
            _ => now,
        })
    });
    let server = server(policy).await;
    let planner = name("planner");
    server.push_plugin(&planner, version("v1", 0), Stage::Live).await.unwrap();
    server.push_plugin(&planner, version("v2", 0), Stage::Shadow).await.unwrap();
    let retry = Retry::Plugin(planner.clone(), Arc::new(serde_json::json!({})));
    server
        .put_type(&name("work"), TypeConfig { retry, ..TypeConfig::default() }, None)
        .await
        .unwrap();
    let succeeds = async || {
        let job = server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap().job;
        server
            .result(&job.id, None, Duration::from_secs(20))
            .await
            .unwrap()
            .ended()
            .expect("the live version tries it again");
        job.id
    };
    let compared = async |count: u64| {
        until(async || {
            Some(server.plugin_differences(&planner).await.unwrap())
                .filter(|seen| seen.compared + seen.failed + seen.missed == count)
        })
        .await
    };
    let mut jobs = Vec::new();
    for count in 1..=5 {
        jobs.push(succeeds().await);
        compared(count).await;
    }
    let seen = compared(5).await;
    assert_eq!((seen.version, seen.compared, seen.different, seen.failed), (2, 5, 3, 0));
    let said: Vec<_> = seen
        .differences
        .iter()
        .map(|one| (one.job.clone(), &*one.live.action, &*one.shadow.action))
        .collect();
    assert_eq!(
        said,
        [1, 2, 3].map(|index| (
            jobs[index].clone(),
            "retry",
            if index == 3 { "give_up" } else { "retry" }
        ))
    );
    assert_eq!(seen.differences[1].shadow.reason.as_deref(), Some("priority 7, data [2]"));

    crashes.store(true, Ordering::Relaxed);
    asked.store(0, Ordering::Relaxed);
    for count in 6..=9 {
        succeeds().await;
        compared(count).await;
    }
    let seen = compared(9).await;
    // It is not called for a second and then for two; how much of this has passed depends on the
    // machine.
    assert!(
        seen.failed == u64::from(asked.load(Ordering::Relaxed))
            && seen.failed >= 1
            && seen.missed >= 1,
        "{seen:?}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_says_where_it_differs_and_decides_nothing() {
    // The new version has its own count, starts with that of the live one, and holds every fifth
    // job.
    let policy = FnPolicy::default().throttling(|plugin, call| {
        let mut seen: u64 = call.state.text("seen").map_or(0, |text| text.parse().unwrap());
        let (first, shadow) = (seen, plugin.version.number == 2);
        let answer = each(call, |_| {
            seen += 1;
            if shadow && seen.is_multiple_of(5) { hold("every fifth") } else { run() }
        });
        assert!(first == 0 || call.state.iter().count() == 1);
        Ok(ThrottleAnswer { state: Some([("seen".to_owned(), seen.to_string())].into()), ..answer })
    });
    let server = server(policy).await;
    let guard = name("guard");
    server.push_plugin(&guard, version("v1", 1), Stage::Live).await.unwrap();
    let pushed = server.push_plugin(&guard, version("v2", 1), Stage::Shadow).await.unwrap();
    assert_eq!((pushed.item.live, pushed.item.shadow), (1, Some(2)));
    throttle(&server, &guard).await;
    let mut jobs = Vec::new();
    for _ in 0..20 {
        let job = server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap().job;
        server
            .result(&job.id, None, Duration::from_secs(20))
            .await
            .unwrap()
            .ended()
            .expect("the live version lets it run");
        jobs.push(job.id);
    }
    let seen = until(async || {
        Some(server.plugin_differences(&guard).await.unwrap()).filter(|seen| seen.compared == 20)
    })
    .await;
    assert_eq!((seen.version, seen.different, seen.failed, seen.missed), (2, 4, 0, 0));
    let differing: Vec<_> =
        seen.differences.iter().map(|difference| difference.job.clone()).collect();
    assert_eq!(differing, [4, 9, 14, 19].map(|index| jobs[index].clone()));
    assert_eq!(
        seen.differences[0].live,
        ShadowDecision { action: "run".into(), until: None, reason: None }
    );
    assert_eq!(
        seen.differences[0].shadow,
        ShadowDecision { action: "hold".into(), until: None, reason: Some("every fifth".into()) }
    );
    server.shadow_plugin(&guard, None).await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_starts_from_the_live_state_and_reports_a_job_once() {
    // Both run as many jobs as the state says: the live version none, the new one two. It counts
    // the jobs that it runs.
    let policy = FnPolicy::default().throttling(|plugin, call| {
        let mut left: u64 = call.state.text("left").map_or(2, |text| text.parse().unwrap());
        let answer = each(call, |_| match left {
            _ if plugin.version.number == 1 => hold("none"),
            0 => hold("no more"),
            _ => {
                left -= 1;
                run()
            }
        });
        Ok(ThrottleAnswer { state: Some([("left".to_owned(), left.to_string())].into()), ..answer })
    });
    let server = server(policy).await;
    let guard = name("guard");
    server.push_plugin(&guard, version("v1", 1), Stage::Live).await.unwrap();
    server.push_plugin(&guard, version("v2", 1), Stage::Shadow).await.unwrap();
    throttle(&server, &guard).await;
    let compared = async |most: u64| {
        until(async || {
            Some(server.plugin_differences(&guard).await.unwrap())
                .filter(|seen| seen.compared >= most)
        })
        .await
    };
    let job = server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap().job;
    let mut seen = compared(1).await;
    // Each of these causes a tick, which offers the held jobs again.
    for _ in 0..4 {
        server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap();
        seen = compared(seen.compared + 1).await;
    }
    assert!(
        seen.different > 2,
        "each tick starts from the live state, so two jobs differ every time: {seen:?}"
    );
    assert_eq!(
        seen.differences.iter().filter(|difference| difference.job == job.id).count(),
        1,
        "{seen:?}"
    );
    server.stop().await;
}

/// The state of a shadow with another state version, tick by tick.
#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_with_a_state_of_its_own_forgets_it_when_it_was_off() {
    let heard: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
    let hears = Arc::clone(&heard);
    let policy = FnPolicy::default().throttling(move |plugin, call| {
        let answer = each(call, |_| run());
        if plugin.version.number == 1 {
            return Ok(answer);
        }
        let known = call.state.text("rounds").map(str::to_owned);
        let rounds = known.as_ref().map_or(0, |text| text.parse::<u64>().unwrap()) + 1;
        hears.lock().push(known);
        Ok(ThrottleAnswer {
            state: Some([("rounds".to_owned(), rounds.to_string())].into()),
            ..answer
        })
    });
    let server = server(policy).await;
    let guard = name("guard");
    server.push_plugin(&guard, version("v1", 1), Stage::Live).await.unwrap();
    server.push_plugin(&guard, version("v2", 2), Stage::Shadow).await.unwrap();
    throttle(&server, &guard).await;
    let next = async || {
        let count = heard.lock().len();
        server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap();
        until(async || heard.lock().get(count).cloned()).await
    };
    assert_eq!((next().await, next().await), (None, Some("1".into())));
    server.shadow_plugin(&guard, None).await.unwrap();
    server.shadow_plugin(&guard, Some(2)).await.unwrap();
    assert_eq!(
        (next().await, next().await),
        (None, Some("1".into())),
        "a shadow that was off starts without state"
    );
    server.stop().await;
}
