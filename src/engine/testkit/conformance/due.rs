//! Due jobs, compared with a filter and a sort of all jobs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::{add, all_done, claim, done, refused, step};
use crate::testkit::builders::{at, job, name};
use tidegate_core::{
    job::{Job, JobId, Lifecycle, Revision, Spec, TypeName},
    port::job_store::{DuePage, DueQuery, DueRange, JobStore, ScanQuery, Write},
    queue::{
        order::{Order, Position},
        waiting::WaitingCount,
    },
    time::Timestamp,
};

const ORDERS: [Order; 7] = [
    Order::Time { step_millis: 0 },
    Order::Time { step_millis: 60 },
    Order::Time { step_millis: 60_000 },
    Order::Priority { ageing_millis: None },
    Order::Priority { ageing_millis: Some(0) },
    Order::Priority { ageing_millis: Some(7) },
    Order::Priority { ageing_millis: Some(3_600_000) },
];

/// Jobs with many ties; some are not scheduled.
async fn fill(store: &dyn JobStore, chance: &mut StdRng) -> Vec<Job> {
    let mut scheduled = Vec::new();
    let mut txns = Vec::new();
    for n in 0..400 {
        let id =
            format!("{}-{n}", ["a", "Z", "m:", "0"].choose(chance).expect("there are choices"));
        let waiting = job(&id)
            .queue(["mail", "mail", "mail", "other"].choose(chance).expect("there are choices"))
            .of_type(["x", "y", "z"].choose(chance).expect("there are choices"))
            .partition(["", "", "east", "west", "é"].choose(chance).expect("there are choices"))
            .priority(
                *[100, 100, 100, 0, -3, 7, 8, i32::MIN, i32::MAX]
                    .choose(chance)
                    .expect("there are choices"),
            )
            .critical(chance.random_bool(0.2))
            .due(chance.random_range(0..40) * 25 - 200)
            .build();
        if chance.random_bool(0.1) {
            let (write, _) = step(&waiting, claim(&waiting, true), at(0));
            txns.push(vec![Write::AddJob(waiting)]);
            txns.push(vec![write]);
        } else {
            scheduled.push(waiting.clone());
            txns.push(vec![Write::AddJob(waiting)]);
        }
    }
    all_done(store, &txns).await;
    scheduled
}

/// The expected answer to `query`, page by page, and the next due time.
fn naive(scheduled: &[Job], query: &DueQuery) -> (Vec<Job>, Option<Timestamp>) {
    let run_at = |job: &Job| job.life.run_at().expect("it is scheduled");
    let key = |job: &Job| query.order.key(job.spec.priority, run_at(job), &job.id);
    let asked = |job: &&Job| {
        job.spec.queue == query.queue
            && job.spec.critical == query.critical
            && query.types.contains(&job.spec.job_type)
            && query.partition.as_ref().is_none_or(|partition| *partition == job.spec.partition)
    };
    let mut due: Vec<Job> =
        scheduled.iter().filter(asked).filter(|job| run_at(job) <= query.until).cloned().collect();
    due.sort_by_key(key);
    let next = scheduled.iter().filter(asked).map(run_at).filter(|at| *at > query.until).min();
    (due, next)
}

/// Checks when the next job after `until` is due. A store whose index is separate may know no more
/// than a time before which none is due.
fn check_next_due(
    store: &dyn JobStore,
    found: Option<Timestamp>,
    expected: Option<Timestamp>,
    until: Timestamp,
) {
    if store.capabilities().atomicity.is_atomic() {
        assert_eq!(found, expected);
        return;
    }
    assert!(found.is_none_or(|found| until < found), "{found:?} after {until}");
    assert!(
        expected.is_none_or(|at| found.is_some_and(|found| found <= at)),
        "{found:?} for {expected:?}"
    );
}

