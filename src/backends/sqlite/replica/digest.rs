//! A digest of what the rows of a replica contain: the same on every node at one position of the log.
//!
//! Records are decoded and encoded again, so that it does not depend on the release that wrote a row. What
//! is computed from them, such as indexed columns and counts, is left out: the check of a snapshot compares
//! it with its records.

use rusqlite::{Connection, Row};
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};

use super::{
    super::{
        error::Failure,
        names::Names,
        row::{self, blob, decode, select_jobs, text},
    },
    wire,
};
use crate::bucket_log::body::StateDigest;
use tidegate_core::{
    job::QueueName,
    port::{StoreError, Write},
    queue::{GrantBatch, Ledger},
};

/// The form of this digest. Another release may encode a record in another way.
const FORM: &str = concat!("records 1, release ", env!("CARGO_PKG_VERSION"));

/// The digest of `db`. Reads every row.
pub(super) fn of(db: &Connection) -> Result<StateDigest, Failure> {
    let names = Names::read(db)?;
    let mut content = Content(Sha256::new());
    content.add_rows(db, select_jobs!("ORDER BY n"), |content, row| {
        // The separate data of a job follows with the bodies.
        let job = wire::encode(vec![Write::AddJob(row::job(row)?)]).map_err(StoreError::corrupt)?;
        content.add(&job);
        Ok(())
    })?;
    content.add_rows(db, "SELECT encoding, bytes FROM bodies ORDER BY job", |content, row| {
        content.add_number(row.get(0)?);
        content.add(blob(row, 1)?);
        Ok(())
    })?;
    let keys = "SELECT kind, type, key, job FROM keys ORDER BY kind, type, key";
    content.add_rows(db, keys, |content, row| {
        content.add_number(row.get(0)?);
        content.add_number(row.get(1)?);
        content.add(text(row, 2)?.as_bytes());
        content.add(text(row, 3)?.as_bytes());
        Ok(())
    })?;
    content.add_rows(db, "SELECT queue, head FROM heads ORDER BY queue", |content, row| {
        content.add_record::<Ledger>(row, &names)
    })?;
    let batches = "SELECT queue, batch FROM batches ORDER BY queue, id";
    content.add_rows(db, batches, |content, row| content.add_record::<GrantBatch>(row, &names))?;
    let items = "SELECT kind, name, version, bytes FROM items ORDER BY kind, name";
    content.add_rows(db, items, Content::add_named)?;
    let records = "SELECT kind, name, until, bytes FROM records ORDER BY kind, name";
    content.add_rows(db, records, Content::add_named)?;
    Ok(StateDigest { form: FORM.to_owned(), hash: content.0.finalize().into() })
}

/// What is digested.
struct Content(Sha256);

impl Content {
    /// Adds the rows of a query, and how many there are, which separates them from those of the next one.
    fn add_rows(
        &mut self,
        db: &Connection,
        query: &str,
        add: impl Fn(&mut Self, &Row<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut all = db.prepare(query)?;
        let (mut rows, mut count) = (all.query([])?, 0);
        while let Some(row) = rows.next()? {
            add(self, row)?;
            count += 1;
        }
        self.add_number(count);
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) {
        self.add_number(bytes.len() as i64);
        self.0.update(bytes);
    }

    fn add_number(&mut self, number: i64) {
        self.0.update(number.to_be_bytes());
    }

    /// Adds a row of the number of a queue and a record.
    fn add_record<T: Serialize + DeserializeOwned>(
        &mut self,
        row: &Row<'_>,
        names: &Names,
    ) -> Result<(), Failure> {
        let queue = row.get(0)?;
        let name = names.queue_name(queue).map(QueueName::as_str);
        let name =
            name.ok_or_else(|| Failure::corrupt(format!("a record of no queue ({queue})")))?;
        let record: T = decode(blob(row, 1)?, name, || format!("a record of queue {name}"))?;
        self.add(name.as_bytes());
        self.add(&rmp_serde::to_vec(&record).map_err(StoreError::corrupt)?);
        Ok(())
    }

    /// Adds a row of kind, name, number and bytes.
    fn add_named(&mut self, row: &Row<'_>) -> Result<(), Failure> {
        self.add(text(row, 0)?.as_bytes());
        self.add(text(row, 1)?.as_bytes());
        self.add_number(row.get(2)?);
        self.add(blob(row, 3)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::sqlite::SqliteStore;
    use tidegate_core::port::{
        JobStore as _,
        job_store::{Expect, ItemKind, Key, Record, RecordKind},
    };
    use tidegate_engine::testkit::builders::{at, job, name};

    /// A database with a row in most tables.
    async fn database() -> (TempDir, Connection) {
        let dir = TempDir::new().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let key = Key::Idempotency("key".into());
        let record = Record {
            kind: RecordKind::Reply,
            name: "reply".into(),
            until: at(1),
            bytes: b"[1]".to_vec(),
        };
        let (kind, bytes) = (ItemKind::Queue, Some(b"{}".to_vec()));
        let item = Write::SetItem { kind, name: "mail".into(), was: 0, version: 1, bytes };
        let txns = vec![
            vec![Write::AddJob(job("a").build())],
            vec![Write::SetKey { key, job: name("a"), was: Expect::Absent }],
            vec![Write::SwapRecord { record, was: Expect::Absent }],
            vec![item],
        ];
        store.commit(txns).await.unwrap();
        let db = Connection::open(store.file()).unwrap();
        (dir, db)
    }

    #[tokio::test]
    async fn a_digest_is_that_of_the_content() {
        for (change, is_content) in [
            ("DELETE FROM jobs", true),
            ("DELETE FROM keys", true),
            ("UPDATE keys SET job = 'b'", true),
            ("UPDATE items SET version = version + 1", true),
            ("UPDATE records SET until = until + 1", true),
            ("UPDATE records SET name = 'other'", true),
            ("UPDATE jobs SET priority = priority + 1", false),
            ("UPDATE counts SET jobs = jobs + 1", false),
        ] {
            let (_dir, db) = database().await;
            let before = of(&db).unwrap();
            assert_eq!(of(&db).unwrap(), before);
            assert_eq!(db.execute(change, []).unwrap(), 1, "{change}");
            assert_eq!(of(&db).unwrap().differs(&before), is_content, "{change}");
        }
    }

    #[tokio::test]
    async fn databases_of_the_same_transactions_have_one_digest() {
        let ((_dir, db), (_other, copy)) = (database().await, database().await);
        assert_eq!(of(&db).unwrap(), of(&copy).unwrap());
    }

    #[tokio::test]
    async fn a_damaged_job_has_no_digest() {
        let (_dir, db) = database().await;
        assert_eq!(db.execute("UPDATE jobs SET life = x'00'", []).unwrap(), 1);
        of(&db).unwrap_err();
    }
}
