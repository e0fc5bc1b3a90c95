//! A check of every row: whether it can be read, and whether its columns say what it contains.

use std::collections::{BTreeMap, HashMap, HashSet};

use rusqlite::{Connection, Row, params};

use super::{
    damage::{NamedObject, Place, Verified},
    error::Failure,
    file::migrations_of,
    names::{BadName, Names},
    row::{
        self, LifeColumns, RawText, SEPARATE, blob, checked, decode, item_owner, key_sum,
        record_owner, select_jobs, text,
    },
};
use tidegate_core::{
    job::{Body, Job, QueueName},
    port::StoreError,
    queue::{GrantBatch, Ledger, ledger::BatchId},
};

/// Most lines of SQLite's own report.
const MAX_REPORT_LINES: u32 = 20;

/// Checks every row of `db`, and SQLite's own structures. Reads the whole file.
pub(super) fn verify(db: &Connection) -> Result<Verified, Failure> {
    // A server may write meanwhile: everything is compared as of one instant.
    let _instant = db.unchecked_transaction()?;
    let mut found = Verified::default();
    schema(db, &mut found)?;
    file(db, &mut found)?;
    let (names, bad) = Names::readable(db)?;
    for BadName { table, n, name } in bad {
        found.add(Place::Name { table, n }, format!("{table} has the damaged name {name:?}"));
    }
    jobs(db, &names, &mut found)?;
    bodies(db, &mut found)?;
    keys(db, &mut found)?;
    ledgers(db, &names, &mut found)?;
    items(db, &mut found)?;
    records(db, &mut found)?;
    Ok(found)
}

/// The objects with the bodies and results of the jobs that can be read, each with its job.
pub(super) fn objects(db: &Connection) -> Result<Vec<(String, NamedObject)>, Failure> {
    let _instant = db.unchecked_transaction()?;
    let mut found = Verified::default();
    jobs(db, &Names::readable(db)?.0, &mut found)?;
    Ok(found.objects)
}

/// SQLite's own check, which compares each index with its table.
fn file(db: &Connection, found: &mut Verified) -> Result<(), Failure> {
    let mut check = db.prepare(&format!("PRAGMA integrity_check({MAX_REPORT_LINES})"))?;
    let mut rows = check.query([])?;
    while let Some(row) = rows.next()? {
        let line: String = row.get(0)?;
        if line != "ok" {
            found.add(Place::File, line);
        }
    }
    Ok(())
}

/// The tables and indexes that every statement relies on.
fn schema(db: &Connection, found: &mut Verified) -> Result<(), Failure> {
    let read = |db: &Connection| -> Result<BTreeMap<RawText, String>, Failure> {
        let mut all = db.prepare("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")?;
        let all = all.query_map([], |row| Ok((row.get(0)?, statement(&row.get(1)?))))?;
        Ok(all.collect::<Result<_, _>>()?)
    };
    let fresh = Connection::open_in_memory()?;
    for migration in migrations_of(db)? {
        fresh.execute_batch(migration)?;
    }
    let stored = read(db)?;
    for (name, sql) in read(&fresh)? {
        if stored.get(&name) != Some(&sql) {
            let name = name.shown();
            found.add(Place::File, format!("the definition of {name} is missing or changed"));
        }
    }
    Ok(())
}

/// A statement without its comments, which another build may have worded differently.
fn statement(sql: &RawText) -> String {
    let sql = sql.shown();
    let lines = sql.lines().map(|line| line.split("--").next().unwrap_or_default().trim_end());
    lines.collect::<Vec<_>>().join("\n")
}

/// Every job with its body, and the counts.
fn jobs(db: &Connection, names: &Names, found: &mut Verified) -> Result<(), Failure> {
    let mut counts: HashMap<(i64, i64, i64), i64> = HashMap::new();
    let mut all = db.prepare(
        "SELECT id, spec, life, data_kind, data_bytes, data, n, queue, type, state, revision, \
         run_at, wake_at, created_at, priority, critical, partition FROM jobs ORDER BY n",
    )?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        found.jobs += 1;
        let n: i64 = row.get(6)?;
        let group = || -> Result<_, Failure> { Ok((row.get(7)?, row.get(8)?, row.get(9)?)) };
        let checked = group().and_then(|group| {
            *counts.entry(group).or_default() += 1;
            job(db, row, n, names, found)
        });
        found.add_damage(checked, || Place::Job { n, id: row::shown_id(row) })?;
    }
    let mut all = db.prepare("SELECT queue, type, state, jobs FROM counts")?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        let jobs: i64 = row.get(3)?;
        let counted = counts.remove(&(row.get(0)?, row.get(1)?, row.get(2)?)).unwrap_or(0);
        if counted != jobs {
            found.add(Place::Counts, format!("{counted} jobs are counted as {jobs}"));
        }
    }
    if !counts.is_empty() {
        found.add(Place::Counts, format!("{} groups of jobs are not counted", counts.len()));
    }
    Ok(())
}

