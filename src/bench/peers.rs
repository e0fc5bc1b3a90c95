//! Other job queues on the same Postgres, measured in the same run by a program of their own.
//!
//! The program gets the database and the sizes in its environment, and the measurements as arguments.
//! It prints a line of JSON for each rate, and everything else on standard error.

use std::{path::Path, process::Stdio};

use anyhow::{Context as _, ensure};
use clap::ValueEnum as _;
use serde::Deserialize;
use tokio::process::Command;

use super::{BenchPlan, Measure, STORE_VARIABLE, figure::Figure, name, place::Database};

/// The measurements that peers can take.
const COMPARED: [Measure; 3] = [Measure::Enqueue, Measure::Batch, Measure::Drain];

/// A rate of a peer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerRate {
    /// Its name and version.
    peer: String,
    /// The measurement.
    measure: String,
    /// Jobs per second.
    jobs_per_second: f64,
}

/// Returns the first figure of each measurement of `firsts` next to each peer's.
pub(super) async fn compare(
    program: &Path,
    database: &Database,
    plan: &BenchPlan,
    firsts: &[(Measure, Figure)],
) -> anyhow::Result<Vec<Figure>> {
    let taken = firsts.iter().filter(|(measure, _)| COMPARED.contains(measure));
    let names: Vec<String> = taken.map(|(measure, _)| name(*measure)).collect();
    ensure!(!names.is_empty(), "--peers needs one of the measurements enqueue, batch and drain");
    let running = Command::new(program)
        .args(names)
        .env(STORE_VARIABLE, database.address())
        .env("TIDEGATE_BENCH_SECONDS", plan.window.as_secs_f64().to_string())
        .env("TIDEGATE_BENCH_JOBS", plan.drain.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("--peers: {} cannot be run", program.display()))?;
    let output = running.wait_with_output().await?;
    ensure!(output.status.success(), "--peers: {}: {}", program.display(), output.status);
    let text = String::from_utf8(output.stdout).context("--peers: the rates are no text")?;
    text.lines().map(|line| compared(line, firsts)).collect()
}

/// Returns the figure of a line.
fn compared(line: &str, firsts: &[(Measure, Figure)]) -> anyhow::Result<Figure> {
    let rate: PeerRate =
        serde_json::from_str(line).with_context(|| format!("--peers: no rate: {line}"))?;
    let measure = Measure::from_str(&rate.measure, false).ok();
    let ours = firsts.iter().find(|(taken, _)| Some(*taken) == measure);
    let (_, ours) = ours.with_context(|| format!("--peers: not measured: {}", rate.measure))?;
    let compared = Figure::rate(&ours.what, ours.unit, ours.ours);
    Ok(compared.baseline(rate.peer, rate.jobs_per_second).among(ours.others_cores))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_of_a_peer_is_next_to_the_rate_of_tidegate() {
        let firsts = [(Measure::Batch, Figure::rate("batch of 1000", "jobs/s", 40_000.0))];
        let line = r#"{"peer":"queue 1.2","measure":"batch","jobs_per_second":20000.5}"#;
        let figure = compared(line, &firsts).unwrap();
        let baseline = figure.baseline.unwrap();
        assert_eq!((&figure.what[..], &baseline.what[..]), ("batch of 1000", "queue 1.2"));
        assert_eq!((figure.ours.round() as u64, baseline.value.round() as u64), (40_000, 20_001));
        for wrong in ["", "nonsense", r#"{"peer":"q","measure":"drain","jobs_per_second":1}"#] {
            assert!(compared(wrong, &firsts).is_err(), "{wrong}");
        }
    }
}