/// Due jobs are counted by type, critical ones included, up to the given bound.
pub async fn due_jobs_are_counted_by_type_up_to_a_bound(store: &dyn JobStore) {
    let scheduled = fill(store, &mut StdRng::seed_from_u64(8)).await;
    let types: Vec<TypeName> = ["x", "z", "unknown"].map(name).to_vec();
    for until in [at(-300), at(0), at(2000)] {
        let mut wanted = BTreeMap::<TypeName, u64>::new();
        let asked = |job: &&Job| {
            job.spec.queue == name("mail")
                && types.contains(&job.spec.job_type)
                && job.life.run_at() <= Some(until)
        };
        for job in scheduled.iter().filter(asked) {
            *wanted.entry(job.spec.job_type.clone()).or_default() += 1;
        }
        let count = async |most| {
            store.count_due(&name("mail"), &types, until, most).await.expect("the store answers")
        };
        assert_eq!(count(store.capabilities().max_counted_due).await, wanted, "until {until}");
        let all: u64 = wanted.values().sum();
        for most in [1, 7, 60] {
            assert_eq!(
                count(most).await.values().sum::<u64>(),
                all.min(most.into()),
                "until {until}"
            );
        }
    }
    assert_eq!(
        store.count_due(&name("unknown"), &types, at(2000), 10).await.expect("the store answers"),
        BTreeMap::new()
    );
}

/// A queue with a job that runs, or that is due by then, is active.
pub async fn queues_with_jobs_are_active(store: &dyn JobStore) {
    let active = async |until| store.active_queues(until).await.expect("the store answers");
    assert_eq!(active(at(1000)).await, BTreeSet::new());
    let waiting = job("waiting").queue("waiting").due(500).build();
    let running = job("running").queue("running").due(0).build();
    let (claimed, _) = step(&running, claim(&running, false), at(0));
    add(store, [waiting, running]).await;
    done(store, vec![claimed]).await;
    for until in [at(500), at(100_000)] {
        let active = active(until).await;
        assert!(active.contains("waiting") && active.contains("running"), "{active:?}");
        assert!(!active.contains("other"), "{active:?}");
    }
}

/// In every order, over several types and partitions, for every page size, and behind any job, the
/// pages equal a plain sort.
pub async fn due_jobs_come_in_every_order(store: &dyn JobStore) {
    let chance = &mut StdRng::seed_from_u64(7);
    let scheduled = fill(store, chance).await;
    // A store that writes one by one is probably remote and slow.
    for round in 0..if store.capabilities().atomicity.is_atomic() { 150 } else { 21 } {
        let types = ["x", "y", "z", "unknown"]
            .iter()
            .filter(|_| chance.random_bool(0.7))
            .map(|text| name(text))
            .collect();
        let query = DueQuery {
            queue: name("mail"),
            critical: chance.random_bool(0.3),
            types,
            partition: chance.random_bool(0.3).then(|| {
                (*["", "east", "nowhere"].choose(chance).expect("there are choices")).to_owned()
            }),
            order: ORDERS[round % ORDERS.len()],
            until: at(chance.random_range(-250..850)),
            after: None,
            limit: *[1, 2, 3, 10, 64, 1000].choose(chance).expect("there are choices"),
            granted: None,
        };
        let (expected, next_due) = naive(&scheduled, &query);
        let check = |page: &DuePage, expected: &[Job], after: Option<&Position>| {
            assert!(page.jobs.len() <= query.limit as usize);
            assert!(
                page.next.is_some() || page.jobs.len() == expected.len(),
                "{query:?} {after:?}"
            );
            let jobs = &expected[..page.jobs.len().min(expected.len())];
            let ids = |jobs: &[Job]| jobs.iter().map(|job| job.id.to_string()).collect::<Vec<_>>();
            assert_eq!(ids(&page.jobs), ids(jobs), "{query:?} after {after:?}");
            assert_eq!(page.jobs, jobs);
            if page.next.is_none() || page.next_due.is_some() {
                check_next_due(store, page.next_due, next_due, query.until);
            }
            let last = jobs.last().filter(|_| jobs.len() < expected.len());
            assert_eq!(page.next, last.map(Position::of), "{query:?} after {after:?}");
        };
        // Pages from the front and behind some jobs, the last two among them.
        let mut behind: Vec<usize> = vec![0];
        if !expected.is_empty() {
            behind.extend([expected.len() - 1, expected.len()]);
            behind.extend((0..4).map(|_| chance.random_range(0..expected.len())));
        }
        let after = |jobs: usize| jobs.checked_sub(1).map(|last| Position::of(&expected[last]));
        let queries: Vec<DueQuery> =
            behind.iter().map(|jobs| DueQuery { after: after(*jobs), ..query.clone() }).collect();
        let pages = store.due(&queries).await.expect("the store answers");
        for ((jobs, page), query) in behind.iter().zip(&pages).zip(&queries) {
            check(page, &expected[*jobs..], query.after.as_ref());
        }
        // Each order once page by page.
        let mut read = 0;
        let mut chained = query.clone();
        while round < ORDERS.len() {
            let queries = std::slice::from_ref(&chained);
            let page = store.due(queries).await.expect("the store answers").remove(0);
            check(&page, &expected[read..], chained.after.as_ref());
            read += page.jobs.len();
            chained.after = page.next;
            if chained.after.is_none() {
                assert_eq!(read, expected.len());
                break;
            }
        }
    }
}

