//! One group of transactions in one transaction of Postgres.
//!
//! ```text
//!   one guarded statement                      of a tick: one message
//!   BEGIN  guarded writes ...  COMMIT          of others, all sent at once: one round trip, one fsync
//!     └─ a guard raised: everything is rolled back
//!   BEGIN  lock and look ─▶ compare ─▶ writes of those that hold  COMMIT
//! ```
//!
//! A group is committed only if every answer before that of its `COMMIT` was good: the client
//! reports success for a `COMMIT` that the server turned into a `ROLLBACK`.

use std::{collections::HashSet, time::Duration};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio_postgres::{Error, Row, Statement};

use super::{
    connect::{Link, Param, in_order},
    error::Fault,
    look::{self, Seen},
    partitions,
    plan::{Call, Looked, adds_alone, is_direct, plan},
    single::{POSITION, single},
    statements::ADD_ALONE,
    step::Step,
    wal::{self, Lsn, Watched},
};
use crate::system::SystemEntropy;
use tidegate_core::{
    job::JobId,
    port::{Entropy as _, StoreError, job_store::Committed},
    time::Timestamp,
};

/// The answer to one transaction of a group.
pub(super) type Answer = Result<Committed, StoreError>;

/// How often a group is repeated after a deadlock, a lock that took too long, or a rival.
const MAX_REPEATS: usize = 5;
/// Most of the wait before the first repeat. Later ones wait longer.
const MAX_PAUSE: Duration = Duration::from_millis(10);
/// How long a client waits for all answers of a group.
const GROUP_TIMEOUT: Duration = Duration::from_secs(30);

/// Commits `txns`, which name no record twice: one answer each. `drawn` are ids that were
/// drawn for new jobs, so that no other job can have them.
pub(super) async fn commit(
    link: &Link,
    txns: &[&[Step]],
    drawn: &HashSet<JobId>,
    now: Timestamp,
) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = txns.iter().map(|_| None).collect();
    let (direct, mut others): (Vec<usize>, Vec<usize>) =
        (0..txns.len()).partition(|index| txns[*index].iter().all(is_direct));
    let pick = |indexes: &[usize]| indexes.iter().map(|index| txns[*index]).collect::<Vec<_>>();
    let written = bisected(link, &pick(&direct), drawn, now, Way::Direct).await;
    for (index, answer) in direct.into_iter().zip(written) {
        match answer {
            Some(answer) => answers[index] = Some(answer),
            None => others.push(index),
        }
    }
    let written = bisected(link, &pick(&others), drawn, now, Way::Looking).await;
    for (index, answer) in others.into_iter().zip(written) {
        answers[index] = answer;
    }
    let missing = || Err(StoreError::unavailable("the group has no answer for it"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
}

/// How a group is written.
#[derive(Clone, Copy)]
enum Way {
    /// At once, with guards.
    Direct,
    /// After a look under locks.
    Looking,
}

/// Writes a group. If one of its transactions cannot be written, such as one with a value too long
/// for an index, halves of it are written until that one is alone. A transaction without an answer
/// was refused, and must look.
fn bisected<'a>(
    link: &'a Link,
    txns: &'a [&'a [Step]],
    drawn: &'a HashSet<JobId>,
    now: Timestamp,
    way: Way,
) -> BoxFuture<'a, Vec<Option<Answer>>> {
    Box::pin(async move {
        if txns.is_empty() {
            return Vec::new();
        }
        match repeated(link, txns, drawn, now, way).await {
            Ok(answers) => answers.into_iter().map(|answer| answer.map(Ok)).collect(),
            Err(Fault::Refused) if matches!(way, Way::Direct) => vec![None; txns.len()],
            Err(Fault::Failed(_)) if txns.len() > 1 => {
                let (first, second) = txns.split_at(txns.len() / 2);
                let mut answers = bisected(link, first, drawn, now, way).await;
                answers.extend(bisected(link, second, drawn, now, way).await);
                answers
            }
            Err(fault) => vec![Some(Err(fault.into_error())); txns.len()],
        }
    })
}

