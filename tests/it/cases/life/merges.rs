//! A waiting job that takes the requests of others with its unique key: replaced or debounced.

use std::time::Duration;

use futures_util::TryStreamExt as _;
use tidegate_core::{
    error_code::ErrorCode,
    job::{
        Body, Payload, State,
        lifecycle::Waiting,
        spec::{Unique, UniqueWhile},
        type_config::TypeConfig,
        unique::{Debounce, MergePolicy, Merged, OnConflict},
    },
    port::job_store::ListQuery,
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    Error, OBJECT_BYTES, TickInput,
    request::{Enqueued, NewJob},
    testkit::builders::name,
};

use crate::cases::harness::{Harness, every_store_and_table, failed, report, work};

fn unique() -> Unique {
    Unique::new("k", UniqueWhile::Live)
}

/// A request with `data` that replaces the waiting job with its key.
fn replacing(data: &str) -> NewJob {
    with_rule(data, Unique { on_conflict: OnConflict::Replace, ..unique() })
}

/// A request with `data`, debounced by 10 s and at most 25 s.
fn debounced(data: &str, merge: MergePolicy) -> NewJob {
    let (seconds, max_seconds) = (Seconds::new(10), Seconds::new(25));
    let debounce = Some(Debounce { seconds, max_seconds, merge });
    with_rule(data, Unique { debounce, ..unique() })
}

fn with_rule(data: &str, rule: Unique) -> NewJob {
    let data = Payload::json(data.to_owned());
    NewJob { data, ..work() }.with_options(|options| options.unique = Some(rule))
}

async fn answer(harness: &Harness, job: NewJob) -> Enqueued {
    harness.engine.enqueue(vec![job]).await.pop().unwrap().unwrap()
}

fn how(answer: &Enqueued) -> (bool, Option<Merged>) {
    (answer.new, answer.merged.map(|merged| merged.how))
}

/// What the stored job carries, and when it is due in seconds after `from`.
async fn stored(harness: &Harness, of: &Enqueued, from: Timestamp) -> (String, u64) {
    let job = harness.job(&of.job.id).await;
    let data = harness.engine.data(&job).await.unwrap();
    let due = job.life.run_at().unwrap().since(from);
    (String::from_utf8(data.bytes.to_vec()).unwrap(), due.as_secs())
}

#[tokio::test]
async fn a_waiting_job_takes_the_request_that_replaces_it() {
    for harness in every_store_and_table() {
        harness.with_limit(1).await;
        let start = harness.now();
        let later = start + Duration::from_mins(1);
        let first = answer(&harness, NewJob { run_at: Some(later), ..replacing("1") }).await;
        assert_eq!(how(&first), (true, None));
        harness.wait(1);
        let with = NewJob { expires_at: Some(later), ..replacing("2") }
            .with_options(|options| options.priority = Some(7));
        let second = answer(&harness, with).await;
        assert_eq!(how(&second), (false, Some(Merged::Replaced)));
        assert_eq!(second.job.id, first.job.id);
        assert_eq!(stored(&harness, &first, start).await, ("2".into(), 1));
        let job = harness.job(&first.job.id).await;
        assert_eq!((job.spec.priority, job.spec.expires_at), (7, Some(later)));
        assert_eq!(job.spec.created_at, start, "it was accepted then");
        let query = ListQuery { limit: 10, ..ListQuery::default() };
        let jobs = harness.store.list(&query).await.unwrap().jobs;
        assert_eq!(jobs.len(), 1, "there is one job: {jobs:?}");
    }
}

#[tokio::test]
async fn a_job_that_is_due_keeps_its_position_when_replaced() {
    for harness in every_store_and_table() {
        harness.set_type("work", TypeConfig::default()).await;
        let start = harness.now();
        let first = answer(&harness, replacing("1")).await;
        harness.wait(30);
        answer(&harness, replacing("2")).await;
        assert_eq!(stored(&harness, &first, start).await, ("2".into(), 0));
        let later = start + Duration::from_secs(90);
        answer(&harness, NewJob { run_at: Some(later), ..replacing("3") }).await;
        assert_eq!(stored(&harness, &first, start).await, ("3".into(), 90));
    }
}

