//! `rickover`: many clients enqueue while no job runs, then as many workers start, all over HTTP.
//! The figure is the jobs per second from the first to the last. An older system published figures
//! by this method.

use std::{
    slice,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    BenchPlan, DATA, JOB_TYPE, clock,
    embedded::within,
    figure::Figure,
    http::{self, Connection},
    process::Process,
    worker::Worker,
};

/// The longest duration of each half.
const PATIENCE: Duration = Duration::from_mins(10);

/// How long a lease request waits for a job at a server that answers at once.
pub(super) const SHORT_WAIT: Duration = Duration::from_millis(50);

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let place = plan.new_place()?;
    let server = Process::serve(&place).await?;
    let enqueuing = server.meter();
    within(PATIENCE, enqueue(&server, plan)).await??;
    let enqueued = enqueuing.read();
    let workers = Worker::open_all(slice::from_ref(&server), plan.clients, "default").await?;
    let draining = server.meter();
    drain(workers, plan.drain, SHORT_WAIT).await?;
    let drained = draining.read();
    server.stop().await?;
    let (jobs, clients) = (plan.drain, plan.clients);
    let rate = |wall: Duration| jobs as f64 / wall.as_secs_f64();
    let what = format!("drain {jobs} with {clients} workers");
    let drain = Figure::rate(what, "jobs/s", rate(drained.wall)).among(drained.others_cores);
    let figures = [
        Figure::rate(
            format!("enqueue {jobs} with {clients} clients"),
            "jobs/s",
            rate(enqueued.wall),
        )
        .among(enqueued.others_cores),
        plan.by_store(drain.clone(), drain.reach(10_000.0)),
        Figure::cost("drain over HTTP: server's processor per job", "us", drained.micros_per(jobs))
            .among(drained.others_cores),
    ];
    Ok(figures.into_iter().chain(drained.postgres_figure("drain over HTTP", jobs)).collect())
}

async fn enqueue(server: &Process, plan: &BenchPlan) -> anyhow::Result<()> {
    let left = Arc::new(AtomicU64::new(plan.drain));
    let request =
        http::request("POST", "/v1/jobs", &format!(r#"{{"type":"{JOB_TYPE}","data":{DATA}}}"#));
    let mut clients = Vec::new();
    for _ in 0..plan.clients {
        let mut connection = Connection::open(server.address).await?;
        let (left, request) = (Arc::clone(&left), request.clone());
        clients.push(tokio::spawn(async move {
            while take(&left) {
                connection.send(&request).await?.ok()?;
            }
            anyhow::Ok(())
        }));
    }
    for client in clients {
        client.await??;
    }
    Ok(())
}

/// Runs the `jobs` waiting jobs of the queue of `workers`, until the last one is reported. A lease request
/// waits up to `wait` for a job. At the end, that time is part of the result.
pub(super) async fn drain(workers: Vec<Worker>, jobs: u64, wait: Duration) -> anyhow::Result<()> {
    let done = Arc::new(AtomicU64::new(0));
    let start = clock::instant();
    let mut working = Vec::new();
    for mut worker in workers {
        let done = Arc::clone(&done);
        working.push(tokio::spawn(async move {
            while done.load(Ordering::Relaxed) < jobs {
                for lease in worker.lease(1, wait.as_secs_f64()).await? {
                    worker.succeeded(&lease);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
            worker.lease(0, 0.0).await?;
            anyhow::Ok(())
        }));
    }
    let ended = async {
        for worker in working {
            worker.await??;
        }
        anyhow::Ok(())
    };
    within(PATIENCE, ended).await??;
    anyhow::ensure!(
        done.load(Ordering::Relaxed) == jobs,
        "a job came twice, {:?} after the start",
        start.elapsed()
    );
    Ok(())
}

/// Takes one of the remaining items. Returns false if there is none.
fn take(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}