/// Checks the job of a row of [`jobs`], and adds the objects that it names.
fn job(
    db: &Connection,
    row: &Row<'_>,
    n: i64,
    names: &Names,
    found: &mut Verified,
) -> Result<(), Failure> {
    let job = row::job(row)?;
    body(db, n, &job)?;
    let wrong = wrong_columns(row, &job, names)?;
    if !wrong.is_empty() {
        let what = format!("job {}: its row has another {}", job.id, wrong.join(", "));
        found.add(Place::Columns { n }, what);
    }
    let data = match &job.data {
        Body::Object { key, len, .. } => Some((key.clone(), *len)),
        _ => None,
    };
    let kept = job.life.result.iter().chain(&job.life.checkpoint);
    let objects = data.into_iter().chain(kept.filter_map(|body| body.object.clone()));
    found.objects.extend(objects.map(|object| (job.id.to_string(), object)));
    Ok(())
}

/// The columns of a row of [`jobs`] that differ from its job.
fn wrong_columns(row: &Row<'_>, job: &Job, names: &Names) -> Result<Vec<&'static str>, Failure> {
    let life = LifeColumns::of(&job.life, &job.spec);
    let spec = &job.spec;
    let number = |index| -> Result<Option<i64>, Failure> { Ok(row.get(index)?) };
    let columns = [
        ("queue", number(7)? == names.queue(&spec.queue)),
        ("type", number(8)? == names.job_type(&spec.job_type)),
        ("state", number(9)? == Some(life.state)),
        ("revision", number(10)? == Some(life.revision)),
        ("due time", number(11)? == life.run_at),
        ("check time", number(12)? == life.wake_at),
        ("creation time", number(13)? == Some(spec.created_at.millis())),
        ("priority", number(14)? == Some(spec.priority.into())),
        ("critical mark", number(15)? == Some(spec.critical.into())),
        ("partition", row.get::<_, RawText>(16)? == RawText::from(spec.partition.as_str())),
    ];
    Ok(columns.into_iter().filter(|(_, is_right)| !is_right).map(|(name, _)| name).collect())
}

/// Checks the separate body of the job in row `n`.
pub(super) fn body(db: &Connection, n: i64, job: &Job) -> Result<(), Failure> {
    let Body::Separate(length) = job.data else { return Ok(()) };
    let mut find = db.prepare_cached("SELECT encoding, bytes FROM bodies WHERE job = ?1")?;
    let mut rows = find.query([n])?;
    let what = || format!("the body of job {}", job.id);
    let Some(row) = rows.next()? else {
        return Err(StoreError::corrupt_in(what(), "it is missing").into());
    };
    let encoding: i64 = row.get(0)?;
    let bytes = checked(blob(row, 1)?, job.id.as_str(), encoding as u8, what)?;
    if bytes.len() != length as usize {
        return Err(StoreError::corrupt_in(what(), "it has another length").into());
    }
    Ok(())
}

/// Bodies that no job has.
fn bodies(db: &Connection, found: &mut Verified) -> Result<(), Failure> {
    let mut all = db.prepare(
        "SELECT bodies.job FROM bodies LEFT JOIN jobs ON jobs.n = bodies.job \
         WHERE jobs.n IS NULL OR jobs.data_kind <> ?1",
    )?;
    let mut rows = all.query([SEPARATE])?;
    while let Some(row) = rows.next()? {
        let n = row.get(0)?;
        found.add(Place::Body { n }, format!("a body belongs to row {n}, which has no such body"));
    }
    Ok(())
}

fn keys(db: &Connection, found: &mut Verified) -> Result<(), Failure> {
    let mut all = db.prepare("SELECT kind, type, key, job, sum FROM keys")?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        let (kind, job_type): (i64, i64) = (row.get(0)?, row.get(1)?);
        let (key, job): (RawText, RawText) = (row.get(2)?, row.get(3)?);
        if key_sum(kind, job_type, &key.0, &job.0) != row.get::<_, i64>(4)? {
            let shown = String::from_utf8_lossy(&key.0).into_owned();
            let place = Place::Key { kind, job_type, key: key.0 };
            found.add(place, format!("the key {shown:?}: its checksum is wrong"));
        }
    }
    Ok(())
}