#[tokio::test]
async fn a_job_that_has_started_is_not_replaced() {
    for mut harness in every_store_and_table() {
        harness.set_type("work", TypeConfig::default()).await;
        let first = answer(&harness, replacing("1")).await;
        let run = harness.lease(1).await;
        let second = answer(&harness, replacing("2")).await;
        assert_eq!((how(&second), &second.job.id), ((false, None), &first.job.id));
        harness
            .tick(TickInput { reports: vec![report(&run[0], failed())], ..TickInput::default() })
            .await;
        let third = answer(&harness, debounced("3", MergePolicy::Last)).await;
        assert_eq!((how(&third), &third.job.id), ((false, None), &first.job.id));
        let job = harness.job(&first.job.id).await;
        assert_eq!(job.data, Body::Inline(Payload::json("1")));
        let scheduled =
            Unique { on_conflict: OnConflict::Replace, ..Unique::new("s", UniqueWhile::Scheduled) };
        let running = answer(&harness, with_rule("1", scheduled.clone())).await;
        harness.lease(5).await;
        let next = answer(&harness, with_rule("2", scheduled)).await;
        assert!(next.new && next.job.id != running.job.id, "its key was free");
    }
}

#[tokio::test]
async fn a_debounced_job_waits_for_a_pause_up_to_its_maximum() {
    for mut harness in every_store_and_table() {
        harness.set_type("work", TypeConfig::default()).await;
        let start = harness.now();
        let first = answer(&harness, debounced("1", MergePolicy::Last)).await;
        assert_eq!(stored(&harness, &first, start).await, ("1".into(), 10));
        for (wait, data, due) in [(6, "2", 16), (9, "3", 25), (9, "4", 25)] {
            harness.wait(wait);
            let next = answer(&harness, debounced(data, MergePolicy::Last)).await;
            assert_eq!(how(&next), (false, Some(Merged::Debounced)));
            assert_eq!(stored(&harness, &first, start).await, (data.into(), due));
        }
        assert!(harness.lease(1).await.is_empty(), "it is not due");
        harness.wait(2);
        answer(&harness, debounced("5", MergePolicy::Last)).await;
        assert_eq!(stored(&harness, &first, start).await, ("5".into(), 25));
        let run = harness.lease(5).await;
        assert_eq!((run.len(), &run[0].id), (1, &first.job.id));
        assert_eq!(run[0].data, Body::Inline(Payload::json("5")));
    }
}

#[tokio::test]
async fn a_debounce_that_changes_nothing_keeps_the_version() {
    for harness in every_store_and_table() {
        harness.with_limit(1).await;
        let first = answer(&harness, debounced("1", MergePolicy::First)).await;
        // Beyond its maximum the job is due, and stays so.
        harness.wait(60);
        let version = harness.job(&first.job.id).await.life.version;
        let again = answer(&harness, debounced("2", MergePolicy::First)).await;
        assert_eq!(how(&again), (false, Some(Merged::Debounced)));
        let job = harness.job(&first.job.id).await;
        assert_eq!(job.life.version, version, "a grant of it stays valid");
        assert_eq!(stored(&harness, &first, job.spec.created_at).await, ("1".into(), 10));
    }
}

#[tokio::test]
async fn a_debounced_job_may_keep_its_first_request() {
    for harness in every_store_and_table() {
        harness.set_type("work", TypeConfig::default()).await;
        let start = harness.now();
        let large = |digit: &str| format!("\"{}\"", digit.repeat(2000));
        let first = answer(&harness, debounced(&large("1"), MergePolicy::First)).await;
        harness.wait(5);
        let other = debounced(&large("2"), MergePolicy::First)
            .with_options(|options| options.priority = Some(1));
        let second = answer(&harness, other).await;
        assert_eq!(how(&second), (false, Some(Merged::Debounced)));
        assert_eq!(stored(&harness, &first, start).await, (large("1"), 15));
        assert_eq!(harness.job(&first.job.id).await.spec.priority, 100);
    }
}

