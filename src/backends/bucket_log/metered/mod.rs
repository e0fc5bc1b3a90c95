//! What the log costs and how long a takeover takes, measured: nodes of a log, with a small key-value state
//! in place of the database, on a store that counts requests, in virtual time.
//!
//! The tables in `docs/deploy-bucket.md` are those of this module; `UPDATE_EXPECT=1` writes them.
//!
//! Read [`store`] for the requests, [`run`] for nodes and jobs, and [`stop`] for planned hand-overs.

mod pace;
mod run;
mod stop;
mod store;

use std::{fmt::Write as _, fs, sync::Arc, time::Duration};

use super::{NodeSettings, Pace, flight::MAX_PUTS, simulation::seeds};
use crate::cost::price::LIST;

pub(super) use run::Run;
use store::Requests;

/// The document with the tables.
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/deploy-bucket.md");
/// The setting `takeover_seconds` by default.
const TAKEOVER: Duration = Duration::from_secs(7);
/// When a leader knows whether there is a standby.
const SETTLED: i64 = 150_000;
/// When a leader knows of a standby that has started after that, in milliseconds from its start.
const ANNOUNCED: i64 = 15_000;
/// Jobs a second, and for how many milliseconds they are measured.
const LOADS: [(u32, i64); 4] = [(1, 1_200_000), (10, 200_000), (100, 20_000), (1_000, 4_000)];
/// How long an idle log is measured, in milliseconds, and how often that is in a month of thirty days.
const IDLE: (i64, f64) = (3_600_000, 720.0);
/// Most dollars of a million jobs at 100 jobs a second with the profile `price`.
const MAX_PRICE: f64 = 0.60;
/// Most dollars of an idle month: alone, and with a standby.
const MAX_IDLE: [f64; 2] = [1.0, 4.0];
/// Commits of a job: it is enqueued, leased and reported.
const COMMITS: f64 = 3.0;
/// The largest part by which the table of the documents may differ from their formulas, which take commits
/// for independent of each other.
const MAX_DEVIATION: f64 = 0.10;
/// How long a PUT takes in these runs.
const PUT_SECONDS: f64 = 0.06;
/// The longest takeover, in milliseconds.
const MAX_TAKEOVER: i64 = 10_000;

/// The servers of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Servers {
    Alone,
    WithStandby,
}

/// The bounds of a server with the default settings.
fn settings() -> NodeSettings {
    NodeSettings::default().with_takeover(TAKEOVER)
}

fn profiles() -> [Pace; 2] {
    [Pace::LATENCY, Pace::price(None, None)]
}

/// A run whose leader knows whether there is a standby.
fn settled(pace: Pace, servers: Servers) -> Arc<Run> {
    let settings = NodeSettings { pace, ..settings() };
    let run = Run::with_leader(1, settings.clone());
    if servers == Servers::WithStandby {
        run.start(1, settings);
    }
    run.pass(SETTLED);
    run
}

/// The requests of the end of an epoch: the next one begins, and its snapshot replaces an older one.
fn rollover() -> Requests {
    const ROLLOVERS: u64 = 10;
    const RECORDS: u64 = 10;
    let settings = NodeSettings {
        // The first record of an epoch is none of a caller.
        rollover_records: 1 + RECORDS,
        beat_interval: Duration::from_hours(1),
        ..settings()
    };
    let run = Run::with_leader(1, settings);
    run.pass(SETTLED);
    let before = run.store.requests();
    let client = Arc::clone(&run);
    run.complete(async move {
        for _ in 0..ROLLOVERS * RECORDS {
            assert!(client.submit(0, 1).await, "the node leads");
        }
    });
    // The last snapshot is made.
    run.pass(10_000);
    let all = run.store.requests().minus(before);
    run.end();
    let records = Requests { puts: (ROLLOVERS * RECORDS) as f64, gets: 0.0 };
    all.minus(records).times(1.0 / ROLLOVERS as f64)
}

