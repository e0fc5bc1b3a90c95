//! The library from outside, as one binary: each file is a subject.

mod architecture;
mod bench;
mod conformance;
mod docs;
mod faults;
mod server;
mod simulation;
mod sqlite_store;
