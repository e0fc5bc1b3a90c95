//! Restores of a log that a node has written, at instants whose state is known.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use object_store::{ObjectStore as _, ObjectStoreExt as _, path::Path};

use super::*;
use crate::bucket_log::{
    NodeSettings, identify,
    metered::Run,
    seed,
    simulation::{
        executor::Actor,
        kv::{Command, KvReplica, State},
    },
};

/// Records of an epoch, with its start.
const EPOCH: u64 = 5;

/// A leader that begins an epoch, and makes a snapshot, after every four writes.
fn leader(seed: u64) -> Arc<Run> {
    leader_that_keeps(seed, Duration::ZERO)
}

/// Such a leader that keeps snapshots for this time.
pub(in super::super) fn leader_that_keeps(seed: u64, history: Duration) -> Arc<Run> {
    let settings = NodeSettings { rollover_records: EPOCH, history, ..NodeSettings::default() };
    Run::with_leader(seed, settings)
}

/// Makes the write with this number.
pub(in super::super) async fn write(run: &Run, number: u64) {
    let (key, was) = ((number % 3) as u8, (number - 1) / 3);
    let command = Command { write: number, attempt: number, key, was };
    let handle = run.handle(0).expect("the node is open");
    assert_eq!(handle.submit(vec![command.encode()]).await, Ok(vec![true]));
}

/// A log of these many writes, and the state at an instant after each.
fn history(writes: u64) -> (Arc<Run>, Vec<(Timestamp, State)>) {
    let run = leader(1);
    let known = known_states(&run, 1..=writes);
    (run, known)
}

/// Makes the writes with these numbers. Returns the state at an instant after each.
pub(in super::super) fn known_states(
    run: &Arc<Run>,
    writes: RangeInclusive<u64>,
) -> Vec<(Timestamp, State)> {
    let mut known = Vec::new();
    for number in writes {
        let client = Arc::clone(run);
        run.complete(async move { write(&client, number).await });
        // No request is under way then, also after the end of an epoch.
        run.pass(5_000);
        let state = run.replica(0).state.lock().clone();
        // The next write may be of this very millisecond.
        known.push((before(Timestamp::from_millis(run.executor.now())), state));
    }
    known
}

/// The state as of `at`, and what was read for it.
pub(in super::super) fn restored(
    run: &Arc<Run>,
    at: Timestamp,
) -> Result<(State, RestoredState), RestoreError> {
    let (edge, hints) = run.edge();
    run.complete(async move {
        let opened = LogReader::open(edge, hints).await?;
        let reader = opened.expect("there is a log");
        let replica = KvReplica::new(9, Arc::default(), None);
        let restored = reader.restore(&replica, at).await?;
        let state = replica.state.lock().clone();
        assert_eq!(restored.tail, state.tail);
        Ok((state, restored))
    })
}

/// The latest instant that can be restored.
fn newest(run: &Arc<Run>) -> Timestamp {
    match restored(run, Timestamp::MAX) {
        Err(RestoreError::TooLate { newest }) => newest,
        other => panic!("{other:?}"),
    }
}

/// The earliest instant that can be restored.
fn earliest(run: &Arc<Run>) -> Timestamp {
    match restored(run, Timestamp::EPOCH) {
        Err(RestoreError::TooEarly { earliest }) => earliest,
        other => panic!("{other:?}"),
    }
}

fn before(at: Timestamp) -> Timestamp {
    at - Duration::from_millis(1)
}

