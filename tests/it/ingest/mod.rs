//! What other services send, as their functions are called with it, through the real code on ports in memory.

mod bad;
mod place;
mod proxy;
mod recorded;
mod repeated;
mod round;
