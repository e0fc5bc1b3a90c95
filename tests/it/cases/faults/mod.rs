//! Lost, late and duplicate messages, and crashes: limits hold, and no job is lost or run twice.

mod at_most_once;
mod damage;
mod lost_answers;
mod messages;
mod reports;
mod unreadable;

use tidegate_core::job::type_config::{Delivery, TypeConfig};

fn once() -> TypeConfig {
    TypeConfig { delivery: Delivery::AtMostOnce, ..TypeConfig::default() }
}