#[test]
fn the_state_of_each_kept_instant_is_restored() {
    let (run, known) = history(23);
    let (earliest, newest) = (earliest(&run), newest(&run));
    let mut restores = 0;
    for (at, state) in &known[..22] {
        match restored(&run, *at) {
            Ok((found, _)) => {
                assert!(*at >= earliest, "{at}");
                assert_eq!(found, *state, "{at}");
                restores += 1;
            }
            Err(RestoreError::TooEarly { .. }) => assert!(*at < earliest, "{at}"),
            Err(error) => panic!("{at}: {error}"),
        }
    }
    // There are five ended epochs of four writes. The older one of the two kept snapshots has the
    // state after the sixteenth write.
    assert_eq!(restores, 22 - 15);
    assert_eq!(restored(&run, newest).unwrap().0, known[22].1, "the last object counts");
    assert!(restored(&run, earliest).is_ok());
    let early = restored(&run, before(earliest));
    assert!(matches!(early, Err(RestoreError::TooEarly { .. })), "{early:?}");
    run.end();
}

#[test]
fn snapshots_that_are_kept_for_a_time_are_restored() {
    let run = leader_that_keeps(1, Duration::from_hours(1));
    let known = known_states(&run, 1..=23);
    let earliest = earliest(&run);
    for (number, (at, state)) in (1..).zip(&known[..22]) {
        // The first snapshot has the state after the fourth write.
        if number < 4 {
            assert!(*at < earliest, "{number}");
        } else {
            assert_eq!(restored(&run, *at).unwrap().0, *state, "{number}");
        }
    }
    let early = restored(&run, before(earliest));
    assert!(matches!(early, Err(RestoreError::TooEarly { .. })), "{early:?}");
    run.end();
}

#[test]
fn the_records_of_an_instant_are_on_both_sides_of_it() {
    let (run, known) = history(2);
    let written = known[1].1.tail.time;
    assert_eq!(restored(&run, before(written)).unwrap().0, known[0].1);
    assert_eq!(restored(&run, written).unwrap().0, known[1].1);
    run.end();
}

#[test]
fn a_log_without_a_snapshot_is_restored_from_its_beginning() {
    let (run, known) = history(2);
    let (state, found) = restored(&run, known[0].0).unwrap();
    assert_eq!((state, found.snapshot, found.records), (known[0].1.clone(), None, 1));
    // At the start of the first epoch, there is no write.
    let (state, found) = restored(&run, earliest(&run)).unwrap();
    assert_eq!((state.done.len(), found.records), (0, 0));
    run.end();
}

#[test]
fn instants_before_the_only_snapshot_are_restored() {
    let (run, known) = history(6);
    let (state, found) = restored(&run, known[1].0).unwrap();
    assert_eq!((state, found.snapshot), (known[1].1.clone(), None));
    let (state, found) = restored(&run, known[4].0).unwrap();
    assert_eq!((state, found.snapshot), (known[4].1.clone(), Some(Epoch::FIRST)));
    assert_eq!(found.records, 1);
    run.end();
}

/// The names and sizes of all objects.
pub(in super::super) fn objects(run: &Arc<Run>) -> Vec<(Path, u64)> {
    let store = Arc::clone(&run.store);
    run.complete(async move {
        let listed = store.list(None).collect::<Vec<_>>().await;
        listed
            .into_iter()
            .map(|object| object.map(|found| (found.location, found.size)).unwrap())
            .collect()
    })
}

#[test]
fn a_restore_does_not_change_the_bucket() {
    let (run, known) = history(10);
    // It would go on beating.
    run.lose(0);
    let before = (objects(&run), run.store.requests().puts);
    assert!(restored(&run, known[8].0).is_ok());
    assert!(restored(&run, Timestamp::MAX).is_err());
    assert_eq!((objects(&run), run.store.requests().puts), before);
    run.end();
}

#[test]
fn an_empty_log_has_no_state() {
    let run = Run::new(1);
    let (edge, _) = run.edge();
    run.complete(async move { identify(&edge).await.map(drop) }).unwrap();
    let refused = restored(&run, Timestamp::MAX);
    assert!(matches!(refused, Err(RestoreError::Empty)), "{refused:?}");
    run.end();
}

#[test]
fn a_log_that_no_server_has_led_has_no_state() {
    let run = Run::new(1);
    let (edge, _) = run.edge();
    run.complete(async move {
        let replica = KvReplica::new(9, Arc::default(), None);
        seed(&edge, &replica).await.map(drop)
    })
    .unwrap();
    let refused = restored(&run, Timestamp::MAX);
    assert!(matches!(refused, Err(RestoreError::Empty)), "{refused:?}");
    run.end();
}

