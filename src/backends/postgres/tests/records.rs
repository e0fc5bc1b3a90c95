//! Records that another server writes meanwhile.

use std::sync::Arc;

use super::server::{RUNTIME, WAITING, rows, store};
use crate::postgres::PostgresStore;
use tidegate_core::{
    port::job_store::{Committed, Expect, JobStore, Record, RecordKind, Write},
    time::Timestamp,
};
use tidegate_engine::testkit::builders::at;

const KIND: RecordKind = RecordKind::Reply;
const NAME: &str = "one";
/// The time of the first record.
const UNTIL: i64 = 5;

fn record(until: i64, bytes: &[u8]) -> Record {
    Record { kind: KIND, name: NAME.to_owned(), until: at(until), bytes: bytes.to_vec() }
}

fn removal(until: Option<Timestamp>) -> Write {
    Write::RemoveRecord { kind: KIND, name: NAME.to_owned(), until }
}

/// The answer to `write`, which waits for another server: that one executes `rival` and then ends its
/// transaction by `end`.
fn answer_to(store: &Arc<PostgresStore>, rival: &str, end: &str, write: Write) -> Committed {
    let link = RUNTIME.block_on(async { store.readers.link().await.unwrap() });
    let begin = format!("SET idle_in_transaction_session_timeout = 0; BEGIN; {rival}");
    RUNTIME.block_on(link.client.batch_execute(&begin)).unwrap();
    let waiting = {
        let store = Arc::clone(store);
        RUNTIME.spawn(async move { store.commit(vec![vec![write]]).await.unwrap().remove(0) })
    };
    while rows(store, WAITING).is_empty() {
        assert!(!waiting.is_finished(), "it has not waited");
        std::thread::yield_now();
    }
    RUNTIME.block_on(link.client.batch_execute(end)).unwrap();
    RUNTIME.block_on(waiting).unwrap()
}

/// A store with the first record.
fn with_record() -> Arc<PostgresStore> {
    let store = Arc::new(store());
    let put = vec![vec![Write::PutRecord(record(UNTIL, b"[1]"))]];
    let answers = RUNTIME.block_on(store.commit(put)).unwrap();
    assert!(matches!(answers[..], [Committed::All]), "{answers:?}");
    store
}

#[test]
fn a_removal_waits_for_a_rival_of_the_record() {
    let moved = "UPDATE records SET until = 6 WHERE name = 'one'";
    let time = Some(at(UNTIL));
    for (rival, end, until, left) in [
        (moved, "COMMIT", None, 0),
        (moved, "ROLLBACK", None, 0),
        // It has another time.
        (moved, "COMMIT", time, 1),
        (moved, "ROLLBACK", time, 0),
        ("DELETE FROM records WHERE name = 'one'", "COMMIT", None, 0),
    ] {
        let store = with_record();
        let answer = answer_to(&store, rival, end, removal(until));
        assert!(matches!(answer, Committed::All), "{rival}; {end}: {answer:?}");
        let found = rows(&store, "SELECT FROM records WHERE name = 'one'");
        assert_eq!(found.len(), left, "{rival}; {end}, {until:?}");
    }
}

#[test]
fn a_swap_waits_for_a_rival_of_the_record() {
    let swap =
        || Write::SwapRecord { record: record(7, b"[2]"), was: Expect::Is(record(UNTIL, b"[1]")) };
    for rival in [
        "UPDATE records SET until = 6 WHERE name = 'one'",
        "DELETE FROM records WHERE name = 'one'",
    ] {
        let store = with_record();
        let written = answer_to(&store, rival, "ROLLBACK", swap());
        assert!(matches!(written, Committed::All), "{rival}: {written:?}");
        let store = with_record();
        let refused = answer_to(&store, rival, "COMMIT", swap());
        assert!(matches!(refused, Committed::Conflict { step: 0, .. }), "{rival}: {refused:?}");
    }
}
