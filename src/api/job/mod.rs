//! Jobs: enqueued, changed, shown.
//!
//! An answer about one job shows `data` and `result` whole, unless both together exceed the limit
//! of an answer. A list shows each up to a kibibyte, and the size of a larger one, so that a page
//! has a bound. `GET …/result` alone shows a result that is kept `once`, because showing it removes
//! it.

mod answer;
mod attempt;
mod origin;
mod request;
mod short;
mod view;

pub use answer::{BatchJob, BatchResult, BatchView, JobPage, SortedJobs};
pub use attempt::{EntryView, FailureView, RunningView};
pub use origin::OriginView;
pub use request::{BatchBody, NewJobBody, PatchBody, ReplayBody};
pub use short::ShortView;
pub use view::{Bodies, JobView, without_query};
