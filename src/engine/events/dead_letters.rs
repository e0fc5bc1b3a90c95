//! Dead letters: events of which a trigger could make nothing, with the reason, until somebody mends the trigger and replays
//! them, or their time is over. And what came from another service and is no event that a trigger could see.
//!
//! There is at most one per trigger and event: a second failure takes the place of the first.

use std::{collections::BTreeMap, fmt::Display, sync::atomic::Ordering};
use tidegate_core::error_code::ErrorCode;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    ingest::{Did, Ingestion},
    triggers::no_trigger,
};
use crate::{Engine, Error};
use tidegate_core::{
    event::{Event, read, trigger::letter_id},
    job::{Encoding, Payload, TriggerName},
    port::{
        Write,
        job_store::{Purged, Record, RecordKind, RecordQuery},
    },
    time::Timestamp,
    validate::ValidationError,
};

/// Most dead letters that are read at once.
const PAGE: u32 = 100;
/// Most that one purge drops.
const PURGE: u32 = 2000;
/// Most purges that make room for new ones.
const ROUNDS: usize = 8;
/// Most bytes of a reason.
const REASON_BYTES: usize = 2000;

/// A dead letter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeadLetter {
    /// What the trigger and the event make together.
    pub id: String,
    /// The trigger that could make nothing of it; none if none ever saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<TriggerName>,
    /// Why.
    pub reason: String,
    /// When.
    pub failed_at: Timestamp,
    /// The event, in the JSON format of CloudEvents.
    pub event: Box<RawValue>,
    /// Its data as MessagePack, in base64, where JSON cannot say quite what it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<String>,
}

/// What became of a dead letter that was replayed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Replayed {
    /// The trigger was applied: this was done. Unless it is dead anew, the letter is gone.
    Applied(Did),
    /// The trigger is not about it any more: the letter is gone.
    Passed {
        /// The word for it.
        did: &'static str,
    },
}

impl DeadLetter {
    /// The letter of `event`, of which `trigger` (or, without one, whoever read it) could make nothing at `now`.
    pub fn new(
        trigger: Option<&TriggerName>,
        mut reason: String,
        event: &Event,
        now: Timestamp,
    ) -> Self {
        if reason.len() > REASON_BYTES {
            let end = (0..=REASON_BYTES)
                .rev()
                .find(|at| reason.is_char_boundary(*at))
                .unwrap_or_default();
            reason.truncate(end);
        }
        let event_json = serde_json::value::to_raw_value(event).unwrap_or_default();
        let packed = event.data.as_ref().filter(|data| data.encoding == Encoding::MessagePack);
        let packed = packed
            .filter(|_| read_json(&event_json).as_ref() != Ok(event))
            .map(|data| BASE64_STANDARD.encode(&data.bytes));
        Self {
            id: letter_id(trigger, event),
            trigger: trigger.cloned(),
            reason,
            failed_at: now,
            event: event_json,
            packed,
        }
    }

    /// The event itself, as it was.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] if what is stored is none.
    pub fn event(&self) -> Result<Event, Error> {
        let no_event = |why: &dyn Display| {
            Error::Internal(format!("dead letter {} holds no event: {why}", self.id))
        };
        let Some(packed) = &self.packed else {
            return read_json(&self.event).map_err(|fault| no_event(&fault));
        };
        let bytes = BASE64_STANDARD.decode(packed).map_err(|error| no_event(&error))?.into();
        let mut attributes: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(self.event.get()).map_err(|error| no_event(&error))?;
        attributes.retain(|name, _| name != "data" && name != "data_base64");
        let attributes =
            serde_json::value::to_raw_value(&attributes).map_err(|error| no_event(&error))?;
        let event = read_json(&attributes).map_err(|fault| no_event(&fault))?;
        Ok(Event { data: Some(Payload { encoding: Encoding::MessagePack, bytes }), ..event })
    }
}

fn read_json(event: &RawValue) -> Result<Event, ValidationError> {
    read::structured(&Bytes::from(event.get().to_owned()))
}

impl Engine {
    /// A letter as a record.
    pub(crate) fn letter(&self, dead: DeadLetter) -> Result<Record, Error> {
        let bytes =
            serde_json::to_vec(&dead).map_err(|error| Error::Internal(error.to_string()))?;
        Ok(Record {
            kind: RecordKind::DeadLetter,
            name: dead.id,
            until: dead.failed_at + self.rules.events.dead_letter_retention,
            bytes,
        })
    }

    /// Keeps what came as an event and cannot be one, each with the reason: no trigger sees it. A repeat takes the place of the first.
    ///
    /// # Errors
    ///
    /// The store's: some may be kept, and a repeat is harmless.
    pub async fn keep_unread(&self, unread: &[(Event, String)]) -> Result<(), Error> {
        let now = self.now();
        let letter = |(event, reason): &(Event, String)| {
            Ok(vec![Write::PutRecord(self.letter(DeadLetter::new(
                None,
                reason.clone(),
                event,
                now,
            ))?)])
        };
        let txns = unread.iter().map(letter).collect::<Result<Vec<_>, Error>>()?;
        if txns.is_empty() {
            return Ok(());
        }
        self.make_room(txns.len() as u64).await?;
        self.ports.store.commit(txns).await?;
        Ok(())
    }

