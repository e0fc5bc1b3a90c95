//! Postgres keeps the contract of the job store.

use super::server;
use crate::postgres::PostgresStore;
use tidegate_core::job::JobId;
use tidegate_engine::job_store_conformance;

job_store_conformance!(postgres, server::store(), async |store: &PostgresStore, id: &JobId| {
    for table in ["jobs", "ended"] {
        let link = store.readers.link().await.unwrap();
        let change = format!("UPDATE {table} SET life = '\\x0255aa' WHERE id = $1");
        link.client.execute(&change, &[&id.as_str()]).await.unwrap();
    }
});
