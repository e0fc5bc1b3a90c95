//! The health checks of a deployment: its table, its queues, its permissions, its clock.
//!
//! The one thing to know: a check tests the permissions of the function that answers, by using
//! them. In the table it writes a probe and removes it. To each queue it sends a message without
//! content, which its consumer deletes on receipt. The refusal of a service is quoted, with a
//! remedy. Missing permissions of the other functions show as messages that wait in their queues.
//!
//! Read in this order: [`table`], [`queues`], [`clock`], [`refusal`] (the remedy for each error of
//! a service).

mod clock;
mod queues;
mod refusal;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;

use super::settings::CloudSettings;
use table::TableChecks;
use tidegate_backends::{aws::SdkConfig, dynamodb::sdk::SdkTable};
use tidegate_core::port::{
    Clock, Entropy,
    health_check::{Check, CheckLevel, HealthCheck},
};

/// The health check of a deployment on AWS.
pub struct CloudHealthCheck {
    settings: CloudSettings,
    region: Option<String>,
    endpoint: Option<String>,
    dynamodb: aws_sdk_dynamodb::Client,
    table: SdkTable,
    sqs: aws_sdk_sqs::Client,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

impl CloudHealthCheck {
    /// The check of the deployment that `settings` name, with the clients that `config` describes.
    pub fn new(
        settings: CloudSettings,
        config: &SdkConfig,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let dynamodb = aws_sdk_dynamodb::Client::new(config);
        Self {
            region: config.region().map(ToString::to_string),
            endpoint: config.endpoint_url().map(str::to_owned),
            table: SdkTable::new(dynamodb.clone(), settings.table.as_str()),
            dynamodb,
            sqs: aws_sdk_sqs::Client::new(config),
            settings,
            clock,
            entropy,
        }
    }

    /// Checks whether the admin token of the stack's parameters is still accepted.
    fn check_admin_token(&self) -> Check {
        let about = "admin token";
        match &self.settings.first_token {
            Some(token) => Check::new(
                CheckLevel::Note,
                about,
                format!("the token {} of the stack's parameters has every permission", token.id),
                "once every user has a token (`tidegate token create`), deploy with an empty \
                 AdminToken",
            ),
            None => Check::ok(about, "there is none; every accepted token is a stored one"),
        }
    }
}

#[async_trait]
impl HealthCheck for CloudHealthCheck {
    async fn checks(&self) -> Vec<Check> {
        let TableChecks { mut checks, is_missing } = self.check_table().await;
        // A missing table cannot be written to.
        if !is_missing {
            checks.push(self.check_permissions().await);
        }
        checks.extend(self.check_queues().await);
        checks.push(self.check_clock().await);
        checks.push(self.check_admin_token());
        checks
    }
}