/// A scan finds every job of its types that is due in its ranges, critical ones too, and no other.
pub async fn a_scan_finds_the_due_jobs_of_its_range(store: &dyn JobStore) {
    let chance = &mut StdRng::seed_from_u64(8);
    let scheduled = fill(store, chance).await;
    for _ in 0..if store.capabilities().atomicity.is_atomic() { 60 } else { 12 } {
        let types: Vec<TypeName> = ["x", "y", "z", "unknown"]
            .iter()
            .filter(|_| chance.random_bool(0.7))
            .map(|text| name(text))
            .collect();
        let ranges = ranges(chance);
        let is_expected = |job: &&Job| {
            let is_in = |run_at| ranges.iter().any(|range| range.contains(run_at));
            job.life.run_at().is_some_and(is_in)
                && job.spec.queue == name("mail")
                && types.contains(&job.spec.job_type)
        };
        let mut expected: BTreeMap<JobId, Job> = BTreeMap::new();
        for job in scheduled.iter().filter(is_expected) {
            expected.insert(job.id.clone(), job.clone());
        }
        let (queue, page) = (name("mail"), chance.random_range(1..100));
        let query = ScanQuery { queue, types: types.clone(), ranges: ranges.clone(), page };
        let mut scan = store.scan_due(query);
        let mut found: BTreeMap<JobId, Job> = BTreeMap::new();
        while let Some(page) = scan.next().await.expect("the store answers") {
            found.extend(page.jobs.into_iter().map(|job| (job.id.clone(), job)));
            if let Some(read) = page.read_until {
                let missing = expected.values().find(|job| {
                    job.life.run_at().is_some_and(|at| at < read) && !found.contains_key(&job.id)
                });
                assert!(missing.is_none(), "{missing:?} is due before {read}");
            }
        }
        assert_eq!(found, expected, "{ranges:?} of {types:?}");
    }
}

/// Some ranges of due times, or none, as a scan needs them.
fn ranges(chance: &mut StdRng) -> Vec<DueRange> {
    let count = chance.random_range(0..5);
    let edges: BTreeSet<i64> = (0..2 * count).map(|_| chance.random_range(-250..850)).collect();
    let edges: Vec<i64> = edges.into_iter().collect();
    let pairs = edges.chunks_exact(2);
    let mut ranges: Vec<DueRange> =
        pairs.map(|pair| DueRange { from: Some(at(pair[0])), until: at(pair[1]) }).collect();
    if let Some(first) = ranges.first_mut().filter(|_| chance.random_bool(0.3)) {
        first.from = None;
    }
    ranges
}

