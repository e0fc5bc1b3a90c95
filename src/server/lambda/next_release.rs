//! Functions of the next release, for the tests of an upgrade: the same programs, which write every
//! record with one more field. A released function does not contain this.

use std::{fs, path::PathBuf, sync::Arc};

use tidegate_core::port::job_store::SharedStore;
use tidegate_engine::testkit::releases::{Release, ReleaseStore};

/// The file in the zip of a function of the next release, and its content.
const FILE: (&str, &str) = ("testkit-release", "next");

/// `store` as the release of this function writes to it.
#[allow(clippy::disallowed_methods, reason = "Lambda sets it, and no setting of a release may")]
pub fn store(store: SharedStore) -> SharedStore {
    let (name, next) = FILE;
    let Ok(folder) = std::env::var("LAMBDA_TASK_ROOT") else { return store };
    match fs::read_to_string(PathBuf::from(folder).join(name)) {
        Ok(release) if release == next => Arc::new(ReleaseStore::new(store, Release::Next)),
        _ => store,
    }
}
