//! The comparison of both sides: nothing is missing, nothing is extra, everything is the same.
//!
//! Jobs and objects are looked up on the other side by their ids and paths, because two stores may list
//! them in different orders. Records, items and ledgers are listed by name on both sides.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fmt::Display,
};

use super::{
    Move, MoveError, OnProgress, Part, Side,
    copy::{PAGE_JOBS, PAGE_RECORDS},
    job_parts::{WholeJob, groups, is_forgotten},
    mark,
};
use tidegate_core::{
    job::{Job, JobId, QueueName},
    port::job_store::{Item, ItemKind, Record, RecordKind},
};

/// Most differences of a part that are named, and most damaged records of it.
const MAX_NAMED: usize = 20;

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Each part.
    pub parts: Vec<PartComparison>,
}

impl Comparison {
    /// Whether both sides have the same.
    pub fn is_equal(&self) -> bool {
        self.parts.iter().all(|part| part.differences == 0)
    }

    /// How many records of the source are damaged, and not in the target.
    pub fn damaged(&self) -> u64 {
        self.parts.iter().map(|part| part.damaged).sum()
    }
}

/// What a comparison found in a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartComparison {
    /// The part.
    pub part: Part,
    /// How many records the source has.
    pub from: u64,
    /// How many records the target has.
    pub to: u64,
    /// How many records are missing, extra or different.
    pub differences: u64,
    /// The first of these, for people.
    pub named: Vec<String>,
    /// How many records of the source are damaged, and not in the target. They are no differences.
    pub damaged: u64,
    /// The names of the first of these, as far as they can be read.
    pub damaged_named: Vec<String>,
}

impl PartComparison {
    /// A part before its comparison.
    pub(super) fn new(part: Part) -> Self {
        Self {
            part,
            from: 0,
            to: 0,
            differences: 0,
            named: Vec::new(),
            damaged: 0,
            damaged_named: Vec::new(),
        }
    }

    fn add(&mut self, difference: String) {
        self.differences += 1;
        if self.named.len() < MAX_NAMED {
            self.named.push(difference);
        }
    }

    /// The target lacks `name`.
    pub(super) fn missing(&mut self, name: impl Display) {
        self.add(format!("{name} is missing in the target"));
    }

    /// The source lacks `name`.
    pub(super) fn extra(&mut self, name: impl Display) {
        self.add(format!("{name} is in the target alone"));
    }

    /// The sides have different records `name`.
    pub(super) fn different(&mut self, name: impl Display) {
        self.add(format!("{name} is different in the target"));
    }

    /// The source has `name`, which cannot be read and so was not copied.
    fn left_out(&mut self, name: String) {
        self.damaged += 1;
        if self.damaged_named.len() < MAX_NAMED {
            self.damaged_named.push(name);
        }
    }

    /// Compares the records of both sides by name.
    fn compare<K: Ord + Display, V: PartialEq>(
        &mut self,
        from: BTreeMap<K, V>,
        mut to: BTreeMap<K, V>,
    ) {
        self.from += from.len() as u64;
        self.to += to.len() as u64;
        for (name, here) in from {
            match to.remove(&name) {
                None => self.missing(name),
                Some(there) if there != here => self.different(name),
                Some(_) => {}
            }
        }
        for name in to.into_keys() {
            self.extra(name);
        }
    }
}

impl Move {
    /// Compares everything of both sides, in both directions.
    ///
    /// # Errors
    ///
    /// A side cannot be read, or a job, a ledger or an item of one is damaged. A difference is not an
    /// error, and a damaged record is counted.
    pub async fn compare(&self, on_progress: OnProgress<'_>) -> Result<Comparison, MoveError> {
        let mut comparison = Comparison::default();
        for part in Part::all() {
            let compared = match part {
                Part::Objects => self.compare_objects(on_progress).await?,
                Part::Jobs => self.compare_jobs(on_progress).await?,
                Part::Ledgers => self.compare_ledgers().await?,
                Part::Records(kind) => self.compare_records(kind, on_progress).await?,
                Part::Items(kind) => self.compare_items(kind).await?,
            };
            if matches!(part, Part::Ledgers | Part::Items(_)) {
                on_progress(part, compared.from);
            }
            comparison.parts.push(compared);
        }
        Ok(comparison)
    }

