//! `tidegate demo`: a real server, real workers and a realistic mix of jobs, and then a table that proves what was promised.
//!
//! ```text
//!   producer ──HTTP──▶ server ──HTTP──▶ web (pushes, callbacks)    ─┐
//!                        ▲  └────HTTP── pull (leases, heartbeats) ──┴▶ book ──▶ verdict (the table)
//!                        └── kill -9, with --kill                                ▲
//!                                       what the server says of each job ────────┘
//! ```
//!
//! The one thing to know: what the table says of limits, times and attempts was counted by the workers, in
//! [`book`]. The server is only asked what became of each job. Read [`plan`] first, then [`book`] and [`verdict`].

mod book;
mod home;
mod live;
mod plan;
mod producer;
mod pull;
mod verdict;
mod web;

use std::{collections::HashMap, io::IsTerminal as _, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use serde_json::json;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::Instant,
};

use super::{
    Context, ExitCode, args,
    client::{Answer, Client, Error, Request},
    context::pause,
    pages,
    show::{self, OutputStyle},
    wire::Queue,
};
use book::{Book, Pages};
use home::Home;
use live::Live;
use plan::{Planned, PlannedOutcome};
use producer::{Accepted, Producer};
use tidegate_core::time::{Seconds, Timestamp};
use verdict::{Evidence, ObservedJob, Row};

/// What signs the pushes.
const SECRET: &str = "whsec_dGlkZWdhdGUtZGVtby1zZWNyZXQtMjAyNi1sb2NhbA==";
/// The time between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(250);

/// The options of `tidegate demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code 1 means that a promise was not kept: the table says which.")]
pub struct Args {
    /// About how many jobs, 40 to 5000.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u16).range(40..=5000))]
    jobs: u16,
    /// The directory of the data [default: a temporary one, which goes at the end].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The port to listen on [default: 8080, or a free one if somebody has it].
    #[arg(long)]
    port: Option<u16>,
    /// Run the server as a process of its own, kill it with SIGKILL in the middle, and start it again.
    #[arg(long)]
    kill: bool,
    /// Start no server: use the one of --url or --profile. The demo's queues and types stay there.
    #[arg(long, conflicts_with_all = ["data", "port", "kill", "keep"])]
    remote: bool,
    /// Go on serving afterwards, until Ctrl-C, even if this is no terminal.
    #[arg(long)]
    keep: bool,
    /// The lateness of delayed jobs that is fine at the 99th percentile.
    #[arg(long, value_name = "SPAN", default_value = "250ms", value_parser = args::span)]
    lateness: Seconds,
    /// Give up waiting for the jobs' ends after this long [default: a minute, and more for more jobs].
    #[arg(long, value_name = "SPAN", value_parser = args::span)]
    within: Option<Seconds>,
}

/// Runs the demo, tells its table, and goes on serving if that is wanted.
///
/// # Errors
///
/// The server cannot be started, or refuses what must be possible.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let mut home = if args.remote {
        Home::elsewhere(ctx.global.server())
    } else {
        Home::open(args.data.as_deref(), args.port, args.kill).await?
    };
    let mut workers = JoinSet::new();
    let played = tokio::select! {
        played = play(&args, &mut home, &mut workers, ctx) => played,
        told = stop() => told.and(Err(anyhow::anyhow!("interrupted"))),
    };
    let mut code = ExitCode::Refused;
    if let Ok(played) = &played {
        let goes_on = args.keep || (std::io::stdin().is_terminal() && !ctx.json() && !args.remote);
        code = tell(played, &home, goes_on, ctx)?;
        if goes_on {
            ctx.note("\nThe server and the workers go on. Ctrl-C ends them.");
            stop().await?;
        }
    }
    workers.shutdown().await;
    // What went wrong is in the data.
    let keep_data = code != ExitCode::Ok && played.is_ok();
    if let Some(left) = home.left().filter(|_| keep_data) {
        ctx.note(format_args!("The data stays in {} for a look.", left.display()));
    }
    home.close(keep_data).await;
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

/// What came of it.
struct Played {
    rows: Vec<Row>,
    jobs: usize,
    took: Duration,
    /// A job that waits, to look at by hand.
    waiting: Option<String>,
}

