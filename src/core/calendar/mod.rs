//! Calendar arithmetic: [`window`] (when a job may start) and [`recurrence`] (when a schedule
//! occurs). Pure.

pub mod recurrence;
pub mod window;

#[cfg(test)]
mod tests;

pub use recurrence::Recurrence;
pub use window::Window;
