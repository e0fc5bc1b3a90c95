//! Fuzz targets: every parser of foreign input, on noise and on almost correct input.
//!
//! A target asserts that there is no panic and no unbounded time, that what is read can be written
//! and read again, and that the result agrees with a reference where one exists. See
//! "Fuzz targets" in `CONTRIBUTING.md`.

mod address;
mod calendar;
mod driver;
mod event;
mod expression;
mod matcher;
mod time;
