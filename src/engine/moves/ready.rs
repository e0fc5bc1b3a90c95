//! What must hold of the stores before a move: no server uses them, and nothing is half done.

use std::{collections::BTreeMap, time::Duration};

use futures_util::TryStreamExt as _;
use serde_json::Value;

use super::{Move, MoveError, Part, Side, copy::PAGE_JOBS, mark};
use tidegate_core::port::{
    AllRecordsPage, Inbox, InboxClosing, Txn, Write,
    job_store::{ItemKind, Record, RecordKind},
};

/// How often the records of servers are read again. After so many intervals the record of a server that
/// runs has changed: servers renew theirs every 2 s, and count one that is silent for 10 s as gone.
const LOOKS: u32 = 12;
/// The interval of these reads.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How many of the longest writes a call may take that had read the configuration before the mark: an
/// enqueue trusts one for a second, and stores large bodies before its commit.
const CALL_WRITES: u32 = 3;
/// Records of servers in a page.
const PAGE_SERVERS: u32 = 1000;
/// How often an inbox is closed that open transactions use. Each attempt waits for them: on Postgres 2 s.
const MAX_CLOSINGS: u32 = 5;

impl Move {
    /// Refuses a target that has anything.
    pub(super) async fn refuse_unless_empty(&self) -> Result<(), MoveError> {
        let Some(part) = self.to.content().await? else { return Ok(()) };
        Err(MoveError::refused(format!(
            "{} is not empty, it has {part}: give a target without data, such as another \
             directory, another schema of the database (`?schema=NAME`), or the table and the \
             bucket of a new deployment",
            self.to.place
        )))
    }

    /// Refuses if a server uses one of the stores. A directory has a lock; a shared store has a record
    /// of each server.
    pub(super) async fn refuse_servers(&self) -> Result<(), MoveError> {
        let sides = [&self.from, &self.to];
        let shared = sides.into_iter().filter(|side| side.store.capabilities().shared);
        let mut known: Vec<(&Side, BTreeMap<String, Record>)> = Vec::new();
        for side in shared {
            let servers = side.servers().await?;
            if !servers.is_empty() {
                known.push((side, servers));
            }
        }
        if known.is_empty() {
            return Ok(());
        }
        // Not until an instant: a clock that is set meanwhile must not end the wait.
        for _ in 0..LOOKS {
            self.clock.sleep(LOOK_INTERVAL).await;
            for (side, before) in &known {
                let now = side.servers().await?;
                if now.iter().any(|(name, record)| before.get(name) != Some(record)) {
                    return Err(MoveError::refused(format!(
                        "a server runs on {}: stop every server of it first",
                        side.place
                    )));
                }
            }
        }
        Ok(())
    }

    /// Waits until no call is under way on `side` that began before its mark. Servers are stopped. The
    /// functions of a deployment, which have no records, run until they read the mark. Where they have
    /// run, they have left a horizon.
    pub(super) async fn await_calls(&self, side: &Side) -> Result<(), MoveError> {
        let write = side.store.capabilities().atomicity.max_in_flight_write();
        if !write.is_zero() && !side.items(ItemKind::Horizon).await?.is_empty() {
            self.clock.sleep(write * CALL_WRITES).await;
        }
        Ok(())
    }
}

