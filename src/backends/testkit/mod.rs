//! What tests of the AWS backends are built from: the meters of what is paid for.

pub mod meter;
