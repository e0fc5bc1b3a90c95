//! The content of a message: JSON, all of it about one queue, so that messages can be grouped by it.

use serde::{Deserialize, Serialize};

use tidegate_core::{
    job::{JobId, QueueName, Version},
    port::{Hint, HintKind, Timer, Work},
    time::Timestamp,
};

/// A message, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Jobs to be claimed and delivered.
    Work(Vec<Work>),
    /// A queue's tick is to know.
    Hints(Vec<Hint>),
    /// A queue is to be looked at.
    Wake(Timer),
}

/// It is no message of ours.
#[derive(Debug, thiserror::Error)]
#[error("no message of this server: {0}")]
pub struct Malformed(#[from] serde_json::Error);

/// The shapes in which messages are written. A field that is not known is passed over, so that two releases can talk.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Wire {
    Work { queue: QueueName, jobs: Vec<Piece> },
    Hint(Told),
    Wake { queue: QueueName, at: i64 },
}

#[derive(Serialize, Deserialize)]
struct Piece {
    id: JobId,
    version: Version,
    /// Milliseconds since the epoch.
    run_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    granted_at: Option<i64>,
}

#[derive(Serialize, Deserialize)]
struct Told {
    queue: QueueName,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    look: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left: Vec<(JobId, Version)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    verdicts: Vec<JobId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    operations: Vec<String>,
}

impl Message {
    /// The message that `body` is.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    pub fn parse(body: &str) -> Result<Self, Malformed> {
        Ok(match serde_json::from_str(body)? {
            Wire::Work { queue, jobs } => Self::Work(
                jobs.into_iter()
                    .map(|piece| Work {
                        queue: queue.clone(),
                        job: piece.id,
                        version: piece.version,
                        run_at: Timestamp::from_millis(piece.run_at),
                        granted_at: piece.granted_at.map(Timestamp::from_millis),
                    })
                    .collect(),
            ),
            Wire::Hint(Told { queue, look, left, verdicts, operations }) => {
                let left = left.into_iter().map(|(job, version)| HintKind::Released(job, version));
                let verdicts = verdicts.into_iter().map(HintKind::RetryDecision);
                let operations = operations.into_iter().map(HintKind::Operation);
                let news =
                    left.chain(verdicts).chain(operations).chain(look.then_some(HintKind::Due));
                Self::Hints(news.map(|news| Hint { queue: queue.clone(), kind: news }).collect())
            }
            Wire::Wake { queue, at } => Self::Wake(Timer { queue, at: Timestamp::from_millis(at) }),
        })
    }
}

/// Work of one queue as a body.
pub(super) fn work(queue: &QueueName, work: &[&Work]) -> String {
    let piece = |work: &&Work| Piece {
        id: work.job.clone(),
        version: work.version,
        run_at: work.run_at.millis(),
        granted_at: work.granted_at.map(Timestamp::millis),
    };
    write(&Wire::Work { queue: queue.clone(), jobs: work.iter().map(piece).collect() })
}

/// News of one queue as a body.
pub(super) fn hint(queue: &QueueName, news: &[&HintKind]) -> String {
    let mut told = Told {
        queue: queue.clone(),
        look: false,
        left: Vec::new(),
        verdicts: Vec::new(),
        operations: Vec::new(),
    };
    for news in news {
        match news {
            HintKind::Due => told.look = true,
            HintKind::Released(job, version) => told.left.push((job.clone(), *version)),
            HintKind::RetryDecision(job) => told.verdicts.push(job.clone()),
            HintKind::Operation(id) => told.operations.push(id.clone()),
        }
    }
    write(&Wire::Hint(told))
}

/// A wake-up as a body.
pub(super) fn wake(wake: &Timer) -> String {
    write(&Wire::Wake { queue: wake.queue.clone(), at: wake.at.millis() })
}

fn write(wire: &Wire) -> String {
    serde_json::to_string(wire).expect("names and numbers can be written")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::testkit::builders::{at, name};

    #[test]
    fn what_is_written_is_read_back() {
        let granted = Work {
            queue: name("mail"),
            job: name("a"),
            version: Version(3),
            run_at: at(5),
            granted_at: Some(at(7)),
        };
        let free = Work { job: name("b"), granted_at: None, ..granted.clone() };
        let body = work(&name("mail"), &[&granted, &free]);
        assert_eq!(Message::parse(&body).unwrap(), Message::Work(vec![granted, free]));
        let news = [
            HintKind::Released(name("a"), Version(3)),
            HintKind::RetryDecision(name("b")),
            HintKind::Operation("op".into()),
            HintKind::Due,
        ];
        let body = hint(&name("mail"), &news.iter().collect::<Vec<_>>());
        let hints = news.map(|news| Hint { queue: name("mail"), kind: news }).to_vec();
        assert_eq!(Message::parse(&body).unwrap(), Message::Hints(hints));
        let woken = Timer { queue: name("mail"), at: at(9) };
        assert_eq!(Message::parse(&wake(&woken)).unwrap(), Message::Wake(woken));
    }

    #[test]
    fn a_strange_message_is_none() {
        for body in ["", "{}", r#"{"work": 1}"#, r#"{"wake": {"queue": "a b", "at": 1}}"#] {
            assert!(Message::parse(body).is_err(), "{body}");
        }
        // What a later release adds is passed over.
        assert!(Message::parse(r#"{"wake": {"queue": "q", "at": 1, "why": "tokens"}}"#).is_ok());
    }
}
