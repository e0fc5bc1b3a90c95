use clap::Parser as _;

use super::*;
use crate::cli::{Cli, testing::FakeServer};
use tidegate_backends::cost::case::CASES;

async fn said(args: &[&str]) -> String {
    let server = FakeServer::answering(|_| (500, Value::Null)).await;
    let (code, out) = server.run(&[&["cost"], args].concat()).await;
    assert_eq!(code, ExitCode::Ok, "{out}");
    assert!(server.seen().is_empty(), "it sends no request");
    out
}

#[tokio::test]
async fn without_a_rate_every_case_and_an_idle_month_are_priced() {
    insta::assert_snapshot!(said(&[]).await);
}

#[tokio::test]
async fn a_rate_gives_the_bill_of_a_month() {
    insta::assert_snapshot!(
        said(&["--size", "2KB", "--jobs-per-month", "10M", "--retries", "0.1"]).await
    );
    insta::assert_snapshot!(
        said(&["--size", "20KB", "--rate", "5/s", "--limited", "--callbacks"]).await
    );
}

#[tokio::test]
async fn json_has_the_numbers_of_the_tables() {
    let read = |out: String| serde_json::from_str::<Value>(&out).unwrap();
    let month = read(said(&["--rate", "1/s", "--json"]).await);
    let sum: f64 = ["month", "idle"]
        .iter()
        .flat_map(|part| month[*part].as_array().unwrap())
        .map(|line| line["dollars"].as_f64().unwrap())
        .sum();
    assert!((month["dollars_per_month"].as_f64().unwrap() - sum).abs() < 1e-9, "{month}");
    assert_eq!(month["prices"]["as_of"], price::AS_OF);
    let cases = read(said(&["--json", "--price", "write=0"]).await);
    assert_eq!(cases["cases"].as_array().unwrap().len(), CASES.len());
    assert_eq!(cases["prices"]["changed"], json!({"write": 0.0}));
}

#[tokio::test]
async fn metered_requests_are_added_up_and_priced() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let lines = [
        r#"{"level":"INFO"}"#,
        r#"{"_aws":{},"kind":"write","tidegate_dynamodb_units_total":9}"#,
        r#"{"_aws":{},"kind":"fifo","tidegate_sqs_requests_total":4}"#,
        r#"{"_aws":{},"queue":"q","tidegate_enqueued_total":2,"type":"t"}"#,
        r#"{"_aws":{},"tidegate_lambda_invocations_total":3}"#,
    ];
    std::fs::write(log.path(), lines.join("\n")).unwrap();
    let path = log.path().to_str().unwrap();
    insta::assert_snapshot!(said(&["--metered", path]).await);
    let read: Value = serde_json::from_str(&said(&["--metered", path, "--json"]).await).unwrap();
    assert_eq!((&read["jobs"], &read["metered"][0]["count"]), (&json!(2), &json!(9)));
    let server = FakeServer::answering(|_| (500, Value::Null)).await;
    assert_eq!(server.run(&["cost", "--metered", "/nowhere/at/all"]).await.0, ExitCode::Usage);
    // A log without metered calls is an error, not a bill of zero.
    std::fs::write(log.path(), lines[0]).unwrap();
    assert_eq!(server.run(&["cost", "--metered", path]).await.0, ExitCode::Refused);
}

#[test]
fn an_invalid_option_is_named_in_the_error() {
    for (wrong, named) in [
        (&["--size", "2 apples"][..], "--size"),
        (&["--size", "0"], "--size"),
        (&["--size", "1GB"], "--size"),
        (&["--jobs-per-month=-3"], "--jobs-per-month"),
        (&["--jobs-per-month", "0"], "--jobs-per-month"),
        (&["--rate", "5"], "--rate"),
        (&["--rate", "5/year"], "--rate"),
        (&["--rate", "5/s", "--jobs-per-month", "5"], "--jobs-per-month"),
        (&["--retries=-1"], "--retries"),
        (&["--retries", "NaN"], "--retries"),
        (&["--batch", "11"], "--batch"),
        (&["--per-call", "0"], "--per-call"),
        (&["--memory", "1"], "--memory"),
        (&["--keep", "long"], "--keep"),
        (&["--region", "mars"], "--region"),
        (&["--price", "gold=1"], "--price"),
        (&["--price", "write=-1"], "--price"),
        (&["--plain", "--limited"], "--plain"),
        (&["--pull", "--delayed"], "--delayed"),
    ] {
        let error =
            Cli::try_parse_from([&["tidegate", "cost"], wrong].concat()).unwrap_err().to_string();
        assert!(error.contains(named), "{wrong:?}: {error}");
    }
}
