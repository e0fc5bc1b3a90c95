//! Compiled code that the commands of an author keep between them.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use crate::e2e::serve::{program, text};

/// The kept files: the name and the inode of each. A command that compiles writes a new file.
fn files(caches: &Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(caches.join("tidegate/code")).unwrap();
    let file = |entry: fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().ino())
    };
    entries.map(|entry| file(entry.unwrap())).collect()
}

#[test]
fn a_second_command_compiles_nothing() {
    let (caches, plugins) =
        (tempfile::tempdir().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins"));
    let component = plugins.join("dist/region-share.wasm");
    let cases = plugins.join("region-share/cases");
    let run = |args: &[&str]| {
        let args = [&["plugin"], args].concat();
        let output = program(args).env("XDG_CACHE_HOME", caches.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    run(&["check", text(&component)]);
    let first = files(caches.path());
    assert_eq!(first.len(), 1, "{first:?}");
    run(&["test", text(&component), text(&cases)]);
    run(&["check", text(&component)]);
    assert_eq!(files(caches.path()), first);

    // Damaged code is compiled again.
    let file = caches.path().join("tidegate/code").join(&first[0].0);
    let mut code = fs::read(&file).unwrap();
    *code.last_mut().unwrap() ^= 1;
    fs::write(&file, code).unwrap();
    run(&["check", text(&component)]);
    let again = files(caches.path());
    assert_eq!(again.len(), 1, "{again:?}");
    assert_ne!(again, first);
}
