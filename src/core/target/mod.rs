//! Where jobs of a type go ([`config`]), and how pushes are signed ([`signature`]). Pure.

pub mod config;
pub mod signature;

pub use config::{
    AwsService, AwsTarget, BasicAuth, Complete, EventBridgeTarget, Invocation, LambdaTarget, Pull,
    Push, PushEncoding, Secrets, SnsTarget, SqsTarget, TargetConfig,
};
