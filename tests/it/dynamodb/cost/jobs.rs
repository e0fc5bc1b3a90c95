//! The units that jobs consume from enqueue to end, by case and by size. The rows of the cost table
//! that concern DynamoDB alone are metered by the size of real bytes.

use std::time::Duration;

use tidegate_backends::cost::{Case, Workload, case, estimate, month, price::LIST};
use tidegate_core::{job::type_config::Start, port::job_store::INLINE_BYTES};

use super::numbers;
use crate::dynamodb::deployment::{
    Scenario, registration, units, units_with_retention, waiting_call,
};

/// Each way in which jobs may go, batched, single and in bulk.
fn cases() -> Vec<(Case, Scenario)> {
    let at_once = Scenario::default();
    let plain = Scenario { start: Start::Plain, ..at_once.clone() };
    let delay = Duration::from_secs(400);
    // The calls are sequential here. At ten jobs a second that causes no backlog.
    let limited = Scenario { limit: Some(60), gap: Duration::from_millis(100), ..at_once.clone() };
    let retried = Scenario { fails: true, ..limited.clone() };
    vec![
        (case::PLAIN, plain.clone()),
        (case::CLAIMED, at_once.clone()),
        (case::RETRIED, Scenario { fails: true, ..at_once.clone() }),
        (case::CALLED_BACK, Scenario { callbacks: true, ..at_once.clone() }),
        (case::DELAYED_PLAIN, Scenario { delay, ..plain }),
        (case::DELAYED, Scenario { delay, ..at_once }),
        (case::LIMITED, limited.clone()),
        (case::LIMITED_RETRIED, retried.clone()),
        (case::LIMITED_CALLED_BACK, Scenario { callbacks: true, limit: Some(400), ..retried }),
        (case::PULLED, Scenario { pulled: true, ..limited }),
    ]
}

/// The same, one job after the other.
fn single(scenario: &Scenario) -> Scenario {
    let limit = scenario.limit.map(|_| 1);
    Scenario { jobs: 40, most: 1, gap: Duration::from_secs(5), limit, ..scenario.clone() }
}

fn bulk(scenario: &Scenario) -> Scenario {
    Scenario { per_call: 100, gap: scenario.gap * 100, ..scenario.clone() }
}

