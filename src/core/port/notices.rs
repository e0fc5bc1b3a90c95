//! Notices between servers that share a store: what one of them committed, and another may wait for.
//!
//! A notice may arrive late, twice, or never. It names its subject only, so that a receiver reads
//! the store and decides. A receiver also looks without a notice, at an interval.

use std::{collections::BTreeSet, fmt, str::FromStr};

use async_trait::async_trait;

use super::StoreError;
use crate::job::QueueName;

/// What another server committed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// Jobs of this queue may be due, or may fit now.
    Queue(QueueName),
    /// There is a bulk operation to continue.
    Operations,
    /// A queue, a type, a plugin or a drain changed.
    Configuration,
    /// A schedule changed.
    Schedules,
    /// A job waits for the decision of its retry strategy.
    Retries,
    /// A token changed.
    Tokens,
    /// A server began, or stopped.
    Servers,
}

/// The notices without a queue, by their texts.
const WORDS: [(&str, Notice); 6] = [
    ("configuration", Notice::Configuration),
    ("operations", Notice::Operations),
    ("schedules", Notice::Schedules),
    ("retries", Notice::Retries),
    ("tokens", Notice::Tokens),
    ("servers", Notice::Servers),
];

/// What is before the name of a queue.
const QUEUE: &str = "queue ";

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(name) => write!(f, "{QUEUE}{name}"),
            other => {
                let word = WORDS.iter().find(|(_, notice)| notice == other);
                f.write_str(word.map_or("", |(word, _)| word))
            }
        }
    }
}

/// A text that is no notice of this release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no notice that this release knows")]
pub struct UnknownNotice;

impl FromStr for Notice {
    type Err = UnknownNotice;

    fn from_str(text: &str) -> Result<Self, UnknownNotice> {
        if let Some(name) = text.strip_prefix(QUEUE) {
            return name.parse().map(Self::Queue).map_err(|_| UnknownNotice);
        }
        let found = WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, notice)| notice.clone()).ok_or(UnknownNotice)
    }
}

/// Carries notices between the servers of one store.
#[async_trait]
pub trait Notices: Send + Sync {
    /// Sends `notices` to the other servers. This one may get them too.
    async fn send(&self, notices: &BTreeSet<Notice>) -> Result<(), StoreError>;

    /// The notices that arrived since the call before; waits until there are some. After an error,
    /// notices may be missing.
    async fn receive(&self) -> Result<BTreeSet<Notice>, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_notice_is_read_from_its_text() {
        let queue = Notice::Queue("mail".parse().unwrap());
        for notice in WORDS.map(|(_, notice)| notice).into_iter().chain([queue]) {
            assert_eq!(notice.to_string().parse(), Ok(notice));
        }
        for unknown in ["", "queue", "queue ", "queue a b", "QUEUE a", "unknown"] {
            assert_eq!(unknown.parse::<Notice>(), Err(UnknownNotice), "{unknown:?}");
        }
    }
}