/// The demo itself.
async fn play(
    args: &Args,
    home: &mut Home,
    workers: &mut JoinSet<()>,
    ctx: &Context,
) -> anyhow::Result<Played> {
    let client = Client::new(home.url(), ctx.global.token.clone())?;
    home.ready(&client).await?;
    let book = Arc::new(Book::default());
    let worker = web::start(workers, Arc::clone(&book), SECRET, client.clone())
        .await
        .context("the HTTP worker cannot be started")?;
    let started = ctx.now();
    let run = format!("demo-{:x}", started.millis());
    let plan: Arc<[Planned]> = plan::mix(&run, args.jobs.into()).into();
    ctx.note(format_args!(
        "server   {} {}\nworkers  {worker} for pushes, {} that pull\njobs     {} of {} types in {} queues, most in {} with limit {}, {} a \
         tenant; about {} s\n",
        home.url(),
        home.described(),
        plan::PULLERS,
        plan.len(),
        plan::JobKind::ALL.len(),
        plan::queues().len(),
        plan::SHOP,
        plan::LIMIT,
        plan::TENANT_LIMIT,
        8 + plan.len() / 45,
    ));
    let accepted = Arc::default();
    let producer = Producer { client: client.clone(), accepted: Arc::clone(&accepted) };
    producer.configure(&worker, SECRET).await?;
    for number in 1..=plan::PULLERS {
        workers.spawn(pull::work(
            format!("demo-puller-{number}"),
            client.clone(),
            Arc::clone(&book),
        ));
    }
    let mut producing = {
        let (plan, book) = (Arc::clone(&plan), Arc::clone(&book));
        tokio::spawn(async move { producer.run(&plan, &book).await })
    };

    let began = Instant::now();
    let within = args.within.map_or_else(
        || Duration::from_mins(1) + Duration::from_millis(100) * args.jobs.into(),
        Seconds::duration,
    );
    let (waits, mut kills) =
        (plan.iter().filter(|job| job.fate == PlannedOutcome::Waits).count(), 0);
    let live = Live::new(ctx, plan.len() - waits);
    let mut jobs = HashMap::new();
    while began.elapsed() < within {
        jobs = look(&client, &run, started).await?;
        let ended = jobs
            .values()
            .filter(|job: &&ObservedJob| !matches!(job.state.as_str(), "scheduled" | "running"))
            .count();
        let shop: Queue = until_answered(|| client.get(&["queues", plan::SHOP])).await?.read()?;
        live.show(
            ended,
            &book.read(Pages::clone),
            shop.status.map_or(0, |status| status.running_weight),
        );
        if producing.is_finished() {
            // A refusal is a fault of the mix, not of a job: nothing more will come.
            if let Ok(done) = (&mut producing).await {
                done?;
            }
            producing = tokio::spawn(async { Ok(()) });
        }
        if accepted.lock().done && ended + waits == plan.len() {
            break;
        }
        if args.kill && kills == 0 && ended * 3 > plan.len() {
            live.say("  kill -9 of the server, and a new one on the same data", ctx);
            home.kill_and_restart(&client).await?;
            kills += 1;
        }
        pause(LOOK).await;
    }
    let took = began.elapsed();
    live.clear();
    producing.abort();

    let mut explained = Vec::new();
    let waiting: Vec<&Planned> = plan
        .iter()
        .filter(|job| jobs.get(&job.id).is_some_and(|job| job.state == "scheduled"))
        .collect();
    for job in &waiting {
        explained.push(
            until_answered(|| client.get(&["jobs", job.kind.name(), &job.id, "explain"]))
                .await?
                .read::<tidegate_api::Explanation>()?,
        );
    }
    let (accepted, pages): (Accepted, Pages) = (accepted.lock().clone(), book.read(Pages::clone));
    let evidence = Evidence {
        plan: &plan,
        accepted: &accepted,
        pages: &pages,
        jobs: &jobs,
        explained: &explained,
        kills,
        lateness: args.lateness.duration(),
    };
    Ok(Played {
        rows: verdict::table(&evidence),
        jobs: plan.len(),
        took,
        waiting: waiting.first().map(|job| job.id.clone()),
    })
}

/// What the server says of the jobs whose ids start with `run`.
async fn look(
    client: &Client,
    run: &str,
    from: Timestamp,
) -> anyhow::Result<HashMap<String, ObservedJob>> {
    let from = from.to_string();
    loop {
        match pages::collect(
            |client| client.get(&["jobs"]).query("from", &from),
            client,
            usize::MAX,
        )
        .await
        {
            Ok(page) => {
                let jobs = page
                    .read::<ObservedJob>(client)?
                    .into_iter()
                    .filter(|job| job.id.starts_with(run));
                return Ok(jobs.map(|job| (job.id.clone(), job)).collect());
            }
            Err(error) if error.passes() => pause(AWAY).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// How long somebody waits whose server is away.
const AWAY: Duration = Duration::from_millis(100);

/// Sends a request again and again until there is an answer: the server may be killed at any instant.
async fn until_answered<'a>(request: impl Fn() -> Request<'a>) -> Result<Answer, Error> {
    loop {
        match request().send().await {
            Err(error) if error.passes() => pause(AWAY).await,
            answered => return answered,
        }
    }
}

/// Tells the table, and how to go on.
fn tell(played: &Played, home: &Home, goes_on: bool, ctx: &Context) -> anyhow::Result<ExitCode> {
    let broken = played.rows.iter().filter(|row| !row.ok).count();
    let code = if broken == 0 { ExitCode::Ok } else { ExitCode::Refused };
    if ctx.json() {
        let (ok, seconds) = (broken == 0, played.took.as_secs_f64());
        ctx.print(json!({"ok": ok, "jobs": played.jobs, "seconds": seconds, "url": home.url(), "rows": played.rows}))?;
        return Ok(code);
    }
    ctx.print(rows(ctx.look, &played.rows))?;
    let count = played.rows.len();
    let said = if broken == 0 {
        format!("All {count} promises were kept.")
    } else {
        format!("{broken} of {count} promises were BROKEN.")
    };
    ctx.print(format_args!("\n{said} {} jobs in {}.\n", played.jobs, show::took(played.took)))?;
    if goes_on {
        ctx.print(by_hand(played, home))?;
    } else {
        ctx.print("`tidegate demo --keep` goes on serving, to look around; `tidegate serve` starts with nothing in it.")?;
    }
    Ok(code)
}

fn rows(look: OutputStyle, rows: &[Row]) -> String {
    let cells = rows.iter().map(|row| {
        let ok = if row.ok { "yes" } else { "NO" };
        [row.what.to_owned(), row.expected.clone(), row.seen.clone(), ok.to_owned()]
    });
    show::table(look, ["promise", "expected", "seen", "kept"], cells)
}

/// How to go on by hand.
fn by_hand(played: &Played, home: &Home) -> String {
    let url = home.url();
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
        "dashboard  {url}/\nAPI        {url}/v1, described at {url}/openapi.json\n\nBy hand, in another terminal:\n{server}  \
         tidegate queues list\n{explain}  tidegate enqueue --type demo-call --data '{{\"tenant\": \"acme\", \"work_ms\": 500}}'\n  \
         tidegate jobs list --limit 5"
    )
}
