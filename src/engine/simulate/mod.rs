//! Simulation: a queue under virtual time, to see limits, throttlers and retry strategies at work
//! before a live queue uses them.
//!
//! ```text
//!   scenario (arrivals, service times, failures) or trace
//!     ─▶ the real engine on a store in memory ─▶ report, picture
//! ```
//!
//! The one thing to know: **nothing is modelled**. The same code ticks a simulated queue and a live
//! one; only the clock, the workers and the store are replaced. A run is deterministic: the same
//! scenario with the same plugins gives the same report, byte for byte, on every machine.
//!
//! Read in this order: [`scenario`] (the input), `world` (the run), `record` and [`report`] (the
//! measurements), [`policies`] (plugins), [`compare`] (two versions), [`trace`] (the history of a
//! live queue), [`picture`].

mod agreement;
mod arrivals;
pub mod check;
pub mod compare;
mod draw;
pub mod picture;
pub mod policies;
mod record;
pub mod report;
pub mod scenario;
mod series;
mod store;
pub mod summary;
#[cfg(test)]
mod tests;
pub mod trace;
mod world;

pub use agreement::Agreement;
pub use compare::Difference;
pub use policies::Plugins;
pub use record::By;
pub use report::SimulationReport;
pub use scenario::{BadScenario, Scenario};
pub use series::Series;
pub use summary::Summary;
pub use world::Failed;

/// Whether a simulation goes on.
pub type GoesOn = std::ops::ControlFlow<()>;

/// A finished simulation.
pub struct Simulation {
    /// The measurements.
    pub report: SimulationReport,
    /// If the scenario is a trace: the measurements of the live queue, and how well the simulation
    /// agrees with them.
    pub real: Option<(SimulationReport, Agreement)>,
    /// The summary of the simulation.
    pub summary: Summary,
    /// If the scenario is a trace: the summary of the live queue.
    pub real_summary: Option<Summary>,
    ran: world::FinishedRun,
}

impl Simulation {
    /// The first jobs about which the plugins of `self` and `other` decided differently, and the
    /// number of all such jobs. Both are simulations of one scenario.
    pub fn differences(&self, other: &Self) -> (Vec<Difference>, u64) {
        compare::differences(&self.ran, &other.ran)
    }
}

/// Simulates `scenario` with `plugins`, and groups its jobs by `by`. It calls `progress` from time
/// to time with the number of jobs that have ended, and ends when that breaks.
///
/// # Errors
///
/// The scenario is invalid, or the queue refuses its configuration or one of its jobs.
pub async fn simulate(
    scenario: &Scenario,
    plugins: &Plugins,
    by: By,
    progress: &mut (dyn FnMut(u64) -> GoesOn + Send),
) -> Result<Simulation, Failed> {
    let mut ran = world::run(scenario, plugins, by.clone(), progress).await?;
    let mut report = ran.record.report(scenario, ran.over, ran.end, ran.ticks);
    report.calls = ran.seen.calls();
    let real = trace::real(scenario, &by).map(|(record, end)| {
        let over = if record.ended == record.jobs.len() as u64 {
            report::Over::Done
        } else {
            report::Over::Duration
        };
        let report = record.report(scenario, over, end, 0);
        let agreement = ran.record.agreement(&record, &ran.ids, end.max(ran.end));
        (report, agreement, record.summary(scenario, over, end))
    });
    let summary = ran.record.summary(scenario, ran.over, ran.end);
    let (real, real_summary) =
        real.map(|(report, agreement, summary)| ((report, agreement), summary)).unzip();
    Ok(Simulation { report, real, summary, real_summary, ran })
}