    /// Makes room for `more` letters, so that a flood of them never takes more than the limit.
    pub(crate) async fn make_room(&self, more: u64) -> Result<(), Error> {
        let most = self.rules.events.max_dead_letters;
        // What this engine knows of how many there are: an upper bound as far as it alone writes.
        if self.dead_letters.fetch_add(more, Ordering::Relaxed) + more <= most {
            return Ok(());
        }
        // A store may leave some for later, which is no reason to wait.
        for _ in 0..ROUNDS {
            if self.purge_dead(most.saturating_sub(more)).await?.left + more <= most.max(more) {
                break;
            }
        }
        self.dead_letters.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }

    async fn purge_dead(&self, keep: u64) -> Result<Purged, Error> {
        let purged =
            self.ports.store.purge(RecordKind::DeadLetter, self.now(), keep, PURGE).await?;
        self.dead_letters.store(purged.left, Ordering::Relaxed);
        self.dead_letters_dropped.fetch_add(purged.over, Ordering::Relaxed);
        Ok(purged)
    }

    /// Drops letters whose time is over, and the oldest of too many. How many were dropped since the last call for being too
    /// many is in `over`.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn sweep_dead(&self) -> Result<Purged, Error> {
        let purged = self.purge_dead(self.rules.events.max_dead_letters).await?;
        Ok(Purged { over: self.dead_letters_dropped.swap(0, Ordering::Relaxed), ..purged })
    }

    /// A page of letters, of one trigger if it is named, in no particular order; and where the next one starts. A page may
    /// be short, even empty, and yet have a next. One that cannot be read is left out, and logged.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn dead_letters(
        &self,
        trigger: Option<&TriggerName>,
        after: Option<String>,
        limit: u32,
    ) -> Result<(Vec<DeadLetter>, Option<String>), Error> {
        let limit = limit.min(PAGE);
        let query =
            RecordQuery { kind: RecordKind::DeadLetter, prefix: String::new(), after, limit };
        let page = self.ports.store.records(&[query]).await?.pop().unwrap_or_default();
        let next =
            page.last().filter(|_| page.len() as u32 == limit).map(|record| record.name.clone());
        let letters = page.iter().filter_map(|record| {
            read_letter(record)
                .inspect_err(|error| tracing::error!(%error, "a dead letter is left out"))
                .ok()
        });
        Ok((
            letters
                .filter(|dead| trigger.is_none_or(|name| dead.trigger.as_ref() == Some(name)))
                .collect(),
            next,
        ))
    }

    /// One letter.
    ///
    /// # Errors
    ///
    /// 404 `dead_letter_not_found`; [`Error::Internal`] if it cannot be read.
    pub async fn dead_letter(&self, id: &str) -> Result<DeadLetter, Error> {
        read_letter(&self.dead_record(id).await?)
    }

    async fn dead_record(&self, id: &str) -> Result<Record, Error> {
        let query = RecordQuery {
            kind: RecordKind::DeadLetter,
            prefix: id.to_owned(),
            after: None,
            limit: 1,
        };
        let record =
            self.ports.store.records(&[query]).await?.pop().and_then(|mut page| page.pop());
        let missing = || Error::NotFound {
            code: ErrorCode::DeadLetterNotFound,
            what: format!("dead letter {id}"),
        };
        record.filter(|record| record.name == id).ok_or_else(missing)
    }

    /// Removes a letter, whether it can be read or not.
    ///
    /// # Errors
    ///
    /// 404 `dead_letter_not_found`.
    pub async fn delete_dead_letter(&self, id: &str) -> Result<(), Error> {
        let record = self.dead_record(id).await?;
        self.remove_letter(record.name).await
    }

    async fn remove_letter(&self, name: String) -> Result<(), Error> {
        self.ports
            .store
            .commit(vec![vec![Write::RemoveRecord {
                kind: RecordKind::DeadLetter,
                name,
                until: None,
            }]])
            .await?;
        Ok(())
    }

    /// Applies the trigger of a letter, as it stands now, to its event. What it makes has the same id as it would have had then,
    /// so a repeat does nothing twice.
    ///
    /// # Errors
    ///
    /// 404 `dead_letter_not_found`, `trigger_not_found`; 409 `not_replayable` if no trigger ever saw it; the store's, and then the letter
    /// is still there.
    pub async fn replay_dead_letter(&self, id: &str) -> Result<(Replayed, Ingestion), Error> {
        let dead = self.dead_letter(id).await?;
        let Some(name) = &dead.trigger else {
            let message = format!(
                "dead letter {id} never was an event that a trigger could see; it is to be mended and sent anew"
            );
            return Err(Error::Conflict { code: ErrorCode::NotReplayable, message, holder: None });
        };
        let event = dead.event()?;
        let catalog = self.catalog().await?;
        let trigger = catalog.rules.get(name).ok_or_else(|| no_trigger(name))?;
        let Some(decision) = catalog.rules.decide_one(trigger, &event) else {
            self.remove_letter(dead.id).await?;
            return Ok((Replayed::Passed { did: "passed" }, Ingestion::default()));
        };
        let (did, ingestion) = Box::pin(self.ingest_by(trigger, decision, &event)).await;
        let did = did?;
        if !matches!(did, Did::Dead { .. }) {
            self.remove_letter(dead.id).await?;
        }
        Ok((Replayed::Applied(did), ingestion))
    }
}

fn read_letter(record: &Record) -> Result<DeadLetter, Error> {
    serde_json::from_slice(&record.bytes).map_err(|error| {
        Error::Internal(format!("dead letter {} cannot be read: {error}", record.name))
    })
}
