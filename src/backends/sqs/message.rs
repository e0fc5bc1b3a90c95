//! The content of a message: JSON about a single queue, by which messages are grouped.

use serde::{Deserialize, Serialize};

use tidegate_core::{
    job::{JobId, QueueName, Version},
    port::{Hint, HintKind, Timer, Work},
    time::Timestamp,
};

/// Data of at most this size are not mentioned in messages, which stay shorter.
const SMALL_BYTES: u64 = 4 << 10;

/// A parsed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Jobs to claim and deliver.
    Work(Vec<Work>),
    /// Hints for the next tick of a queue.
    Hints(Vec<Hint>),
    /// A queue needs a tick.
    Timer(Timer),
}

/// The body is not a message of this server.
#[derive(Debug, thiserror::Error)]
#[error("not a message of this server: {0}")]
pub struct Malformed(#[from] serde_json::Error);

/// The JSON of messages. Unknown fields are ignored, so that two releases can exchange messages.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Wire {
    Work { queue: QueueName, jobs: Vec<JobBody> },
    Hint(HintBody),
    Timer { queue: QueueName, at: i64 },
}

#[derive(Serialize, Deserialize)]
struct JobBody {
    id: JobId,
    version: Version,
    /// Milliseconds since the epoch.
    run_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    granted_at: Option<i64>,
    /// Of the job's data, if it has more than [`SMALL_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct HintBody {
    queue: QueueName,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    due: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    released: Vec<(JobId, Version)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    retry_decisions: Vec<JobId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    operations: Vec<String>,
}

impl Message {
    /// Parses the body of a message.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if it is not one.
    pub fn parse(body: &str) -> Result<Self, Malformed> {
        Ok(match serde_json::from_str(body)? {
            Wire::Work { queue, jobs } => Self::Work(
                jobs.into_iter()
                    .map(|job| Work {
                        queue: queue.clone(),
                        job: job.id,
                        version: job.version,
                        run_at: Timestamp::from_millis(job.run_at),
                        granted_at: job.granted_at.map(Timestamp::from_millis),
                        data_bytes: job.bytes.unwrap_or_default(),
                    })
                    .collect(),
            ),
            Wire::Hint(HintBody { queue, due, released, retry_decisions, operations }) => {
                let released =
                    released.into_iter().map(|(job, version)| HintKind::Released(job, version));
                let hints = released
                    .chain(retry_decisions.into_iter().map(HintKind::RetryDecision))
                    .chain(operations.into_iter().map(HintKind::Operation))
                    .chain(due.then_some(HintKind::Due));
                Self::Hints(hints.map(|kind| Hint { queue: queue.clone(), kind }).collect())
            }
            Wire::Timer { queue, at } => {
                Self::Timer(Timer { queue, at: Timestamp::from_millis(at) })
            }
        })
    }
}

/// The body of a message with work of one queue.
pub(super) fn work(queue: &QueueName, work: &[&Work]) -> String {
    let job = |work: &&Work| JobBody {
        id: work.job.clone(),
        version: work.version,
        run_at: work.run_at.millis(),
        granted_at: work.granted_at.map(Timestamp::millis),
        bytes: Some(work.data_bytes).filter(|bytes| *bytes > SMALL_BYTES),
    };
    write(&Wire::Work { queue: queue.clone(), jobs: work.iter().map(job).collect() })
}

/// The body of a message with hints for one queue.
pub(super) fn hint(queue: &QueueName, hints: &[&HintKind]) -> String {
    let mut body = HintBody {
        queue: queue.clone(),
        due: false,
        released: Vec::new(),
        retry_decisions: Vec::new(),
        operations: Vec::new(),
    };
    for hint in hints {
        match hint {
            HintKind::Due => body.due = true,
            HintKind::Released(job, version) => body.released.push((job.clone(), *version)),
            HintKind::RetryDecision(job) => body.retry_decisions.push(job.clone()),
            HintKind::Operation(id) => body.operations.push(id.clone()),
        }
    }
    write(&Wire::Hint(body))
}

/// The body of a timer.
pub(super) fn timer(timer: &Timer) -> String {
    write(&Wire::Timer { queue: timer.queue.clone(), at: timer.at.millis() })
}

fn write(wire: &Wire) -> String {
    serde_json::to_string(wire).expect("names and numbers can be written as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::testkit::builders::{at, name};

    #[test]
    fn messages_of_every_release_are_read() {
        let granted = Work {
            queue: name("mail"),
            job: name("a"),
            version: Version(3),
            run_at: at(5),
            granted_at: Some(at(7)),
            data_bytes: 0,
        };
        let free = Work { job: name("b"), granted_at: None, ..granted.clone() };
        let body = work(&name("mail"), &[&granted, &free]);
        assert_eq!(body, MESSAGES[0]);
        assert_eq!(Message::parse(&body).unwrap(), Message::Work(vec![granted, free.clone()]));
        let large = Work { data_bytes: 70_000, ..free };
        let body = work(&name("mail"), &[&large]);
        assert_eq!(body, MESSAGES[3]);
        assert_eq!(Message::parse(&body).unwrap(), Message::Work(vec![large]));
        let kinds = [
            HintKind::Released(name("a"), Version(3)),
            HintKind::RetryDecision(name("b")),
            HintKind::Operation("op".into()),
            HintKind::Due,
        ];
        let body = hint(&name("mail"), &kinds.iter().collect::<Vec<_>>());
        assert_eq!(body, MESSAGES[1]);
        let hints = kinds.map(|kind| Hint { queue: name("mail"), kind }).to_vec();
        assert_eq!(Message::parse(&body).unwrap(), Message::Hints(hints));
        let expected = Timer { queue: name("mail"), at: at(9) };
        assert_eq!(timer(&expected), MESSAGES[2]);
        assert_eq!(Message::parse(&timer(&expected)).unwrap(), Message::Timer(expected));
    }

    /// What each release has written. A release that writes something else adds lines, and keeps
    /// the earlier ones.
    const MESSAGES: [&str; 4] = [
        r#"{"work":{"queue":"mail","jobs":[{"id":"a","version":3,"run_at":5,"granted_at":7},{"id":"b","version":3,"run_at":5}]}}"#,
        r#"{"hint":{"queue":"mail","due":true,"released":[["a",3]],"retry_decisions":["b"],"operations":["op"]}}"#,
        r#"{"timer":{"queue":"mail","at":9}}"#,
        r#"{"work":{"queue":"mail","jobs":[{"id":"b","version":3,"run_at":5,"bytes":70000}]}}"#,
    ];

    #[test]
    fn a_malformed_message_is_refused() {
        for body in ["", "{}", r#"{"work": 1}"#, r#"{"timer": {"queue": "a b", "at": 1}}"#] {
            assert!(Message::parse(body).is_err(), "{body}");
        }
        // A field of a later release is ignored.
        assert!(Message::parse(r#"{"timer": {"queue": "q", "at": 1, "why": "tokens"}}"#).is_ok());
    }
}