fn ledgers(db: &Connection, names: &Names, found: &mut Verified) -> Result<(), Failure> {
    let mut named: HashSet<(i64, i64)> = HashSet::new();
    let mut all = db.prepare("SELECT queue, version, head FROM heads")?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        let queue: i64 = row.get(0)?;
        let checked = ledger(db, row, queue, names)
            .map(|batches| named.extend(batches.into_iter().map(|id| (queue, id.0 as i64))));
        found.add_damage(checked, || Place::Ledger { queue })?;
    }
    let mut all = db.prepare("SELECT queue, id, for_head, batch FROM batches")?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        let (queue, id): (i64, i64) = (row.get(0)?, row.get(1)?);
        let is_named = named.contains(&(queue, id));
        found.add_damage(batch(row, queue, names), || {
            if is_named { Place::Ledger { queue } } else { Place::Batch { queue, id } }
        })?;
    }
    Ok(())
}

/// The queue of a ledger or a batch.
fn owner(queue: i64, names: &Names) -> Result<&str, Failure> {
    let name = names.queue_name(queue).map(QueueName::as_str);
    name.ok_or_else(|| Failure::corrupt(format!("a ledger or batch of no queue ({queue})")))
}

/// Checks a batch, whether its ledger names it or not.
fn batch(row: &Row<'_>, queue: i64, names: &Names) -> Result<(), Failure> {
    let (name, id) = (owner(queue, names)?, row.get::<_, i64>(1)? as u64);
    let what = || format!("batch {id:016x} of queue {name}");
    let batch: GrantBatch = decode(blob(row, 3)?, name, what)?;
    if (batch.id.0, batch.ledger_version) != (id, row.get::<_, i64>(2)? as u64) {
        return Err(StoreError::corrupt_in(what(), "its row has another id or version").into());
    }
    Ok(())
}

/// Checks a ledger. Returns the batches that it names, which exist.
fn ledger(
    db: &Connection,
    row: &Row<'_>,
    queue: i64,
    names: &Names,
) -> Result<Vec<BatchId>, Failure> {
    let name = owner(queue, names)?;
    let what = || format!("the ledger of queue {name}");
    let ledger: Ledger = decode(blob(row, 2)?, name, what)?;
    if row.get::<_, i64>(1)? as u64 != ledger.version {
        return Err(StoreError::corrupt_in(what(), "its row has another version").into());
    }
    let mut find = db.prepare_cached("SELECT 1 FROM batches WHERE queue = ?1 AND id = ?2")?;
    let named: Vec<BatchId> = ledger.referenced_batches().collect();
    for id in &named {
        if !find.exists(params![queue, id.0 as i64])? {
            let what = format!("batch {:016x} of queue {name}", id.0);
            return Err(StoreError::corrupt_in(what, "it is missing").into());
        }
    }
    Ok(named)
}

fn items(db: &Connection, found: &mut Verified) -> Result<(), Failure> {
    let mut all = db.prepare("SELECT rowid, kind, name, version, bytes FROM items")?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        let (n, kind, name): (i64, RawText, RawText) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let (kind, name) = (kind.shown(), name.shown());
        let check = || -> Result<(), Failure> {
            let owner = item_owner(&kind, &name, row.get(3)?);
            checked(blob(row, 4)?, &owner, 0, || format!("the {kind} {name}"))?;
            Ok(())
        };
        found.add_damage(check(), || Place::Item { n, kind: kind.clone(), name: name.clone() })?;
    }
    Ok(())
}

fn records(db: &Connection, found: &mut Verified) -> Result<(), Failure> {
    let mut all = db.prepare("SELECT n, kind, name, until, bytes FROM records")?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        let n = row.get(0)?;
        let check = || -> Result<(), Failure> {
            let owner = record_owner(text(row, 1)?, text(row, 2)?, row.get(3)?);
            checked(blob(row, 4)?, &owner, 0, || format!("the record {owner}"))?;
            Ok(())
        };
        found.add_damage(check(), || Place::Record { n })?;
    }
    Ok(())
}

/// The job in row `n`.
pub(super) fn job_at(db: &Connection, n: i64) -> Result<Option<Job>, Failure> {
    let mut find = db.prepare_cached(select_jobs!("WHERE n = ?1"))?;
    let mut rows = find.query([n])?;
    rows.next()?.map(row::job).transpose()
}
