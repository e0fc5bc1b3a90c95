//! Items of configuration and of the server's own state, which are read whole.

use serde::de::DeserializeOwned;

/// The kinds of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ItemKind {
    /// [`crate::queue::config::QueueItem`].
    Queue,
    /// [`crate::job::type_config::TypeItem`].
    Type,
    /// A token's hash and scopes.
    Token,
    /// When a token was used last, as JSON, under its id.
    TokenUse,
    /// That a token was stored once, so that callers need credentials from then on.
    Closed,
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
    /// Every kind.
    pub const ALL: [Self; 13] = [
        Self::Queue,
        Self::Type,
        Self::Token,
        Self::TokenUse,
        Self::Closed,
        Self::Operation,
        Self::Plugin,
        Self::Horizon,
        Self::Schedule,
        Self::ScheduleState,
        Self::Trigger,
        Self::Drain,
        Self::Schema,
    ];

    /// The kind's name in stores.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Type => "type",
            Self::Token => "token",
            Self::TokenUse => "token_use",
            Self::Closed => "closed",
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
            Self::Token
            | Self::TokenUse
            | Self::Closed
            | Self::Operation
            | Self::Horizon
            | Self::ScheduleState => false,
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
    /// JSON; or why it cannot be read, if the store found it damaged.
    pub bytes: Result<Vec<u8>, String>,
}

impl Item {
    /// The value that its JSON contains.
    ///
    /// # Errors
    ///
    /// Why it cannot be read, for an operator.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, String> {
        let bytes = self.bytes.as_ref().map_err(String::clone)?;
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }
}
