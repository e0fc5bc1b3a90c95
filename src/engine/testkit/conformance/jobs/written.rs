//! Jobs are added and changed, and are read back as they were written.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use super::{
    super::{add, claim, commit, done, get, refused, step},
    is_all,
};
use crate::testkit::builders::{at, job, name};
use tidegate_core::{
    job::{
        Body, Encoding, Event, Job, Origin, Outcome, Payload, Revision, Spec,
        lifecycle::{Failure, Progress, Reason, ResultBody, RetryDecision},
        spec::{KeepResult, Unique, UniqueWhile},
        unique::MergedRequest,
    },
    port::job_store::{CurrentRecord, JobStore, Write},
    stored::UnknownFields,
    time::Seconds,
};

/// A job without any default value.
fn rich(id: &str) -> Job {
    job(id)
        .queue("mail")
        .of_type("invoice")
        .priority(-7)
        .critical(true)
        .partition("tenant ü/7")
        .created(1_700_000_000_123)
        .due(1_700_000_009_999)
        .expires(1_800_000_000_000)
        .attribute("region", "east")
        .attribute("size", -12)
        .with(|spec: &mut Spec| {
            let share = serde_json::Number::from_f64(0.25).expect("finite");
            spec.attributes.insert("share".into(), tidegate_core::job::Value::Number(share));
            spec.weight = u32::MAX;
            spec.deadline_at = Some(at(1_900_000_000_000));
            spec.windows = serde_json::from_str(
                r#"[
                    {"from": "08:00", "to": "17:30"},
                    {"from": "22:00", "to": "02:00", "days": ["fri"], "tz": "Europe/Berlin"}
                ]"#,
            )
            .expect("windows");
            spec.timeout = Seconds::from_millis(1_500);
            spec.max_attempts = 17;
            spec.retry = serde_json::from_str(
                r#"{"strategy": "exponential", "config": {"base_seconds": 1.5, "jitter": "none"}}"#,
            )
            .expect("a retry");
            spec.correlation_key = Some("order-1".into());
            spec.unique = Some(Unique {
                period_seconds: Some(Seconds::new(5)),
                ..Unique::new("k", UniqueWhile::Live)
            });
            spec.keep_result = KeepResult::Once;
            spec.callback_url = Some("https://example.com/done?x=1".parse().expect("a URL"));
            spec.headers =
                BTreeMap::from([("x-a".into(), "1".into()), ("x-b".into(), String::new())]);
            spec.replay_of = Some(name("an:older.one"));
            spec.retention = Seconds::new(3);
            spec.enqueued_by = Some("shop".into());
            spec.origin = Some(Box::new(Origin::schedule(name("nightly"), Some(at(7)))));
            spec.merged = vec![MergedRequest { key: u64::MAX, digest: 7 }];
            spec.request_digest = std::array::from_fn(|n| (n as u8) * 17);
        })
        .data(Encoding::MessagePack, &b"\xc4\x03\x00\xff\x01"[..])
        .build()
}

/// A job is read back exactly as it was written.
pub async fn an_added_job_is_read_back_as_it_was(store: &dyn JobStore) {
    let plain = job("plain").build();
    let no_period = job("no-period").unique(Unique::new("k", UniqueWhile::Scheduled)).build();
    for keep_result in
        [KeepResult::None, KeepResult::Once, KeepResult::For(Seconds::from_millis(1))]
    {
        let kept = job(&format!("keep-{}", keep_result == KeepResult::None))
            .with(|spec| spec.keep_result = keep_result)
            .build();
        if is_all(&commit(store, vec![Write::AddJob(kept.clone())]).await) {
            assert_eq!(get(store, &kept).await, kept);
        }
    }
    let rich = rich("rich:1");
    add(store, [plain.clone(), no_period.clone(), rich.clone()]).await;
    let found = store
        .get(&[rich.id.clone(), name("absent"), plain.id.clone(), no_period.id.clone()])
        .await
        .expect("the store answers");
    assert_eq!(found, [Ok(Some(rich.clone())), Ok(None), Ok(Some(plain)), Ok(Some(no_period))]);

    // A lifecycle with every part: attempts, failures, progress, a result.
    let mut now = at(1_750_000_000_000);
    let (write, mut job) = step(&rich, claim(&rich, true), now);
    done(store, vec![write]).await;
    assert_eq!(get(store, &job).await, job);
    let progress = Some(Progress { percent: 12.5, note: Some("half ✓".into()) });
    let failure = Failure {
        reason: Reason::NotDelivered,
        message: Some("no".into()),
        details: Some("{\"a\":1}".into()),
        status: Some(429),
        retry_after: Some(Seconds::new(9)),
        unknown: UnknownFields::default(),
    };
    let result = ResultBody {
        encoding: Encoding::MessagePack,
        bytes: Bytes::from_static(b"\xc3"),
        object: Some(("k".into(), 9)),
    };
    let events = [
        Event::Heartbeat { attempt: 1, until: now, progress },
        Event::Fail { attempt: 1, failure, next: RetryDecision::Wait(Seconds::new(1).duration()) },
        Event::Patch { run_at: Some(now) },
    ];
    for event in events {
        let (write, next) = step(&job, event, now);
        done(store, vec![write]).await;
        assert_eq!(get(store, &next).await, next);
        job = next;
    }
    now = now + Seconds::new(60).duration();
    for event in [claim(&job, false), Event::Succeed { attempt: 2, result: Some(result) }] {
        let (write, next) = step(&job, event, now);
        done(store, vec![write]).await;
        assert_eq!(get(store, &next).await, next);
        job = next;
    }
    assert_eq!(job.life.ended(), Some(Outcome::Succeeded));
}

