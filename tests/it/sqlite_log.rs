//! Damage of SQLite's write-ahead log, as it is found by the start after a crash.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::path::Path;

use tempfile::TempDir;
use tidegate_backends::sqlite::{
    Damage, Inspection, SqliteStore, database, forget_database, repair,
};
use tidegate_core::port::job_store::JobStore as _;
use tidegate_engine::testkit::conformance::run;

use crate::every_record::{every_answer, every_record};

/// The bytes of the log's header.
const HEADER_BYTES: usize = 32;
/// The bytes of a frame in the log: its header and a page.
const FRAME_BYTES: usize = 24 + 4096;

fn answers(store: &SqliteStore) -> String {
    let mut all = String::new();
    run(async { all = every_answer(store).await });
    all
}

/// The files of a directory whose process was killed.
struct Killed {
    files: Vec<(&'static str, Vec<u8>)>,
    /// What reads returned after each transaction, from none on.
    answers: Vec<String>,
    /// The bytes of the log before the first transaction.
    schema_bytes: usize,
}

impl Killed {
    /// After every record, with the whole database in the log.
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let log = dir.path().join("tidegate.db-wal");
        let schema_bytes = std::fs::read(&log).unwrap().len();
        let mut all = vec![answers(&store)];
        for txn in every_record() {
            run(async { store.commit(vec![txn]).await.map(drop).unwrap() });
            all.push(answers(&store));
        }
        let names = ["tidegate.db", "tidegate.db-wal", "has-database"];
        let files = names.map(|name| (name, std::fs::read(dir.path().join(name)).unwrap()));
        Self { files: files.into(), answers: all, schema_bytes }
    }

    fn log(&self) -> &[u8] {
        &self.files[1].1
    }

    /// The directory with another log.
    fn with_log(&self, log: &[u8]) -> TempDir {
        let dir = TempDir::new().unwrap();
        for (name, bytes) in &self.files {
            let bytes = if *name == "tidegate.db-wal" { log } else { bytes };
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        dir
    }

    fn with_flip(&self, at: usize) -> TempDir {
        let mut log = self.log().to_vec();
        log[at] ^= 1 << (at % 8);
        self.with_log(&log)
    }
}

/// Whether the start is refused.
fn is_refused(dir: &Path) -> bool {
    SqliteStore::open(dir).is_err()
}

#[test]
fn a_log_that_was_cut_off_loses_only_its_last_transactions() {
    let killed = Killed::new();
    let log = killed.log();
    let whole = SqliteStore::open(killed.with_log(log).path()).map(|store| answers(&store));
    assert_eq!(whole.unwrap(), *killed.answers.last().unwrap());
    let mut seen = 0;
    for frames in (killed.schema_bytes - HEADER_BYTES) / FRAME_BYTES..log.len() / FRAME_BYTES {
        let dir = killed.with_log(&log[..HEADER_BYTES + frames * FRAME_BYTES + 100]);
        let after = answers(&SqliteStore::open(dir.path()).unwrap());
        let place = killed.answers.iter().rposition(|answers| *answers == after);
        assert!(place.is_some_and(|place| place >= seen), "{frames} frames: {place:?}");
        seen = place.unwrap();
    }
    assert!(seen > 2, "{seen}");
}

#[test]
fn a_flip_in_the_log_of_a_killed_process_changes_no_answer() {
    let killed = Killed::new();
    let places = (0..HEADER_BYTES + 24).chain((HEADER_BYTES..killed.log().len()).step_by(1231));
    for at in places {
        let dir = killed.with_flip(at);
        if let Ok(store) = SqliteStore::open(dir.path()) {
            let after = answers(&store);
            assert!(killed.answers.contains(&after), "byte {at}: {after}");
        }
    }
}

/// Where the last transaction of the log begins.
fn last_transaction(log: &[u8]) -> usize {
    let frames: Vec<&[u8]> = log[HEADER_BYTES..].chunks_exact(FRAME_BYTES).collect();
    let ends_one = |frame: &&[u8]| frame[4..8] != [0; 4];
    let before = frames[..frames.len() - 1].iter().rposition(ends_one).unwrap();
    HEADER_BYTES + (before + 1) * FRAME_BYTES
}

#[test]
fn a_flip_in_a_transaction_that_was_on_the_disk_is_refused() {
    let killed = Killed::new();
    let last = last_transaction(killed.log());
    let places = (0..HEADER_BYTES).chain((HEADER_BYTES..last).step_by(977));
    for at in places.chain([HEADER_BYTES + 4, HEADER_BYTES + 12, last - 1]) {
        let dir = killed.with_flip(at);
        let error = SqliteStore::open(dir.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains("tidegate.db-wal is damaged"), "byte {at}: {error}");
        let found = Inspection::open(dir.path()).and_then(|db| db.verify());
        let is_found = |damage: &Damage| damage.what.contains("tidegate.db-wal is damaged");
        let is_told = found.is_ok_and(|found| found.damage.iter().any(is_found));
        assert!(is_told || at < killed.schema_bytes, "byte {at}");
    }
    for at in last..killed.log().len() {
        if at % 4001 == 0 {
            assert!(!is_refused(killed.with_flip(at).path()), "byte {at} of the last");
        }
    }
}

#[test]
fn a_repaired_log_ends_before_its_damage() {
    let killed = Killed::new();
    let last = last_transaction(killed.log());
    for at in [last - 100, last - FRAME_BYTES - 100] {
        let dir = killed.with_flip(at);
        let aside = dir.path().join("aside");
        let repaired = repair(dir.path(), &aside).unwrap();
        assert_eq!(repaired.left, [], "{at}");
        assert!(repaired.done.iter().any(|done| done.contains("the log ends before its damage")));
        let kept = std::fs::read(aside.join("before/tidegate.db-wal")).unwrap();
        assert!(kept.len() == killed.log().len() && kept != killed.log());
        let after = answers(&SqliteStore::open(dir.path()).unwrap());
        let place = killed.answers.iter().rposition(|answers| *answers == after);
        assert!(place.is_some_and(|place| place + 1 < killed.answers.len()), "{place:?}");
        assert!(repair(dir.path(), &aside).unwrap().damage.is_empty());
    }
}

#[test]
fn a_database_whose_tables_are_gone_is_not_taken_for_a_new_one() {
    let killed = Killed::new();
    for bytes in [0, HEADER_BYTES, HEADER_BYTES + 100, HEADER_BYTES + FRAME_BYTES] {
        let dir = killed.with_log(&killed.log()[..bytes]);
        let error = SqliteStore::open(dir.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains("had a database, and its file is empty"), "{bytes}: {error}");
        assert!(is_refused(dir.path()), "again");
        forget_database(dir.path()).unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        assert_eq!(answers(&store), killed.answers[0], "an operator has said so");
    }
    let dir = killed.with_log(killed.log());
    let error = forget_database(dir.path()).unwrap_err().to_string();
    assert!(error.contains("has a database") && database(dir.path()).exists(), "{error}");
}
