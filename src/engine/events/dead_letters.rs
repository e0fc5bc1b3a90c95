//! Dead letters: events that a trigger could not handle, with the reason. They are kept until a
//! user corrects the trigger and replays them, or until they expire. Records from other services
//! that are not events are kept too.
//!
//! There is at most one per trigger and event: a second failure replaces the first.

use std::{collections::BTreeMap, fmt::Display, sync::atomic::Ordering};
use tidegate_core::error_code::ErrorCode;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    ingest::{Ingestion, TriggerAction},
    triggers::no_trigger,
};
use crate::{Engine, Error};
use tidegate_core::{
    event::{Event, read, trigger::letter_id},
    job::{Encoding, Payload, TriggerName},
    port::{
        Write,
        job_store::{ItemKind, Purged, Record, RecordKind, RecordQuery},
    },
    time::Timestamp,
    validate::ValidationError,
};

/// Most dead letters of one page.
const MAX_PAGE: u32 = 100;
/// Most dead letters that one purge drops.
const MAX_PURGED_PER_CALL: u32 = 2000;
/// Most purges before new ones are stored.
const MAX_PURGES: usize = 8;
/// Most bytes of a reason; the rest is cut off.
const MAX_REASON_BYTES: usize = 2000;

/// A dead letter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Derived from the trigger and the event.
    pub id: String,
    /// The trigger that could not handle it; `None` if no trigger saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<TriggerName>,
    /// Why.
    pub reason: String,
    /// When.
    pub failed_at: Timestamp,
    /// The event, in the JSON format of CloudEvents.
    pub event: Box<RawValue>,
    /// Its data as MessagePack, in base64, if JSON cannot represent it exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<String>,
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq)]
pub enum Replayed {
    /// The trigger was applied, with this result. Unless the event failed again, the dead letter is
    /// removed.
    Applied(TriggerAction),
    /// The trigger does not match the event now: the dead letter is removed.
    Unmatched {
        /// The value of `action` in JSON.
        action: &'static str,
    },
}

impl DeadLetter {
    /// The dead letter of `event`, which `trigger` could not handle at `now`. Without a trigger,
    /// the adapter that read it could not.
    pub fn new(
        trigger: Option<&TriggerName>,
        mut reason: String,
        event: &Event,
        now: Timestamp,
    ) -> Self {
        if reason.len() > MAX_REASON_BYTES {
            let end = (0..=MAX_REASON_BYTES)
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

    /// The event as it was received.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] if the stored bytes are not an event.
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
    /// A dead letter as a record.
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

    /// Stores records that are not valid events, each with the reason. No trigger sees them. A
    /// repeat replaces the first.
    ///
    /// # Errors
    ///
    /// The store's: some may be stored, and a repeat is harmless.
    pub async fn keep_malformed(&self, malformed: &[(Event, String)]) -> Result<(), Error> {
        let now = self.now();
        let letter = |(event, reason): &(Event, String)| {
            Ok(vec![Write::PutRecord(self.letter(DeadLetter::new(
                None,
                reason.clone(),
                event,
                now,
            ))?)])
        };
        let txns = malformed.iter().map(letter).collect::<Result<Vec<_>, Error>>()?;
        if txns.is_empty() {
            return Ok(());
        }
        self.make_room(txns.len() as u64).await?;
        self.ports.store.commit(txns).await?;
        Ok(())
    }

    /// Drops the oldest dead letters so that `more` new ones fit within the limit.
    pub(crate) async fn make_room(&self, more: u64) -> Result<(), Error> {
        let most = self.rules.events.max_dead_letters;
        // The count that this engine knows: an upper bound if no other engine writes.
        if self.dead_letters.fetch_add(more, Ordering::Relaxed) + more <= most {
            return Ok(());
        }
        // A store may drop fewer than requested. The new ones are stored anyway after these purges.
        for _ in 0..MAX_PURGES {
            if self.purge_dead(most.saturating_sub(more)).await?.left + more <= most.max(more) {
                break;
            }
        }
        self.dead_letters.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }

    async fn purge_dead(&self, keep: u64) -> Result<Purged, Error> {
        let purged = self
            .ports
            .store
            .purge(RecordKind::DeadLetter, self.now(), keep, MAX_PURGED_PER_CALL)
            .await?;
        self.dead_letters.store(purged.left, Ordering::Relaxed);
        self.dead_letters_dropped.fetch_add(purged.over, Ordering::Relaxed);
        Ok(purged)
    }

    /// Drops expired dead letters, and the oldest ones past the limit. `over` counts those dropped
    /// because of the limit since the last call.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn sweep_dead(&self) -> Result<Purged, Error> {
        let purged = self.purge_dead(self.rules.events.max_dead_letters).await?;
        Ok(Purged { over: self.dead_letters_dropped.swap(0, Ordering::Relaxed), ..purged })
    }

    /// A page of dead letters in no particular order, of one trigger if it is named, and the start
    /// of the next page. A page may be short or even empty and still have a next one. A dead letter
    /// that cannot be read is logged and left out.
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
        let limit = limit.min(MAX_PAGE);
        let query =
            RecordQuery { kind: RecordKind::DeadLetter, prefix: String::new(), after, limit };
        let page = self.ports.store.records(&[query]).await?.pop().unwrap_or_default();
        let next =
            page.last().filter(|_| page.len() as u32 == limit).map(|record| record.name.clone());
        let letters = page.iter().filter_map(|record| {
            read_letter(record)
                .inspect_err(|error| tracing::error!(%error, "a dead letter cannot be read"))
                .ok()
        });
        Ok((
            letters
                .filter(|dead| trigger.is_none_or(|name| dead.trigger.as_ref() == Some(name)))
                .collect(),
            next,
        ))
    }

    /// One dead letter.
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

    /// Removes a dead letter, even if it cannot be read.
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

    /// Applies the trigger of a dead letter, in its current configuration, to its event. The job
    /// that it creates has the same id as before, so a repeat creates nothing twice.
    ///
    /// # Errors
    ///
    /// 404 `dead_letter_not_found`, `trigger_not_found`; 409 `not_replayable` if no trigger ever
    /// saw it; the store's, and then the dead letter is still stored.
    pub async fn replay_dead_letter(&self, id: &str) -> Result<(Replayed, Ingestion), Error> {
        let dead = self.dead_letter(id).await?;
        let Some(name) = &dead.trigger else {
            let message = format!(
                "dead letter {id} is not an event that a trigger can process; \
                 correct it and send it again"
            );
            return Err(Error::Conflict { code: ErrorCode::NotReplayable, message, holder: None });
        };
        let event = dead.event()?;
        let catalog = self.catalog().await?;
        catalog.refuse_unreadable(ItemKind::Trigger, name.as_str())?;
        let trigger = catalog.rules.get(name).ok_or_else(|| no_trigger(name))?;
        let Some(decision) = catalog.rules.decide_one(trigger, &event) else {
            self.remove_letter(dead.id).await?;
            return Ok((Replayed::Unmatched { action: "unmatched" }, Ingestion::default()));
        };
        let (action, ingestion) = Box::pin(self.ingest_by(trigger, decision, &event)).await;
        let action = action?;
        if !matches!(action, TriggerAction::DeadLettered { .. }) {
            self.remove_letter(dead.id).await?;
        }
        Ok((Replayed::Applied(action), ingestion))
    }
}

fn read_letter(record: &Record) -> Result<DeadLetter, Error> {
    serde_json::from_slice(&record.bytes).map_err(|error| {
        Error::Internal(format!("dead letter {} cannot be read: {error}", record.name))
    })
}
