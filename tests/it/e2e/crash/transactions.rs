//! An application that requests jobs in transactions of its own.

use std::sync::Arc;

use serde_json::json;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::{
    books::Books,
    load::{goes_on, job},
};
use crate::e2e::wait::eventually;

/// Connects to Postgres. It may be down for a moment.
async fn connect(address: &str) -> Client {
    let config: &tokio_postgres::Config = &address.parse().unwrap();
    eventually("Postgres answers", || async {
        let (client, connection) = config.connect(NoTls).await.ok()?;
        tokio::spawn(connection);
        Some(client)
    })
    .await
}

/// Requests jobs in transactions of the database at `address` until the last fault. Of four transactions,
/// one is rolled back.
pub async fn client(books: Arc<Books>, address: String, schema: String) {
    let mut application = connect(&address).await;
    let mut n = 0;
    while goes_on(&books).await {
        n += 1;
        let job = job(n);
        let (name, data) = (job["type"].as_str().unwrap(), job["data"].to_string());
        let is_undone = n % 4 == 0;
        let end = if is_undone { "ROLLBACK" } else { "COMMIT" };
        let transaction = format!("BEGIN; SELECT \"{schema}\".enqueue('{name}', '{data}'); {end}");
        let Ok(messages) = application.simple_query(&transaction).await else {
            // It is not known whether it was committed.
            application = connect(&address).await;
            continue;
        };
        let id = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        let id = id.unwrap();
        if is_undone {
            books.undone.lock().insert(id);
        } else {
            books.acknowledge(&json!({"id": id, "type": name}));
            books.requested.lock().insert(id);
        }
    }
}
