//! Events: ingestion, triggers, replies to jobs, dead letters.

mod apply_reply;
pub mod dead_letters;
pub mod ends;
pub mod ingest;
pub mod pending_replies;
pub mod reply;
mod reply_match;
pub mod trial;
pub mod triggers;
