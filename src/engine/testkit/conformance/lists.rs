//! Lists and counts, compared with a filter and a sort of all jobs.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::{all_done, claim, done, step};
use crate::testkit::builders::{at, job, name};
use tidegate_core::{
    job::{Event, Job, Outcome, Phase, Value},
    port::{
        job_filter::{ErrorFilter, JobFilter, TimeRange},
        job_store::{Depth, JobStore, ListQuery, StateFilter, Write},
    },
    time::Timestamp,
};

const STATES: [StateFilter; 7] = [
    StateFilter::Scheduled,
    StateFilter::Running,
    StateFilter::Ended(Outcome::Succeeded),
    StateFilter::Ended(Outcome::Failed),
    StateFilter::Ended(Outcome::Expired),
    StateFilter::Ended(Outcome::Cancelled),
    StateFilter::Ended(Outcome::Dropped),
];

/// Jobs in every state, some of them accepted in the same millisecond.
async fn fill(store: &dyn JobStore) -> Vec<Job> {
    use tidegate_core::job::lifecycle::{Failure, Reason, RetryDecision};
    let chance = &mut StdRng::seed_from_u64(3);
    let mut jobs = Vec::new();
    // The writes of each job one after the other, and those of many jobs together.
    let mut rounds = [Vec::new(), Vec::new(), Vec::new()];
    for n in 0..300 {
        let mut now = job(&format!("job-{}-{n}", chance.random_range(10..99)))
            .queue(["mail", "other"].choose(chance).expect("there are choices"))
            .of_type(["x", "y", "z"].choose(chance).expect("there are choices"))
            .created(chance.random_range(0..100))
            .expires(1000)
            .attribute("region", *["east", "west"].choose(chance).expect("there are choices"))
            .attribute("size", chance.random_range(0..3))
            .partition(["", "p"].choose(chance).expect("there are choices"))
            .build();
        rounds[0].push(vec![Write::AddJob(now.clone())]);
        let mut running = claim(&now, true);
        if let Event::Claim { worker, .. } = &mut running {
            *worker = chance.random_bool(0.5).then(|| "w1".into());
        }
        let failure = Failure::new(Reason::Failed, "no");
        let events = match chance.random_range(0..8) {
            0 => vec![running],
            1 => vec![running, Event::Succeed { attempt: 1, result: None }],
            2 => vec![running, Event::Fail { attempt: 1, failure, next: RetryDecision::GiveUp }],
            3 => vec![Event::Expire],
            4 => vec![Event::Cancel { force: false }],
            5 => vec![Event::Drop { reason: "no".into() }],
            _ => vec![],
        };
        for (round, event) in (1..).zip(events) {
            let when = at(if event == Event::Expire { 1000 } else { 500 });
            let (write, next) = step(&now, event, when);
            rounds[round].push(vec![write]);
            now = next;
        }
        jobs.push(now);
    }
    for txns in &rounds {
        all_done(store, txns).await;
    }
    jobs
}

