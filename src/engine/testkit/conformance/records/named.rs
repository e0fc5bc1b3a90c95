//! Records with a name and an end: pending replies and dead letters.

use super::super::{done, refused};
use crate::testkit::builders::{at, job};
use tidegate_core::port::job_store::{
    CurrentRecord, Expect, JobStore, Purged, Record, RecordKind, RecordQuery, Write,
};

/// After the time of every test, in seconds since the epoch.
const LATE: i64 = 9_000_000_000;

fn record(kind: RecordKind, name: &str, until: i64) -> Record {
    Record {
        kind,
        name: name.into(),
        until: at(until),
        bytes: format!("{{\"of\": \"{name} é\"}}").into_bytes(),
    }
}

async fn names(
    store: &dyn JobStore,
    kind: RecordKind,
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> Vec<String> {
    let query = RecordQuery { kind, prefix: prefix.into(), after: after.map(str::to_owned), limit };
    let page = store.records(&[query]).await.expect("the store answers").remove(0);
    page.into_iter().map(|record| record.name).collect()
}

/// Records are read in pages by name, each kind separately, and are unchanged.
pub async fn records_are_found_by_the_beginning_of_their_names(store: &dyn JobStore) {
    use RecordKind::{Audit, DeadLetter, Reply};
    let puts = [
        (Reply, "b-2"),
        (Reply, "a-1"),
        (DeadLetter, "b-9"),
        (Audit, "b-8"),
        (Audit, "a-8"),
        (Reply, "b-1"),
        (Reply, "b-10"),
        (Reply, "bb-1"),
        (Reply, "c"),
    ];
    done(store, puts.map(|(kind, name)| Write::PutRecord(record(kind, name, 5))).to_vec()).await;
    assert_eq!(names(store, Reply, "b-", None, 1000).await, ["b-1", "b-10", "b-2"]);
    assert_eq!(names(store, Reply, "b-", None, 2).await, ["b-1", "b-10"]);
    assert_eq!(names(store, Reply, "b-", Some("b-10"), 2).await, ["b-2"]);
    assert_eq!(names(store, Reply, "b-", Some("a"), 1).await, ["b-1"]);
    assert_eq!(names(store, Reply, "", Some("b-2"), 1000).await, ["bb-1", "c"]);
    assert_eq!(names(store, DeadLetter, "", None, 1000).await, ["b-9"]);
    assert_eq!(names(store, Audit, "", None, 1000).await, ["a-8", "b-8"]);
    let query =
        |kind, prefix: &str| RecordQuery { kind, prefix: prefix.into(), after: None, limit: 1 };
    let pages = store
        .records(&[query(DeadLetter, "b"), query(Reply, "x"), query(Reply, "c")])
        .await
        .expect("the store answers");
    assert_eq!(pages, [vec![record(DeadLetter, "b-9", 5)], vec![], vec![record(Reply, "c", 5)]]);
}

/// A record is overwritten by the next one of its name. A removal without an end removes any
/// record; a removal with an end only the record with that end.
pub async fn a_record_takes_the_place_of_one_of_its_name(store: &dyn JobStore) {
    let kind = RecordKind::Reply;
    let all = async || {
        let query = RecordQuery { kind, prefix: String::new(), after: None, limit: 10 };
        store.records(&[query]).await.expect("the store answers").remove(0)
    };
    done(store, vec![Write::PutRecord(record(kind, "a", 5))]).await;
    let large = Record { bytes: vec![b'x'; 300_000], ..record(kind, "a", 9) };
    done(store, vec![Write::PutRecord(large.clone())]).await;
    assert_eq!(all().await, [large]);
    let remove = |name: &str, until: Option<i64>| Write::RemoveRecord {
        kind,
        name: name.into(),
        until: until.map(at),
    };
    done(store, vec![remove("a", Some(5)), remove("b", None)]).await;
    assert_eq!(all().await.len(), 1, "its end has changed");
    done(store, vec![Write::AddJob(job("with").build()), remove("a", Some(9))]).await;
    assert_eq!(all().await, []);
    done(store, vec![remove("a", None)]).await;
    // Where transactions are atomic, a refused transaction stores no record.
    if store.capabilities().atomicity.is_atomic() {
        refused(
            store,
            vec![Write::PutRecord(record(kind, "a", 5)), Write::AddJob(job("with").build())],
        )
        .await;
        assert_eq!(all().await, []);
    }
}

/// Expired records are dropped first, then those that expire next, at most as many as requested,
/// and of no other kind.
pub async fn a_purge_drops_what_is_over_and_what_is_too_much(store: &dyn JobStore) {
    let kind = RecordKind::DeadLetter;
    let puts = (0..10).map(|n| Write::PutRecord(record(kind, &format!("n{n}"), 100 - n)));
    done(store, puts.chain([Write::PutRecord(record(RecordKind::Reply, "r", 1))]).collect()).await;
    let purge = async |now: i64, keep: u64, limit: u32| {
        store.purge(kind, at(now), keep, limit).await.expect("the store answers")
    };
    assert_eq!(purge(90, 10, 100).await, Purged { expired: 0, over: 0, left: 10 });
    assert_eq!(purge(92, 10, 1).await, Purged { expired: 1, over: 0, left: 9 });
    assert_eq!(
        names(store, kind, "", None, 20).await.last().map(String::as_str),
        Some("n8"),
        "the oldest was dropped"
    );
    assert_eq!(purge(92, 5, 100).await, Purged { expired: 1, over: 3, left: 5 });
    assert_eq!(names(store, kind, "", None, 20).await, ["n0", "n1", "n2", "n3", "n4"]);
    assert_eq!(purge(1000, 5, 100).await, Purged { expired: 5, over: 0, left: 0 });
    assert_eq!(names(store, RecordKind::Reply, "", None, 20).await, ["r"]);
}

/// A record of a transient kind is replaced, found and dropped as any other.
pub async fn a_transient_record_is_replaced_and_dropped(store: &dyn JobStore) {
    let kind = RecordKind::Demand;
    for until in [5, 9] {
        done(store, vec![Write::PutRecord(record(kind, "q-1", until))]).await;
    }
    done(store, vec![Write::PutRecord(record(kind, "q-2", 7))]).await;
    assert_eq!(names(store, kind, "q-", None, 10).await, ["q-1", "q-2"]);
    let purge = async |now: i64, keep: u64| {
        store.purge(kind, at(now), keep, 100).await.expect("the store answers")
    };
    assert_eq!(purge(8, 10).await, Purged { expired: 1, over: 0, left: 1 });
    assert_eq!(names(store, kind, "q-", None, 10).await, ["q-1"]);
    assert_eq!(purge(8, 0).await, Purged { expired: 0, over: 1, left: 0 });
    done(store, vec![Write::PutRecord(record(kind, "q-3", 7))]).await;
    done(store, vec![Write::RemoveRecord { kind, name: "q-3".into(), until: None }]).await;
    assert_eq!(names(store, kind, "", None, 10).await, [""; 0]);
}

/// A record is swapped only for the one that was read, whatever their sizes; and only if there is
/// none, where none was read.
pub async fn a_record_is_swapped_only_for_the_one_that_was_read(store: &dyn JobStore) {
    let kind = RecordKind::Log;
    // A store may drop a record that has expired.
    let of = |until: i64, bytes: &[u8]| {
        let bytes = bytes.to_vec();
        Record { bytes, ..record(kind, "a.head", LATE + until) }
    };
    let swap = |was: Option<&Record>, record: &Record| {
        let was = was.map_or(Expect::Absent, |was| Expect::Is(was.clone()));
        vec![Write::SwapRecord { record: record.clone(), was }]
    };
    let stored = async || {
        let prefix = "a.".into();
        let query = RecordQuery { kind, prefix, after: None, limit: 10 };
        store.records(&[query]).await.expect("the store answers").remove(0)
    };
    let (first, large, last) = (of(5, b"1"), of(6, &vec![b'2'; 500_000]), of(6, b"3"));
    assert!(matches!(refused(store, swap(Some(&first), &last)).await, (0, CurrentRecord::Nothing)));
    let steps = [(None, &first), (Some(&first), &large), (Some(&large), &last)];
    for (was, then) in steps {
        done(store, swap(was, then)).await;
        assert_eq!(stored().await, std::slice::from_ref(then));
        for other in [None, Some(&of(7, b"3")), Some(&of(6, b"4"))] {
            let write = swap(other, &of(8, b"5"));
            assert!(matches!(refused(store, write).await, (0, CurrentRecord::Record)), "{other:?}");
        }
        assert_eq!(stored().await, std::slice::from_ref(then));
    }
    done(store, vec![Write::RemoveRecord { kind, name: "a.head".into(), until: None }]).await;
    done(store, swap(None, &first)).await;
}

/// The records of a group are found by its name alone, in order, and page by page.
pub async fn the_records_of_a_group_are_found_by_its_name(store: &dyn JobStore) {
    for kind in [RecordKind::Demand, RecordKind::Lease, RecordKind::Log, RecordKind::PluginCall] {
        check_groups(store, kind).await;
    }
    assert_eq!(RecordKind::Reply.group("a.1"), None, "other kinds have no groups");
}

async fn check_groups(store: &dyn JobStore, kind: RecordKind) {
    let records = ["a.1", "a.2", "a.3", "b.1", "a-1"].map(|name| record(kind, name, 9));
    done(store, records.map(Write::PutRecord).into()).await;
    assert_eq!(names(store, kind, "a.", None, 10).await, ["a.1", "a.2", "a.3"]);
    assert_eq!(names(store, kind, "a.", Some("a.1"), 1).await, ["a.2"]);
    assert_eq!(names(store, kind, "a.2", None, 10).await, ["a.2"]);
    assert_eq!(names(store, kind, "b.", None, 10).await, ["b.1"]);
    assert_eq!(names(store, kind, "a-", None, 10).await, ["a-1"]);
    let remove = Write::RemoveRecord { kind, name: "a.2".into(), until: None };
    done(store, vec![remove]).await;
    assert_eq!(names(store, kind, "a.", None, 10).await, ["a.1", "a.3"]);
}
