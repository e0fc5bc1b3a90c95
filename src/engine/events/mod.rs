//! The verbs on events: ingest, triggers, replies to waiting jobs, dead letters.

pub mod dead_letters;
pub mod ingest;
pub mod pending_replies;
pub mod reply;
mod reply_match;
pub mod triggers;
