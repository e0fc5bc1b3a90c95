//! Cases: the inputs of a plugin and the expected answers, as data.
//!
//! `tidegate plugin test` runs the same files on the built component, for plugins in any language.
//! Here an ordinary test runs them on the Rust code itself:
//!
//! ```no_run
//! # use tidegate_plugin::{About, Answer, Job, Round, Throttler};
//! # struct MyPlugin;
//! # impl Throttler for MyPlugin {
//! #     type Config = ();
//! #     const ABOUT: About = About::new("");
//! #     fn decide(_: &(), _: &Round, _: &[Job]) -> Result<Answer, String> { Err(String::new()) }
//! # }
//! #[test]
//! fn the_cases_hold() {
//!     tidegate_plugin::testing::throttler_cases::<MyPlugin>("cases");
//! }
//! # fn main() {}
//! ```
//!
//! A file has one case or a list of them. An absent field has a default. An unknown name is an
//! error.

mod case;
mod check;
mod time;

use std::{fs, path::Path};

use crate::{RetryStrategy, Throttler};

pub use case::{Case, Role};
pub use check::{retry, throttler};

/// Runs every case in the JSON files of `folder`, which is relative to the package's folder.
///
/// # Panics
///
/// A case fails or cannot be parsed, or there is no case. The message has all failures.
pub fn throttler_cases<T: Throttler>(folder: &str) {
    run(folder, throttler::<T>);
}

/// Runs every case in the JSON files of `folder`, which is relative to the package's folder.
///
/// # Panics
///
/// A case fails or cannot be parsed, or there is no case. The message has all failures.
pub fn retry_cases<T: RetryStrategy>(folder: &str) {
    run(folder, retry::<T>);
}

fn run(folder: &str, check: impl Fn(&Case) -> Vec<String>) {
    let entries =
        fs::read_dir(Path::new(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "json"));
    files.sort();
    let mut wrong = Vec::new();
    let mut count = 0;
    for file in &files {
        let text =
            fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let cases = Case::read(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for case in cases {
            count += 1;
            wrong.extend(
                check(&case)
                    .into_iter()
                    .map(|what| format!("{}: {}: {what}", file.display(), case.name)),
            );
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(count > 0, "{folder}: no case");
}
