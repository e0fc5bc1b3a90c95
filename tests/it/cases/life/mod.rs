//! The promises of a job's own settings, from its enqueue to its removal.

mod changes;
mod checkpoints;
mod end;
mod hand_backs;
mod keys;
mod merges;
mod results;
