//! Versions of plugins: pushed, made live, rolled back, and removed with their objects; and the queues
//! and types that use one.

mod unnamed;
mod users;
mod versions;

use tidegate_core::queue::plugin::Description;
use tidegate_engine::Error;

#[allow(clippy::unnecessary_wraps, reason = "as a push takes it")]
fn says() -> Option<Description> {
    Some(Description::default())
}

/// The field at fault, or the error code, and the message.
fn blame<T: std::fmt::Debug>(answer: Result<T, Error>) -> (String, String) {
    match answer.unwrap_err() {
        Error::Invalid { field, message, .. } => (field, message),
        Error::Conflict { code, message, .. } => (code.to_string(), message),
        Error::NotFound { code, what } => (code.to_string(), what),
        error => panic!("{error:?}"),
    }
}