#[tokio::test]
async fn every_case_consumes_its_documented_units() {
    let mut wrong = Vec::new();
    for (case, scenario) in cases() {
        let points = [
            ("batched", case.batched, scenario.clone()),
            ("single", case.single, single(&scenario)),
            ("bulk", case.bulk, bulk(&scenario)),
        ];
        for (point, said, scenario) in points {
            let taken = units(&scenario).await;
            println!("{:42} {point:7} {}", case.name, numbers(taken));
            for ((what, said), (_, taken)) in said.named().into_iter().zip(taken.named()) {
                // The reads of limited retries differ by some percent from run to run.
                if (said - taken).abs() > 0.005 + said * 0.03 {
                    wrong.push(format!(
                        "{}, {point}: {taken:.3} {what}, and {said} are said",
                        case.name
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The bounds of the table in decision 12: case, arrival, writes, dollars.
fn bounds() -> Vec<(Case, (f64, f64), f64, f64)> {
    let text = include_str!("../../../../docs/decisions/0012-dynamodb-table-as-due-time-index.md");
    let rows = text
        .lines()
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>())
        .filter(|cells| cells.len() == 7);
    let bound = |cells: Vec<&str>| {
        let case = case::CASES.into_iter().find(|case| case.name == cells[1])?;
        let comes = match cells[2] {
            "a hundred to a call" => (case::FULL_BATCH, case::BULK),
            "one by one, batched" => (case::FULL_BATCH, 1.0),
            "one by one, single" => (1.0, 1.0),
            other => panic!("how do they come: {other}"),
        };
        Some((case, comes, cells[3].parse().unwrap(), cells[4].parse().unwrap()))
    };
    rows.filter_map(bound).collect()
}

#[test]
fn a_million_jobs_cost_at_most_the_documented_bound() {
    let (bounds, deployment) = (bounds(), estimate::Deployment::default());
    assert_eq!(bounds.len(), 16);
    for (case, (batch, per_call), writes, dollars) in bounds {
        let workload = Workload { batch, per_call, ..Workload::default().of_case(&case) };
        let (takes, costs) =
            (workload.units().writes, estimate::total(&month(&workload, &deployment, &LIST)));
        assert!(
            takes <= writes,
            "{}, {per_call} to a call: {takes:.3} writes, and {writes} are the bound",
            case.name
        );
        assert!(
            costs <= dollars,
            "{}, {per_call} to a call: {costs:.2} $, and {dollars} are the bound",
            case.name
        );
    }
    let idle = |deployment| estimate::total(&estimate::idle(&deployment, &LIST));
    assert!(idle(deployment) <= 1.00, "{}", idle(deployment));
}

/// The cost of jobs with large data: by the kilobyte in the table, by the request in object
/// storage.
#[tokio::test]
async fn larger_jobs_consume_their_documented_units() {
    let mut wrong = Vec::new();
    for (size, is_object) in
        [(300, false), (900, false), (2048, false), (7000, false), (20_000, true)]
    {
        for limit in [None, Some(60)] {
            let gap = Duration::from_millis(if limit.is_some() { 100 } else { 10 });
            let taken = units_with_retention(&Scenario {
                size,
                limit,
                gap,
                jobs: 200,
                ..Scenario::default()
            })
            .await;
            let workload = Workload { size, limited: limit.is_some(), ..Workload::default() };
            let mut said = workload.units();
            // The sweep reads a row at the end of its retention, which is not metered here.
            said.reads -= f64::from(u8::from(size > INLINE_BYTES));
            println!(
                "{size} bytes: {:.2} writes and {:.2} reads, {:.2} and {:.2} are said",
                taken.writes, taken.reads, said.writes, said.reads
            );
            // Under a limit, the size of a page of candidates changes with the size of each job.
            let off = if limit.is_some() { 0.35 } else { 0.1 };
            let is_near = |taken: f64, said: f64, off| (taken - said).abs() <= 0.3 + said * off;
            if !is_near(taken.writes, said.writes, 0.03) || !is_near(taken.reads, said.reads, off) {
                wrong.push(size);
            }
            let lines = month(&workload, &estimate::Deployment::default(), &LIST);
            assert_eq!(lines.iter().any(|line| line.service == "S3"), is_object);
        }
    }
    assert!(wrong.is_empty(), "other units than are said: {wrong:?}");
}

#[tokio::test]
async fn a_waiting_worker_consumes_its_documented_units() {
    let mut wrong = Vec::new();
    for limit in [None, Some(60)] {
        for (pause, said) in [(0, case::HELD_CALL), (10, case::PAUSED_CALL)] {
            let taken = waiting_call(limit, Duration::from_secs(pause)).await;
            println!("{limit:?}, a pause of {pause} s: {}", numbers(taken));
            for ((what, said), (_, taken)) in said.named().into_iter().zip(taken.named()) {
                if (said - taken).abs() > 0.3 + said * 0.25 {
                    wrong.push(format!("{limit:?}, {pause} s: {taken:.3} {what}, not {said}"));
                }
            }
        }
    }
    let taken = registration().await;
    println!("a registration: {}", numbers(taken));
    for ((what, said), (_, taken)) in case::REGISTRATION.named().into_iter().zip(taken.named()) {
        if (said - taken).abs() > 0.3 {
            wrong.push(format!("a registration: {taken:.3} {what}, not {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The table of waiting workers in `docs/deploy-aws.md`.
#[test]
fn a_waiting_worker_costs_its_documented_dollars() {
    let text = include_str!("../../../../docs/deploy-aws.md");
    let of = |memory_mb, worker_pause_s| {
        let waiting_workers = 1.0;
        let default = estimate::Deployment::default();
        let deployment =
            estimate::Deployment { waiting_workers, worker_pause_s, memory_mb, ..default };
        estimate::total(&estimate::waiting(&deployment, &LIST))
    };
    let rows = [
        ("a request held for 20 s, with 512 MB", of(512.0, 0.0)),
        ("a request held for 20 s, with 128 MB", of(128.0, 0.0)),
        ("pauses of up to 10 s, with 512 MB", of(512.0, 10.0)),
    ];
    let rows = rows.map(|(row, dollars)| format!("| {row} | {dollars:.2} |"));
    let missing: Vec<&String> = rows.iter().filter(|row| !text.contains(*row)).collect();
    assert!(missing.is_empty(), "docs/deploy-aws.md has no rows {missing:?}");
    assert!(of(512.0, 10.0) <= 1.0, "{}", of(512.0, 10.0));
}
