//! Invocations by other AWS services, through the real code of `ingest` on ports in memory.

mod harness;
mod hops;
mod malformed;
mod proxy;
mod recorded;
mod repeated;
