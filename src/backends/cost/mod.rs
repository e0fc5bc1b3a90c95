//! What a deployment on AWS costs: what a job takes of each service, what each service asks for that, and the sum of both. Pure.
//!
//! The one thing to know: what a job takes is written once, in [`case`]. The meter of the tests asserts that the code takes just that, and
//! `tidegate cost` multiplies it, so neither can say what the other does not.
//!
//! Read in this order: [`case`] (what a job takes), [`price`] (what a service asks), [`estimate`] (the sum).

pub mod case;
pub mod estimate;
pub mod metered;
pub mod price;

pub use case::{Case, Units};
pub use estimate::{Deployment, Line, Workload, idle, month, total};
pub use metered::Metered;
pub use price::Prices;

/// Bodies over this many bytes are to become objects. In the table they are paid for by the kilobyte, twice: when they come, and when they
/// are to be forgotten; among the objects once, whatever their size.
pub const OBJECT_BYTES: usize = 8 << 10;
