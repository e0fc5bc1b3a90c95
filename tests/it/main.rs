//! The library from outside, as one binary: each file is a subject.

mod cases;
mod conformance;
mod server;
mod simulation;
