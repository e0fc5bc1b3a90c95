//! A commit: the next write of every transaction that can go on makes a *wave*, which goes out in as few round trips as it
//! fits; then the next.
//!
//! The one thing to know: a transaction is taken write by write, each before the next is sent, and a refused one ends it. What
//! a job needs around it (entries, timers, its body, the place of its id) is written before the job itself. A refused write
//! that finds its own mark there has succeeded: its first answer was lost, and the client sent it again.

use std::collections::HashSet;

use super::{
    DynamoStore, MAX_IN_FLIGHT_WRITE,
    entry::{self, SLACK, Wanted},
    key::{self, JobLocation, Key},
    record,
    row::{self, BodyAt, DataAt},
    table::{Change, EXPIRES, Item, Name, Val},
};
use tidegate_core::{
    job::{Body, Job, JobId, State},
    port::{
        StoreError,
        job_store::{self, Committed, CurrentRecord, Expect, Record, Txn, Write},
    },
    time::Timestamp,
};

/// A transaction on its way.
struct Track {
    txn: Txn,
    step: usize,
    answer: Option<Committed>,
}

/// What a write is about: two of the same are never under way together.
type Subject = Key;

/// A write of a wave, worked out.
struct Step<'a> {
    write: &'a Write,
    /// The idempotency keys that its transaction points at the job that it adds.
    keys: Vec<String>,
    /// Where the rows of its jobs lie.
    places: Vec<JobLocation>,
    main: Main,
    /// What is done once it has happened: what a job leaves behind goes, or is forgotten in its time.
    leaves: Vec<Change>,
}

/// What decides whether a write happens.
enum Main {
    /// It is known already.
    Known(Result<(), CurrentRecord>),
    /// These changes, together if there are several.
    Changes(Vec<Change>),
}

impl DynamoStore {
    pub(super) async fn write(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let give_up = self.now() + MAX_IN_FLIGHT_WRITE / 2;
        let mut tracks: Vec<Track> =
            txns.into_iter().map(|txn| Track { txn, step: 0, answer: None }).collect();
        let mut wrote = false;
        loop {
            let wave = next_wave(&tracks);
            if wave.is_empty() {
                break;
            }
            if self.now() > give_up {
                return Err(StoreError::unavailable("the commit took too long and was given up"));
            }
            let steps: Vec<(&Write, &Txn)> = wave
                .iter()
                .map(|index| (&tracks[*index].txn[tracks[*index].step], &tracks[*index].txn))
                .collect();
            let outcomes =
                self.wave(&steps, give_up).await.map_err(|error| unless_written(error, wrote))?;
            wrote = true;
            for (index, outcome) in wave.into_iter().zip(outcomes) {
                let track = &mut tracks[index];
                match outcome {
                    Ok(()) => track.step += 1,
                    Err(standing) => {
                        track.answer = Some(Committed::Conflict { step: track.step, standing });
                    }
                }
            }
        }
        Ok(tracks.into_iter().map(|track| track.answer.unwrap_or(Committed::All)).collect())
    }