/// All pages of `query`, which must end, and must be newest first if the store lists by creation.
async fn all(store: &dyn JobStore, query: &ListQuery) -> Vec<Job> {
    let mut query = query.clone();
    let mut found: Vec<Job> = Vec::new();
    loop {
        let page = store.list(&query).await.expect("the store answers");
        assert!(page.jobs.len() <= query.limit as usize);
        found.extend(page.jobs);
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    let newest_first = found.is_sorted_by(|a, b| a.spec.created_at >= b.spec.created_at);
    assert!(newest_first || !store.capabilities().lists_by_creation, "newest first");
    found
}

fn sorted(mut jobs: Vec<Job>) -> Vec<Job> {
    jobs.sort_by(|a, b| a.id.cmp(&b.id));
    jobs
}

/// The pages contain every job once, newest first, for every page size.
pub async fn lists_are_newest_first_and_page_through_everything(store: &dyn JobStore) {
    let empty = store
        .list(&ListQuery { limit: 5, ..ListQuery::default() })
        .await
        .expect("the store answers");
    assert_eq!((empty.jobs, empty.next_cursor), (vec![], None));
    let jobs = sorted(fill(store).await);
    for limit in [1, 7, 299, 300, 1000] {
        assert_eq!(sorted(all(store, &ListQuery { limit, ..ListQuery::default() }).await), jobs);
    }
    // A job that is removed while its page is read hides no other job.
    let first = store
        .list(&ListQuery { limit: 10, ..ListQuery::default() })
        .await
        .expect("the store answers");
    let gone = first.jobs.last().expect("there are ten");
    done(store, vec![Write::RemoveJob { id: gone.id.clone(), was: gone.life.revision }]).await;
    let rest =
        all(store, &ListQuery { limit: 50, cursor: first.next_cursor, ..ListQuery::default() })
            .await;
    assert_eq!(rest.len(), 290);
}

/// A range of the seconds below `end`, often open.
fn range(chance: &mut StdRng, end: i64) -> TimeRange {
    let mut bound = || chance.random_bool(0.3).then(|| at(chance.random_range(0..end)));
    TimeRange { from: bound(), to: bound() }
}

/// Every filter, alone and together with others.
pub async fn lists_keep_to_their_filters(store: &dyn JobStore) {
    let jobs = fill(store).await;
    let chance = &mut StdRng::seed_from_u64(4);
    // A store that writes one by one is probably remote and slow.
    for round in 0..if store.capabilities().atomicity.is_atomic() { 200 } else { 60 } {
        let mut filter = JobFilter::default();
        let mut query = ListQuery {
            limit: *[17, 50, 1000].choose(chance).expect("there are choices"),
            now: at(chance.random_range(0..100)),
            ..ListQuery::default()
        };
        filter.job_type = chance
            .random_bool(0.3)
            .then(|| name(["x", "y", "unknown"].choose(chance).expect("there are choices")));
        filter.queue = chance
            .random_bool(0.3)
            .then(|| name(["mail", "other", "unknown"].choose(chance).expect("there are choices")));
        query.within_types = chance.random_bool(0.2).then(|| [name("x"), name("z")].into());
        query.within_queues = match chance.random_range(0..6) {
            0 => Some([name("mail"), name("unknown")].into()),
            1 => Some([name("mail"), name("other")].into()),
            2 => Some([].into()),
            _ => None,
        };
        filter.states =
            STATES.into_iter().filter(|_| round % 2 == 0 && chance.random_bool(0.3)).collect();
        if chance.random_bool(0.3) {
            let phases = Phase::ALL.into_iter().filter(|_| chance.random_bool(0.3));
            filter.phases = phases.collect();
        }
        if chance.random_bool(0.3) {
            filter.attributes.insert("region".into(), Value::Text("east".into()));
        }
        if chance.random_bool(0.2) {
            filter.attributes.insert("size".into(), Value::Text("1".into()));
        }
        filter.created = range(chance, 100);
        if chance.random_bool(0.2) {
            (filter.due, filter.started) = (range(chance, 600), range(chance, 600));
            filter.ended = range(chance, 1200);
        }
        filter.min_attempt = chance.random_bool(0.1).then_some(1);
        filter.max_attempt = chance.random_bool(0.1).then_some(0);
        if chance.random_bool(0.1) {
            filter.error = ErrorFilter { contains: Some("NO".into()), ..ErrorFilter::default() };
        }
        if chance.random_bool(0.1) {
            filter.worker = Some("w1".into());
        }
        query.filter = filter;
        let expected: Vec<Job> = jobs.iter().filter(|job| query.asks_for(job)).cloned().collect();
        assert_eq!(sorted(all(store, &query).await), sorted(expected), "{query:?}");
    }
}

/// A live job is found by its type, its queue or both, until it has ended.
pub async fn a_live_job_is_found_until_it_has_ended(store: &dyn JobStore) {
    let found = async |job_type: Option<&str>, queue: Option<&str>| {
        let (job_type, queue) = (job_type.map(name), queue.map(name));
        let live = store.live_job(job_type.as_ref(), queue.as_ref()).await;
        live.expect("the store answers").map(|job| job.expect("it can be read").id.to_string())
    };
    assert_eq!(found(None, None).await, None);
    let mut live = [("first", "mail", "x", 100), ("later", "other", "y", 1_000_000)]
        .map(|(id, queue, kind, due)| job(id).queue(queue).of_type(kind).due(due).build());
    for job in &live {
        done(store, vec![Write::AddJob(job.clone())]).await;
    }
    for moved in [false, true] {
        for (id, queue, kind) in [("first", "mail", "x"), ("later", "other", "y")] {
            for (kind, queue) in
                [(Some(kind), None), (None, Some(queue)), (Some(kind), Some(queue))]
            {
                assert_eq!(found(kind, queue).await.as_deref(), Some(id), "{moved}");
            }
        }
        assert_eq!(found(Some("x"), Some("other")).await, None);
        assert_eq!(found(Some("unknown"), None).await, None);
        if !moved {
            // One runs; the other one keeps its place.
            let (write, next) = step(&live[0], claim(&live[0], false), at(100));
            done(store, vec![write]).await;
            live[0] = next;
        }
    }
    let ends = [Event::Succeed { attempt: 1, result: None }, Event::Cancel { force: false }];
    for (job, event) in live.iter().zip(ends) {
        let (write, _) = step(job, event, at(200));
        done(store, vec![write]).await;
    }
    assert_eq!(found(None, None).await, None);
}

/// A cursor that no page returned is a mistake of the caller, and harmless.
pub async fn a_strange_cursor_lists_nothing(store: &dyn JobStore) {
    fill(store).await;
    for cursor in ["", "x", "12", "_", "twelve_a"] {
        let query = ListQuery { limit: 10, cursor: Some(cursor.into()), ..ListQuery::default() };
        let page = store.list(&query).await.expect("the store answers");
        assert_eq!((page.jobs, page.next_cursor), (vec![], None), "{cursor:?}");
    }
}

/// The counts by queue, type and state are exact after every kind of write; those of live jobs if
/// the store keeps them.
pub async fn depth_equals_a_recount(store: &dyn JobStore) {
    let count = async |jobs: &[Job]| {
        let mut expected = BTreeMap::<_, u64>::new();
        for job in jobs {
            let place = (
                job.spec.queue.clone(),
                job.spec.job_type.clone(),
                StateFilter::from(&job.life.state),
            );
            *expected.entry(place).or_default() += 1;
        }
        store.keep_counts(Timestamp::MAX).await.expect("the store answers");
        let depths = store.depth(None).await.expect("the store answers");
        if depths.kept.is_some() {
            // It counts what has ended a while later, and keeps it although the job is removed.
            expected.retain(|(_, _, state), _| !matches!(state, StateFilter::Ended(_)));
        }
        let is_expected = |depth: &Depth| {
            depth.jobs > 0
                && (depths.kept.is_none() || !matches!(depth.state, StateFilter::Ended(_)))
        };
        let found: BTreeMap<_, _> = depths
            .counts
            .iter()
            .filter(|depth| is_expected(depth))
            .cloned()
            .map(|depth| ((depth.queue, depth.job_type, depth.state), depth.jobs))
            .collect();
        assert_eq!(found, expected);
    };
    count(&[]).await;
    let mut jobs = fill(store).await;
    count(&jobs).await;
    let (mut first, mut then) = (Vec::new(), Vec::new());
    for job in jobs.split_off(200) {
        first.push(vec![Write::RemoveJob { id: job.id, was: job.life.revision }]);
    }
    for job in &mut jobs {
        // Only the revision changes, and then the type.
        for (all, kind, changes) in [
            (false, job.spec.job_type.as_str().to_owned(), &mut first),
            (true, "moved".to_owned(), &mut then),
        ] {
            let was = job.life.revision;
            job.life.revision.0 += 1;
            let mut spec = tidegate_core::job::Spec::clone(&job.spec);
            spec.job_type = name(&kind);
            job.spec = spec.into();
            changes.push(vec![Write::SetJob { job: job.clone(), was, all }]);
        }
    }
    all_done(store, &first).await;
    all_done(store, &then).await;
    count(&jobs).await;
}
