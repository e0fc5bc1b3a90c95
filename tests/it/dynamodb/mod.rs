//! The DynamoDB adapter, on a table in memory and on a local emulator.

mod active;
mod conformance;
mod cost;
mod counts;
mod crowd;
mod damage;
mod deployment;
mod doctor;
pub mod emulator;
mod fake_aws;
mod faults;
mod keys;
mod late;
mod lists;
mod moves;
mod passed;
mod retention;
mod shards;
mod shared_keys;
mod streams;
mod sweep;
mod tenants;
mod tick_requests;
mod timers;