/// An id can be taken once. A later write gets the job that has it.
pub async fn a_taken_id_is_refused_with_the_job_that_has_it(store: &dyn JobStore) {
    let first = job("one").priority(1).build();
    add(store, [first.clone()]).await;
    let (write, running) = step(&first, claim(&first, true), at(5));
    done(store, vec![write]).await;
    for other in [job("one").queue("elsewhere").build(), first] {
        let (at_step, current) = refused(store, vec![Write::AddJob(other)]).await;
        assert_eq!(at_step, 0);
        assert!(matches!(&current, CurrentRecord::Job(job) if **job == running), "{current:?}");
    }
    assert_eq!(get(store, &running).await, running);
}

/// Of two writers that read the same revision, one changes the job.
pub async fn a_job_is_replaced_only_at_the_revision_that_was_read(store: &dyn JobStore) {
    let first = job("one").build();
    add(store, [first.clone()]).await;
    let (write, running) = step(&first, claim(&first, true), at(5));
    let late = [
        step(&first, claim(&first, true), at(6)).0,
        Write::SetJob {
            job: step(&first, Event::Patch { run_at: Some(at(9)) }, at(6)).1,
            was: Revision(1),
            all: true,
        },
        Write::RemoveJob { id: first.id.clone(), was: Revision(1) },
    ];
    done(store, vec![write]).await;
    for write in late {
        let (_, current) = refused(store, vec![write]).await;
        assert!(matches!(&current, CurrentRecord::Job(job) if **job == running), "{current:?}");
    }
    assert_eq!(get(store, &running).await, running);
    let absent = job("absent").build();
    for write in [
        step(&absent, claim(&absent, true), at(5)).0,
        Write::RemoveJob { id: absent.id.clone(), was: Revision(1) },
    ] {
        assert!(matches!(refused(store, vec![write]).await, (0, CurrentRecord::Nothing)));
    }
}

/// With `all: false` only the lifecycle is written, whatever the rest of the job contains.
pub async fn a_change_of_life_keeps_everything_else(store: &dyn JobStore) {
    let first = rich("one");
    add(store, [first.clone()]).await;
    let (_, mut next) = step(&first, claim(&first, true), at(1_750_000_000_000));
    next.data = Body::Inline(Payload::null());
    done(store, vec![Write::SetJob { job: next.clone(), was: first.life.revision, all: false }])
        .await;
    let kept = Job { life: next.life.clone(), ..first.clone() };
    assert_eq!(get(store, &first).await, kept);

    // With `all: true` the whole job is written.
    let mut spec = Spec::clone(&first.spec);
    spec.priority = 3;
    spec.partition = "other".into();
    let patched = Job {
        spec: Arc::new(spec),
        life: tidegate_core::job::Lifecycle { revision: Revision(3), ..next.life.clone() },
        ..next
    };
    done(store, vec![Write::SetJob { job: patched.clone(), was: Revision(2), all: true }]).await;
    assert_eq!(get(store, &first).await, patched);
}
