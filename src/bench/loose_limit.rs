//! `loose-limit`: what a limit costs that never binds, on one server and on three that share the
//! workers. All is over HTTP, and each worker reports and leases in one call. Three servers are also
//! measured without `peer_url`, so that they race.

use std::time::Duration;

use super::{
    BenchPlan, clock,
    figure::Figure,
    limit,
    process::Process,
    rickover::{SHORT_WAIT, drain},
    worker::Worker,
};

/// The limit: more than the workers.
const LIMIT: u64 = 10_000;
/// The queue without the limit, and its type.
const UNLIMITED: &str = "unlimited";
/// The queue with the limit, and its type.
pub(super) const LIMITED: &str = "loose";
/// The numbers of servers.
const SERVERS: [usize; 2] = [1, 3];
/// The number of turns of both queues. They alternate, so that other load on the machine affects both.
const TURNS: u64 = 3;
/// The share of the rate without the limit that is the goal.
const REACH: f64 = 0.95;

/// Jobs per second with the limit and without it.
struct Rates {
    with: f64,
    without: f64,
    others_cores: f64,
}

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for number in SERVERS {
        let place = plan.new_place()?;
        let ours = rates(Process::serve_all(&place, number).await?, plan).await?;
        let name = match number {
            1 => "one server".to_owned(),
            number => format!("{number} servers"),
        };
        let what = format!("drain with a limit of {LIMIT}, {name}");
        figures.push(
            Figure::rate(&what, "jobs/s", ours.with)
                .share("without a limit", ours.without, REACH)
                .among(ours.others_cores),
        );
        if number > 1 {
            let place = plan.new_place()?;
            let racing = rates(Process::serve_racing(&place, number).await?, plan).await?;
            figures.push(
                Figure::rate(format!("{what} that race"), "jobs/s", racing.with)
                    .baseline("with peer_url", ours.with)
                    .among(racing.others_cores),
            );
        }
    }
    Ok(figures)
}

/// Measures `servers`, and stops them.
async fn rates(servers: Vec<Process>, plan: &BenchPlan) -> anyhow::Result<Rates> {
    let jobs = (plan.drain / TURNS).max(1);
    configure(&servers[0]).await?;
    let meter = Process::meter_of(&servers);
    let (mut without, mut with) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..TURNS {
        without += turn(&servers, UNLIMITED, plan.clients, jobs).await?;
        with += turn(&servers, LIMITED, plan.clients, jobs).await?;
    }
    let others_cores = meter.read().others_cores;
    Process::stop_all(servers).await?;
    let rate = |wall: Duration| (jobs * TURNS) as f64 / wall.as_secs_f64();
    Ok(Rates { with: rate(with), without: rate(without), others_cores })
}

/// Makes both queues, each with its type.
pub(super) async fn configure(server: &Process) -> anyhow::Result<()> {
    for (queue, config) in
        [(UNLIMITED, "{}".to_owned()), (LIMITED, format!(r#"{{"concurrency":{LIMIT}}}"#))]
    {
        server.ask("PUT", &format!("/v1/queues/{queue}"), &config).await?;
        let job_type = format!(r#"{{"queue":"{queue}"}}"#);
        server.ask("PUT", &format!("/v1/job-types/{queue}"), &job_type).await?;
    }
    Ok(())
}

/// Enqueues jobs, and returns how long the workers take for them.
pub(super) async fn turn(
    servers: &[Process],
    queue: &str,
    workers: usize,
    jobs: u64,
) -> anyhow::Result<Duration> {
    limit::enqueue(&servers[0], queue, jobs).await?;
    let workers = Worker::open_all(servers, workers, queue).await?;
    let start = clock::instant();
    drain(workers, jobs, SHORT_WAIT).await?;
    Ok(start.elapsed())
}
