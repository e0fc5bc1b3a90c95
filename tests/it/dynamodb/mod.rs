//! The DynamoDB adapter, on a table in memory and on an emulator that runs beside the tests.

mod conformance;
mod cost;
mod deployment;
mod doctor;
pub mod emulator;
mod fake_aws;
mod keys;
mod minute;
mod shards;
mod trouble;
