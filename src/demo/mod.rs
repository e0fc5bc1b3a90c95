//! The demo: a real server, real workers and a realistic mix of jobs, and then a table that checks
//! every promise.
//!
//! ```text
//!   producer ──HTTP──▶ server ──HTTP──▶ web (pushes, callbacks)    ─┐
//!                        ▲  └────HTTP── pull (leases, heartbeats) ──┴▶ event_log ──▶ verdict
//!                        └── kill -9, with --kill or --bucket                      (the table)
//!                                       the server's view of each job ────────────────┘
//! ```
//!
//! The workers record limits, times and attempts in [`event_log`]; the server only provides the
//! final state of each job. Read [`plan`] first, then [`event_log`] and [`verdict`]. `tidegate
//! demo` is the command line of this module.

mod event_log;
mod live;
mod log_servers;
mod plan;
mod producer;
mod pull;
mod target;
mod verdict;
mod web;

use std::{collections::HashMap, io::IsTerminal as _, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::{JoinHandle, JoinSet},
    time::Instant,
};

use crate::cli::{
    Context, ExitCode,
    client::{ApiResponse, Client, Error, Request},
    context::pause,
    output::{self, OutputStyle},
};
use event_log::{EventLog, Pages};
use live::Live;
use plan::{Planned, PlannedOutcome};
use producer::{Accepted, Producer};
use target::Target;
use tidegate_api::{Explanation, JobView, QueueView, pages};
use tidegate_core::time::{Seconds, Timestamp};
use url::Url;
use verdict::{Evidence, Kill, ObservedJob, Row};

/// The secret that signs the pushes.
const SECRET: &str = "whsec_dGlkZWdhdGUtZGVtby1zZWNyZXQtMjAyNi1sb2NhbA==";
/// The interval between two reads of the jobs' states.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The options of a demo.
#[derive(Debug)]
pub struct Options {
    /// The approximate number of jobs.
    pub jobs: u16,
    /// The data directory, or `None` for a temporary one.
    pub data: Option<PathBuf>,
    /// The port, or `None` for 8080 or any free one.
    pub port: Option<u16>,
    /// Run the server as a separate process, kill it once, and restart it.
    pub kill: bool,
    /// Run two servers on a replicated log in this bucket, kill the leader once, and remove its disk.
    pub bucket: Option<Bucket>,
    /// Use the server of the global options and start none.
    pub remote: bool,
    /// Keep serving after the demo.
    pub keep: bool,
    /// The largest start delay of delayed jobs at the 99th percentile.
    pub lateness: Seconds,
    /// How long to wait for the end of the jobs, or `None` for a default by their number.
    pub within: Option<Seconds>,
}

/// The bucket of a replicated log.
#[derive(Clone, Debug)]
pub enum Bucket {
    /// A temporary directory.
    Temporary,
    /// A bucket or a directory of the user, in which the log stays.
    At(Url),
}

/// Runs the demo, prints its table, and keeps serving if the options or a terminal ask for it.
///
/// # Errors
///
/// The server cannot be started, or rejects a request of the demo.
pub async fn run(options: Options, ctx: &Context) -> anyhow::Result<ExitCode> {
    let mut target = if options.remote {
        Target::remote(ctx.global.server())
    } else {
        Target::open(&options).await?
    };
    let mut workers = JoinSet::new();
    let played = tokio::select! {
        played = play(&options, &mut target, &mut workers, ctx) => played,
        stopped = stop() => stopped.and(Err(anyhow::anyhow!("interrupted"))),
    };
    let mut code = ExitCode::Refused;
    if let Ok(played) = &played {
        let keep_serving =
            options.keep || (std::io::stdin().is_terminal() && !ctx.json() && !options.remote);
        code = print_result(played, &target, keep_serving, ctx)?;
        if keep_serving {
            ctx.note("\nThe server and the workers keep running. Ctrl-C stops them.");
            stop().await?;
        }
    }
    workers.shutdown().await;
    // The data of a failed run is kept for analysis.
    let keep_data = code != ExitCode::Ok && played.is_ok();
    if let Some(left) = target.temporary_dir().filter(|_| keep_data) {
        ctx.note(format_args!("The data is kept in {}.", left.display()));
    }
    target.close(keep_data).await;
    played.map(|_| code)
}

/// Waits for Ctrl-C or SIGTERM.
async fn stop() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        done = tokio::signal::ctrl_c() => done?,
    }
    Ok(())
}

/// The result of a demo.
struct DemoResult {
    rows: Vec<Row>,
    jobs: usize,
    took: Duration,
    /// A job that still waits, to explain it.
    waiting: Option<String>,
}