/// Each query gets one page. An unknown queue or type has no due jobs.
pub async fn due_reads_only_the_queue_and_types_of_its_query(store: &dyn JobStore) {
    let query = |queue, types: &[&str]| DueQuery {
        queue: name(queue),
        critical: false,
        types: types.iter().map(|text| name(text)).collect(),
        partition: None,
        order: ORDERS[0],
        until: at(10),
        after: None,
        limit: 10,
        granted: None,
    };
    let large = job("large")
        .queue("mail")
        .of_type("x")
        .data(tidegate_core::job::Encoding::Json, vec![b' '; 3000])
        .build();
    add(store, [large, job("later").queue("mail").of_type("y").due(11).build()]).await;
    let queries = [
        query("mail", &["x"]),
        query("mail", &["y"]),
        query("mail", &["z"]),
        query("mail", &[]),
        query("none", &["x"]),
    ];
    let pages = store.due(&queries).await.expect("the store answers");
    let shape: Vec<_> =
        pages.iter().map(|page| (page.jobs.len(), page.next.is_some(), page.next_due)).collect();
    assert_eq!(
        shape,
        [
            (1, false, None),
            (0, false, Some(at(11))),
            (0, false, None),
            (0, false, None),
            (0, false, None)
        ]
    );
    assert_eq!(
        pages[0].jobs[0].data,
        tidegate_core::job::Body::Separate(3000),
        "a large body is stored separately"
    );
    assert!(store.due(&[]).await.expect("the store answers").is_empty());
}

/// A refused change hides no job. Two writers move a job to different partitions from the same
/// revision: it is due in the partition of the writer that won.
pub async fn a_refused_change_leaves_no_job_behind(store: &dyn JobStore) {
    let waiting = job("one").queue("mail").of_type("x").partition("a").due(3).build();
    add(store, [waiting.clone()]).await;
    let moved = |partition: &str| {
        let spec = Spec { partition: partition.into(), ..Spec::clone(&waiting.spec) };
        Job {
            spec: Arc::new(spec),
            life: Lifecycle { revision: Revision(2), ..waiting.life.clone() },
            ..waiting.clone()
        }
    };
    refused(store, vec![Write::SetJob { job: moved("b"), was: Revision(7), all: true }]).await;
    done(store, vec![Write::SetJob { job: moved("c"), was: waiting.life.revision, all: true }])
        .await;
    let query = |partition: Option<&str>| DueQuery {
        queue: name("mail"),
        critical: false,
        types: vec![name("x")],
        partition: partition.map(str::to_owned),
        order: ORDERS[0],
        until: at(10),
        after: None,
        limit: 10,
        granted: None,
    };
    // A query of the wrong partition finds what the refused write left there, and the store may
    // remember that.
    for (partition, found) in [(Some("b"), 0), (Some("a"), 0), (Some("c"), 1), (None, 1)] {
        let pages = store.due(&[query(partition)]).await.expect("the store answers");
        assert_eq!(pages[0].jobs.len(), found, "{partition:?}");
    }
}

/// The partitions that have due jobs of some types, critical or not.
pub async fn partitions_with_due_jobs_are_listed_in_pages(store: &dyn JobStore) {
    let chance = &mut StdRng::seed_from_u64(9);
    let mut scheduled = fill(store, chance).await;
    // The last one is due in a later hour.
    for (id, partition, critical, due) in
        [("c1", "aaa", true, 0), ("c2", "mmm", false, 300_000), ("c3", "zzz", true, 20_000_000)]
    {
        let alone = job(id).queue("mail").of_type("z").partition(partition).critical(critical);
        let alone = alone.due(due).build();
        scheduled.push(alone.clone());
        add(store, [alone]).await;
    }
    for (types, until) in [
        (vec!["x"], 850),
        (vec!["x", "z"], 0),
        (vec!["x", "z"], 299_999),
        (vec!["x", "y", "z"], 300_000),
        (vec!["x", "y", "z"], 20_000_000),
        (vec!["unknown"], 850),
        (vec![], 850),
    ] {
        let (types, until): (Vec<TypeName>, _) = (types.into_iter().map(name).collect(), at(until));
        for queue in ["mail", "other", "none"] {
            let queue = name(queue);
            let mut first: BTreeMap<String, Timestamp> = BTreeMap::new();
            for job in &scheduled {
                if job.spec.queue == queue && types.contains(&job.spec.job_type) {
                    let run_at = job.life.run_at().expect("it is scheduled");
                    let first = first.entry(job.spec.partition.clone()).or_insert(run_at);
                    *first = run_at.min(*first);
                }
            }
            let skip = BTreeSet::new();
            for limit in [1, 2, 100] {
                let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
                let mut next_due: Option<Timestamp> = None;
                loop {
                    let page = store
                        .partitions(&queue, &types, until, after.as_deref(), limit, &skip)
                        .await
                        .expect("the store answers");
                    assert!(page.names.len() <= limit as usize);
                    assert!(page.next.is_none() || page.next > after, "{page:?} after {after:?}");
                    found.extend(page.names);
                    next_due = next_due.into_iter().chain(page.next_due).min();
                    (after, pages) = (page.next, pages + 1);
                    if after.is_none() {
                        break;
                    }
                }
                let due = first.iter().filter(|(_, at)| **at <= until).map(|(name, _)| name);
                assert!(found.iter().eq(due), "{found:?} {first:?}");
                assert!(pages <= first.len() + 1, "{pages} pages");
                let later = first.values().filter(|at| **at > until).min().copied();
                check_next_due(store, next_due, later, until);
            }
        }
    }
}

