//! `limit`: a queue with a concurrency of ten and jobs of 10 ms. Workers report and lease in one
//! HTTP call. Twenty workers then try to exceed the limit. Servers on Postgres are three, and share the
//! workers. They are also measured without `peer_url`, so that they race.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    BenchPlan, DATA, clock, embedded::within, figure::Figure, meter::ProcessorTime,
    process::Process, worker::Worker,
};

/// The limit, and the workers of the measured run.
pub(super) const LIMIT: usize = 10;
/// The duration of a job.
const WORK: Duration = Duration::from_millis(10);
/// The number of turns of runs with and without the queue. They alternate, so that other load on
/// the machine affects both.
const TURNS: u32 = 4;
/// The longest duration of a run.
const PATIENCE: Duration = Duration::from_mins(5);
/// The limited queue, and its type.
pub(super) const QUEUE: &str = "limited";

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let place = plan.new_place()?;
    let servers = Process::serve_all(&place, plan.by_store(1, 3)).await?;
    let jobs = jobs(plan) / u64::from(TURNS);
    let (mut alone, mut rate, mut micros, mut others) = (0.0, 0.0, 0.0, 0.0);
    for _ in 0..TURNS {
        alone += without_queue(jobs).await / f64::from(TURNS);
        let (reached, most, spent) = run(&servers, LIMIT, jobs).await?;
        anyhow::ensure!(most <= LIMIT as i64, "{most} jobs ran at once under a limit of {LIMIT}");
        rate += reached / f64::from(TURNS);
        micros += spent.micros_per(jobs) / f64::from(TURNS);
        others += spent.others_cores / f64::from(TURNS);
    }
    let (_, most, _) = run(&servers, 2 * LIMIT, 2 * jobs).await?;
    let number = servers.len();
    let on = match number {
        1 => String::new(),
        servers => format!(" of {servers} servers"),
    };
    Process::stop_all(servers).await?;
    anyhow::ensure!(most <= LIMIT as i64, "{most} jobs ran at once under a limit of {LIMIT}");
    let what = format!("limit {LIMIT}, jobs of 10 ms, {LIMIT} workers{on}");
    let limited = Figure::rate(what, "jobs/s", rate).share("without a queue", alone, 0.9);
    let mut figures = vec![
        plan.by_store(limited.clone().reach(850.0), limited).among(others),
        Figure::cost(format!("most at once with {} workers", 2 * LIMIT), "jobs", most as f64)
            .reach(LIMIT as f64)
            .among(others),
        Figure::cost("limit: server's processor per job", "us", micros).among(others),
    ];
    if number > 1 {
        figures.push(racing(plan, number, jobs * u64::from(TURNS), rate).await?);
    }
    Ok(figures)
}

/// Measures `number` servers that race for the limit, because they forward no requests. The baseline is
/// the rate of those that do.
async fn racing(
    plan: &BenchPlan,
    number: usize,
    jobs: u64,
    forwarded: f64,
) -> anyhow::Result<Figure> {
    let place = plan.new_place()?;
    let servers = Process::serve_racing(&place, number).await?;
    let (rate, most, spent) = run(&servers, LIMIT, jobs).await?;
    Process::stop_all(servers).await?;
    anyhow::ensure!(most <= LIMIT as i64, "{most} jobs ran at once under a limit of {LIMIT}");
    let what = format!("limit {LIMIT}, {LIMIT} workers of {number} servers that race");
    Ok(Figure::rate(what, "jobs/s", rate)
        .baseline("with peer_url", forwarded)
        .among(spent.others_cores))
}

/// Returns the number of jobs that fill the window.
pub(super) fn jobs(plan: &BenchPlan) -> u64 {
    (plan.window.as_secs_f64() * 900.0) as u64 + 1
}

/// Runs a job: 10 ms of a thread's sleep. The timer of the runtime counts whole milliseconds and
/// takes 11.2.
async fn work() {
    #[allow(
        clippy::disallowed_methods,
        reason = "the length of the work is what is measured against"
    )]
    let slept = tokio::task::spawn_blocking(|| std::thread::sleep(WORK));
    slept.await.expect("sleeping does not fail");
}

/// Runs `jobs` jobs with workers of all servers in turn. Returns the jobs per second and the maximum
/// that ran at once.
pub(super) async fn run(
    servers: &[Process],
    workers: usize,
    jobs: u64,
) -> anyhow::Result<(f64, i64, ProcessorTime)> {
    let server = &servers[0];
    server
        .ask("PUT", &format!("/v1/queues/{QUEUE}"), &format!(r#"{{"concurrency":{LIMIT}}}"#))
        .await?;
    server
        .ask("PUT", &format!("/v1/job-types/{QUEUE}"), &format!(r#"{{"queue":"{QUEUE}"}}"#))
        .await?;
    enqueue(server, QUEUE, jobs).await?;
    let (active, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let done = Arc::new(AtomicU64::new(0));
    let meter = Process::meter_of(servers);
    let start = clock::instant();
    let mut working = Vec::new();
    for number in 0..workers {
        let address = servers[number % servers.len()].address;
        let mut worker = Worker::open(address, number, QUEUE).await?;
        let (active, most, done) = (Arc::clone(&active), Arc::clone(&most), Arc::clone(&done));
        working.push(tokio::spawn(async move {
            while done.load(Ordering::Relaxed) < jobs {
                for lease in worker.lease(1, 0.1).await? {
                    most.fetch_max(active.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    work().await;
                    active.fetch_sub(1, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::Relaxed);
                    worker.succeeded(&lease);
                }
            }
            let end = clock::instant();
            worker.lease(0, 0.0).await?;
            anyhow::Ok(end)
        }));
    }
    let mut end = start;
    for worker in working {
        // A worker without a job waits briefly. The end of the last job is the end of the
        // measurement.
        let ended = within(PATIENCE, worker).await???;
        end = if end == start { ended } else { end.min(ended) };
    }
    let rate = jobs as f64 / end.duration_since(start).as_secs_f64();
    Ok((rate, most.load(Ordering::SeqCst), meter.read()))
}

/// Enqueues `jobs` jobs of a type.
pub(super) async fn enqueue(server: &Process, job_type: &str, jobs: u64) -> anyhow::Result<()> {
    let mut left = jobs;
    while left > 0 {
        let some = left.min(1000);
        let batch: Vec<String> =
            (0..some).map(|_| format!(r#"{{"type":"{job_type}","data":{DATA}}}"#)).collect();
        server
            .ask("POST", "/v1/jobs/batch", &format!(r#"{{"jobs":[{}]}}"#, batch.join(",")))
            .await?;
        left -= some;
    }
    Ok(())
}

/// Runs the same workers and jobs without a queue.
pub(super) async fn without_queue(jobs: u64) -> f64 {
    let left = Arc::new(AtomicI64::new(jobs as i64));
    let start = clock::instant();
    let working: Vec<_> = (0..LIMIT)
        .map(|_| {
            let left = Arc::clone(&left);
            tokio::spawn(async move {
                while left.fetch_sub(1, Ordering::Relaxed) > 0 {
                    work().await;
                }
            })
        })
        .collect();
    for worker in working {
        let _ = worker.await;
    }
    jobs as f64 / start.elapsed().as_secs_f64()
}