/// Plays the demo.
async fn play(
    options: &Options,
    target: &mut Target,
    workers: &mut JoinSet<()>,
    ctx: &Context,
) -> anyhow::Result<DemoResult> {
    let client = Client::new(target.url(), ctx.global.token.clone())?;
    target.ready(&client).await?;
    let event_log = Arc::new(EventLog::default());
    let worker = web::start(workers, Arc::clone(&event_log), SECRET, client.clone())
        .await
        .context("the HTTP worker cannot be started")?;
    let started = ctx.now();
    let run = format!("demo-{:x}", started.millis());
    let plan: Arc<[Planned]> = plan::mix(&run, options.jobs.into()).into();
    announce(target, &worker, plan.len(), ctx);
    let accepted = Arc::default();
    let producer = Producer { client: client.clone(), accepted: Arc::clone(&accepted) };
    producer.configure(&worker, SECRET).await?;
    for number in 1..=plan::PULLERS {
        workers.spawn(pull::work(
            format!("demo-puller-{number}"),
            client.clone(),
            Arc::clone(&event_log),
        ));
    }
    let producing = {
        let (plan, event_log) = (Arc::clone(&plan), Arc::clone(&event_log));
        tokio::spawn(async move { producer.run(&plan, &event_log).await })
    };

    let began = Instant::now();
    let watch = Watch {
        client: &client,
        run: &run,
        started,
        plan: &plan,
        accepted: &accepted,
        event_log: &event_log,
        options,
    };
    let (jobs, kill) = watch.follow(producing, target, ctx).await?;
    let took = began.elapsed();
    let waiting: Vec<&Planned> = plan
        .iter()
        .filter(|job| jobs.get(&job.id).is_some_and(|job| job.state == "scheduled"))
        .collect();
    let explained = explain(&client, &waiting).await?;
    let (accepted, pages): (Accepted, Pages) =
        (accepted.lock().clone(), event_log.read(Pages::clone));
    let evidence = Evidence {
        plan: &plan,
        accepted: &accepted,
        pages: &pages,
        jobs: &jobs,
        explained: &explained,
        kill,
        lateness: options.lateness.duration(),
    };
    Ok(DemoResult {
        rows: verdict::table(&evidence),
        jobs: plan.len(),
        took,
        waiting: waiting.first().map(|job| job.id.clone()),
    })
}

/// Prints the server, the workers and the jobs of the demo.
fn announce(target: &Target, worker: &str, jobs: usize, ctx: &Context) {
    ctx.note(format_args!(
        "server   {} {}\nworkers  {worker} for pushes, {} that pull\n\
         jobs     {} of {} types in {} queues, most in {} with limit {}, {} a tenant; about {} s\n",
        target.url(),
        target.description(),
        plan::PULLERS,
        jobs,
        plan::JobKind::ALL.len(),
        plan::queues().len(),
        plan::SHOP,
        plan::LIMIT,
        plan::TENANT_LIMIT,
        8 + jobs / 45,
    ));
}

/// Returns why each of the `waiting` jobs waits.
async fn explain(client: &Client, waiting: &[&Planned]) -> anyhow::Result<Vec<Explanation>> {
    let mut explained = Vec::new();
    for job in waiting {
        let path = ["jobs", job.kind.name(), &job.id, "explain"];
        explained.push(until_answered(|| client.get(&path)).await?.read()?);
    }
    Ok(explained)
}

/// The observation of a running demo.
struct Watch<'a> {
    client: &'a Client,
    run: &'a str,
    started: Timestamp,
    plan: &'a [Planned],
    accepted: &'a Mutex<Accepted>,
    event_log: &'a EventLog,
    options: &'a Options,
}

impl Watch<'_> {
    /// Shows the progress until each job has ended or waits by plan, or the time is up. Kills the
    /// server once if the options contain it. Returns the jobs and the kill.
    async fn follow(
        &self,
        mut producing: JoinHandle<Result<(), Error>>,
        target: &mut Target,
        ctx: &Context,
    ) -> anyhow::Result<(HashMap<String, ObservedJob>, Option<Kill>)> {
        let Self { client, run, started, plan, accepted, event_log, options } = self;
        let within = options.within.map_or_else(
            || Duration::from_mins(1) + Duration::from_millis(100) * options.jobs.into(),
            Seconds::duration,
        );
        let planned = |fate| plan.iter().filter(|job| job.fate == fate).count();
        let (waits, cancelled) =
            (planned(PlannedOutcome::Waits), planned(PlannedOutcome::Cancelled));
        let live = Live::new(ctx, plan.len() - waits);
        let (began, mut jobs, mut kill) = (Instant::now(), HashMap::new(), None);
        while began.elapsed() < within {
            jobs = observe(client, run, *started).await?;
            let ended = jobs
                .values()
                .filter(|job: &&ObservedJob| !matches!(job.state.as_str(), "scheduled" | "running"))
                .count();
            let shop: QueueView<'_> =
                until_answered(|| client.get(&["queues", plan::SHOP])).await?.read()?;
            let admitted = shop.status.map_or(0, |status| status.running_weight);
            live.show(ended, &event_log.read(Pages::clone), admitted);
            if producing.is_finished() {
                // A rejected enqueue is an error of the plan: no further job will come.
                if let Ok(done) = (&mut producing).await {
                    done?;
                }
                producing = tokio::spawn(async { Ok(()) });
            }
            if accepted.lock().done && ended + waits == plan.len() {
                break;
            }
            let is_killed = options.kill || options.bucket.is_some();
            // A worker that cannot reach a server in time gives up its attempt. Its job is to be cancelled
            // while it runs.
            let is_cancelled =
                event_log.read(|pages| pages.stopped_by_heartbeat.len()) >= cancelled;
            if is_killed && kill.is_none() && ended * 3 > plan.len() && is_cancelled {
                let loses_disk = options.bucket.is_some();
                live.say(
                    if loses_disk {
                        "  kill -9 of the leader, its disk is removed, and the standby takes over"
                    } else {
                        "  kill -9 of the server, and a new one on the same data"
                    },
                    ctx,
                );
                kill = Some(Kill { outage: target.kill(client).await?, loses_disk });
            }
            pause(POLL_INTERVAL).await;
        }
        live.clear();
        producing.abort();
        Ok((jobs, kill))
    }
}