    async fn compare_jobs(&self, on_progress: OnProgress<'_>) -> Result<PartComparison, MoveError> {
        let mut compared = PartComparison::new(Part::Jobs);
        let mut after = None;
        loop {
            let (jobs, next) = self.from.job_page(after.as_deref()).await?;
            for group in groups(jobs) {
                let count = group.len() as u64;
                self.compare_with_target(group, &mut compared).await?;
                on_progress(Part::Jobs, count);
            }
            let Some(next) = next else { break };
            after = Some(next);
        }
        let mut after = None;
        loop {
            let (jobs, next) = self.to.job_page(after.as_deref()).await?;
            self.find_extra(jobs, &mut compared).await?;
            let Some(next) = next else { return Ok(compared) };
            after = Some(next);
        }
    }

    async fn compare_with_target(
        &self,
        jobs: Vec<Job>,
        compared: &mut PartComparison,
    ) -> Result<(), MoveError> {
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id.clone()).collect();
        let here = self.from.whole(jobs).await?;
        let there = self.to.jobs(&ids).await?;
        let there = self.to.whole(there).await?.into_iter();
        let mut there: HashMap<JobId, WholeJob> =
            there.map(|job| (job.job.id.clone(), job)).collect();
        // Read after both sides, so that none has hidden anything that is not past its time now.
        let now = self.clock.now();
        for whole in here {
            if is_forgotten(&whole.job, now) {
                continue;
            }
            compared.from += 1;
            let id = whole.job.id.clone();
            match there.remove(&id) {
                None => compared.missing(format_args!("job {id}")),
                Some(other) if other.clone().at(now) != whole.at(now) => {
                    compared.different(format_args!("job {id}"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    async fn find_extra(
        &self,
        jobs: Vec<Job>,
        compared: &mut PartComparison,
    ) -> Result<(), MoveError> {
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id.clone()).collect();
        let here: BTreeSet<JobId> =
            self.from.jobs(&ids).await?.into_iter().map(|job| job.id).collect();
        let now = self.clock.now();
        for job in jobs.into_iter().filter(|job| !is_forgotten(job, now)) {
            compared.to += 1;
            if !here.contains(&job.id) {
                compared.extra(format_args!("job {}", job.id));
            }
        }
        Ok(())
    }

    async fn compare_ledgers(&self) -> Result<PartComparison, MoveError> {
        let mut compared = PartComparison::new(Part::Ledgers);
        let queues: BTreeSet<QueueName> = self
            .from
            .ledger_queues()
            .await?
            .into_iter()
            .chain(self.to.ledger_queues().await?)
            .collect();
        for queue in queues {
            let here = self.from.store.ledger(&queue).await;
            let there = self.to.store.ledger(&queue).await;
            let here = here.map_err(|error| self.from.failed(error))?;
            let there = there.map_err(|error| self.to.failed(error))?;
            let here = here.map(|(ledger, batches)| (self.to.as_moved(ledger), batches));
            let of_queue = |ledger| BTreeMap::from_iter([(queue.clone(), ledger)]);
            compared.compare(
                here.map(of_queue).unwrap_or_default(),
                there.map(of_queue).unwrap_or_default(),
            );
        }
        Ok(compared)
    }

    async fn compare_items(&self, kind: ItemKind) -> Result<PartComparison, MoveError> {
        let mut compared = PartComparison::new(Part::Items(kind));
        let by_name = |items: Vec<Item>| -> BTreeMap<String, Item> {
            let items = items.into_iter();
            let moved = items.filter(|item| kind != ItemKind::Schema || item.name != mark::NAME);
            moved.map(|item| (item.name.clone(), item)).collect()
        };
        let (here, there) = (self.from.items(kind).await?, self.to.items(kind).await?);
        compared.compare(by_name(here), by_name(there));
        Ok(compared)
    }

    /// Compares the records of a kind as two lists in the order of their names.
    async fn compare_records(
        &self,
        kind: RecordKind,
        on_progress: OnProgress<'_>,
    ) -> Result<PartComparison, MoveError> {
        let mut compared = PartComparison::new(Part::Records(kind));
        let mut here = RecordList::new(&self.from, kind);
        let mut there = RecordList::new(&self.to, kind);
        loop {
            for name in here.fill().await? {
                compared.left_out(name);
            }
            // One that is damaged there is missing.
            there.fill().await?;
            let names = (here.first_name(), there.first_name());
            let (has_here, has_there) = match names {
                (None, None) => return Ok(compared),
                (Some(here), Some(there)) => (here <= there, there <= here),
                (here, there) => (here.is_some(), there.is_some()),
            };
            let of_source = if has_here { here.page.pop_front() } else { None };
            let of_target = if has_there { there.page.pop_front() } else { None };
            compared.from += u64::from(of_source.is_some());
            compared.to += u64::from(of_target.is_some());
            // A store may drop by itself what is past its time.
            let now = self.clock.now();
            let counts = |record: &Record| record.until > now;
            match (of_source, of_target) {
                (Some(here), Some(there)) if here != there && (counts(&here) || counts(&there)) => {
                    compared.different(here.name);
                }
                (Some(here), None) if counts(&here) => compared.missing(here.name),
                (None, Some(there)) if counts(&there) => compared.extra(there.name),
                _ => {}
            }
            on_progress(Part::Records(kind), u64::from(has_here));
        }
    }
}

/// The records of a kind, by name.
struct RecordList<'a> {
    side: &'a Side,
    kind: RecordKind,
    /// Records that were read and not compared yet.
    page: VecDeque<Record>,
    /// Where the next page starts.
    after: Option<String>,
    is_over: bool,
}

impl<'a> RecordList<'a> {
    fn new(side: &'a Side, kind: RecordKind) -> Self {
        Self { side, kind, page: VecDeque::new(), after: None, is_over: false }
    }

    /// Reads the next pages if the last one is used up, until one has records. Returns the names of the
    /// damaged records that were met.
    async fn fill(&mut self) -> Result<Vec<String>, MoveError> {
        let mut damaged = Vec::new();
        while self.page.is_empty() && !self.is_over {
            let page = self.side.record_page(self.kind, self.after.take(), PAGE_RECORDS).await?;
            self.is_over = page.next.is_none();
            self.after = page.next;
            self.page = page.records.into();
            damaged.extend(page.damaged);
        }
        Ok(damaged)
    }

    fn first_name(&self) -> Option<&str> {
        self.page.front().map(|record| &record.name[..])
    }
}

impl Side {
    /// A page of all jobs, and where the next one starts.
    async fn job_page(&self, after: Option<&str>) -> Result<(Vec<Job>, Option<String>), MoveError> {
        let page = self.store.all_jobs(after, PAGE_JOBS).await;
        let page = page.map_err(|error| self.failed(error))?;
        Ok((self.readable(page.jobs)?, page.next))
    }

    /// The jobs of these ids that the store has.
    async fn jobs(&self, ids: &[JobId]) -> Result<Vec<Job>, MoveError> {
        let jobs = self.store.get(ids).await.map_err(|error| self.failed(error))?;
        let jobs = jobs.into_iter().filter_map(Result::transpose).collect();
        self.readable(jobs)
    }

    async fn ledger_queues(&self) -> Result<Vec<QueueName>, MoveError> {
        self.store.ledger_queues().await.map_err(|error| self.failed(error))
    }
}
