//! Reads that wait until a server has the log up to a position.

use std::{pin::pin, task::Poll, time::Duration};

use axum::http::Response;
use futures_util::poll;
use serde_json::json;

use super::{super::json, ALL, Log, MANY, POSITION, ask, position, problem};
use crate::handlers::standby::MAX_POSITION_WAITS;

/// Checks that a read was refused because its position is not reached.
fn is_behind(answer: &(Response<()>, Vec<u8>)) {
    let (status, code) = problem(answer);
    assert_eq!((status.as_u16(), &*code), (503, "unavailable"));
    assert_eq!(answer.0.headers()["retry-after"], "1");
}

#[tokio::test]
async fn a_read_waits_for_its_position() {
    let log = Log::start().await;
    let made = json(&log.leading, "PUT", "/v1/job-types/invoice", json!({})).await;
    assert_eq!(made.0, 201);
    log.shown("/v1/job-types/invoice", 200).await;

    // The log has this position after ten more records, and the first one is that of the job.
    let (epoch, number) = log.enqueue("before").await;
    let wanted = format!("{epoch}.{}", number + 10);
    let mut read = pin!(log.read_at("/v1/jobs/invoice/0", &wanted));
    assert!(poll!(&mut read).is_pending());
    let mut last = (epoch, number);
    for id in 0..10 {
        last = log.enqueue(&id.to_string()).await;
    }
    let (shown, _) = read.await;
    assert_eq!(shown.status(), 200);
    assert!(position(&shown) >= (epoch, number + 10), "{shown:?}");

    let own = format!("{}.{}", last.0, last.1);
    let (shown, _) = log.read_at("/v1/jobs/invoice/9", &own).await;
    assert_eq!((shown.status().as_u16(), position(&shown) >= last), (200, true), "its own write");
    let headers = [ALL, (POSITION, &*own)];
    let (shown, _) = ask(&log.leading, "GET", "/v1/jobs/invoice/9", &headers, "").await;
    assert_eq!(shown.status(), 200);
}

#[tokio::test]
async fn a_position_that_is_not_reached_is_refused() {
    let log = Log::start().await;
    log.shown("/v1/jobs", 200).await;
    // No time passes for the leader: it knows that it never leads that epoch.
    let headers = [ALL, (POSITION, "9.0")];
    is_behind(&ask(&log.leading, "GET", "/v1/jobs", &headers, "").await);

    let mut read = pin!(log.read_at("/v1/jobs", "9.0"));
    for _ in 0..MANY {
        if let Poll::Ready(answer) = poll!(&mut read) {
            return is_behind(&answer);
        }
        log.clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    panic!("the standby waits for ever")
}

#[tokio::test]
async fn only_so_many_reads_wait_for_their_positions() {
    let log = Log::start().await;
    log.shown("/v1/jobs", 200).await;
    let mut waiting: Vec<_> =
        (0..MAX_POSITION_WAITS).map(|_| Box::pin(log.read_at("/v1/jobs", "9.0"))).collect();
    for read in &mut waiting {
        assert!(poll!(read).is_pending());
    }
    // No time passes for the standby.
    is_behind(&log.read_at("/v1/jobs", "9.0").await);
    waiting.pop();
    assert!(poll!(pin!(log.read_at("/v1/jobs", "9.0"))).is_pending(), "there is a place again");
}

#[tokio::test]
async fn a_header_that_is_no_position_is_refused() {
    let log = Log::start().await;
    log.shown("/v1/jobs", 200).await;
    for text in ["x", "1", "0.1", "1.x", "1.01", "1.0.0"] {
        let of_leader = ask(&log.leading, "GET", "/v1/jobs", &[ALL, (POSITION, text)], "").await;
        for answer in [of_leader, log.read_at("/v1/jobs", text).await] {
            let (status, code) = problem(&answer);
            assert_eq!((status.as_u16(), &*code), (400, "invalid_header"), "{text}");
            let body = String::from_utf8(answer.1).unwrap();
            assert!(body.contains(POSITION), "{body}");
        }
    }
}
