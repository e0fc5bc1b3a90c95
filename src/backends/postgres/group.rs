//! One group of transactions in one transaction of Postgres.
//!
//! ```text
//!   BEGIN  guarded writes ...  COMMIT          all sent at once: one round trip, one fsync
//!     └─ a guard raised: everything is rolled back
//!   BEGIN  lock and look ─▶ compare ─▶ writes of those that hold  COMMIT
//! ```
//!
//! A group is committed only if every answer before that of its `COMMIT` was good: the client
//! reports success for a `COMMIT` that the server turned into a `ROLLBACK`.

use std::{collections::HashSet, time::Duration};

use futures_util::future::BoxFuture;
use tokio_postgres::{Error, Row, Statement};

use super::{
    connect::{Link, Param, in_order},
    error::Fault,
    look::{self, Seen},
    partitions,
    plan::{Call, Looked, adds_alone, is_direct, plan},
    statements::ADD_ALONE,
    step::Step,
};
use tidegate_core::{
    job::JobId,
    port::{StoreError, job_store::Committed},
    time::Timestamp,
};

/// The answer to one transaction of a group.
pub(super) type Answer = Result<Committed, StoreError>;

/// How often a group is repeated after a deadlock, a lock that took too long, or a rival.
const MAX_REPEATS: usize = 5;
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
    if !direct.is_empty() {
        match repeated(link, &pick(&direct), drawn, now, Way::Direct).await {
            Ok(written) => {
                for (index, answer) in direct.into_iter().zip(written) {
                    match answer {
                        Some(answer) => answers[index] = Some(Ok(answer)),
                        None => others.push(index),
                    }
                }
            }
            Err(Fault::Refused) => others.extend(direct),
            Err(fault) => fail(&mut answers, direct, fault),
        }
    }
    if !others.is_empty() {
        match repeated(link, &pick(&others), drawn, now, Way::Looking).await {
            Ok(written) => {
                for (index, answer) in others.into_iter().zip(written) {
                    answers[index] = answer.map(Ok);
                }
            }
            Err(fault) => fail(&mut answers, others, fault),
        }
    }
    // A single transaction may be what cannot be written, such as one too large for the disk.
    let failed = |answer: &Option<Answer>| {
        matches!(answer, Some(Err(StoreError::Corrupt(_) | StoreError::Throttled { .. })))
    };
    if txns.len() > 1 && answers.iter().any(failed) {
        for (index, answer) in answers.iter_mut().enumerate().filter(|(_, answer)| failed(answer)) {
            *answer = Box::pin(commit(link, &[txns[index]], drawn, now)).await.pop();
        }
    }
    let missing = || Err(StoreError::unavailable("the group has no answer for it"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
}

fn fail(answers: &mut [Option<Answer>], indexes: Vec<usize>, fault: Fault) {
    let error = fault.into_error();
    for index in indexes {
        answers[index] = Some(Err(error.clone()));
    }
}

/// How a group is written.
#[derive(Clone, Copy)]
enum Way {
    /// At once, with guards.
    Direct,
    /// After a look under locks.
    Looking,
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
        let may_help = matches!(fault, Fault::Again(_) | Fault::NoPartition | Fault::Refused);
        if !may_help || repeats == MAX_REPEATS {
            return Err(fault);
        }
        repeats += 1;
        if matches!(fault, Fault::NoPartition) {
            partitions::create_for(link, txns, now).await?;
        }
    }
}

/// Sends everything at once.
async fn direct(
    link: &Link,
    txns: &[&[Step]],
    drawn: &HashSet<JobId>,
) -> Result<Vec<Option<Committed>>, Fault> {
    let calls = plan(txns.iter().copied(), None, drawn);
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

/// Locks, looks, and writes the transactions that hold.
async fn looking(
    link: &Link,
    txns: &[&[Step]],
    drawn: &HashSet<JobId>,
    now: Timestamp,
) -> Result<Vec<Option<Committed>>, Fault> {
    let calls = look::calls(txns);
    let seen = match send(link, Some("BEGIN"), &calls, None).await {
        Ok(answers) => Seen::read(&calls, &answers, now),
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
    let writes = plan(holding.map(|(txn, _)| *txn), Some(&looked), drawn);
    send(link, None, &writes, Some("COMMIT")).await?;
    Ok(answers.into_iter().map(Some).collect())
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
    let mut sent: Vec<BoxFuture<'_, Result<Vec<Row>, Error>>> = Vec::with_capacity(calls.len() + 3);
    if let Some(first) = first {
        sent.push(Box::pin(plain(link, first)));
    }
    for (call, statement) in calls.iter().zip(statements) {
        sent.push(Box::pin(query(link, statement, call)));
    }
    if let Some(last) = last {
        // A commit that is cancelled may have happened.
        sent.push(Box::pin(plain(link, "SET LOCAL statement_timeout = 0")));
        sent.push(Box::pin(plain(link, last)));
    }
    let answers = tokio::time::timeout(GROUP_TIMEOUT, in_order(sent)).await;
    let answers = answers.map_err(|late| Fault::Broken(StoreError::unavailable(late)))?;
    let rows = answers.into_iter().collect::<Result<Vec<_>, Error>>()?;
    if link.unconfirmed() != unconfirmed {
        let message = "the commit was not confirmed by a standby";
        return Err(Fault::Broken(StoreError::unavailable(message)));
    }
    Ok(rows.into_iter().skip(usize::from(first.is_some())).take(calls.len()).collect())
}

async fn plain(link: &Link, sql: &'static str) -> Result<Vec<Row>, Error> {
    link.client.batch_execute(sql).await?;
    Ok(Vec::new())
}

async fn query(link: &Link, statement: Statement, call: &Call<'_>) -> Result<Vec<Row>, Error> {
    let params: Vec<Param<'_>> = call.params.iter().map(|param| &**param as Param<'_>).collect();
    link.client.query(&statement, &params).await
}
