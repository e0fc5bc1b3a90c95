//! Lines for the plugin's author: `tidegate plugin logs` shows them. In a test they go to standard error.
//!
//! [`debug!`](crate::debug), [`info!`](crate::info), [`warn!`](crate::warn) and [`error!`](crate::error) are written like `format!`.

pub use crate::bindings::throttler::tidegate::plugin::log::Level;

/// Writes one line. At most 100 lines and 16 KiB of a call are kept.
pub fn write(level: Level, message: &str) {
    #[cfg(target_arch = "wasm32")]
    crate::bindings::throttler::tidegate::plugin::log::write(level, message);
    #[cfg(not(target_arch = "wasm32"))]
    eprintln!("{level:?}: {message}");
}

/// Writes a line of detail.
#[macro_export]
macro_rules! debug {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Debug, &format!($($line)*)) };
}

/// Writes a line.
#[macro_export]
macro_rules! info {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Info, &format!($($line)*)) };
}

/// Writes a line about what is odd.
#[macro_export]
macro_rules! warn {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Warn, &format!($($line)*)) };
}

/// Writes a line about what is wrong.
#[macro_export]
macro_rules! error {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Error, &format!($($line)*)) };
}

/// Has a panic leave its message in the log: a component that panics can say nothing else.
#[doc(hidden)]
pub fn report_panics() {
    #[cfg(target_arch = "wasm32")]
    std::panic::set_hook(Box::new(|panic| write(Level::Error, &panic.to_string())));
}
