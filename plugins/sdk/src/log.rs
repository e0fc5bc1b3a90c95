//! The log, for the plugin's author: `tidegate plugin logs` shows it. In a test, lines go to
//! standard error.
//!
//! [`debug!`](crate::debug), [`info!`](crate::info), [`warn!`](crate::warn) and
//! [`error!`](crate::error) take arguments like `format!`.

pub use crate::bindings::throttler::tidegate::plugin::log::Level;

/// Writes one line. The server keeps at most 100 lines and 16 KiB of a call.
pub fn write(level: Level, message: &str) {
    #[cfg(target_arch = "wasm32")]
    crate::bindings::throttler::tidegate::plugin::log::write(level, message);
    #[cfg(not(target_arch = "wasm32"))]
    eprintln!("{level:?}: {message}");
}

/// Writes a line at level `debug`.
#[macro_export]
macro_rules! debug {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Debug, &format!($($line)*)) };
}

/// Writes a line at level `info`.
#[macro_export]
macro_rules! info {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Info, &format!($($line)*)) };
}

/// Writes a line at level `warn`.
#[macro_export]
macro_rules! warn {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Warn, &format!($($line)*)) };
}

/// Writes a line at level `error`.
#[macro_export]
macro_rules! error {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Error, &format!($($line)*)) };
}

/// Makes a panic write its message to the log. A component that panics has no other output.
#[doc(hidden)]
pub fn report_panics() {
    #[cfg(target_arch = "wasm32")]
    std::panic::set_hook(Box::new(|panic| write(Level::Error, &panic.to_string())));
}
