//! Simulation: a queue under virtual time, so that limits, throttlers and retry strategies are seen at work before they are
//! trusted with a live one.
//!
//! ```text
//!   scenario (arrivals, service times, failures) or trace ─▶ the real engine on a store in memory ─▶ report, picture
//! ```
//!
//! The one thing to know: **nothing is modelled**. A simulated queue is ticked by the same code as a live one; only the
//! clock, the workers and the store are stand-ins. And nothing is left to chance: the same scenario with the same plugins
//! gives the same report, byte for byte, on every machine.
//!
//! Read in this order: [`scenario`] (what is simulated), `world` (how), `record` and [`report`] (what is measured),
//! [`policies`] (plugins), [`compare`] (two versions), [`trace`] (what a live queue did), [`picture`].

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
#[cfg(test)]
mod tests;
pub mod trace;
mod world;

pub use compare::Difference;
pub use policies::Plugins;
pub use record::By;
pub use report::{Agreement, SimulationReport};
pub use scenario::{BadScenario, Scenario};
pub use series::Series;
pub use world::Failed;

/// A simulation that is over.
pub struct Simulation {
    /// What it comes to.
    pub report: SimulationReport,
    /// What the live queue did, and how alike that is, if the scenario is a trace.
    pub real: Option<(SimulationReport, Agreement)>,
    ran: world::Ran,
}

impl Simulation {
    /// The first jobs about which the plugins of `self` and `other` decided differently, and how many there are in all. Both
    /// are simulations of one scenario.
    pub fn differences(&self, other: &Self) -> (Vec<Difference>, u64) {
        compare::differences(&self.ran, &other.ran)
    }
}

/// Simulates `scenario` with `plugins`, its jobs told apart by `by`. Now and then `tell` is told how many jobs have ended.
///
/// # Errors
///
/// The scenario is not sound, or the queue refuses its configuration or one of its jobs.
pub async fn simulate(
    scenario: &Scenario,
    plugins: &Plugins,
    by: By,
    tell: &mut (dyn FnMut(u64) + Send),
) -> Result<Simulation, Failed> {
    let mut ran = world::run(scenario, plugins, by.clone(), tell).await?;
    let mut report = ran.record.report(scenario, ran.over, ran.end, ran.rounds);
    report.calls = ran.seen.calls();
    let real = trace::real(scenario, &by).map(|(record, end)| {
        let over = if record.ended == record.jobs.len() as u64 {
            report::Over::Done
        } else {
            report::Over::Duration
        };
        (
            record.report(scenario, over, end, 0),
            ran.record.agreement(&record, &ran.ids, end.max(ran.end)),
        )
    });
    Ok(Simulation { report, real, ran })
}
