//! What tests of the AWS backends are built from: the meters of what is paid for, and a table with
//! the limits of AWS.

pub mod limits;
pub mod meter;
