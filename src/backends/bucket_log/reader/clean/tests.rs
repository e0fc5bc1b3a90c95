//! What is removed of logs that nodes have written, in virtual time.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use object_store::{ObjectStore as _, ObjectStoreExt as _, path::Path};

use super::{
    super::restore::tests::{known_states, leader_that_keeps, objects, restored, write},
    *,
};
use crate::bucket_log::{NodeSettings, metered::Run, simulation::kv::State};

/// The last write that is made.
const WRITES: u64 = 23;
/// An hour more than [`MIN_AGE`], in milliseconds.
const OLD: i64 = 25 * 3_600_000;
/// What the tests keep snapshots for at most.
const LONG: Duration = Duration::from_hours(48);

fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

/// The names of the objects below `snap` of an epoch.
fn snapshot_of(run: &Run, number: u64) -> Vec<Path> {
    let folder = Path::from(format!("log/snap/{number:010}"));
    let listed = run.store.list(Some(&folder)).collect::<Vec<_>>().now_or_never();
    let listed = listed.expect("the objects are in memory").into_iter();
    listed.map(|object| object.unwrap().location).collect()
}

/// A log whose leader was lost while it uploaded its first snapshot.
fn ended_upload() -> Arc<Run> {
    let run = leader_that_keeps(1, Duration::ZERO);
    known_states(&run, 1..=3);
    let client = Arc::clone(&run);
    run.complete(async move { write(&client, 4).await });
    run.until(|| !snapshot_of(&run, 1).is_empty());
    run.lose(0);
    assert!(!snapshot_of(&run, 1).contains(&Path::from("log/snap/0000000001/manifest")));
    run
}

/// Such a log, and the instants after the writes of the next leader with their states.
fn with_ended_upload(history: Duration) -> (Arc<Run>, Vec<(Timestamp, State)>) {
    let run = ended_upload();
    // An epoch ends after four writes, and not by its age.
    let settings = NodeSettings {
        rollover_records: 5,
        rollover_interval: Duration::from_hours(1_000),
        history,
        leads_at_start: true,
        ..NodeSettings::default()
    };
    run.start(0, settings);
    run.until_leads(0);
    let known = known_states(&run, 5..=WRITES);
    (run, known)
}

/// What no server needs.
fn found(run: &Arc<Run>) -> Result<Leftovers, LogError> {
    let (edge, bucket) = run.edge();
    run.complete(async move {
        let opened = LogReader::open(edge, Arc::clone(&bucket) as _).await?;
        opened.expect("there is a log").leftovers(&bucket).await
    })
}

/// Removes what no server needs: the epochs, and whether each had a manifest.
fn clean(run: &Arc<Run>) -> Vec<(Epoch, bool)> {
    let (edge, bucket) = run.edge();
    run.complete(async move {
        let opened = LogReader::open(edge, Arc::clone(&bucket) as _).await.unwrap();
        let reader = opened.expect("there is a log");
        let mut removed = Vec::new();
        for leftover in reader.leftovers(&bucket).await.unwrap().removable {
            reader.remove(&leftover).await.unwrap();
            removed.push((leftover.epoch, leftover.is_snapshot()));
        }
        reader.verify(drop).await.expect("the log is whole");
        removed
    })
}

/// The state as of each of these instants; none if it cannot be restored.
fn states(run: &Arc<Run>, known: &[(Timestamp, State)]) -> Vec<Option<State>> {
    known.iter().map(|(at, _)| restored(run, *at).ok().map(|(state, _)| state)).collect()
}

/// Checks that the first epoch is cleaned, and nothing else, and that the same instants are restored.
fn check_first_epoch_goes(run: &Arc<Run>, known: &[(Timestamp, State)], has_manifest: bool) {
    let young = found(run).unwrap();
    assert_eq!((young.removable, young.young), (Vec::new(), 1), "it is too young");
    run.pass(OLD);
    run.lose(0);
    let leftovers = found(run).unwrap();
    let [leftover] = &*leftovers.removable else { panic!("{leftovers:?}") };
    let (names, before) = (snapshot_of(run, 1), objects(run));
    let is_of_it = |(name, _): &&(Path, u64)| names.contains(name);
    let bytes: u64 = before.iter().filter(is_of_it).map(|(_, bytes)| bytes).sum();
    assert_eq!((leftover.objects(), leftover.bytes), (names.len(), bytes));
    let restored_before = states(run, known);
    assert!(restored_before.iter().any(Option::is_some));

    assert_eq!(clean(run), [(epoch(1), has_manifest)]);
    let kept: Vec<_> = before.iter().filter(|object| !is_of_it(object)).cloned().collect();
    assert_eq!(objects(run), kept, "nothing else goes");
    assert_eq!(states(run, known), restored_before);
    assert_eq!(found(run).unwrap(), Leftovers::default());
    run.end();
}

