//! The library from outside, as one binary: each file is a subject.

mod architecture;
mod conformance;
mod docs;
mod server;
mod faults;
mod sqlite_store;
