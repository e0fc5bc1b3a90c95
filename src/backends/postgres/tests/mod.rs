//! Tests of the store on a server that they start and share.

mod conformance;
mod failover;
mod heartbeats;
mod horizon;
mod inbox;
mod item_lock;
mod ledgers;
mod like_memory;
mod links;
mod moves;
mod notices;
mod objects;
mod places;
mod plans;
mod pooler;
mod races;
mod raw;
mod records;
mod repeats;
mod retention;
mod scratch;
mod server;
mod single;
mod tls;
mod upgrade;
