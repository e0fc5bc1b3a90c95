//! Jobs and transactions: added, changed, removed, and found by what they are.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use super::{add, claim, commit, done, get, refused, step};
use crate::testkit::builders::{at, job, name};
use tidegate_core::{
    job::{
        Body, Encoding, Event, Job, Outcome, Payload, Revision, Spec,
        lifecycle::{Failure, Progress, Reason, ResultBody, RetryDecision},
        spec::{KeepResult, Unique, UniqueWhile},
    },
    port::job_store::{Committed, CurrentRecord, Expect, INLINE_BYTES, JobStore, Key, Write},
    time::{Seconds, Timestamp},
};

/// A job of which nothing is at its default.
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
            spec.attributes.insert("share".into(), tidegate_core::job::Value::Number(serde_json::Number::from_f64(0.25).expect("finite")));
            spec.weight = u32::MAX;
            spec.deadline_at = Some(at(1_900_000_000_000));
            spec.windows = serde_json::from_str(
                r#"[{"from": "08:00", "to": "17:30"}, {"from": "22:00", "to": "02:00", "days": ["fri"], "tz": "Europe/Berlin"}]"#,
            )
            .expect("windows");
            spec.timeout = Seconds::from_millis(1_500);
            spec.max_attempts = 17;
            spec.retry =
                serde_json::from_str(r#"{"strategy": "exponential", "config": {"base_seconds": 1.5, "jitter": "none"}}"#).expect("a retry");
            spec.correlation_key = Some("order-1".into());
            spec.unique = Some(Unique { key: "k".into(), hold: UniqueWhile::Live, period_seconds: Some(Seconds::new(5)) });
            spec.keep_result = KeepResult::Once;
            spec.callback_url = Some("https://example.com/done?x=1".parse().expect("a URL"));
            spec.headers = BTreeMap::from([("x-a".into(), "1".into()), ("x-b".into(), String::new())]);
            spec.replay_of = Some(name("an:older.one"));
            spec.retention = Seconds::new(3);
            spec.request_digest = std::array::from_fn(|n| (n as u8) * 17);
        })
        .data(Encoding::MessagePack, &b"\xc4\x03\x00\xff\x01"[..])
        .build()
}

