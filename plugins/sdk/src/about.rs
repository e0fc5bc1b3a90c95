//! The declarations of a plugin. It receives only what it declares.

use crate::bindings::throttler::tidegate::plugin::types::Description;

/// What the queue needs to know before it calls a plugin.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// A sentence for operators.
    pub about: &'static str,
    /// JSON Schema of the configuration, if there is one.
    pub config_schema: Option<&'static str>,
    /// The version of the state's format. Raise it when a new version cannot read the old state. 0
    /// for a plugin without state. A retry strategy with 0 cannot use its state.
    pub state_version: u32,
    /// The attributes by which it groups the running set. `*` permits any, for a plugin whose
    /// configuration names them.
    pub group_by: &'static [&'static str],
    /// Whether it calls [`Running::page`](crate::Running::page).
    pub needs_running_jobs: bool,
    /// Whether it reads the data of jobs.
    pub needs_data: bool,
    /// Whether it reads [`Round::ended`](crate::Round::ended).
    pub needs_ended: bool,
    /// Whether it reads [`Job::earlier`](crate::Job::earlier). A retry strategy always may.
    pub needs_earlier: bool,
    /// The attributes by which it groups what waits: at most 2, which the queue's `partition_by` and
    /// `partition_then_by` name. `*` permits both.
    pub waiting_by: &'static [&'static str],
}

impl About {
    /// The declarations of a plugin that needs only its configuration, and the running set by job
    /// type and priority.
    pub const fn new(about: &'static str) -> Self {
        Self {
            about,
            config_schema: None,
            state_version: 0,
            group_by: &[],
            needs_running_jobs: false,
            needs_data: false,
            needs_ended: false,
            needs_earlier: false,
            waiting_by: &[],
        }
    }
}

impl From<About> for Description {
    fn from(about: About) -> Self {
        Self {
            about: about.about.to_owned(),
            config_schema: about.config_schema.map(str::to_owned),
            state_version: about.state_version,
            group_by: about.group_by.iter().map(|name| (*name).to_owned()).collect(),
            needs_running_jobs: about.needs_running_jobs,
            needs_data: about.needs_data,
            needs_ended: about.needs_ended,
            needs_earlier: about.needs_earlier,
            waiting_by: about.waiting_by.iter().map(|name| (*name).to_owned()).collect(),
        }
    }
}
