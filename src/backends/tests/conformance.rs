//! SQLite keeps the contract of the job store.

use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::job::JobId;
use tidegate_engine::job_store_conformance;

job_store_conformance!(
    sqlite,
    SqliteStore::open_temporary().unwrap(),
    async |store: &SqliteStore, id: &JobId| {
        let change = "UPDATE jobs SET life = x'0255aa' WHERE id = ?1";
        let db = rusqlite::Connection::open(store.file()).unwrap();
        assert_eq!(db.execute(change, [id.as_str()]).unwrap(), 1);
    }
);
