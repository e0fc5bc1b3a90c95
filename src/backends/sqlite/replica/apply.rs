//! Applies records: the same transactions in the same order give the same database, on every
//! machine and in groups of every size.

use std::sync::{Arc, atomic::Ordering};

use rusqlite::{
    Connection,
    backup::{Backup, StepResult},
};

use super::{
    super::{
        error::Failure,
        file::{before_log, migrate_by_log},
        names::Names,
        read_counts,
        step::Steps,
        writer::State,
    },
    position,
    snapshot::Downloaded,
    wire,
};
use crate::bucket_log::{
    Durable, Tail,
    body::{self, StartRecord},
    object::{Kind, Object},
};
use tidegate_core::port::{StoreError, Txn, job_store::Committed};

/// Pages that are copied at once.
const PAGES_AT_ONCE: i32 = 4096;

impl State {
    /// Applies `objects` in one SQLite transaction, with the tail behind them: one list of answers
    /// per object. `migrations` are those of this release, which a start record brings the tables to.
    pub(super) fn apply(
        &mut self,
        objects: &[Durable],
        migrations: &[&str],
    ) -> Result<(Vec<Vec<Committed>>, Option<Tail>), Failure> {
        let tail = objects.last().map(|last| Tail::after(last.object()));
        let answers = self.transaction(|group| {
            group.is_replica = true;
            if let Some(first) = objects.first() {
                must_follow(first, position::read(group.db)?)?;
            }
            let mut answers = Vec::with_capacity(objects.len());
            for object in objects {
                let header = &object.object().header;
                match header.kind {
                    Kind::Start => {
                        migrate_by_log(group.db, migrations, schema(object.object())?)?;
                    }
                    Kind::Seal => position::seal(group.db, header.slot)?,
                    _ => {}
                }
                // One at a time is decoded, because each may be large.
                answers.push(group.execute_all(&steps(object)?)?);
            }
            if let Some(tail) = &tail {
                position::write(group.db, tail)?;
            }
            Ok(answers)
        })?;
        Ok((answers, tail))
    }

    /// Replaces the database by one that was downloaded.
    pub(super) fn replace_by_copy(&mut self, copy: &Downloaded) -> Result<Tail, Failure> {
        self.replace(&copy.db)
    }

    /// Replaces the database by that before the first record.
    pub(super) fn replace_by_nothing(&mut self) -> Result<Tail, Failure> {
        let empty = before_log()?;
        empty.execute_batch(position::TABLES)?;
        self.replace(&empty)
    }

    /// Readers see the database before or the one after.
    fn replace(&mut self, source: &Connection) -> Result<Tail, Failure> {
        let tail = position::read(source)?
            .ok_or_else(|| Failure::corrupt("the snapshot has no position in the log".into()))?;
        let names = Names::read(source)?;
        // A reader may have the names of one database and the rows of the other. Names keep their
        // numbers along a log, so the longer list is right for both.
        if names.len() > self.names.len() {
            self.publish_names(&names);
        }
        match self.copy_pages(source) {
            Ok(()) => self.names = names,
            Err(failure) => {
                self.publish_names(&self.names);
                return Err(failure);
            }
        }
        self.publish_names(&self.names);
        // Before the counts, which may fail: readers see the other database already.
        self.shared.items.fetch_add(1, Ordering::Release);
        self.shared.tokens.fetch_add(1, Ordering::Release);
        *self.shared.counts.lock() = read_counts(&self.db)?;
        Ok(tail)
    }

    fn publish_names(&self, names: &Names) {
        *self.shared.names.write() = Arc::new(names.clone());
    }

    fn copy_pages(&mut self, source: &Connection) -> Result<(), Failure> {
        self.db.flush_prepared_statement_cache();
        let copy = Backup::new(source, &mut self.db)?;
        loop {
            match copy.step(PAGES_AT_ONCE)? {
                StepResult::Done => return Ok(()),
                StepResult::More => {}
                // The database is what it was, so its tail must be too.
                _ => return Err(Failure(StoreError::unavailable("the database is locked"))),
            }
        }
    }
}

/// Checks that `object` is the next one behind `tail`. It may not be: a run that was dropped may
/// have left an object that the writer applies later, and the next run has begun before it.
fn must_follow(object: &Durable, tail: Option<Tail>) -> Result<(), Failure> {
    let header = &object.object().header;
    let follows = tail.map(|tail| (tail.next, tail.hash)) == Some((header.slot, header.previous));
    if follows {
        return Ok(());
    }
    let slot = header.slot;
    Err(Failure(StoreError::unavailable(format!(
        "the object {slot} of the log is not the next one of the database"
    ))))
}

