//! Tests of the store on a server that they start.

mod conformance;
mod like_memory;
mod places;
mod plans;
mod races;
mod retention;
mod server;