/// PUTs a second, and dollars of a million jobs.
fn load(pace: Pace, servers: Servers, (rate, span): (u32, i64), rollover: Requests) -> (f64, f64) {
    let run = settled(pace, servers);
    run.offer_jobs(0, rate.into());
    run.pass(5_000);
    let measured = run.measure(span);
    assert_eq!(*run.ended.lock(), [""; 0], "no leadership ends");
    run.end();
    let job = measured.requests.times(1.0 / measured.jobs);
    // A run is too short for an epoch.
    let epochs = job.puts / NodeSettings::default().rollover_records as f64;
    let dollars = job.and(rollover.times(epochs)).dollars(&LIST) * 1e6;
    (measured.requests.puts * 1000.0 / span as f64, dollars)
}

/// The requests of an idle month.
fn idle(servers: Servers) -> Requests {
    let run = settled(Pace::LATENCY, servers);
    let (span, times) = IDLE;
    let measured = run.measure(span);
    assert_eq!(*run.ended.lock(), [""; 0], "no leadership ends");
    assert!(run.leads(0) && !run.leads(1), "the leader leads");
    run.end();
    measured.requests.times(times)
}

/// How long a takeover takes, in milliseconds, from the loss of the leader until the standby leads.
fn takeover(seed: u64) -> i64 {
    let run = Run::with_leader(seed, settings());
    run.start(1, settings());
    if seed % 2 == 1 {
        run.offer_jobs(0, 10.0);
    }
    run.pass(SETTLED + run.executor.between(0, 20_000));
    replaced(&run, seed)
}

/// The same of a leader that was alone for minutes, and is lost soon after the start of its first standby.
fn first_takeover(seed: u64) -> i64 {
    let run = Run::with_leader(seed, settings());
    run.pass(SETTLED + run.executor.between(0, 60_000));
    run.start(1, settings());
    run.pass(ANNOUNCED);
    replaced(&run, seed)
}

/// The 99th percentile of `spans`: the longest one of fewer than a hundred.
fn percentile_99(spans: impl Iterator<Item = i64>) -> i64 {
    let mut spans: Vec<i64> = spans.collect();
    spans.sort_unstable();
    spans[(spans.len() * 99).div_ceil(100) - 1]
}

/// Loses the leader, 0: after how many milliseconds its standby, 1, leads. It ends the run.
fn replaced(run: &Run, seed: u64) -> i64 {
    assert!(run.leads(0) && !run.leads(1), "seed {seed}: the leader leads");
    run.lose(0);
    let lost_at = run.executor.now();
    run.until_leads(1);
    let took = run.executor.now() - lost_at;
    run.end();
    took
}

#[test]
fn a_million_jobs_cost_at_most_the_bound_of_price() {
    let rollover = rollover();
    let (_, dollars) = load(Pace::price(None, None), Servers::Alone, LOADS[2], rollover);
    assert!(dollars <= MAX_PRICE, "{dollars} $");
    let (_, dollars) = load(Pace::price(None, None), Servers::WithStandby, LOADS[2], rollover);
    assert!(dollars <= MAX_PRICE, "{dollars} $ with a standby");
    let (_, latency) = load(Pace::LATENCY, Servers::Alone, LOADS[2], rollover);
    assert!(latency > 2.0 * dollars, "the profiles differ: {latency} $");
}

#[test]
fn an_idle_month_costs_at_most_its_bound() {
    for (servers, most) in [Servers::Alone, Servers::WithStandby].into_iter().zip(MAX_IDLE) {
        let dollars = idle(servers).dollars(&LIST);
        assert!(dollars > 0.0 && dollars <= most, "{servers:?}: {dollars} $");
    }
}

#[test]
fn a_standby_takes_over_within_ten_seconds() {
    // The full check runs some hundred.
    let span = percentile_99(seeds(10).map(takeover));
    println!("{span} ms");
    assert!(span < MAX_TAKEOVER, "{span} ms");
}

