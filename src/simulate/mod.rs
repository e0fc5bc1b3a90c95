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
//! Read in this order: [`scenario`] (what is simulated), [`world`] (how), [`record`] and [`report`] (what is measured),
//! [`compare`] (against another version, or against what a live queue did), [`picture`].

mod arrivals;
pub mod check;
mod draw;
mod record;
pub mod report;
pub mod scenario;
mod series;
mod store;
#[cfg(test)]
mod tests;
mod world;

pub use record::By;
pub use report::{Agreement, Report};
pub use scenario::{BadScenario, Scenario};
pub use series::Series;
pub use world::Failed;

/// Simulates `scenario`.
///
/// # Errors
///
/// The scenario is not sound, or the queue refuses its configuration or one of its jobs.
pub async fn simulate(scenario: &Scenario, by: By, tell: &mut (dyn FnMut(u64) + Send)) -> Result<Report, Failed> {
    let ran = world::run(scenario, by, tell).await?;
    Ok(ran.record.report(scenario, ran.over, ran.end, ran.rounds))
}
