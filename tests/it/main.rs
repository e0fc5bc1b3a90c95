//! The library from outside, as one binary: each file is a subject.

mod architecture;
mod backup;
mod bench;
mod cases;
mod conformance;
mod demo;
mod docs;
mod e2e;
mod faults;
mod leases;
mod plugins;
mod server;
mod shadows;
mod shipped;
mod simulation;
mod sqlite_store;