impl Side {
    /// The first part that is not empty; none if the whole store is empty. A store that a server has
    /// only started on has a schema record, which does not count.
    pub(super) async fn content(&self) -> Result<Option<Part>, MoveError> {
        for part in Part::all() {
            if self.has(part).await? {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }

    async fn has(&self, part: Part) -> Result<bool, MoveError> {
        Ok(match part {
            Part::Objects => {
                let first = self.objects.list(None).try_next().await;
                first.map_err(|error| self.failed_objects(error))?.is_some()
            }
            Part::Jobs => self.has_jobs().await?,
            Part::Ledgers => {
                let queues = self.store.ledger_queues().await;
                !queues.map_err(|error| self.failed(error))?.is_empty()
            }
            Part::Records(kind) => {
                let page = self.record_page(kind, None, 1).await?;
                !page.records.is_empty() || !page.damaged.is_empty() || page.next.is_some()
            }
            Part::Items(ItemKind::Schema) => false,
            Part::Items(kind) => !self.items(kind).await?.is_empty(),
        })
    }

    async fn has_jobs(&self) -> Result<bool, MoveError> {
        let mut after: Option<String> = None;
        loop {
            let page = self.store.all_jobs(after.as_deref(), PAGE_JOBS).await;
            let page = page.map_err(|error| self.failed(error))?;
            if !page.jobs.is_empty() {
                return Ok(true);
            }
            // A table lists its jobs among everything else that it has.
            let Some(next) = page.next else { return Ok(false) };
            after = Some(next);
        }
    }

    /// Removes what servers write before there is any data: the schema record, which that of the source
    /// replaces, and the horizon, so that the first sweep sends all late jobs.
    pub(super) async fn remove_beginnings(&self) -> Result<(), MoveError> {
        let mut removals: Vec<Txn> = Vec::new();
        for kind in [ItemKind::Schema, ItemKind::Horizon] {
            let items = self.items(kind).await?;
            let others = items.into_iter().filter(|item| item.name != mark::NAME);
            removals.extend(others.map(|item| {
                vec![Write::SetItem {
                    kind,
                    name: item.name,
                    was: item.version,
                    version: item.version + 1,
                    bytes: None,
                }]
            }));
        }
        if removals.is_empty() {
            return Ok(());
        }
        self.commit(removals).await.map(drop)
    }

    /// A page of the records of a kind after `after`, by name.
    pub(super) async fn record_page(
        &self,
        kind: RecordKind,
        after: Option<String>,
        limit: u32,
    ) -> Result<AllRecordsPage, MoveError> {
        let page = self.store.all_records(kind, after.as_deref(), limit).await;
        page.map_err(|error| self.failed(error))
    }

    /// The records of the servers that use the store, or did.
    async fn servers(&self) -> Result<BTreeMap<String, Record>, MoveError> {
        let (mut servers, mut after) = (BTreeMap::new(), None);
        loop {
            let page = self.record_page(RecordKind::Server, after, PAGE_SERVERS).await?;
            servers.extend(page.records.into_iter().map(|record| (record.name.clone(), record)));
            let Some(next) = page.next else { return Ok(servers) };
            after = Some(next);
        }
    }

    /// Closes the inbox, and refuses if it holds requests, or if transactions that may have made some do
    /// not end. A server that starts opens it again.
    pub(super) async fn refuse_requests(&self) -> Result<(), MoveError> {
        let Some(inbox) = &self.inbox else { return Ok(()) };
        self.close(&**inbox).await?;
        let waiting = inbox.requests(0, u64::MAX, 1).await.map_err(|error| self.failed(error))?;
        if waiting.last.is_none() {
            return Ok(());
        }
        Err(MoveError::refused(format!(
            "applications have requested jobs in {} that no server has added yet: stop the \
             applications, let a server run there until its inbox is empty, and begin again (if \
             this move went on, first give it up with `tidegate move --abort --from`)",
            self.place
        )))
    }

    /// Closes the inbox: a transaction that requested a job before and commits later would leave its
    /// request behind.
    async fn close(&self, inbox: &dyn Inbox) -> Result<(), MoveError> {
        let mut users = Vec::new();
        for _ in 0..MAX_CLOSINGS {
            match inbox.close().await.map_err(|error| self.failed(error))? {
                InboxClosing::Closed => return Ok(()),
                InboxClosing::InUse(now) => users = now,
            }
        }
        let users = if users.is_empty() { "none is visible now".into() } else { users.join("; ") };
        Err(MoveError::refused(format!(
            "transactions of applications that may have requested jobs in {} are still open ({users}): \
             stop the applications or end these transactions, and begin again",
            self.place
        )))
    }

    /// Refuses if a bulk operation is in the middle of its list of jobs: its place there is one of this
    /// store, and another store would leave out jobs.
    pub(super) async fn refuse_operations(&self) -> Result<(), MoveError> {
        for item in self.items(ItemKind::Operation).await? {
            // One that cannot be read stops the copy.
            let operation = item.read::<Value>().unwrap_or_default();
            let has = |pointer| operation.pointer(pointer).is_some_and(|value| !value.is_null());
            if has("/cursor") && !has("/operation/ended_at") {
                return Err(MoveError::refused(format!(
                    "the bulk operation {} in {} is half done: let a server run there until it has \
                     ended, and begin again",
                    item.name, self.place
                )));
            }
        }
        Ok(())
    }
}
