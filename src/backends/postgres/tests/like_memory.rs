//! The store answers as the one in memory does, after many random commits.

use std::collections::HashSet;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use tokio::time::Instant;

use super::server::{RUNTIME, open, settings, store};
use tidegate_core::{
    job::{Event, Job, JobId, State, Token},
    port::job_store::{Committed, DueQuery, JobStore, Key, Txn, Write},
    queue::order::Order,
    time::Seconds,
};
use tidegate_engine::{
    memory::MemoryStore,
    testkit::builders::{at, job, name},
};

/// A random new job.
fn new_job(chance: &mut StdRng, n: usize) -> Job {
    job(&format!("job-{n}"))
        .queue(["mail", "other"].choose(chance).unwrap())
        .of_type(["x", "y", "z"].choose(chance).unwrap())
        .partition(["", "east", "é", "a\u{1}b", "a\0b", "a\0"].choose(chance).unwrap())
        .priority(*[100, 100, 0, -3, i32::MAX].choose(chance).unwrap())
        .critical(chance.random_bool(0.1))
        .due(chance.random_range(0..2000))
        .build()
}

/// A random change of `job`, if one may follow.
fn change(chance: &mut StdRng, job: &Job) -> Option<Job> {
    let event = match &job.life.state {
        State::Scheduled { .. } if chance.random_bool(0.5) => Event::Claim {
            version: job.life.version,
            token: Token::new(7),
            worker: None,
            lease: Seconds::new(30).duration(),
            granted: true,
            decided_at: at(i64::MAX / 2),
        },
        State::Scheduled { .. } if chance.random_bool(0.7) => {
            Event::Patch { run_at: Some(at(chance.random_range(0..2000))) }
        }
        State::Scheduled { .. } => Event::Cancel { force: false },
        State::Running(_) => Event::Succeed { attempt: job.life.attempt, result: None },
        State::Ended { .. } => return None,
    };
    job.apply(event, at(5000)).ok()
}

/// The seeds to run: one, or as many as the environment says.
#[allow(clippy::disallowed_methods, reason = "the caller decides how many seeds to run")]
fn seeds() -> std::ops::Range<u64> {
    let text = std::env::var("TIDEGATE_SEEDS").ok();
    11..11 + text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(1)
}

/// Two servers commit in turn. A page of a server, whatever places it remembers, has all due jobs that
/// the server wrote last, and no wrong one. After a look from the front it equals that of the store
/// in memory.
#[test]
fn due_jobs_are_those_of_the_store_in_memory() {
    seeds().for_each(compare_with_memory);
}

/// Makes 60 rounds of about 20 commits, and compares after each round.
fn compare_with_memory(seed: u64) {
    let settings = settings();
    let (servers, memory) = ([open(&settings), open(&settings)], MemoryStore::new());
    let chance = &mut StdRng::seed_from_u64(seed);
    // With the server that has written each.
    let mut jobs: Vec<(Job, usize)> = Vec::new();
    for round in 0..60 {
        let mut txns: Vec<Txn> = Vec::new();
        let server = chance.random_range(0..2);
        for _ in 0..20 {
            if jobs.is_empty() || chance.random_bool(0.5) {
                let new = new_job(chance, jobs.len());
                txns.push(vec![Write::AddJob(new.clone())]);
                jobs.push((new, server));
            } else {
                let n = chance.random_range(0..jobs.len());
                let Some(next) = change(chance, &jobs[n].0) else { continue };
                let (was, all) = (jobs[n].0.life.revision, chance.random_bool(0.2));
                txns.push(vec![Write::SetJob { job: next.clone(), was, all }]);
                // Now and then a stale change, which both refuse.
                if chance.random_bool(0.1) {
                    txns.push(vec![Write::SetJob { job: next.clone(), was, all }]);
                }
                jobs[n] = (next, server);
            }
        }
        RUNTIME.block_on(async {
            let ours = servers[server].commit(txns.clone()).await.unwrap();
            let theirs = memory.commit(txns).await.unwrap();
            let all = |answers: &[Committed]| {
                answers.iter().map(|it| matches!(it, Committed::All)).collect::<Vec<_>>()
            };
            assert_eq!(all(&ours), all(&theirs), "seed {seed}, round {round}");
            for _ in 0..3 {
                for (server, store) in servers.iter().enumerate() {
                    let own = jobs.iter().filter(|(_, writer)| *writer == server);
                    let own: HashSet<&JobId> = own.map(|(job, _)| &job.id).collect();
                    contains_own(store, &memory, &own, chance).await;
                }
            }
            for _ in 0..3 {
                let store = &servers[chance.random_range(0..2)];
                store.shared.positions.look_at(Instant::now());
                compare(store, &memory, chance).await;
            }
        });
    }
}

