//! An application that requests jobs in transactions of its own.

use std::sync::Arc;

use serde_json::json;
use tidegate_backends::postgres::test_server;
use tokio_postgres::{NoTls, SimpleQueryMessage};

use super::{
    books::Books,
    load::{goes_on, job},
};

/// Requests jobs in transactions until the last kill. Of four transactions, one is rolled back.
pub async fn client(books: Arc<Books>, schema: String) {
    let config: tokio_postgres::Config = test_server::address("postgres").parse().unwrap();
    let (application, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut n = 0;
    while goes_on(&books).await {
        n += 1;
        let job = job(n);
        let (name, data) = (job["type"].as_str().unwrap(), job["data"].to_string());
        let is_undone = n % 4 == 0;
        let end = if is_undone { "ROLLBACK" } else { "COMMIT" };
        let transaction = format!("BEGIN; SELECT \"{schema}\".enqueue('{name}', '{data}'); {end}");
        let messages = application.simple_query(&transaction).await.unwrap();
        let id = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        let id = id.unwrap();
        if is_undone {
            books.undone.lock().insert(id);
        } else {
            books.acknowledge(&json!({"id": id, "type": name}));
        }
    }
}
