//! Notices between servers that share a store: what one of them committed, and another may wait for.
//!
//! A notice may arrive late, twice, or never. It names its subject only, so that a receiver reads
//! the store and decides. A receiver also looks without a notice, at an interval. Changes for readers
//! of the stream are the exception: they are in the notice, and their numbers show what is missing.

use std::{collections::BTreeSet, fmt, str::FromStr};

use async_trait::async_trait;

use super::StoreError;
use crate::job::QueueName;

/// Most bytes of the text of a notice. Postgres takes less than 8000.
pub const MAX_NOTICE_BYTES: usize = 7999;

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
    /// An application has requested jobs. No server sends it: the application does, in the transaction of
    /// its requests.
    Inbox,
    /// A server began or stopped, or its readers of the stream did.
    Servers,
    /// Changes for the readers of the stream.
    Changes(ChangeBatch),
}

/// Changes that a server committed one after the other. Batches are ordered as their changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangeBatch {
    /// The name of the server, without a space.
    pub server: String,
    /// Which of the times it is, from 1, in which the server forwards changes without a pause.
    pub run: u64,
    /// The number of the first change in its run, from 0. Numbers that no batch has are those of
    /// changes that were not forwarded.
    pub first: u64,
    /// How many changes there are; 0 shows only that those before `first` are over.
    pub count: u64,
    /// The changes, as a JSON array.
    pub json: String,
}

/// The notices without a value, by their texts.
const WORDS: [(&str, Notice); 7] = [
    ("configuration", Notice::Configuration),
    ("operations", Notice::Operations),
    ("schedules", Notice::Schedules),
    ("retries", Notice::Retries),
    ("tokens", Notice::Tokens),
    ("inbox", Notice::Inbox),
    ("servers", Notice::Servers),
];

/// What is before the name of a queue.
const QUEUE: &str = "queue ";
/// What is before a batch of changes.
const CHANGES: &str = "changes ";

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(name) => write!(f, "{QUEUE}{name}"),
            Self::Changes(ChangeBatch { server, run, first, count, json }) => {
                write!(f, "{CHANGES}{server} {run} {first} {count} {json}")
            }
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
        if let Some(batch) = text.strip_prefix(CHANGES) {
            return read_batch(batch).map(Self::Changes).ok_or(UnknownNotice);
        }
        let found = WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, notice)| notice.clone()).ok_or(UnknownNotice)
    }
}

/// The batch `SERVER RUN FIRST COUNT JSON`.
fn read_batch(text: &str) -> Option<ChangeBatch> {
    let mut parts = text.splitn(5, ' ');
    let server = parts.next().filter(|server| !server.is_empty())?.to_owned();
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (run, first, count) = (number()?, number()?, number()?);
    Some(ChangeBatch { server, run, first, count, json: parts.next()?.to_owned() })
}

/// Carries notices between the servers of one store.
#[async_trait]
pub trait Notices: Send + Sync {
    /// Sends `notices` to the other servers. This one may get them too. The text of each has at most
    /// [`MAX_NOTICE_BYTES`].
    async fn send(&self, notices: &BTreeSet<Notice>) -> Result<(), StoreError>;

    /// The notices that arrived since the call before; waits until there are some. After an error,
    /// notices may be missing.
    async fn receive(&self) -> Result<BTreeSet<Notice>, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(first: u64, json: &str) -> Notice {
        let (server, json) = ("0f3a".to_owned(), json.to_owned());
        Notice::Changes(ChangeBatch { server, run: 3, first, count: 2, json })
    }

    #[test]
    fn each_notice_is_read_from_its_text() {
        let queue = Notice::Queue("mail".parse().unwrap());
        let others = [queue, batch(0, "[]"), batch(12, r#"[{"a b": " \u0000"}, {}]"#)];
        for notice in WORDS.map(|(_, notice)| notice).into_iter().chain(others) {
            assert_eq!(notice.to_string().parse(), Ok(notice));
        }
        for unknown in [
            "",
            "queue",
            "queue ",
            "queue a b",
            "QUEUE a",
            "unknown",
            "changes",
            "changes  1 2 3 []",
            "changes a 1 2 3",
            "changes a 1 -2 3 []",
            "changes a 1 2 []",
        ] {
            assert_eq!(unknown.parse::<Notice>(), Err(UnknownNotice), "{unknown:?}");
        }
    }

    #[test]
    fn batches_are_ordered_as_their_changes() {
        let set: BTreeSet<Notice> = [batch(10, "[]"), batch(9, "[1]")].into();
        assert_eq!(set.into_iter().collect::<Vec<_>>(), [batch(9, "[1]"), batch(10, "[]")]);
    }
}