/// The first page of a server that may not have looked since another one committed.
async fn contains_own(
    store: &impl JobStore,
    memory: &impl JobStore,
    own: &HashSet<&JobId>,
    chance: &mut StdRng,
) {
    let query = DueQuery { limit: 1000, ..random_query(chance) };
    let ours = store.due(std::slice::from_ref(&query)).await.unwrap().remove(0).jobs;
    let mut theirs = memory.due(std::slice::from_ref(&query)).await.unwrap().remove(0).jobs;
    let found: HashSet<&JobId> = ours.iter().map(|job| &job.id).collect();
    theirs.retain(|job| found.contains(&job.id) || own.contains(&job.id));
    assert_eq!(ours, theirs, "{query:?}");
}

fn random_query(chance: &mut StdRng) -> DueQuery {
    let orders = [
        Order::Time { step_millis: 0 },
        Order::Time { step_millis: 500 },
        Order::Priority { ageing_millis: None },
        Order::Priority { ageing_millis: Some(7) },
    ];
    DueQuery {
        queue: name(["mail", "other"].choose(chance).unwrap()),
        critical: chance.random_bool(0.2),
        types: ["x", "y", "z"]
            .iter()
            .filter(|_| chance.random_bool(0.7))
            .map(|it| name(it))
            .collect(),
        partition: chance
            .random_bool(0.3)
            .then(|| (*["", "east", "a\0b"].choose(chance).unwrap()).to_owned()),
        order: *orders.choose(chance).unwrap(),
        until: at(chance.random_range(0..2200)),
        after: None,
        limit: *[5, 40, 1000].choose(chance).unwrap(),
        granted: None,
    }
}

async fn compare(postgres: &impl JobStore, memory: &impl JobStore, chance: &mut StdRng) {
    let mut query = random_query(chance);
    loop {
        let ours = postgres.due(std::slice::from_ref(&query)).await.unwrap().remove(0);
        let theirs = memory.due(std::slice::from_ref(&query)).await.unwrap().remove(0);
        assert_eq!(ours.jobs, theirs.jobs, "{query:?}");
        assert_eq!(ours.next, theirs.next, "{query:?}");
        // A page that is not the last one need not say it.
        if ours.next.is_none() || ours.next_due.is_some() {
            assert_eq!(ours.next_due, theirs.next_due, "{query:?}");
        }
        query.after = ours.next;
        if query.after.is_none() {
            return;
        }
    }
}

#[test]
fn a_key_may_contain_any_character() {
    let store = store();
    let keys = ["a\0b", "a\u{1}\u{1}b", "a\u{1}b", "é"].map(|text| Key::Idempotency(text.into()));
    RUNTIME.block_on(async {
        for (n, key) in keys.iter().enumerate() {
            let set = Write::SetKey {
                key: key.clone(),
                job: name(&format!("job-{n}")),
                was: tidegate_core::port::job_store::Expect::Absent,
            };
            let answers = store.commit(vec![vec![set]]).await.unwrap();
            assert!(matches!(answers[0], Committed::All), "{answers:?}");
        }
        let found = store.keys(&keys).await.unwrap();
        let expected: Vec<_> = (0..4).map(|n| Ok(Some(name(&format!("job-{n}"))))).collect();
        assert_eq!(found, expected);
    });
}