#[test]
fn a_damaged_object_stops_a_restore_with_its_name() {
    let (run, known) = history(10);
    run.lose(0);
    // The ninth write is the first one of the third epoch.
    for name in ["log/0000000003/000000000001", "snap/0000000002/manifest"] {
        let (store, path) = (Arc::clone(&run.store), Path::from(format!("log/{name}")));
        let whole = run.complete(async move {
            let whole = store.get(&path).await.unwrap().bytes().await.unwrap();
            let mut damaged = whole.to_vec();
            damaged[whole.len() / 2] ^= 1;
            store.put(&path, Bytes::from(damaged).into()).await.unwrap();
            whole
        });
        let problem = restored(&run, known[8].0).unwrap_err().to_string();
        assert!(problem.contains(name), "{name}: {problem}");
        let (store, path) = (Arc::clone(&run.store), Path::from(format!("log/{name}")));
        run.complete(async move { store.put(&path, whole.into()).await.map(drop) }).unwrap();
    }
    assert!(restored(&run, known[8].0).is_ok());
    run.end();
}

#[test]
fn a_restore_goes_on_while_the_leader_truncates() {
    let mut restores = 0;
    for seed in 0..20 {
        let run = leader(seed);
        let client = Arc::clone(&run);
        run.executor.spawn(Actor::Client, async move {
            for number in 1.. {
                write(&client, number).await;
            }
        });
        run.pass(20_000);
        let ago = Duration::from_millis(run.executor.between(500, 8_000) as u64);
        let at = Timestamp::from_millis(run.executor.now()) - ago;
        match restored(&run, at) {
            Ok((state, _)) => {
                assert!(state.tail.time <= at);
                restores += 1;
            }
            Err(RestoreError::TooEarly { earliest }) => assert!(earliest > at, "seed {seed}"),
            Err(error) => panic!("seed {seed}: {error}"),
        }
        run.end();
    }
    assert!(restores > 0);
}

/// A log whose servers keep all snapshots, and have removed the tenth write. Returns its name, and the state
/// at an instant after each write.
fn history_with_gap() -> (Arc<Run>, &'static str, Vec<(Timestamp, State)>) {
    let run = leader_that_keeps(1, Duration::from_hours(1));
    let known = known_states(&run, 1..=23);
    run.lose(0);
    let gap = "log/0000000003/000000000002";
    remove(&run, gap);
    (run, gap, known)
}

fn remove(run: &Arc<Run>, name: &str) {
    let (store, path) = (Arc::clone(&run.store), Path::from(format!("log/{name}")));
    run.complete(async move { store.delete(&path).await }).unwrap();
}

#[test]
fn an_instant_behind_a_removed_record_is_refused() {
    let (run, gap, known) = history_with_gap();
    let refused = restored(&run, known[10].0);
    let is_named = matches!(&refused, Err(RestoreError::Removed { key }) if key == gap);
    assert!(is_named, "{refused:?}");
    for number in [7, 12] {
        assert_eq!(restored(&run, known[number].0).unwrap().0, known[number].1, "{number}");
    }
    run.end();
}

#[test]
fn a_restore_waits_for_the_end_of_a_truncation() {
    let (run, _, known) = history_with_gap();
    let (store, executor) = (Arc::clone(&run.store), Arc::clone(&run.executor));
    run.executor.spawn(Actor::Client, async move {
        executor.elapse(4_000).await;
        let path = Path::from("log/log/0000000003/000000000000");
        store.delete(&path).await.unwrap();
    });
    match restored(&run, known[10].0) {
        Err(RestoreError::TooEarly { earliest }) => assert!(earliest > known[10].0, "{earliest}"),
        other => panic!("{other:?}"),
    }
    run.end();
}
