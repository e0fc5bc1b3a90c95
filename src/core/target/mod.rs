//! Where jobs of a type go ([`config`]), and how pushes are signed ([`signature`]). Pure.

pub mod config;
pub mod signature;

pub use config::{
    BasicAuth, Complete, ExternalTarget, Pull, Push, PushEncoding, Secrets, TargetConfig,
};