/// What waits in each partition, without critical jobs and those that are due later.
pub async fn waiting_jobs_are_counted_by_partition(store: &dyn JobStore) {
    let chance = &mut StdRng::seed_from_u64(21);
    let mut scheduled = fill(store, chance).await;
    // One partition has the separator of two values, and heavy jobs.
    for n in 0..7 {
        let heavy = job(&format!("h{n}")).queue("mail").of_type("x").weight(5).due(10 + n);
        let heavy = heavy.partition("east\u{1f}ann").build();
        scheduled.push(heavy.clone());
        add(store, [heavy]).await;
    }
    for (types, until) in
        [(vec!["x"], 850), (vec!["x", "y", "z"], 400), (vec!["unknown"], 850), (vec![], 850)]
    {
        let (types, until): (Vec<TypeName>, _) = (types.into_iter().map(name).collect(), at(until));
        let mut due: BTreeMap<&str, Vec<&Job>> = BTreeMap::new();
        for job in &scheduled {
            let is_due = job.life.run_at().is_some_and(|at| at <= until);
            if is_due
                && job.spec.queue == name("mail")
                && types.contains(&job.spec.job_type)
                && !job.spec.critical
            {
                due.entry(&job.spec.partition).or_default().push(job);
            }
        }
        for (limit, most) in [(1, 1000), (3, 1000), (100, 1000), (100, 2)] {
            let (mut found, mut after, mut pages) = (BTreeMap::new(), None, 0);
            loop {
                let page = store
                    .count_waiting(&name("mail"), &types, until, after.as_deref(), limit, most)
                    .await
                    .expect("the store answers");
                assert!(page.counts.len() <= limit as usize);
                assert!(page.next.is_none() || page.next > after, "{page:?} after {after:?}");
                found.extend(page.counts);
                (after, pages) = (page.next, pages + 1);
                if after.is_none() {
                    break;
                }
            }
            assert!(pages <= scheduled.len() + 1, "{pages} pages");
            for (partition, jobs) in &due {
                let Some(count) = found.remove(*partition) else {
                    // The jobs that were read before the bound may be of another kind.
                    assert!(most < 1000, "{partition:?} is missing");
                    continue;
                };
                let all = WaitingCount::of(jobs.iter().copied()).expect("there are some");
                assert!(count.jobs <= all.jobs && count.jobs <= most, "{count:?} of {all:?}");
                assert!(count.jobs == all.jobs || count.at_least, "{count:?} of {all:?}");
                assert!(most < 1000 || !count.at_least, "{count:?} of {all:?}");
                assert!(count.oldest_due_at >= all.oldest_due_at, "{count:?} of {all:?}");
                if most == 1000 {
                    assert_eq!(count.oldest_due_at, all.oldest_due_at, "{partition:?}");
                }
                let is_heavy = *partition == "east\u{1f}ann";
                assert!(!is_heavy || count.weight == 5 * u64::from(count.jobs), "{count:?}");
            }
            assert!(found.is_empty(), "{found:?} has no due job");
        }
    }
}
