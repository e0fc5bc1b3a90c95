//! Pages of due jobs start at remembered places, and find what other servers schedule.

use std::time::Duration;

use tokio::time::Instant;

use super::server::{RUNTIME, open, settings};
use tidegate_core::{
    job::{Event, Job, Token},
    port::job_store::{DueQuery, JobStore, Write},
    queue::order::Order,
    time::Seconds,
};
use tidegate_engine::testkit::builders::{at, job, name};

fn query(limit: u32) -> DueQuery {
    DueQuery {
        queue: name("mail"),
        critical: false,
        types: vec![name("x")],
        partition: None,
        order: Order::Time { step_millis: 0 },
        until: at(1_000_000),
        after: None,
        limit,
        granted: None,
    }
}

fn due_at(n: i64) -> Job {
    job(&format!("job-{n:05}")).queue("mail").of_type("x").due(n).build()
}

/// The claim of a job.
fn claim(job: &Job) -> Write {
    let event = Event::Claim {
        version: job.life.version,
        token: Token::new(7),
        worker: None,
        lease: Seconds::new(30).duration(),
        granted: true,
        decided_at: at(i64::MAX / 2),
    };
    let next = job.apply(event, at(2_000_000)).unwrap();
    Write::SetJob { job: next, was: job.life.revision, all: false }
}

async fn ids(store: &impl JobStore, limit: u32) -> Vec<String> {
    let page = store.due(&[query(limit)]).await.unwrap().remove(0);
    page.jobs.iter().map(|job| job.id.to_string()).collect()
}

/// Another server adds a job that is due before all others. This server's pages start behind its
/// place, and one from the front finds it.
#[test]
fn a_job_of_another_server_is_found_by_a_look_from_the_front() {
    let settings = settings();
    let (ours, other) = (open(&settings), open(&settings));
    RUNTIME.block_on(async {
        let jobs: Vec<Job> = (100..110).map(due_at).collect();
        let add = |job: &Job| vec![Write::AddJob(job.clone())];
        ours.commit(jobs.iter().map(add).collect()).await.unwrap();
        // The first page looks, and the second one learns.
        assert_eq!(ids(&ours, 2).await, ["job-00100", "job-00101"]);
        assert_eq!(ids(&ours, 2).await, ["job-00100", "job-00101"]);
        other.commit(vec![add(&due_at(5))]).await.unwrap();
        let began = Instant::now();
        while ids(&ours, 1).await != ["job-00005"] {
            assert!(began.elapsed() < Duration::from_secs(30), "it is never found");
        }
        // An own commit is found at once.
        ours.commit(vec![add(&due_at(3)), vec![claim(&due_at(5))]]).await.unwrap();
        assert_eq!(ids(&ours, 1).await, ["job-00003"]);
    });
}