    /// Takes one write of each of several transactions. They are about different records.
    async fn wave(
        &self,
        writes: &[(&Write, &Txn)],
        give_up: Timestamp,
    ) -> Result<Vec<Result<(), CurrentRecord>>, StoreError> {
        let mut steps = self.prepare(writes).await?;
        self.before(&steps).await?;
        if self.now() > give_up {
            return Err(StoreError::unavailable("the commit took too long and was given up"));
        }
        let single = |step: &Step<'_>| match &step.main {
            Main::Changes(changes) if changes.len() == 1 => Some(changes[0].clone()),
            _ => None,
        };
        let changes: Vec<Change> = steps.iter().filter_map(single).collect();
        let mut taken =
            if changes.is_empty() { Vec::new() } else { self.table.write(&changes).await? }
                .into_iter();
        let mut wrote = !changes.is_empty();
        let mut outcomes = Vec::with_capacity(steps.len());
        for step in &mut steps {
            let done = match &mut step.main {
                Main::Known(outcome) => std::mem::replace(outcome, Ok(())),
                Main::Changes(changes) => {
                    let done = if changes.len() == 1 {
                        taken.next() == Some(true)
                    } else {
                        let done = self
                            .table
                            .together(changes)
                            .await
                            .map_err(|error| unless_written(error, wrote))?;
                        wrote = true;
                        done
                    };
                    // The current record is read below.
                    if done { Ok(()) } else { Err(CurrentRecord::Nothing) }
                }
            };
            outcomes.push(done);
        }
        let found = self
            .standing(&steps, &mut outcomes)
            .await
            .map_err(|error| unless_written(error, wrote))?;
        self.after(&steps, &outcomes, &found)
            .await
            .map_err(|error| unless_written(error, wrote))?;
        Ok(outcomes)
    }

    /// Works out where everything goes.
    async fn prepare<'a>(&self, writes: &[(&'a Write, &Txn)]) -> Result<Vec<Step<'a>>, StoreError> {
        let new: Vec<&Job> =
            writes.iter().flat_map(|(write, _)| parts(write)).filter_map(added).collect();
        self.claim_ids(&new).await?;
        let ids: Vec<&JobId> =
            writes.iter().flat_map(|(write, _)| parts(write)).filter_map(subject).collect();
        let mut places = self.places(&ids).await?.into_iter();
        let mut read: Vec<Key> = writes.iter().filter_map(|(write, _)| reads(write)).collect();
        let mut steps = Vec::with_capacity(writes.len());
        for (write, txn) in writes {
            let found: Vec<Option<JobLocation>> = parts(write)
                .iter()
                .filter(|write| subject(write).is_some())
                .map(|_| places.next().flatten())
                .collect();
            let missing = found.iter().any(Option::is_none);
            let places: Vec<JobLocation> = found.into_iter().flatten().collect();
            let main = if missing {
                Main::Known(Err(CurrentRecord::Nothing))
            } else {
                Main::Changes(Vec::new())
            };
            let keys = if parts(write).into_iter().any(|write| added(write).is_some()) {
                idempotency(txn)
            } else {
                Vec::new()
            };
            steps.push(Step { write, keys, places, main, leaves: Vec::new() });
        }
        self.find_leaves(&mut steps).await?;
        read.sort_unstable();
        read.dedup();
        let items = if read.is_empty() { Vec::new() } else { self.table.get(&read).await? };
        for step in steps.iter_mut().filter(|step| matches!(step.main, Main::Changes(_))) {
            let there = reads(step.write)
                .and_then(|key| read.binary_search(&key).ok())
                .and_then(|index| items[index].as_ref());
            step.main = self.main(step, there)?;
        }
        Ok(steps)
    }

    /// Reads the rows of jobs that leave something behind when they change: a body, and a removed one its keys.
    async fn find_leaves(&self, steps: &mut [Step<'_>]) -> Result<(), StoreError> {
        let mut leaving: Vec<(usize, &Write, Key)> = Vec::new();
        for (index, step) in
            steps.iter().enumerate().filter(|(_, step)| matches!(step.main, Main::Changes(_)))
        {
            let mut places = step.places.iter();
            for write in parts(step.write) {
                let Some((id, place)) = subject(write).and_then(|id| Some((id, places.next()?)))
                else {
                    continue;
                };
                if leaves_something(write) {
                    leaving.push((index, write, place.row(key::parts(id).0)));
                }
            }
        }
        if leaving.is_empty() {
            return Ok(());
        }
        let keys: Vec<Key> = leaving.iter().map(|(.., key)| key.clone()).collect();
        let found = self.table.get(&keys).await?;
        for ((index, write, _), item) in leaving.into_iter().zip(found) {
            if let Some(item) = item {
                let leaves = leaves(write, &item)?;
                steps[index].leaves.extend(leaves);
            }
        }
        Ok(())
    }

    /// The changes that `step` is. `there` is what it reads.
    fn main(&self, step: &Step<'_>, there: Option<&Item>) -> Result<Main, StoreError> {
        let version = there.and_then(|item| item.number(row::VERSION)).unwrap_or(0);
        let refused = || {
            Main::Known(Err(if version == 0 {
                CurrentRecord::Nothing
            } else {
                CurrentRecord::Version(version)
            }))
        };
        Ok(match step.write {
            Write::RequireItem { version: wanted, .. } if version == *wanted => Main::Known(Ok(())),
            Write::RequireItem { .. } => refused(),
            Write::SetItem { kind, name, was, version: new, bytes } => {
                let key = key::item(*kind, name);
                let set = |bytes: &Vec<u8>| {
                    vec![(row::VERSION, Val::N(*new)), (row::RECORD, Val::B(bytes.clone().into()))]
                };
                let change = match (was, bytes) {
                    (0, None) => {
                        return Ok(if version == 0 { Main::Known(Ok(())) } else { refused() });
                    }
                    (0, Some(bytes)) => Change::Insert(Item::new(key, set(bytes))),
                    (was, None) => Change::Delete { key, when: Some((row::VERSION, Val::N(*was))) },
                    (was, Some(bytes)) => Change::Update {
                        key,
                        set: set(bytes),
                        remove: Vec::new(),
                        when: (row::VERSION, Val::N(*was)),
                    },
                };
                let mut changes = vec![change];
                if kind.is_decided_under() {
                    // Greater than all before it, and another than that of a change in the same millisecond.
                    let number = (self.now().millis().max(1) as u64) << 12
                        | (self.entropy.bits() as u64 & 0xfff);
                    changes.push(Change::Put(Item::new(
                        key::items_version(),
                        [(row::VERSION, Val::N(number))],
                    )));
                }
                Main::Changes(changes)
            }
            write => {
                let mut places = step.places.iter();
                let now = self.now();
                let changes = parts(write)
                    .into_iter()
                    .map(|part| change(part, places.by_ref(), &step.keys, now));
                let mut changes: Vec<Change> = changes.collect::<Result<_, _>>()?;
                let mark = (row::MARK, Val::N(self.entropy.bits() as u64));
                for change in &mut changes {
                    match change {
                        Change::Insert(item) => item.attrs.extend([mark.clone()]),
                        Change::Update { set, .. } => set.push(mark.clone()),
                        Change::Put(_) | Change::Delete { .. } => {}
                    }
                }
                Main::Changes(changes)
            }
        })
    }

    /// Fixes the places of clients' new ids. One that was used before keeps its place: whoever comes later inserts there too.
    async fn claim_ids(&self, jobs: &[&Job]) -> Result<(), StoreError> {
        let fresh: Vec<&&Job> = {
            let known = self.known.lock();
            jobs.iter()
                .filter(|job| {
                    key::parts(&job.id).1.is_none() && !known.places.contains_key(&job.id)
                })
                .collect()
        };
        if fresh.is_empty() {
            return Ok(());
        }
        let home = |job: &Job| JobLocation {
            index_partition: self.index_partition(&job.id, &job.spec),
            at: job.life.run_at().unwrap_or(job.spec.created_at),
        };
        let changes: Vec<Change> = fresh
            .iter()
            .map(|job| {
                Change::Insert(Item::new(
                    key::id(&job.id),
                    [(row::PLACE, Val::S(home(job).text()))],
                ))
            })
            .collect();
        for (job, new) in fresh.iter().zip(self.table.write(&changes).await?) {
            if new {
                self.remember_place(&job.id, &home(job));
            }
        }
        Ok(())
    }

    /// Writes what must be there before the jobs of `steps` are.
    async fn before(&self, steps: &[Step<'_>]) -> Result<(), StoreError> {
        let (mut wanted, mut buckets, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
        let now = self.now();
        for step in steps.iter().filter(|step| matches!(step.main, Main::Changes(_))) {
            let mut places = step.places.iter();
            for write in parts(step.write) {
                if let Write::PutRecord(record) = write {
                    bodies.extend(record::Parts::of(record).before.into_iter().map(Change::Put));
                }
                let place = subject(write).and_then(|_| places.next());
                let (Some((job, all)), Some(home)) = (written(write), place) else {
                    continue;
                };
                let new = matches!(write, Write::AddJob(_));
                let revision = job.life.revision.0;
                if let State::Scheduled { run_at, .. } = job.life.state {
                    let run = Wanted::run(
                        self.index_partition(&job.id, &job.spec),
                        &job.id,
                        &job.spec,
                        revision,
                        run_at,
                    );
                    let own = new
                        && *home
                            == JobLocation {
                                index_partition: self.index_partition(&job.id, &job.spec),
                                at: run_at,
                            };
                    if new {
                        buckets.extend(Self::home_buckets(job, home, own.then_some(&run)));
                    }
                    // A row that may land behind the low watermark is no entry: who repeats an enqueue that died is told of the row.
                    if !own || run_at + SLACK / 2 < now {
                        wanted.push(run);
                    }
                } else if new {
                    buckets.extend(Self::home_buckets(job, home, None));
                }
                wanted.extend(
                    entry::timer_of(job, all).map(|at| Wanted::wake(&job.id, revision, at)),
                );
                if all && matches!(job.data, Body::Inline(_)) {
                    bodies
                        .extend(DataAt::of(&job.id, &job.data).parts.into_iter().map(Change::Put));
                }
            }
        }
        self.register(buckets).await?;
        self.announce(wanted).await?;
        if !bodies.is_empty() {
            self.table.write(&bodies).await?;
        }
        Ok(())
    }

    /// Reads the current records of refused writes. Those that find themselves there have succeeded.
    async fn standing(
        &self,
        steps: &[Step<'_>],
        outcomes: &mut [Result<(), CurrentRecord>],
    ) -> Result<Vec<Option<Job>>, StoreError> {
        let mut jobs: Vec<Option<Job>> = steps.iter().map(|_| None).collect();
        let refused: Vec<(usize, Vec<Change>)> = (0..steps.len())
            .filter(|index| outcomes[*index].is_err())
            .filter_map(|index| match &steps[index].main {
                Main::Changes(changes) => Some((index, changes.clone())),
                Main::Known(_) => None,
            })
            .collect();
        if refused.is_empty() {
            return Ok(jobs);
        }
        let keys: Vec<Key> = refused
            .iter()
            .flat_map(|(_, changes)| changes.iter().map(|change| change.key().clone()))
            .collect();
        let mut items = self.table.get(&keys).await?.into_iter();
        let now = self.now();
        let mut anew: Vec<(usize, Vec<Change>)> = Vec::new();
        for (index, changes) in refused {
            // Another record has replaced it: that one stays, and this is no conflict.
            if matches!(steps[index].write, Write::RemoveRecord { .. }) {
                let _ = changes.iter().map(|_| items.next()).count();
                outcomes[index] = Ok(());
                continue;
            }
            let (over, there): (Vec<Option<Item>>, Vec<Option<Item>>) = changes
                .iter()
                .map(|_| items.next().flatten())
                .map(|item| {
                    if item.as_ref().is_some_and(|item| row::is_over(item, now)) {
                        (item, None)
                    } else {
                        (None, item)
                    }
                })
                .unzip();
            // A job that is gone was removed by whoever wrote first, which may have been this write itself; the two cannot be distinguished.
            let ours = changes
                .iter()
                .zip(&there)
                .filter(|(change, _)| change.is_conditional())
                .all(|(change, there)| is_ours(change, there.as_ref()));
            if ours {
                outcomes[index] = Ok(());
                continue;
            }
            // What the table should have forgotten by now, and may not for two days, stands in nobody's way.
            if over.iter().any(Option::is_some)
                && changes.iter().zip(&there).all(|(change, there)| change.holds(there.as_ref()))
            {
                anew.push((
                    index,
                    changes
                        .iter()
                        .zip(&over)
                        .map(|(change, over)| in_place_of(change, over.as_ref()))
                        .collect(),
                ));
                continue;
            }
            let blocks = changes.iter().zip(&there).find(|(change, there)| {
                !change.holds(there.as_ref()) && !is_ours(change, there.as_ref())
            });
            let (change, item) = blocks
                .map_or((&changes[0], there[0].as_ref()), |(change, item)| (change, item.as_ref()));
            let standing = match item {
                None => CurrentRecord::Nothing,
                Some(item) => match steps[index].write {
                    Write::SetKey { .. } => {
                        let since =
                            Timestamp::from_millis(item.number(row::SINCE).unwrap_or(0) as i64);
                        let job = item.text(row::TARGET).and_then(|id| id.parse().ok());
                        job.map_or(CurrentRecord::Nothing, |job| CurrentRecord::Key {
                            job,
                            since: Some(since),
                        })
                    }
                    Write::SetLedger { .. } | Write::SetItem { .. } => {
                        CurrentRecord::Version(item.number(row::VERSION).unwrap_or(0))
                    }
                    _ => {
                        let job = row::shown(item, now)?;
                        if matches!(change, Change::Insert(_)) {
                            jobs[index] = Some(job.clone());
                        }
                        CurrentRecord::Job(Box::new(job))
                    }
                },
            };
            outcomes[index] = Err(standing);
        }
        for (index, changes) in anew {
            let done = if changes.len() == 1 {
                self.table.write(&changes).await? == [true]
            } else {
                self.table.together(&changes).await?
            };
            if !done {
                return Err(StoreError::unavailable(
                    "a job that should be forgotten was, this very moment",
                ));
            }
            outcomes[index] = Ok(());
        }
        Ok(jobs)
    }

    /// Does what follows a write before it is answered: a new job whose time has passed meanwhile gets an entry that counts, and
    /// so does one that is answered as being there already. What a removed job leaves behind goes.
    async fn after(
        &self,
        steps: &[Step<'_>],
        outcomes: &[Result<(), CurrentRecord>],
        found: &[Option<Job>],
    ) -> Result<(), StoreError> {
        let now = self.now();
        let mut wanted = Vec::new();
        for ((step, outcome), found) in steps.iter().zip(outcomes).zip(found) {
            let new = parts(step.write).into_iter().filter_map(added).filter(|_| outcome.is_ok());
            for job in new.chain(found.as_ref()) {
                if let Some(run_at) = job.life.run_at().filter(|run_at| *run_at + SLACK < now) {
                    wanted.push(Wanted::run(
                        self.index_partition(&job.id, &job.spec),
                        &job.id,
                        &job.spec,
                        job.life.revision.0,
                        run_at,
                    ));
                }
                // A timer may have been found without its job, and given up.
                let timer = job
                    .life
                    .wake_at(&job.spec)
                    .filter(|at| *at + SLACK < now && job.life.ended().is_none());
                wanted.extend(timer.map(|at| Wanted::wake(&job.id, job.life.revision.0, at)));
            }
        }
        self.announce(wanted).await?;
        let done = steps.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_ok());
        let leaves: Vec<Change> = done.flat_map(|(step, _)| step.leaves.iter().cloned()).collect();
        if !leaves.is_empty() {
            self.table.write(&leaves).await?;
        }
        Ok(())
    }
}

/// The change that one write is.
fn change<'p>(
    write: &Write,
    mut places: impl Iterator<Item = &'p JobLocation>,
    keys: &[String],
    now: Timestamp,
) -> Result<Change, StoreError> {
    let mut row_of =
        |id: &JobId| places.next().expect("every subject has a place").row(key::parts(id).0);
    let no_condition = |key| Change::Delete { key, when: None };
    Ok(match write {
        Write::AddJob(job) => Change::Insert(row::row(job, row_of(&job.id), keys)?.0),
        Write::SetJob { job, was, all } => {
            let mut set = row::life(job)?;
            let mut remove = Vec::new();
            if *all {
                let data = DataAt::of(&job.id, &job.data);
                set.push(row::spec(job)?);
                set.extend(data.set);
                remove = data.remove;
            }
            Change::Update {
                key: row_of(&job.id),
                set,
                remove,
                when: (row::REVISION, Val::N(was.0)),
            }
        }
        Write::RemoveJob { id, was } => {
            Change::Delete { key: row_of(id), when: Some((row::REVISION, Val::N(was.0))) }
        }
        Write::SetKey { key, job, was } => {
            let since = (row::SINCE, Val::N(now.millis().max(0) as u64));
            let (key, set) = (key::name(key), vec![(row::TARGET, Val::S(job.to_string())), since]);
            match was {
                Expect::Absent => Change::Insert(Item::new(key, set)),
                Expect::Is(was) => Change::Update {
                    key,
                    set,
                    remove: Vec::new(),
                    when: (row::TARGET, Val::S(was.to_string())),
                },
            }
        }
        Write::AddBatch(queue, batch) => {
            Change::Put(row::batch_item(key::batch(queue, batch.id), batch)?)
        }
        Write::RemoveBatch(queue, id) => no_condition(key::batch(queue, *id)),
        Write::SetLedger { queue, head, was } => {
            let item = row::head_item(key::head(queue), head)?;
            match was {
                Expect::Absent => Change::Insert(item),
                Expect::Is(was) => {
                    let set: Vec<(Name, Val)> = item.attrs.into_iter().collect();
                    Change::Update {
                        key: item.key,
                        set,
                        remove: Vec::new(),
                        when: (row::VERSION, Val::N(*was)),
                    }
                }
            }
        }
        Write::PutRecord(record) => Change::Put(record::Parts::of(record).item),
        Write::RemoveRecord { kind, name, until } => {
            Change::Delete { key: key::record(*kind, name), when: until.map(record::until) }
        }
        Write::RequireItem { .. } | Write::SetItem { .. } | Write::Together(_) => {
            return Err(StoreError::corrupt("a write that cannot stand among others"));
        }
    })
}

/// `change` where `over` stands, the row of a job that should have been forgotten: put in its place, if it stands there still.
fn in_place_of(change: &Change, over: Option<&Item>) -> Change {
    match (change, over.and_then(|item| Some((item, item.attrs.get(&row::REVISION)?)))) {
        (Change::Insert(new), Some((old, revision))) => Change::Update {
            key: new.key.clone(),
            set: new.attrs.iter().map(|(name, value)| (*name, value.clone())).collect(),
            remove: old
                .attrs
                .keys()
                .filter(|name| !new.attrs.contains_key(name))
                .copied()
                .collect(),
            when: (row::REVISION, revision.clone()),
        },
        _ => change.clone(),
    }
}

/// The transactions whose next write may go out now: none that comes before them has one of their records still before it.
fn next_wave(tracks: &[Track]) -> Vec<usize> {
    let mut wave = Vec::new();
    let mut taken: HashSet<Subject> = HashSet::new();
    for (index, track) in tracks.iter().enumerate() {
        if track.answer.is_some() || track.step >= track.txn.len() {
            continue;
        }
        let own: Vec<Subject> = track.txn[track.step..].iter().flat_map(records).collect();
        let read = reads(&track.txn[track.step]);
        if own.iter().chain(&read).all(|record| !taken.contains(record)) {
            wave.push(index);
        }
        taken.extend(own);
    }
    wave
}

/// The writes that `write` is made of.
fn parts(write: &Write) -> Vec<&Write> {
    match write {
        Write::Together(writes) => writes.iter().collect(),
        write => vec![write],
    }
}

/// The job that it adds.
fn added(write: &Write) -> Option<&Job> {
    match write {
        Write::AddJob(job) => Some(job),
        _ => None,
    }
}

/// The job that it is about.
fn subject(write: &Write) -> Option<&JobId> {
    match write {
        Write::AddJob(job) | Write::SetJob { job, .. } => Some(&job.id),
        Write::RemoveJob { id, .. } => Some(id),
        _ => None,
    }
}

/// The job that it writes, and whether as a whole.
fn written(write: &Write) -> Option<(&Job, bool)> {
    match write {
        Write::AddJob(job) => Some((job, true)),
        Write::SetJob { job, all, .. } => Some((job, *all)),
        _ => None,
    }
}

/// What it must read to be decided.
fn reads(write: &Write) -> Option<Key> {
    match write {
        Write::RequireItem { kind, name, .. }
        | Write::SetItem { kind, name, was: 0, bytes: None, .. } => Some(key::item(*kind, name)),
        _ => None,
    }
}

fn records(write: &Write) -> Vec<Subject> {
    match write {
        Write::AddJob(Job { id, .. })
        | Write::SetJob { job: Job { id, .. }, .. }
        | Write::RemoveJob { id, .. } => vec![key::id(id)],
        Write::SetKey { key, .. } => vec![key::name(key)],
        Write::AddBatch(queue, batch) => vec![key::batch(queue, batch.id)],
        Write::RemoveBatch(queue, id) => vec![key::batch(queue, *id)],
        Write::SetLedger { queue, .. } => vec![key::head(queue)],
        Write::SetItem { kind, name, .. } => vec![key::item(*kind, name)],
        Write::PutRecord(Record { kind, name, .. }) | Write::RemoveRecord { kind, name, .. } => {
            vec![key::record(*kind, name)]
        }
        Write::RequireItem { .. } => Vec::new(),
        Write::Together(writes) => writes.iter().flat_map(records).collect(),
    }
}

/// The clients' keys that a transaction sets: the row of the job that it adds keeps them, so that they go with it.
fn idempotency(txn: &Txn) -> Vec<String> {
    let key = |write: &Write| match write {
        Write::SetKey { key: job_store::Key::Idempotency(key), .. } => Some(key.clone()),
        _ => None,
    };
    txn.iter().filter_map(key).collect()
}

/// Whether a job's row must be read to know what it leaves behind.
fn leaves_something(write: &Write) -> bool {
    match write {
        Write::RemoveJob { .. } => true,
        Write::SetJob { job, all, .. } => {
            *all || (job.life.ended().is_some() && matches!(job.data, Body::Beside(_)))
        }
        _ => false,
    }
}

/// What becomes of what `item`, the row of a job before `write`, names.
fn leaves(write: &Write, item: &Item) -> Result<Vec<Change>, StoreError> {
    let body = BodyAt::read(item);
    match write {
        Write::RemoveJob { id, .. } => {
            let spec = row::job(item)?.spec;
            let job_type = &spec.job_type;
            let mut keys: Vec<job_store::Key> = Vec::new();
            keys.extend(
                spec.correlation_key
                    .iter()
                    .map(|key| job_store::Key::Correlation(job_type.clone(), key.clone())),
            );
            keys.extend(
                spec.unique
                    .iter()
                    .map(|unique| job_store::Key::Unique(job_type.clone(), unique.key.clone())),
            );
            keys.extend(
                item.text(row::KEYS)
                    .into_iter()
                    .flat_map(str::lines)
                    .map(|key| job_store::Key::Idempotency(key.to_owned())),
            );
            let own = (row::TARGET, Val::S(id.to_string()));
            let keys = keys
                .iter()
                .map(|key| Change::Delete { key: key::name(key), when: Some(own.clone()) });
            let parts = body
                .into_iter()
                .flat_map(|body| body.keys(id))
                .map(|key| Change::Delete { key, when: None });
            Ok(keys.chain(parts).collect())
        }
        Write::SetJob { job, .. } => {
            let Some(old) = body else {
                return Ok(Vec::new());
            };
            let stays = matches!(job.data, Body::Beside(_));
            if !stays {
                let kept: Vec<Key> =
                    DataAt::of(&job.id, &job.data).parts.into_iter().map(|part| part.key).collect();
                let gone = old.keys(&job.id).into_iter().filter(|key| !kept.contains(key));
                return Ok(gone.map(|key| Change::Delete { key, when: None }).collect());
            }
            // The table forgets it with its job.
            let over = row::life(job)?.into_iter().find(|(name, _)| *name == EXPIRES);
            let forget = |key| {
                over.clone().map(|over| Change::Update {
                    key,
                    set: vec![over],
                    remove: Vec::new(),
                    when: (row::VERSION, Val::N(1)),
                })
            };
            Ok(old.keys(&job.id).into_iter().filter_map(forget).collect())
        }
        _ => Ok(Vec::new()),
    }
}

/// Whether `change` has happened and its answer was lost: what stands there has its mark. Nobody can tell who removed what is gone.
fn is_ours(change: &Change, there: Option<&Item>) -> bool {
    let marked = |mark: Option<&Val>| {
        mark.is_some() && there.and_then(|there| there.attrs.get(&row::MARK)) == mark
    };
    match change {
        Change::Insert(item) => marked(item.attrs.get(&row::MARK)),
        Change::Update { set, .. } => {
            marked(set.iter().find(|(name, _)| *name == row::MARK).map(|(_, mark)| mark))
        }
        Change::Delete { when: Some(_), .. } => there.is_none(),
        Change::Put(_) | Change::Delete { when: None, .. } => true,
    }
}

/// An error that says nothing was written, where something was.
fn unless_written(error: StoreError, wrote: bool) -> StoreError {
    match error {
        StoreError::Throttled { message, .. } if wrote => StoreError::unavailable(message),
        error => error,
    }
}
