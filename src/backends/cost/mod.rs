//! The cost of a deployment on AWS: the usage of a job, the prices of the services, and the sum.
//! Pure.
//!
//! Only [`case`] has the usage of a job. Metered tests assert that the code matches it, and
//! `tidegate cost` multiplies it, so the two always agree.
//!
//! Read in this order: [`case`] (usage), [`price`] (prices), [`estimate`] (the sum).

pub mod case;
pub mod estimate;
pub mod metered;
pub mod price;

pub use case::{Case, Units};
pub use estimate::{Deployment, Line, Workload, idle, month, total};
pub use metered::Metered;
pub use price::Prices;

/// Bytes above which a body should become an object. The table bills a body twice by the kilobyte:
/// for its insert, and for its deletion. An object is billed once, whatever its size.
pub const OBJECT_BYTES: usize = 8 << 10;
