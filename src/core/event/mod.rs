//! Events from elsewhere, and the rules that make jobs and replies of them. Pure.
//!
//! ```text
//!   CloudEvents in any mode ─▶ Event ─▶ Trigger (filter, then templates) ─▶ a new job, or a reply
//!                                                                           to a waiting job
//! ```
//!
//! Every mode becomes an [`Event`] before a rule sees it, and what a rule makes of an event follows
//! from the two alone. So a rule can be tried on sample events anywhere, and a second delivery
//! makes the same job id.
//!
//! Read in this order: [`value`] (an event), [`read`] (its three modes), [`trigger`] (a rule and
//! what it makes), [`filter`] and [`template`] (the parts of a rule), [`event_view`] (an event for
//! rules), [`expression`] (the bounds of expressions), [`fields`] (the fields of a job in a rule).

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
