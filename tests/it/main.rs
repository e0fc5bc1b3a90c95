//! The library from outside, as one binary: each file is a subject.

mod architecture;
mod conformance;
mod docs;
mod e2e;
mod faults;
mod server;
mod sqlite_store;
