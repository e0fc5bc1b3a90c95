//! What a plugin says about itself. What it does not declare it is not given.

use crate::bindings::throttler::tidegate::plugin::types::Description;

/// What the queue has to know of a plugin before it asks it.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// A sentence for operators.
    pub about: &'static str,
    /// JSON Schema of the configuration, if there is one.
    pub config_schema: Option<&'static str>,
    /// The shape of the state: raise it when a new version cannot read the old one's. 0 without state.
    pub state_version: u32,
    /// Attributes by which the running set is asked; `*` for any, where the configuration names them.
    pub group_by: &'static [&'static str],
    /// Whether [`Running::page`](crate::Running::page) is called.
    pub needs_running_jobs: bool,
    /// Whether data of jobs is read.
    pub needs_data: bool,
    /// Whether [`Round::ended`](crate::Round::ended) is looked at.
    pub needs_ended: bool,
}

impl About {
    /// A plugin that needs nothing but its configuration and the running set by job type and priority.
    pub const fn new(about: &'static str) -> Self {
        Self {
            about,
            config_schema: None,
            state_version: 0,
            group_by: &[],
            needs_running_jobs: false,
            needs_data: false,
            needs_ended: false,
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
        }
    }
}
