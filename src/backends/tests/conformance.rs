//! SQLite keeps the contract of the job store.

use tidegate_backends::sqlite::SqliteStore;
use tidegate_engine::job_store_conformance;

job_store_conformance!(sqlite, SqliteStore::open_temporary().unwrap());
