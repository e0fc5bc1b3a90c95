//! Items of configuration and of the server's own state, which are read whole.

/// The kinds of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ItemKind {
    /// [`crate::queue::config::QueueItem`].
    Queue,
    /// [`crate::job::type_config::TypeItem`].
    Type,
    /// A token's hash and scopes.
    Token,
    /// A background operation.
    Operation,
    /// [`crate::queue::plugin::PluginItem`].
    Plugin,
    /// How far ahead jobs were dispatched.
    Horizon,
    /// [`crate::schedule::ScheduleItem`].
    Schedule,
    /// [`crate::schedule::ScheduleState`]: the progress of a schedule, separate from its
    /// configuration.
    ScheduleState,
    /// [`crate::event::trigger::TriggerItem`].
    Trigger,
    /// A pull worker that gets no more jobs: since when, as JSON.
    Drain,
    /// Which releases may use the store.
    Schema,
}

impl ItemKind {
    /// The kind's name in stores.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Type => "type",
            Self::Token => "token",
            Self::Operation => "operation",
            Self::Plugin => "plugin",
            Self::Horizon => "horizon",
            Self::Schedule => "schedule",
            Self::ScheduleState => "schedule_state",
            Self::Trigger => "trigger",
            Self::Drain => "drain",
            Self::Schema => "schema",
        }
    }

    /// Whether engines cache items of this kind, so that a change of one changes
    /// [`JobStore::items_version`](super::JobStore::items_version).
    pub fn is_decided_under(self) -> bool {
        match self {
            Self::Queue
            | Self::Type
            | Self::Plugin
            | Self::Schedule
            | Self::Trigger
            | Self::Drain
            | Self::Schema => true,
            Self::Token | Self::Operation | Self::Horizon | Self::ScheduleState => false,
        }
    }
}

/// A stored item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u64,
    /// JSON.
    pub bytes: Vec<u8>,
}