/// Returns the server's view of the jobs whose ids start with `run`.
async fn observe(
    client: &Client,
    run: &str,
    from: Timestamp,
) -> anyhow::Result<HashMap<String, ObservedJob>> {
    let from = from.to_string();
    loop {
        match pages::collect(
            |client| client.get(&["jobs"]).query("created_from", &from),
            client,
            usize::MAX,
        )
        .await
        {
            Ok(page) => {
                let jobs = page
                    .read::<JobView<'_>>(client)?
                    .into_iter()
                    .map(ObservedJob::from)
                    .filter(|job| job.id.starts_with(run));
                return Ok(jobs.map(|job| (job.id.clone(), job)).collect());
            }
            Err(error) if error.passes() => pause(RETRY_INTERVAL).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// The wait before a retry while the server is unreachable.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Retries a request until there is a response: the server may be killed at any time.
async fn until_answered<'a>(request: impl Fn() -> Request<'a>) -> Result<ApiResponse, Error> {
    loop {
        match request().send().await {
            Err(error) if error.passes() => pause(RETRY_INTERVAL).await,
            answered => return answered,
        }
    }
}

/// Prints the table and the next steps.
fn print_result(
    played: &DemoResult,
    target: &Target,
    keep_serving: bool,
    ctx: &Context,
) -> anyhow::Result<ExitCode> {
    let broken = played.rows.iter().filter(|row| !row.ok).count();
    let code = if broken == 0 { ExitCode::Ok } else { ExitCode::Refused };
    if ctx.json() {
        let (ok, seconds) = (broken == 0, played.took.as_secs_f64());
        ctx.print(json!({
            "ok": ok, "jobs": played.jobs, "seconds": seconds, "url": target.url(),
            "rows": played.rows,
        }))?;
        return Ok(code);
    }
    ctx.print(rows(ctx.look, &played.rows))?;
    let count = played.rows.len();
    let summary = if broken == 0 {
        format!("All {count} promises were kept.")
    } else {
        format!("{broken} of {count} promises were BROKEN.")
    };
    ctx.print(format_args!(
        "\n{summary} {} jobs in {}.\n",
        played.jobs,
        output::took(played.took)
    ))?;
    if keep_serving {
        ctx.print(next_steps(played, target))?;
    } else {
        ctx.print(
            "`tidegate demo --keep` keeps serving, to explore; `tidegate serve` starts an empty \
             server.",
        )?;
    }
    Ok(code)
}

fn rows(look: OutputStyle, rows: &[Row]) -> String {
    let cells = rows.iter().map(|row| {
        let ok = if row.ok { "yes" } else { "NO" };
        [row.what.to_owned(), row.expected.clone(), row.seen.clone(), ok.to_owned()]
    });
    output::table(look, ["promise", "expected", "seen", "kept"], cells)
}

/// Returns the next steps for the user.
fn next_steps(played: &DemoResult, target: &Target) -> String {
    let url = target.url();
    let url = url.as_str().trim_end_matches('/');
    let server = if url.ends_with(":8080") {
        String::new()
    } else {
        format!("  export TIDEGATE_URL={url}\n")
    };
    let explain = played
        .waiting
        .as_ref()
        .map(|id| format!("  tidegate jobs explain {id}\n"))
        .unwrap_or_default();
    format!(
        "console    {url}/\nAPI        {url}/v1, described at {url}/openapi.json\n\n\
         In another terminal:\n{server}  \
         tidegate queues list\n{explain}  \
         tidegate enqueue --type demo-call --data '{{\"tenant\": \"acme\", \"work_ms\": 500}}'\n  \
         tidegate jobs list --limit 5"
    )
}
