//! Jobs from enqueue to end through the functions: limits hold, free slots are used at once, and
//! lost messages are repaired.

use std::time::Duration;

use tidegate_core::{
    job::{
        Job, Outcome, Payload,
        lifecycle::word,
        retry::{Backoff, Jitter, Retry},
        type_config::{Start, TypeConfig},
    },
    port::{
        Clock, HintKind,
        job_store::{JobFilter, ListQuery},
    },
    queue::QueueConfig,
    schedule::ScheduleConfig,
    target::{Push, TargetConfig},
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    request::{BulkChange, BulkRequest},
    testkit::builders::name,
};
use tidegate_server::telemetry::emf::Emf;

use super::model::{Cloud, Mishaps, job};

fn push(queue: &str, path: &str) -> TypeConfig {
    let target = TargetConfig::Push(Box::new(Push::to(format!("http://worker.example/{path}"))));
    let backoff = Backoff {
        base_seconds: Seconds::new(1),
        max_seconds: Seconds::new(5),
        jitter: Jitter::None,
    };
    TypeConfig {
        queue: name(queue),
        target: Some(target),
        max_attempts: Some(20),
        retry: Retry::Exponential(backoff),
        ..TypeConfig::default()
    }
}

fn cloud(seed: u64, limit: Option<u32>) -> Cloud {
    let cloud = Cloud::new(seed);
    let limits = QueueConfig { concurrency: limit, ..QueueConfig::default() };
    cloud.now(cloud.server.put_queue(&name("q"), limits, None)).unwrap();
    cloud.now(cloud.server.put_type(&name("t"), push("q", "limited"), None)).unwrap();
    cloud
}

fn jobs(cloud: &Cloud) -> Vec<Job> {
    cloud.now(cloud.server.list(&ListQuery { limit: 1000, ..ListQuery::default() })).unwrap().jobs
}

fn all_succeeded(cloud: &Cloud, count: usize) {
    let jobs = jobs(cloud);
    assert_eq!(jobs.len(), count);
    for job in jobs {
        assert_eq!(
            job.life.ended(),
            Some(Outcome::Succeeded),
            "{} is {}",
            job.id,
            word(&job.life.state)
        );
    }
}

#[test]
fn a_limit_is_kept_and_a_freed_slot_is_used_at_once() {
    let cloud = cloud(1, Some(3));
    let start = cloud.time.now() + Duration::from_secs(1);
    (0..60).for_each(|number| cloud.enqueue_at(start, job("t", number)));
    // Twenty ticks of three jobs, each one response, hint and message after the last: seconds, not
    // minutes.
    cloud.time.run(start + Duration::from_secs(20));
    all_succeeded(&cloud, 60);
    assert_eq!(cloud.most.lock().1, 3);
}

