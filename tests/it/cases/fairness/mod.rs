//! No job starves: not behind another tenant, higher priorities or lighter jobs.

mod ageing;
mod line;
mod scans;
mod tenants;

use tidegate_core::{
    job::type_config::TypeConfig,
    queue::{QueueConfig, config::Constraint, matcher::Matcher},
};
use tidegate_engine::request::NewJob;

use super::harness::{Harness, with};

fn per_tenant(concurrency: u32) -> Constraint {
    Constraint {
        name: "tenant".into(),
        matcher: Matcher::default(),
        per: Some("tenant".into()),
        concurrency: Some(concurrency),
        rate: None,
    }
}

async fn taking_turns(harness: &Harness, concurrency: u32, constraints: Vec<Constraint>) {
    let partition_by = Some("tenant".to_owned());
    harness
        .set_queue(QueueConfig {
            concurrency: Some(concurrency),
            partition_by,
            constraints,
            ..QueueConfig::default()
        })
        .await;
    harness.set_type("work", TypeConfig::default()).await;
}

fn of_tenant(tenant: &str, weight: u32) -> NewJob {
    with("tenant", tenant).with_options(|options| options.weight = Some(weight))
}
