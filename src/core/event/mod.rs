//! Events: what arrives from elsewhere, and the rules that make jobs and results of it. Pure.
//!
//! ```text
//!   CloudEvents in any mode ─▶ Event ─▶ Trigger (filter, then templates) ─▶ a new job, or a reply to a waiting one
//! ```
//!
//! The one thing to know: whatever an event arrived as, it is an [`Event`] before any rule sees it, and what a rule makes
//! of an event follows from the two alone. So a rule can be tried on sample events anywhere, and a second delivery makes the
//! same job id.
//!
//! Read in this order: [`value`] (what an event is), [`read`] (its three modes), [`trigger`] (what a rule is and makes),
//! [`filter`] and [`template`] (what a rule is made of), [`event_view`] (what it sees), [`expression`] (how expressions are bounded), [`fields`] (what a
//! rule can say of a job).

pub mod event_view;
pub mod expression;
pub mod fields;
pub mod filter;
pub mod read;
pub mod template;
pub mod trigger;
pub mod value;

#[cfg(test)]
mod tests;

pub use filter::Filter;
pub use template::Template;
pub use trigger::{Decision, Trigger, TriggerConfig, Triggers};
pub use value::Event;