/// Writes a group, again if that may help. A transaction without an answer was not written.
async fn repeated(
    link: &Link,
    txns: &[&[Step]],
    drawn: &HashSet<JobId>,
    now: Timestamp,
    way: Way,
) -> Result<Vec<Option<Committed>>, Fault> {
    let mut repeats = 0;
    loop {
        let written = match way {
            Way::Direct => direct(link, txns, drawn).await,
            Way::Looking => looking(link, txns, drawn, now).await,
        };
        let fault = match (written, way) {
            (Ok(answers), _) => return Ok(answers),
            (Err(Fault::Refused), Way::Direct) => return Err(Fault::Refused),
            (Err(fault), _) => fault,
        };
        let is_missing = matches!(fault, Fault::NoPartition);
        let may_help = matches!(fault, Fault::Again(_) | Fault::Slow(_) | Fault::Refused);
        if !(may_help || is_missing) || repeats == MAX_REPEATS {
            return Err(fault);
        }
        repeats += 1;
        if is_missing {
            match partitions::create_for(link, txns, now).await {
                Ok(()) => continue,
                // Another server makes it, or holds a lock.
                Err(Fault::Again(_) | Fault::Slow(_)) => {}
                Err(fault) => return Err(fault),
            }
        }
        pause(repeats).await;
    }
}

/// Waits a random time before a repeat, so that two servers do not meet again.
#[allow(
    clippy::disallowed_methods,
    reason = "the wait depends on the real database, not on the engine's clock"
)]
async fn pause(repeats: usize) {
    tokio::time::sleep((MAX_PAUSE * repeats as u32).mul_f64(SystemEntropy.fraction())).await;
}

/// Sends everything at once.
async fn direct(
    link: &Link,
    txns: &[&[Step]],
    drawn: &HashSet<JobId>,
) -> Result<Vec<Option<Committed>>, Fault> {
    let mut calls = plan(txns.iter().copied(), None, drawn, link.item_lock);
    if let Some(watched) = &link.watched {
        match single(calls) {
            Ok(call) => {
                alone(link, watched, &call).await?;
                return Ok(txns.iter().map(|_| Some(Committed::All)).collect());
            }
            Err(several) => calls = several,
        }
    }
    let answers = send(link, Some("BEGIN"), &calls, Some("COMMIT")).await?;
    let mut added = HashSet::new();
    for (_, rows) in calls.iter().zip(&answers).filter(|(call, _)| call.sql == ADD_ALONE) {
        for row in rows {
            added.insert(row.try_get::<_, &str>(0)?);
        }
    }
    let is_written =
        |txn: &&[Step]| adds_alone(txn).is_none_or(|whole| added.contains(whole.id.as_str()));
    Ok(txns.iter().map(|txn| is_written(txn).then_some(Committed::All)).collect())
}

/// Sends a [single] statement, which is a transaction by itself.
///
/// # Errors
///
/// That of the statement, which has rolled back, or of its commit.
async fn alone(link: &Link, watched: &Watched, call: &Call<'_>) -> Result<(), Fault> {
    let statement = link.prepared(call.sql).await?;
    let unconfirmed = link.unconfirmed();
    let rows = tokio::time::timeout(GROUP_TIMEOUT, query(link, statement, call)).await;
    let rows = rows.map_err(|late| Fault::Broken(StoreError::unavailable(late)))??;
    must_be_confirmed(link, unconfirmed)?;
    if let Some(before) = wal::position(&rows, POSITION) {
        watched.committed(before);
    }
    Ok(())
}

/// Looks, and writes the transactions that hold.
async fn looking(
    link: &Link,
    txns: &[&[Step]],
    drawn: &HashSet<JobId>,
    now: Timestamp,
) -> Result<Vec<Option<Committed>>, Fault> {
    let mut answers = superseded(link, txns, now).await?;
    let is_open = |answer: &Option<Committed>| answer.is_none();
    let rest = txns.iter().zip(&answers).filter(|(_, answer)| is_open(answer));
    let rest: Vec<&[Step]> = rest.map(|(txn, _)| *txn).collect();
    if !rest.is_empty() {
        let mut locked = locking(link, &rest, drawn, now).await?.into_iter();
        for answer in answers.iter_mut().filter(|answer| is_open(answer)) {
            *answer = locked.next();
        }
    }
    Ok(answers)
}

/// The answers to the transactions whose ledger a rival has replaced. Versions of a ledger only grow, so they
/// are refused without a lock: servers that race for a ledger would have to wait for each other's locks of the
/// same jobs.
async fn superseded(
    link: &Link,
    txns: &[&[Step]],
    now: Timestamp,
) -> Result<Vec<Option<Committed>>, Fault> {
    let calls: Vec<Call<'_>> = look::newest_heads(txns).into_iter().collect();
    let answers = send(link, None, &calls, None).await?;
    let seen = Seen::read(&calls, &answers, now).map_err(Fault::Failed)?;
    Ok(txns.iter().map(|txn| seen.superseded(txn)).collect())
}

