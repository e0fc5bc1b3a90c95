//! Enqueues in transactions of an application, by the statements of the client in Rust.

use std::time::{Duration, SystemTime};

use serde_json::json;
use tidegate_backends::postgres::test_server;
use tidegate_client::{NewJob, Statement};
use tokio_postgres::{Client, Error, GenericClient, NoTls};

use super::serve::Setup;

async fn connect(address: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(address, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Enqueues a job on a connection or in a transaction. Returns its id.
async fn enqueue(on: &impl GenericClient, schema: &str, job: &NewJob) -> Result<String, Error> {
    let Statement { sql, parameters: [job_type, data, delay, run_at, options] } =
        job.statement(schema).unwrap();
    let row = on.query_one(&*sql, &[&job_type, &data, &delay, &run_at, &options]).await?;
    Ok(row.get("id"))
}

#[tokio::test]
async fn a_job_exists_if_and_only_if_its_transaction_commits() {
    let (address, schema) = (test_server::address("postgres"), test_server::new_name());
    let tide = Setup::on_postgres(&address, &schema).start().await;
    tide.job_type("letter", json!({})).await;
    let mut application = connect(&address).await;

    let letter = json!({"to": "ann", "text": "50 % \"quoted\" 'twice' \\ ä"});
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(4_102_542_245_678);
    let committed = application.transaction().await.unwrap();
    let first = NewJob::new("letter", &letter).run_at(at).priority(7);
    let first = enqueue(&committed, &schema, &first).await.unwrap();
    let second = NewJob::new("letter", &()).delay(Duration::from_millis(86_400_500));
    let second = enqueue(&committed, &schema, &second).await.unwrap();
    committed.commit().await.unwrap();
    let undone = application.transaction().await.unwrap();
    let third = enqueue(&undone, &schema, &NewJob::new("letter", &())).await.unwrap();
    undone.rollback().await.unwrap();

    let job = tide.get(&format!("/v1/jobs/{first}")).await.is(200);
    assert_eq!((&job["data"], &job["priority"]), (&letter, &json!(7)));
    assert_eq!(job["due_at"], "2100-01-02T03:04:05.678Z");
    let job = tide.get(&format!("/v1/jobs/{second}")).await.is(200);
    assert_eq!((&job["data"], &job["phase"]), (&json!(null), &json!("scheduled")));
    tide.get(&format!("/v1/jobs/{third}")).await.is(404);
}

#[tokio::test]
async fn an_error_of_the_function_is_that_of_the_driver() {
    let (address, schema) = (test_server::address("postgres"), test_server::new_name());
    let _tide = Setup::on_postgres(&address, &schema).start().await;
    let application = connect(&address).await;
    let refused = enqueue(&application, &schema, &NewJob::new("none", &())).await.unwrap_err();
    let message = refused.as_db_error().map(tokio_postgres::error::DbError::message);
    assert_eq!(message, Some("type: there is no job type none"), "{refused}");
}