#[tokio::test]
async fn requests_of_one_call_are_merged_in_their_order() {
    for harness in every_store_and_table() {
        harness.set_type("work", TypeConfig::default()).await;
        let start = harness.now();
        let other =
            Unique { on_conflict: OnConflict::Replace, ..Unique::new("o", UniqueWhile::Live) };
        let batch = || {
            vec![
                replacing("1"),
                work(),
                with_rule("\"o\"", other.clone()),
                NewJob { delay_seconds: Some(Seconds::new(60)), ..replacing("2") },
                with_rule("3", unique()),
            ]
        };
        let answers = harness.engine.enqueue(batch()).await;
        let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        let expected = [
            (true, None),
            (true, None),
            (true, None),
            (false, Some(Merged::Replaced)),
            (false, None),
        ];
        assert_eq!(answers.iter().map(how).collect::<Vec<_>>(), expected);
        assert_eq!(stored(&harness, &answers[0], start).await, ("2".into(), 60));
        let again = harness.engine.enqueue(batch()).await;
        let again: Vec<_> = again.into_iter().map(Result::unwrap).collect();
        let replaced = (false, Some(Merged::Replaced));
        let expected = [replaced, (true, None), replaced, replaced, (false, None)];
        assert_eq!(again.iter().map(how).collect::<Vec<_>>(), expected);
        assert_eq!(again[0].job.id, answers[0].job.id);
        assert_eq!(again[0].job.data, Body::Inline(Payload::json("1")), "as after that request");
        assert_eq!(stored(&harness, &answers[0], start).await, ("2".into(), 60));
    }
}

/// The first request is answered by its id, and the second alone changes no job.
#[tokio::test]
async fn a_repeated_call_makes_no_second_job_with_its_key() {
    for harness in every_store_and_table() {
        harness.set_type("work", TypeConfig::default()).await;
        let batch = || {
            let own = NewJob { id: Some(name("own")), ..replacing("1") };
            vec![own, with_rule("2", unique())]
        };
        for _ in 0..2 {
            for answer in harness.engine.enqueue(batch()).await {
                assert_eq!(answer.unwrap().job.id.as_str(), "own");
            }
        }
    }
}

#[tokio::test]
async fn a_repeat_of_a_merged_request_changes_nothing() {
    for mut harness in every_store_and_table() {
        harness.set_type("work", TypeConfig::default()).await;
        let start = harness.now();
        let keyed = |key: &str, job: NewJob| NewJob { idempotency_key: Some(key.into()), ..job };
        let named = |id: &str, job: NewJob| NewJob { id: Some(name(id)), ..job };
        let first = answer(&harness, keyed("a", replacing("1"))).await;
        let repeated =
            [keyed("a", replacing("1")), keyed("b", replacing("2")), named("c", replacing("3"))];
        for job in &repeated[1..] {
            assert_eq!(how(&answer(&harness, job.clone()).await), (false, Some(Merged::Replaced)));
        }
        answer(&harness, replacing("4")).await;
        for job in &repeated {
            let again = answer(&harness, job.clone()).await;
            assert_eq!((how(&again), &again.job.id), ((false, None), &first.job.id));
        }
        assert_eq!(stored(&harness, &first, start).await, ("4".into(), 0));
        let refused = harness.engine.enqueue(vec![keyed("b", replacing("5"))]).await.pop().unwrap();
        let code = ErrorCode::IdempotencyKeyReused;
        assert!(
            matches!(&refused, Err(Error::Conflict { code: is, .. }) if *is == code),
            "{refused:?}"
        );
        // After the job has ended, and after the next job has the key.
        let run = harness.lease(1).await;
        harness.succeed(&run).await;
        let again = answer(&harness, repeated[1].clone()).await;
        assert_eq!((how(&again), &again.job.id), ((false, None), &first.job.id));
        let next = answer(&harness, replacing("6")).await;
        assert!(next.new);
        for job in &repeated[1..] {
            assert_eq!(how(&answer(&harness, job.clone()).await), (false, None));
        }
        assert_eq!(stored(&harness, &next, start).await.0, "6");
    }
}