#[test]
fn an_upload_that_a_takeover_ended_is_removed() {
    let (run, known) = with_ended_upload(Duration::ZERO);
    check_first_epoch_goes(&run, &known, false);
}

#[test]
fn what_is_kept_for_a_restore_stays() {
    let (run, known) = with_ended_upload(LONG);
    // All snapshots of the second leader are kept, so all that it has written can be restored.
    for (at, state) in &known[..known.len() - 1] {
        assert_eq!(restored(&run, *at).unwrap().0, *state, "{at}");
    }
    check_first_epoch_goes(&run, &known, false);
}

#[test]
fn a_snapshot_that_the_chain_has_left_out_is_removed() {
    let run = leader_that_keeps(1, Duration::ZERO);
    known_states(&run, 1..=6);
    let names = snapshot_of(&run, 1);
    assert!(names.contains(&Path::from("log/snap/0000000001/manifest")));
    let store = Arc::clone(&run.store);
    let first: Vec<(Path, Bytes)> = run.complete(async move {
        let mut objects = Vec::new();
        for name in names {
            let bytes = store.get(&name).await.unwrap().bytes().await.unwrap();
            objects.push((name, bytes));
        }
        objects
    });
    let known = known_states(&run, 7..=WRITES);
    assert!(snapshot_of(&run, 1).is_empty(), "newer ones have replaced it");
    // A slow leader completes it now.
    let store = Arc::clone(&run.store);
    run.complete(async move {
        for (name, bytes) in first {
            store.put(&name, bytes.into()).await.unwrap();
        }
    });
    check_first_epoch_goes(&run, &known, true);
}

#[test]
fn nothing_goes_below_a_manifest_that_is_lost() {
    let (run, _) = with_ended_upload(LONG);
    run.pass(OLD);
    run.lose(0);
    assert_eq!(found(&run).unwrap().removable.len(), 1);
    // The chain has the epochs 2 to 6.
    let (store, lost) = (Arc::clone(&run.store), Path::from("log/snap/0000000003/manifest"));
    run.complete(async move { store.delete(&lost).await }).unwrap();
    let problem = found(&run).unwrap_err().to_string();
    assert!(problem.contains("snap/0000000003/manifest"), "{problem}");
    run.end();
}

#[test]
fn nothing_goes_from_a_log_without_a_snapshot() {
    let run = ended_upload();
    assert_eq!(found(&run).unwrap(), Leftovers::default());
    run.end();
}

/// An object with this key that is so many milliseconds old.
fn listed(key: ObjectKey, age: i64) -> ListedObject {
    let written_at = Timestamp::from_millis(10 * OLD - age);
    ListedObject { name: key.to_string(), bytes: 5, written_at }
}

#[test]
fn an_epoch_is_as_old_as_its_youngest_object() {
    let day = MIN_AGE.as_millis() as i64;
    let part = |number, index| ObjectKey::Part { epoch: epoch(number), nonce: 7, index };
    let objects = [
        listed(part(1, 1), day + 1),
        listed(ObjectKey::Manifest(epoch(1)), OLD),
        listed(part(1, 0), OLD),
        // One of its parts is a day old.
        listed(part(2, 0), OLD),
        listed(part(2, 1), day),
        // The oldest kept one, and one after it.
        listed(ObjectKey::Manifest(epoch(3)), OLD),
        listed(part(4, 0), OLD),
        // The present, by the clock of the store.
        ListedObject { name: "hint/leader".into(), ..listed(part(9, 0), 0) },
        ListedObject { name: "snap/0000000001/note".into(), ..listed(part(9, 0), OLD) },
    ];
    let Leftovers { removable, young } = leftovers(&objects, epoch(3));
    let [first] = &*removable else { panic!("{removable:?}") };
    assert_eq!((first.epoch, first.bytes, first.is_snapshot()), (epoch(1), 15, true));
    assert_eq!(first.keys, [ObjectKey::Manifest(epoch(1)), part(1, 0), part(1, 1)]);
    assert_eq!(young, 1);
    // No server has beaten since.
    assert!(leftovers(&objects[..7], epoch(3)).removable.is_empty());
}
