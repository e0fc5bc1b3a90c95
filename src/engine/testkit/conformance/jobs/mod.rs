//! Jobs and transactions: how jobs are added, changed, removed and found.

mod bodies;
mod found;
mod transactions;
mod written;

pub use bodies::*;
pub use found::*;
pub use transactions::*;
pub use written::*;

use tidegate_core::port::job_store::Committed;

fn is_all(committed: &Committed) -> bool {
    matches!(committed, Committed::All)
}