/// The number of the tables that the records after a start record are for.
fn schema(start: &Object) -> Result<u64, Failure> {
    let decoded = body::decode::<StartRecord>(&start.body);
    let slot = start.header.slot;
    let unreadable =
        |error| Failure(StoreError::corrupt_in(format!("the record {slot} of the log"), error));
    Ok(decoded.map_err(unreadable)?.schema)
}

/// The transactions of an object of the log, in their order. Only a record has any.
///
/// # Errors
///
/// [`StoreError::Corrupt`] if this release cannot read them.
pub fn transactions(object: &Object) -> Result<Vec<Txn>, StoreError> {
    if object.header.kind != Kind::Record {
        return Ok(Vec::new());
    }
    let slot = object.header.slot;
    let unreadable = |error: &dyn std::error::Error| {
        StoreError::corrupt_in(format!("the record {slot} of the log"), error.to_string())
    };
    let commands = body::unpack(&object.body).map_err(|error| unreadable(&error))?;
    let txns = commands.iter().map(|command| wire::decode(command));
    txns.collect::<Result<Vec<_>, _>>().map_err(|error| unreadable(&error))
}

/// The same, to be executed.
fn steps(object: &Durable) -> Result<Steps, Failure> {
    Steps::of(transactions(object.object()).map_err(Failure)?)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use parking_lot::{Mutex, RwLock};

    use super::{
        super::super::{Shared, names::Names},
        *,
    };
    use crate::bucket_log::{
        key::Slot,
        object::{Header, LogId},
    };
    use tidegate_core::{
        job::Revision,
        port::{
            Write,
            job_store::{CurrentRecord, Expect, ItemKind, Key, Record, RecordKind},
        },
        queue::Ledger,
    };
    use tidegate_engine::testkit::builders::{at, job, name};

    const LOG: LogId = LogId(1);

    fn state() -> State {
        let db = before_log().unwrap();
        db.execute_batch(position::TABLES).unwrap();
        // Behind a start record.
        position::write(&db, &Tail { next: Slot::FIRST.next(), ..Tail::START }).unwrap();
        let names = RwLock::new(Arc::new(Names::default()));
        let shared = Shared { names, counts: Mutex::default(), items: 0.into(), tokens: 0.into() };
        State { db, names: Names::default(), shared: Arc::new(shared) }
    }

    fn tail(state: &State) -> Tail {
        position::read(&state.db).unwrap().unwrap()
    }

    /// The next object of the log of `state`.
    fn object(state: &State, kind: Kind, commands: &[Bytes]) -> Durable {
        next(tail(state), kind, commands)
    }

    /// The object behind `tail`.
    fn next(tail: Tail, kind: Kind, commands: &[Bytes]) -> Durable {
        let Tail { next: slot, hash: previous, time } = tail;
        let header = Header { kind, log: LOG, slot, nonce: 1, time, previous };
        tail.read(LOG, Object::new(header, &body::pack(commands)).bytes().clone()).unwrap()
    }

    /// The command that adds a job.
    fn add(id: &str) -> Bytes {
        wire::encode(vec![Write::AddJob(job(id).build())]).unwrap()
    }

    fn jobs(state: &State) -> i64 {
        state.db.query_row("SELECT count(*) FROM jobs", [], |row| row.get(0)).unwrap()
    }

    /// Applies a record of these transactions.
    fn apply(state: &mut State, txns: Vec<Txn>) -> Result<Vec<Committed>, Failure> {
        let commands: Vec<Bytes> = txns.into_iter().map(|txn| wire::encode(txn).unwrap()).collect();
        let record = object(state, Kind::Record, &commands);
        state.apply(&[record], &[]).map(|(mut answers, _)| answers.remove(0))
    }

    /// Points the key at `to`, which points at `was`.
    fn set_key(was: Option<&str>, to: &str) -> Txn {
        let was = was.map_or(Expect::Absent, |was| Expect::Is(name(was)));
        vec![Write::SetKey { key: Key::Idempotency("key".into()), job: name(to), was }]
    }

    fn swap() -> Txn {
        let (name, until, bytes) = ("record".to_owned(), at(1), b"[1]".to_vec());
        let record = Record { kind: RecordKind::Reply, name, until, bytes };
        vec![Write::SwapRecord { record, was: Expect::Absent }]
    }

    fn set_ledger(was: Expect<u64>, version: u64) -> Txn {
        let ledger = Ledger { version, ..Ledger::default() };
        vec![Write::SetLedger { queue: name("queue"), ledger, was }]
    }

    fn set_item(was: u64) -> Txn {
        let (kind, name, bytes) = (ItemKind::Queue, "item".to_owned(), Some(b"{}".to_vec()));
        vec![Write::SetItem { kind, name, was, version: was + 1, bytes }]
    }

    #[test]
    fn a_record_and_the_position_are_applied_together() {
        let mut state = state();
        let add = |id: &str| vec![Write::AddJob(job(id).build())];
        let answers = apply(&mut state, vec![add("a"), add("a"), add("b")]).unwrap();
        assert!(
            matches!(
                &answers[..],
                [
                    Committed::All,
                    Committed::Conflict { step: 0, current: CurrentRecord::Job(_) },
                    Committed::All
                ]
            ),
            "{answers:?}"
        );
        let seal = object(&state, Kind::Seal, &[]);
        let (_, behind) = state.apply(&[seal], &[]).unwrap();
        assert_eq!(behind, position::read(&state.db).unwrap());
        let epoch = Slot::FIRST.epoch;
        assert_eq!(position::sealed(&state.db, &(epoch..=epoch)).unwrap()[&epoch], 2);
    }

    #[test]
    fn a_change_of_tokens_raises_their_version_and_no_other() {
        let mut state = state();
        let version = |state: &State| state.shared.tokens.load(Ordering::Relaxed);
        let set = |kind| {
            let (name, bytes) = ("item".to_owned(), Some(b"{}".to_vec()));
            vec![Write::SetItem { kind, name, was: 0, version: 1, bytes }]
        };
        for (txn, raised) in [
            (vec![Write::AddJob(job("a").build())], 0),
            (set(ItemKind::Queue), 0),
            (set(ItemKind::TokenUse), 0),
            (set(ItemKind::Token), 1),
            // It is refused.
            (set(ItemKind::Token), 1),
            (set(ItemKind::Closed), 2),
        ] {
            apply(&mut state, vec![txn]).unwrap();
            assert_eq!(version(&state), raised);
        }
        state.replace_by_nothing().unwrap();
        assert_eq!(version(&state), 3, "the tokens of another state");
    }

    /// Damage of one machine must not decide what the others have decided otherwise.
    #[test]
    fn damage_that_would_decide_a_condition_stops_the_node() {
        let remove = || vec![Write::RemoveJob { id: name("old"), was: Revision(0) }];
        for (txn, damage) in [
            (set_key(Some("old"), "new"), "UPDATE keys SET sum = sum + 1"),
            (swap(), "UPDATE records SET bytes = x'00'"),
            (remove(), "UPDATE jobs SET revision = revision + 1"),
            (set_ledger(Expect::Is(1), 2), "UPDATE heads SET version = version + 1"),
            (set_ledger(Expect::Is(1), 2), "UPDATE heads SET head = x'00'"),
            (set_item(1), "UPDATE items SET version = version + 1"),
            (set_item(1), "UPDATE items SET bytes = x'00'"),
        ] {
            let mut state = state();
            let old = vec![Write::AddJob(job("old").build())];
            let ledger = set_ledger(Expect::Absent, 1);
            let old = vec![old, set_key(None, "old"), swap(), ledger, set_item(0)];
            apply(&mut state, old).unwrap();
            assert_eq!(state.db.execute(damage, []).unwrap(), 1);
            let before = tail(&state);
            let added = vec![Write::AddJob(job("added").build())];
            let Failure(error) = apply(&mut state, vec![added, txn]).unwrap_err();
            assert!(matches!(error, StoreError::Corrupt(_)), "{damage}: {error}");
            assert_eq!(tail(&state), before, "nothing of the record is applied");
            assert_eq!(jobs(&state), 1);
        }
    }

    #[test]
    fn a_command_of_a_later_release_stops_the_node() {
        let mut state = state();
        let unknown = rmp_serde::to_vec(&[("a_later_write", 1)]).unwrap();
        let first = object(&state, Kind::Record, &[add("a")]);
        let before = tail(&state);
        let later = next(Tail::after(first.object()), Kind::Record, &[unknown.into()]);
        let Failure(error) = state.apply(&[first, later], &[]).unwrap_err();
        assert!(error.chain().to_string().contains("the record 1.2 of the log"), "{error}");
        assert_eq!(tail(&state), before);
        assert_eq!((jobs(&state), state.names.len()), (0, 0), "nothing is applied");
    }

    /// A run that was dropped may leave a record to the writer, and the next run reads the same one.
    #[test]
    fn a_record_is_applied_once() {
        let mut state = state();
        let record = object(&state, Kind::Record, &[add("a")]);
        state.apply(std::slice::from_ref(&record), &[]).unwrap();
        let behind = tail(&state);
        let Failure(error) = state.apply(&[record], &[]).unwrap_err();
        assert!(error.chain().to_string().contains("not the next one"), "{error}");
        assert_eq!((tail(&state), jobs(&state)), (behind, 1));
    }
}
