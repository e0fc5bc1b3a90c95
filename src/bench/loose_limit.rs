//! `loose-limit`: what a limit costs that never binds, on one server and on three that share the
//! workers. All is over HTTP, and each worker reports and leases in one call.

use std::time::Duration;

use super::{BenchPlan, clock, figure::Figure, limit, process::Process, rickover::drain};

/// The limit: more than the workers.
const LIMIT: u64 = 10_000;
/// The queue without the limit, and its type.
const UNLIMITED: &str = "unlimited";
/// The queue with the limit, and its type.
const LIMITED: &str = "loose";
/// The numbers of servers.
const SERVERS: [usize; 2] = [1, 3];
/// The number of turns of both queues. They alternate, so that other load on the machine affects both.
const TURNS: u64 = 3;
/// The share of the rate without the limit that is the goal.
const REACH: f64 = 0.95;

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let jobs = (plan.drain / TURNS).max(1);
    let mut figures = Vec::new();
    for number in SERVERS {
        let place = plan.new_place()?;
        let servers = Process::serve_all(&place, number).await?;
        for (queue, config) in
            [(UNLIMITED, "{}".to_owned()), (LIMITED, format!(r#"{{"concurrency":{LIMIT}}}"#))]
        {
            servers[0].ask("PUT", &format!("/v1/queues/{queue}"), &config).await?;
            let job_type = format!(r#"{{"queue":"{queue}"}}"#);
            servers[0].ask("PUT", &format!("/v1/job-types/{queue}"), &job_type).await?;
        }
        let meter = Process::meter_of(&servers);
        let (mut without, mut with) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..TURNS {
            without += turn(&servers, UNLIMITED, plan.clients, jobs).await?;
            with += turn(&servers, LIMITED, plan.clients, jobs).await?;
        }
        let others = meter.read().others_cores;
        Process::stop_all(servers).await?;
        let rate = |wall: Duration| (jobs * TURNS) as f64 / wall.as_secs_f64();
        let name = match number {
            1 => "one server".to_owned(),
            number => format!("{number} servers"),
        };
        figures.push(
            Figure::rate(format!("drain with a limit of {LIMIT}, {name}"), "jobs/s", rate(with))
                .share("without a limit", rate(without), REACH)
                .among(others),
        );
    }
    Ok(figures)
}

/// Enqueues jobs, and returns how long the workers take for them.
async fn turn(
    servers: &[Process],
    queue: &str,
    workers: usize,
    jobs: u64,
) -> anyhow::Result<Duration> {
    limit::enqueue(&servers[0], queue, jobs).await?;
    let start = clock::instant();
    drain(servers, queue, workers, jobs).await?;
    Ok(start.elapsed())
}
