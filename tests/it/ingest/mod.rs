//! What other services send, as their functions are called with it, through the real code on ports in memory.

mod harness;
mod hops;
mod malformed;
mod proxy;
mod recorded;
mod repeated;