/// Everything that a job is, carries and went through is read back as it was written.
pub async fn an_added_job_is_read_back_as_it_was(store: &dyn JobStore) {
    let plain = job("plain").build();
    let no_period = job("no-period")
        .unique(Unique { key: "k".into(), hold: UniqueWhile::Scheduled, period_seconds: None })
        .build();
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
        .expect("the store is well");
    assert_eq!(found, [Some(rich.clone()), None, Some(plain), Some(no_period)]);

    // A life with everything in it: attempts, failures, progress, a result.
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

fn is_all(committed: &Committed) -> bool {
    matches!(committed, Committed::All)
}

/// An id is taken once; a later write gets the job that has it.
pub async fn a_taken_id_is_refused_with_the_job_that_has_it(store: &dyn JobStore) {
    let first = job("one").priority(1).build();
    add(store, [first.clone()]).await;
    let (write, running) = step(&first, claim(&first, true), at(5));
    done(store, vec![write]).await;
    for other in [job("one").queue("elsewhere").build(), first] {
        let (at_step, standing) = refused(store, vec![Write::AddJob(other)]).await;
        assert_eq!(at_step, 0);
        assert!(matches!(&standing, CurrentRecord::Job(job) if **job == running), "{standing:?}");
    }
    assert_eq!(get(store, &running).await, running);
}

/// Of two who read the same revision, one changes the job.
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
        let (_, standing) = refused(store, vec![write]).await;
        assert!(matches!(&standing, CurrentRecord::Job(job) if **job == running), "{standing:?}");
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

/// With `all: false` only the life is taken, whatever the rest of the job says.
pub async fn a_change_of_life_keeps_everything_else(store: &dyn JobStore) {
    let first = rich("one");
    add(store, [first.clone()]).await;
    let (_, mut next) = step(&first, claim(&first, true), at(1_750_000_000_000));
    next.data = Body::Inline(Payload::null());
    done(store, vec![Write::SetJob { job: next.clone(), was: first.life.revision, all: false }])
        .await;
    let kept = Job { life: next.life.clone(), ..first.clone() };
    assert_eq!(get(store, &first).await, kept);

    // With `all: true` everything is.
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

/// Data comes back as it was sent, whatever its size and encoding; large data lies beside.
pub async fn data_of_every_size_comes_back_byte_for_byte(store: &dyn JobStore) {
    let sizes =
        [0, 1, 2, 100, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 101 * 1024, 1024 * 1024];
    for encoding in [Encoding::Json, Encoding::MessagePack] {
        for size in sizes {
            let bytes: Bytes = (0..size).map(|n| (n * 31 % 251) as u8).collect();
            let first = job(&format!("{encoding:?}-{size}")).data(encoding, bytes.clone()).build();
            add(store, [first.clone()]).await;
            let (write, mut running) = step(&first, claim(&first, true), at(5));
            let whole = Payload { encoding, bytes };
            let expect = async |life: &tidegate_core::job::Lifecycle| {
                let found = get(store, &first).await;
                assert_eq!(found.life, *life);
                let bodies =
                    store.bodies(std::slice::from_ref(&first.id)).await.expect("the store is well");
                if size > INLINE_BYTES {
                    assert_eq!(
                        (found.data, bodies),
                        (Body::Beside(size as u32), vec![Some(whole.clone())]),
                        "{size} bytes"
                    );
                } else {
                    assert_eq!(
                        (found.data, bodies),
                        (Body::Inline(whole.clone()), vec![None]),
                        "{size} bytes"
                    );
                }
            };
            expect(&first.life).await;
            // What is read may be written back as it is, and does not carry the body.
            running.data = get(store, &first).await.data;
            done(store, vec![write]).await;
            expect(&running.life).await;
            let patched = Job {
                life: tidegate_core::job::Lifecycle {
                    revision: Revision(3),
                    ..running.life.clone()
                },
                ..running.clone()
            };
            done(store, vec![Write::SetJob { job: patched.clone(), was: Revision(2), all: true }])
                .await;
            expect(&patched.life).await;
        }
    }
}

/// New data takes the place of the old, larger or smaller, here, beside, or in the object store.
pub async fn a_large_body_follows_its_job(store: &dyn JobStore) {
    let large = |fill: u8| {
        Body::Inline(Payload { encoding: Encoding::MessagePack, bytes: vec![fill; 5000].into() })
    };
    let small = Body::Inline(Payload::json("[1]"));
    let object = |encoding| Body::Object { encoding, key: "bodies/é".into(), len: 123_456 };
    let mut now = job("one").build();
    add(store, [now.clone()]).await;
    let changes = [
        large(1),
        large(2),
        small.clone(),
        large(3),
        object(Encoding::Json),
        large(4),
        object(Encoding::MessagePack),
        small.clone(),
    ];
    for data in changes {
        let mut next = now.clone();
        next.life.revision.0 += 1;
        next.data = data.clone();
        done(store, vec![Write::SetJob { job: next.clone(), was: now.life.revision, all: true }])
            .await;
        let found = get(store, &next).await;
        let body = store
            .bodies(std::slice::from_ref(&next.id))
            .await
            .expect("the store is well")
            .remove(0);
        match &data {
            Body::Inline(payload) if payload.bytes.len() > INLINE_BYTES => {
                assert_eq!((found.data, body.as_ref()), (Body::Beside(5000), Some(payload)));
            }
            _ => assert_eq!((found.data, body), (data, None)),
        }
        now = next;
    }
}

/// What is removed leaves nothing behind, and its id is free.
pub async fn a_removed_job_is_gone_with_its_body_and_its_keys(store: &dyn JobStore) {
    let big = job("one").data(Encoding::Json, vec![b'1'; 4000]).build();
    let (own, others) =
        (Key::Idempotency("own".into()), Key::Unique(name("work"), "other's".into()));
    let key =
        |key: &Key, id| Write::SetKey { key: key.clone(), job: name(id), was: Expect::Absent };
    done(store, vec![key(&own, "one"), key(&others, "two"), Write::AddJob(big.clone())]).await;
    done(store, vec![Write::RemoveJob { id: big.id.clone(), was: Revision(1) }]).await;
    let id = std::slice::from_ref(&big.id);
    assert_eq!(store.get(id).await.expect("the store is well"), [None]);
    assert_eq!(store.bodies(id).await.expect("the store is well"), [None]);
    assert_eq!(
        store.keys(&[own, others]).await.expect("the store is well"),
        [None, Some(name("two"))]
    );
    let (late, next_wake) = store.overdue(Timestamp::MAX, 10).await.expect("the store is well");
    assert_eq!((late, next_wake), (vec![], None));
    let again = job("one").data(Encoding::Json, "2").build();
    add(store, [again.clone()]).await;
    assert_eq!(get(store, &again).await, again);
    assert_eq!(
        store.bodies(id).await.expect("the store is well"),
        [None],
        "no body is left over for another job"
    );
}

/// A transaction stops at its first refused write, and says which. An atomic store takes nothing
/// of it, another what comes before, and neither what comes after.
pub async fn a_refused_write_stops_its_transaction(store: &dyn JobStore) {
    let taken = job("taken").build();
    add(store, [taken.clone()]).await;
    let key = |text: &str| Key::Idempotency(text.into());
    let set =
        |text: &str| Write::SetKey { key: key(text), job: taken.id.clone(), was: Expect::Absent };
    let bad = || Write::AddJob(job("taken").priority(1).build());
    let fresh = |id: &str| Write::AddJob(job(id).build());
    let txns = [
        (0, vec![bad(), fresh("a0"), set("k0")]),
        (1, vec![fresh("a1"), bad(), set("k1")]),
        (2, vec![set("k2"), fresh("a2"), bad()]),
        (0, vec![bad(), bad(), set("k3")]),
        (
            1,
            vec![
                fresh("a4"),
                Write::RemoveJob { id: name("absent"), was: Revision(1) },
                bad(),
                set("k4"),
            ],
        ),
    ];
    for (n, (first_bad, txn)) in txns.into_iter().enumerate() {
        let where_job = txn.iter().position(
            |write| matches!(write, Write::AddJob(job) if job.id.as_str().starts_with('a')),
        );
        let where_key = txn.iter().position(|write| matches!(write, Write::SetKey { .. }));
        let (step, standing) = refused(store, txn).await;
        assert_eq!(step, first_bad, "transaction {n}");
        if n != 4 {
            assert!(matches!(&standing, CurrentRecord::Job(job) if **job == taken), "{standing:?}");
        }
        let atomic = store.capabilities().atomicity.is_atomic();
        let expected =
            |place: Option<usize>| !atomic && place.is_some_and(|place| place < first_bad);
        let added =
            store.get(&[name(&format!("a{n}"))]).await.expect("the store is well").remove(0);
        let keyed =
            store.keys(&[key(&format!("k{n}"))]).await.expect("the store is well").remove(0);
        assert_eq!(added.is_some(), expected(where_job), "the job of transaction {n}");
        assert_eq!(keyed.is_some(), expected(where_key), "the key of transaction {n}");
    }
}

/// What is written together happens as a whole or not at all, in every store, and is one step of its transaction.
pub async fn what_is_written_together_stands_together(store: &dyn JobStore) {
    let (one, gone) = (job("one").build(), job("gone").build());
    add(store, [one.clone(), gone.clone()]).await;
    let (end, ended) = step(&one, Event::Cancel { force: false }, at(1));
    let told = job("told").build();
    let together =
        |id: &str, write: Write| Write::Together(vec![Write::AddJob(job(id).build()), write]);
    done(store, vec![Write::AddJob(job("before").build()), together("told", end.clone())]).await;
    assert_eq!((get(store, &one).await, get(store, &told).await), (ended.clone(), told));
    let (step, standing) =
        refused(store, vec![Write::AddJob(job("before-2").build()), together("untold", end)]).await;
    assert_eq!(step, 1);
    assert!(matches!(&standing, CurrentRecord::Job(job) if **job == ended), "{standing:?}");
    assert_eq!(store.get(&[name("untold")]).await.expect("the store is well"), [None]);
    done(
        store,
        vec![together("told-2", Write::RemoveJob { id: gone.id.clone(), was: Revision(1) })],
    )
    .await;
    assert_eq!(
        store
            .get(&[gone.id, name("told-2")])
            .await
            .expect("the store is well")
            .iter()
            .flatten()
            .count(),
        1
    );
}

/// Each transaction of a commit is answered for itself, and sees what those before it did.
pub async fn transactions_of_one_commit_stand_alone(store: &dyn JobStore) {
    let one = job("one").build();
    let (claimed, running) = step(&one, claim(&one, true), at(1));
    let txns = vec![
        vec![Write::AddJob(one.clone())],
        vec![Write::AddJob(job("one").priority(3).build())],
        vec![claimed.clone()],
        vec![claimed],
        vec![],
        vec![Write::AddJob(job("two").build())],
    ];
    let answers = store.commit(txns).await.expect("the store is well");
    let through: Vec<bool> = answers.iter().map(is_all).collect();
    assert_eq!(through, [true, false, true, false, true, true]);
    assert!(
        matches!(&answers[3], Committed::Conflict { step: 0, standing: CurrentRecord::Job(job) } if **job == running)
    );
    assert_eq!(get(store, &one).await, running);
    assert!(store.commit(vec![]).await.expect("the store is well").is_empty());
}

/// The running jobs of a queue are read in pages by id.
pub async fn running_jobs_are_read_by_id(store: &dyn JobStore) {
    let mut expected = Vec::new();
    for (n, id) in ["c", "a", "e", "B", "d", "0"].iter().enumerate() {
        let waiting = job(id).queue(if n == 4 { "other" } else { "mail" }).build();
        let (write, running) = step(&waiting, claim(&waiting, n % 2 == 0), at(1));
        done(store, vec![Write::AddJob(waiting)]).await;
        done(store, vec![write]).await;
        if *id == "e" {
            let (write, _) = step(&running, Event::Succeed { attempt: 1, result: None }, at(2));
            done(store, vec![write]).await;
        } else if n != 4 {
            expected.push(running);
        }
    }
    add(store, [job("waiting").queue("mail").build()]).await;
    expected.sort_by(|a, b| a.id.cmp(&b.id));
    let mut found: Vec<Job> = Vec::new();
    loop {
        let page = store
            .running(&name("mail"), found.last().map(|job| &job.id), 3)
            .await
            .expect("the store is well");
        assert!(page.len() <= 3);
        if page.is_empty() {
            break;
        }
        found.extend(page);
    }
    assert_eq!(found, expected);
    assert!(store.running(&name("nobody"), None, 3).await.expect("the store is well").is_empty());
}

/// Whatever has a `wake_at` is found from then on, in every state, earliest first.
pub async fn overdue_jobs_come_earliest_first(store: &dyn JobStore) {
    let until = async |millis, limit| {
        let (jobs, next) = store.overdue(at(millis), limit).await.expect("the store is well");
        let ids: Vec<String> = jobs.iter().map(|job| job.id.to_string()).collect();
        for job in &jobs {
            assert_eq!(*job, get(store, job).await);
        }
        (ids, next.map(Timestamp::millis))
    };
    assert_eq!(until(10, 10).await, (vec![], None));
    add(
        store,
        [
            job("never").build(),
            job("third").expires(300).build(),
            job("first").expires(100).build(),
        ],
    )
    .await;
    let leased = job("second").build();
    add(store, [leased.clone()]).await;
    let (write, running) = step(&leased, claim(&leased, false), at(0));
    done(store, vec![write]).await;
    // Its lease ends at 30 s; a granted one is watched by its grant.
    let granted = job("granted").build();
    add(store, [granted.clone()]).await;
    done(store, vec![step(&granted, claim(&granted, true), at(0)).0]).await;
    assert_eq!(until(99, 10).await, (vec![], Some(100)));
    assert_eq!(until(100, 10).await, (vec!["first".into()], Some(300)));
    assert_eq!(until(300, 10).await, (vec!["first".into(), "third".into()], Some(30_000)));
    assert_eq!(until(30_000, 2).await, (vec!["first".into(), "third".into()], None));
    assert_eq!(
        until(30_000, 10).await,
        (vec!["first".into(), "third".into(), "second".into()], None)
    );
    // An end moves it to when it is dropped; a store that forgets has no more to do with it.
    let (write, ended) = step(&running, Event::Cancel { force: true }, at(40));
    done(store, vec![write]).await;
    let dropped_at = (!store.capabilities().expires_natively).then_some(40 + 30 * 86_400_000);
    assert_eq!(until(30_000, 10).await, (vec!["first".into(), "third".into()], dropped_at));
    done(store, vec![Write::RemoveJob { id: ended.id.clone(), was: ended.life.revision }]).await;
    assert_eq!(until(30_000, 10).await, (vec!["first".into(), "third".into()], None));
}