#[test]
fn each_attempt_is_counted_with_how_late_it_began() {
    let emf = Emf::new("tidegate");
    metrics::with_local_recorder(&emf, || {
        let cloud = cloud(15, Some(1));
        cloud.now(cloud.server.put_queue(&name("f"), QueueConfig::default(), None)).unwrap();
        cloud.now(cloud.server.put_type(&name("free"), push("f", "free"), None)).unwrap();
        let start = cloud.time.now() + Duration::from_secs(1);
        (0..20).for_each(|number| cloud.enqueue_at(start, job("t", number)));
        (20..30).for_each(|number| cloud.enqueue_at(start, job("free", number)));
        cloud.time.run(start + Duration::from_secs(30));
        all_succeeded(&cloud, 30);
    });
    let lines = String::from_utf8(emf.flush(Timestamp::EPOCH)).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (queue, attempts) in [("q", 20), ("f", 10)] {
        let line = |metric: &str| {
            lines.iter().find(|line| line["queue"] == queue && !line[metric].is_null()).unwrap()
                [metric]
                .clone()
        };
        assert_eq!(line("tidegate_attempts_started_total").as_u64(), Some(attempts), "{queue}");
        let late = line("tidegate_job_start_delay_seconds");
        assert_eq!(
            late["Counts"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(serde_json::Value::as_u64)
                .sum::<u64>(),
            attempts,
            "{queue}"
        );
        // One at a time: the last waits for all that come before.
        let latest = late["Values"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(serde_json::Value::as_f64)
            .fold(0.0, f64::max);
        assert!(if queue == "q" { latest > 1.0 } else { latest < 1.0 }, "{queue}: {latest}");
    }
}

#[test]
fn a_round_that_fails_is_taken_again_within_seconds() {
    let cloud = cloud(14, Some(3));
    cloud.set_mishaps(Mishaps { refused: 0.2, ..Mishaps::default() });
    let start = cloud.time.now() + Duration::from_secs(1);
    (0..60).for_each(|number| cloud.enqueue_at(start, job("t", number)));
    // Not six minutes, the time for which a received message stays hidden with all that follow it.
    cloud.time.run(start + Duration::from_mins(1));
    all_succeeded(&cloud, 60);
    assert_eq!(cloud.most.lock().1, 3);
}

#[test]
fn a_job_that_fails_is_tried_again_with_and_without_a_limit() {
    for (seed, limit) in [(2, None), (3, Some(4))] {
        let cloud = cloud(seed, limit);
        cloud.set_mishaps(Mishaps { fails: 0.5, ..Mishaps::default() });
        let start = cloud.time.now() + Duration::from_secs(1);
        (0..40).for_each(|number| cloud.enqueue_at(start, job("t", number)));
        cloud.time.run(start + Duration::from_mins(3));
        all_succeeded(&cloud, 40);
        let attempts: usize = jobs(&cloud).iter().map(|job| usize::from(job.life.attempt)).sum();
        assert_eq!(attempts, cloud.calls.lock().len());
        assert!(attempts > 60, "{attempts}");
    }
}

#[test]
fn lost_or_doubled_messages_lose_no_job_and_break_no_limit() {
    for (seed, limit) in [(4, None), (5, Some(3)), (6, Some(1))] {
        let cloud = cloud(seed, limit);
        cloud.set_mishaps(Mishaps { lost: 0.3, twice: 0.3, fails: 0.1, refused: 0.1 });
        let start = cloud.time.now() + Duration::from_secs(1);
        (0..30).for_each(|number| {
            cloud.enqueue_at(start + Duration::from_secs(number as u64), job("t", number));
        });
        cloud.time.run(start + Duration::from_mins(90));
        all_succeeded(&cloud, 30);
        assert!(limit.is_none_or(|limit| cloud.most.lock().1 <= limit as usize));
        // Each call is an attempt that was claimed, however often its message came.
        let attempts: usize = jobs(&cloud).iter().map(|job| usize::from(job.life.attempt)).sum();
        assert_eq!(attempts, cloud.calls.lock().len());
    }
}

#[test]
fn the_first_limit_counts_work_sent_without_a_grant() {
    let cloud = cloud(7, None);
    let start = cloud.time.now() + Duration::from_secs(1);
    (0..40).for_each(|number| cloud.enqueue_at(start, job("t", number)));
    // Sent, but not yet received.
    cloud.time.run(start + Duration::from_millis(48));
    assert!(cloud.calls.lock().is_empty());
    let limits = QueueConfig { concurrency: Some(2), ..QueueConfig::default() };
    cloud.now(cloud.server.put_queue(&name("q"), limits, None)).unwrap();
    cloud.now(cloud.server.flush()).unwrap();
    cloud.time.run(start + Duration::from_mins(3));
    all_succeeded(&cloud, 40);
    assert!(cloud.most.lock().1 <= 2, "{:?}", cloud.most);
}

#[test]
fn a_timer_published_late_still_runs_its_tick() {
    let cloud = cloud(9, Some(1));
    cloud.set_mishaps(Mishaps { lost: 1.0, ..Mishaps::default() });
    let now = cloud.time.now();
    for (number, seconds) in [(1, 60), (2, 1)] {
        let mut later = job("t", number);
        later.run_at = Some(now + Duration::from_secs(seconds));
        cloud.now(cloud.server.enqueue(later)).unwrap();
        cloud.now(cloud.server.flush()).unwrap();
    }
    // A tick requests the next one, and its response is slow.
    cloud
        .now(cloud.server.tick_queue(&name("q"), vec![HintKind::Due], now + Duration::from_mins(1)))
        .unwrap();
    cloud.time.run(now + Duration::from_secs(5));
    cloud.set_mishaps(Mishaps::default());
    cloud.now(cloud.server.flush()).unwrap();
    cloud.time.run(now + Duration::from_mins(2));
    all_succeeded(&cloud, 2);
}

#[test]
fn unclaimed_jobs_are_written_once_and_lost_messages_resent() {
    let cloud = cloud(8, None);
    let plain = TypeConfig { start: Start::Plain, ..push("q", "work") };
    cloud.now(cloud.server.put_type(&name("p"), plain, None)).unwrap();
    cloud.set_mishaps(Mishaps { lost: 0.5, ..Mishaps::default() });
    let start = cloud.time.now() + Duration::from_secs(1);
    (0..20).for_each(|number| cloud.enqueue_at(start, job("p", number)));
    cloud.time.run(start + Duration::from_hours(1));
    all_succeeded(&cloud, 20);
    assert!(jobs(&cloud).iter().all(|job| job.life.revision.0 == 2), "accepted, and ended");
}

#[test]
fn a_paused_schedule_makes_no_job_and_resumes_at_once() {
    let cloud = cloud(14, None);
    let beat = ScheduleConfig::every(name("t"), Seconds::new(1));
    cloud.now(cloud.server.put_schedule(&name("beat"), beat, Payload::null(), None)).unwrap();
    cloud.now(cloud.server.flush()).unwrap();
    // Like a function, it publishes its hints before it answers.
    let pause = |paused| {
        cloud.now(cloud.server.pause_schedule(&name("beat"), paused)).unwrap();
        cloud.now(cloud.server.flush()).unwrap();
    };
    let start = cloud.time.now();
    let after = |seconds| start + Duration::from_secs(seconds);
    cloud.time.run(after(100));
    pause(true);
    let beats = || cloud.calls.lock().len();
    assert!((98..=100).contains(&beats()), "{}", beats());
    // The messages in transit arrive.
    cloud.time.run(after(101));
    let before = beats();
    cloud.time.run(after(400));
    assert_eq!(beats(), before, "nothing occurs");
    pause(false);
    cloud.time.run(after(405));
    assert!((before + 3..=before + 5).contains(&beats()), "{} after {before}", beats());
}

#[test]
fn the_end_of_a_job_is_posted_to_its_callback_url() {
    let cloud = cloud(11, Some(1));
    let with_callback = job("t", 0).with_options(|options| {
        options.callback_url = Some("http://client.example/callback".parse().unwrap());
    });
    let start = cloud.time.now() + Duration::from_secs(1);
    cloud.enqueue_at(start, with_callback);
    cloud.time.run(start + Duration::from_secs(5));
    let calls: Vec<String> = cloud.calls.lock().iter().map(|(id, _)| id.to_string()).collect();
    assert_eq!(
        calls,
        ["t-0", "t-0"],
        "the worker, and then the client, whose body has the job's id"
    );
}

#[test]
fn a_bulk_operation_goes_on_from_call_to_call() {
    let cloud = cloud(12, Some(0));
    for number in 0..1200 {
        cloud.now(cloud.server.enqueue(job("t", number))).unwrap();
    }
    let filter = JobFilter { queue: Some(name("q")), ..JobFilter::default() };
    let asked =
        cloud.now(cloud.server.bulk(BulkRequest::new(BulkChange::Cancel, filter), None)).unwrap();
    assert_eq!(asked.state, "running");
    // No time at all is left to the first call: it takes one page.
    let now = cloud.time.now();
    assert!(!cloud.now(cloud.server.operate(&asked.id, now)).unwrap());
    assert_eq!(cloud.now(cloud.server.operation(&asked.id)).unwrap().done, 500);
    cloud.now(cloud.server.flush()).unwrap();
    cloud.time.run(now + Duration::from_secs(5));
    let done = cloud.now(cloud.server.operation(&asked.id)).unwrap();
    assert_eq!((done.state.as_str(), done.matched, done.done), ("done", 1200, 1200));
}

#[test]
fn a_bulk_replay_publishes_its_jobs_page_by_page() {
    let cloud = cloud(14, None);
    let filter = || JobFilter { queue: Some(name("q")), ..JobFilter::default() };
    for number in 0..550 {
        cloud.now(cloud.server.enqueue(job("t", number))).unwrap();
    }
    let cancel =
        cloud.now(cloud.server.bulk(BulkRequest::new(BulkChange::Cancel, filter()), None)).unwrap();
    assert!(cloud.now(cloud.server.operate(&cancel.id, Timestamp::MAX)).unwrap());
    cloud.now(cloud.server.flush()).unwrap();
    let before = cloud.count("work");
    let replay = BulkRequest::new(BulkChange::Replay { again: false }, filter());
    let replay = cloud.now(cloud.server.bulk(replay, None)).unwrap();
    assert!(!cloud.now(cloud.server.operate(&replay.id, cloud.time.now())).unwrap());
    // A message has ten jobs.
    assert_eq!(cloud.count("work") - before, 50, "the first page is published, its rest is not");
}

#[test]
fn a_dead_letter_of_the_work_queue_is_a_failed_attempt() {
    let cloud = cloud(13, Some(1));
    cloud
        .now(cloud.server.put_type(
            &name("once"),
            TypeConfig { max_attempts: Some(1), ..push("q", "work") },
            None,
        ))
        .unwrap();
    cloud.set_mishaps(Mishaps { lost: 1.0, ..Mishaps::default() });
    let start = cloud.time.now() + Duration::from_secs(1);
    cloud.enqueue_at(start, job("once", 0));
    cloud.time.run(start + Duration::from_secs(1));
    cloud
        .now(cloud.server.tick_queue(
            &name("q"),
            vec![HintKind::Due],
            start + Duration::from_secs(30),
        ))
        .unwrap();
    let work = tidegate_core::port::Work {
        queue: name("q"),
        job: name("once-0"),
        version: tidegate_core::job::Version(1),
        run_at: start,
        granted_at: Some(cloud.time.now()),
        data_bytes: 0,
    };
    assert_eq!(cloud.now(cloud.server.fail_undeliverable(vec![work.clone(), work])), [true, true]);
    let job = cloud.now(cloud.server.job(&name("once-0"), None)).unwrap();
    assert_eq!((job.life.ended(), job.life.attempt), (Some(Outcome::Failed), 1));
    assert_eq!(job.life.error.unwrap().reason.as_str(), "not_delivered");
}