#[test]
fn a_new_standby_takes_over_within_ten_seconds() {
    let span = percentile_99(seeds(10).map(first_takeover));
    println!("{span} ms");
    assert!(span < MAX_TAKEOVER, "{span} ms");
}

#[test]
fn the_costs_in_the_documents_are_the_measured_ones() {
    check_document("log costs", &tables());
}

/// PUTs a second by the formulas of the documents, with `commits` a second at random instants.
fn formula(pace: Pace, commits: f64) -> f64 {
    match pace {
        Pace::Latency { interval } => {
            let interval = interval.as_secs_f64().max(PUT_SECONDS / MAX_PUTS as f64);
            1.0 / (interval + (-commits * interval).exp() / commits)
        }
        Pace::Price { interval, .. } => 1.0 / (interval.as_secs_f64() + 1.0 / commits),
    }
}

#[test]
fn the_formulas_in_the_documents_fit_their_table() {
    let text = fs::read_to_string(DOCUMENT).unwrap();
    for formula in ["1 / (*i* + exp(-*c* *i*) / *c*)", "1 / (*i* + 1 / *c*)"] {
        assert!(text.contains(formula), "{formula}");
    }
    let (_, table) = text.split_once("<!-- log costs").unwrap();
    for (rate, _) in LOADS {
        let row = table.lines().find(|line| line.starts_with(&format!("| {rate} |"))).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        for (pace, cell) in profiles().into_iter().zip([cells[2], cells[5]]) {
            let (measured, computed) =
                (cell.parse::<f64>().unwrap(), formula(pace, COMMITS * f64::from(rate)));
            let deviation = (measured / computed - 1.0).abs();
            assert!(deviation <= MAX_DEVIATION, "{rate}: {measured} and {computed}");
        }
    }
}

/// The tables of the documents.
fn tables() -> String {
    let rollover = rollover();
    let mut text = String::from(
        "| jobs a second | `latency`: PUTs a second | $ for a million jobs | with a standby \
         | `price`: PUTs a second | $ for a million jobs | with a standby |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for (rate, span) in LOADS {
        let _ = write!(text, "| {rate} ");
        for pace in profiles() {
            let (puts, alone) = load(pace, Servers::Alone, (rate, span), rollover);
            let (_, with_standby) = load(pace, Servers::WithStandby, (rate, span), rollover);
            let _ = write!(text, "| {puts:.1} | {alone:.2} | {with_standby:.2} ");
        }
        text += "|\n";
    }
    text += "\n| an idle month | PUTs a minute | GETs a minute | $ |\n|---|---|---|---|\n";
    for (servers, name) in [
        (Servers::Alone, "one server"),
        (Servers::WithStandby, "with a standby and `takeover_seconds` of 7"),
    ] {
        let month = idle(servers);
        let minute = month.times(1.0 / 43_200.0);
        let dollars = month.dollars(&LIST);
        let _ =
            writeln!(text, "| {name} | {:.1} | {:.1} | {dollars:.2} |", minute.puts, minute.gets);
    }
    text
}

/// Checks the part of the document between `<!-- NAME ... -->` and the next `<!-- end`.
/// `UPDATE_EXPECT=1` writes it.
#[track_caller]
fn check_document(name: &str, wanted: &str) {
    let text = fs::read_to_string(DOCUMENT).unwrap();
    let (before, rest) = text.split_once(&format!("<!-- {name}")).unwrap();
    let (mark, rest) = rest.split_once("-->\n").unwrap();
    let (there, after) = rest.split_once("<!-- end").unwrap();
    if there != wanted && std::env::var_os("UPDATE_EXPECT").is_some() {
        let text = format!("{before}<!-- {name}{mark}-->\n{wanted}<!-- end{after}");
        fs::write(DOCUMENT, text).unwrap();
        return;
    }
    assert_eq!(there, wanted, "run this test with UPDATE_EXPECT=1 to write the tables");
}
