//! Whole stores as each release has written them: every later release reads them.
//!
//! `sqlite-N.sql` and `dynamodb-N.jsonl` have [`every_record`]. A release that writes other bytes
//! adds a file with the next number, and keeps the earlier ones.

#[cfg(feature = "aws")]
mod dynamodb;
mod sqlite;

use std::path::PathBuf;

/// The files with this beginning and end of their names, the oldest first.
fn files(beginning: &str, end: &str) -> Vec<PathBuf> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/stored"));
    let path = |number: u32| folder.join(format!("{beginning}-{number}.{end}"));
    (1..1000).map(path).take_while(|path| path.exists()).collect()
}

/// Checks that the newest of the files is what this release writes.
fn assert_newest(files: &[PathBuf], written: &str) {
    let newest = files.last().expect("there is a file");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(newest, written).unwrap();
    }
    let stored = std::fs::read_to_string(newest).unwrap();
    assert!(
        stored == written,
        "other bytes are written: add a file after {}:\n{written}",
        newest.display()
    );
}