#[tokio::test]
async fn a_large_body_goes_with_the_job_that_takes_it() {
    for mut harness in every_store_and_table() {
        harness.set_type("work", TypeConfig::default()).await;
        let start = harness.now();
        let large = |digit: &str| format!("\"{}\"", digit.repeat(OBJECT_BYTES));
        let first = answer(&harness, replacing(&large("1"))).await;
        answer(&harness, replacing(&large("2"))).await;
        assert_eq!(stored(&harness, &first, start).await.0, large("2"));
        answer(&harness, debounced(&large("3"), MergePolicy::First)).await;
        assert_eq!(stored(&harness, &first, start).await.0, large("2"));
        let objects = harness.engine.ports().objects.clone();
        let kept = || async { objects.list(None).try_collect::<Vec<_>>().await.unwrap().len() };
        assert_eq!(kept().await, 1, "only the latest body is kept");
        answer(&harness, replacing("4")).await;
        assert_eq!(kept().await, 0);
        let run = harness.lease(1).await;
        assert_eq!(run[0].data, Body::Inline(Payload::json("4")));
    }
}

#[tokio::test]
async fn a_closed_window_holds_for_a_merged_job_too() {
    for harness in every_store_and_table() {
        harness.set_type("work", TypeConfig::default()).await;
        let first = answer(&harness, replacing("1")).await;
        let windows = serde_json::from_str(r#"[{"from": "00:00", "to": "00:01"}]"#).unwrap();
        harness.wait(3600);
        let second = answer(
            &harness,
            replacing("2").with_options(|options| options.windows = Some(windows)),
        )
        .await;
        assert_eq!(second.job.id, first.job.id);
        let state = &harness.job(&first.job.id).await.life.state;
        assert!(
            matches!(state, State::Scheduled { waiting: Waiting::Window { .. }, .. }),
            "{state:?}"
        );
    }
}

#[tokio::test]
async fn settings_of_a_merge_that_contradict_are_refused() {
    for harness in every_store_and_table() {
        harness.set_type("work", TypeConfig::default()).await;
        let both = Unique {
            on_conflict: OnConflict::Replace,
            ..debounced("1", MergePolicy::Last).options.unique.unwrap()
        };
        let debounce = |seconds, max_seconds| {
            let (seconds, max_seconds) = (Seconds::new(seconds), Seconds::new(max_seconds));
            let debounce = Debounce { seconds, max_seconds, merge: MergePolicy::Last };
            with_rule("1", Unique { debounce: Some(debounce), ..unique() })
        };
        let last = || debounced("1", MergePolicy::Last);
        for (job, field) in [
            (with_rule("1", both), "unique.on_conflict"),
            (debounce(0, 5), "unique.debounce.seconds"),
            (debounce(6, 5), "unique.debounce.max_seconds"),
            (NewJob { correlation_key: Some("c".into()), ..replacing("1") }, "correlation_key"),
            (NewJob { run_at: Some(harness.now()), ..last() }, "run_at"),
            (NewJob { delay_seconds: Some(Seconds::new(1)), ..last() }, "delay_seconds"),
        ] {
            let refused = harness.engine.enqueue(vec![job]).await.pop().unwrap();
            assert!(
                matches!(&refused, Err(Error::Invalid { field: is, .. }) if is == field),
                "{field}: {refused:?}"
            );
        }
    }
}