/// Locks, looks, and writes the transactions that hold.
async fn locking(
    link: &Link,
    txns: &[&[Step]],
    drawn: &HashSet<JobId>,
    now: Timestamp,
) -> Result<Vec<Committed>, Fault> {
    let calls = look::calls(txns, link.item_lock);
    let seen = match send(link, Some("BEGIN"), &calls, None).await {
        Ok(answers) => Seen::read(&calls, &answers, now).map_err(Fault::Failed),
        Err(fault) => Err(fault),
    };
    let seen = match seen {
        Ok(seen) => seen,
        Err(fault) => {
            if !matches!(fault, Fault::Broken(_)) {
                link.run("ROLLBACK").await?;
            }
            return Err(fault);
        }
    };
    let answers: Vec<Committed> = txns.iter().map(|txn| seen.answer(txn)).collect();
    let holding = txns.iter().zip(&answers).filter(|(_, answer)| matches!(answer, Committed::All));
    let looked: Looked = seen.looked();
    let holding = holding.map(|(txn, _)| *txn);
    let writes = plan(holding, Some(&looked), drawn, link.item_lock);
    send(link, None, &writes, Some("COMMIT")).await?;
    Ok(answers)
}

/// Sends `first`, `calls` and `last` before the first answer, and returns the rows of `calls`.
///
/// # Errors
///
/// The first one. Then `last`, if there is one, has rolled back.
async fn send(
    link: &Link,
    first: Option<&'static str>,
    calls: &[Call<'_>],
    last: Option<&'static str>,
) -> Result<Vec<Vec<Row>>, Fault> {
    let mut statements = Vec::with_capacity(calls.len());
    for call in calls {
        statements.push(link.prepared(call.sql).await?);
    }
    let unconfirmed = link.unconfirmed();
    let position = Mutex::new(None);
    let mut sent: Vec<BoxFuture<'_, Result<Vec<Row>, Error>>> = Vec::with_capacity(calls.len() + 3);
    if let Some(first) = first {
        sent.push(Box::pin(plain(link, first)));
    }
    for (call, statement) in calls.iter().zip(statements) {
        sent.push(Box::pin(query(link, statement, call)));
    }
    if let Some(last) = last {
        sent.push(match &link.watched {
            Some(_) => Box::pin(watched(link, &position)),
            // A commit that is cancelled may have happened.
            None => Box::pin(plain(link, "SET LOCAL statement_timeout = 0")),
        });
        sent.push(Box::pin(plain(link, last)));
    }
    let answers = tokio::time::timeout(GROUP_TIMEOUT, in_order(sent)).await;
    let answers = answers.map_err(|late| Fault::Broken(StoreError::unavailable(late)))?;
    let rows = answers.into_iter().collect::<Result<Vec<_>, Error>>()?;
    must_be_confirmed(link, unconfirmed)?;
    if let (Some(watched), Some(before)) = (&link.watched, position.into_inner()) {
        watched.committed(before);
    }
    Ok(rows.into_iter().skip(usize::from(first.is_some())).take(calls.len()).collect())
}

/// Fails if a standby has not confirmed a commit since there were `unconfirmed` such commits.
fn must_be_confirmed(link: &Link, unconfirmed: u64) -> Result<(), Fault> {
    if link.unconfirmed() == unconfirmed {
        return Ok(());
    }
    let message = "the commit was not confirmed by a standby";
    Err(Fault::Broken(StoreError::unavailable(message)))
}

/// Prepares a commit, and notes the `position` of the log before it.
async fn watched(link: &Link, position: &Mutex<Option<Lsn>>) -> Result<Vec<Row>, Error> {
    let before = wal::before_commit(link).await?;
    *position.lock() = before;
    Ok(Vec::new())
}

async fn plain(link: &Link, sql: &'static str) -> Result<Vec<Row>, Error> {
    link.client.batch_execute(sql).await?;
    Ok(Vec::new())
}

async fn query(link: &Link, statement: Statement, call: &Call<'_>) -> Result<Vec<Row>, Error> {
    let params: Vec<Param<'_>> = call.params.iter().map(|param| &**param as Param<'_>).collect();
    link.client.query(&statement, &params).await
}
