//! A log whose objects must be encrypted: a process that may write to the bucket and has no key cannot
//! add an object that a server believes.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue must fail")]

use std::sync::Arc;

use object_store::{ObjectStoreExt as _, memory::InMemory, path::Path};
use tempfile::TempDir;
use tidegate_backends::{
    bucket_log::{
        Edge, LogBucket as _, LogError, LogReader, StoreBucket,
        create::GetAnswer,
        key::{Epoch, ObjectKey},
        seed,
    },
    sealed::{
        Keys,
        ObjectEncryption::{self, On, Required},
    },
    sqlite::SqliteReplica,
    system::{SystemClock, SystemEntropy},
};

const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

fn bucket(store: &Arc<InMemory>, encryption: ObjectEncryption) -> Arc<StoreBucket> {
    let bucket = StoreBucket::new(Arc::clone(store) as _, Path::from("jobs"));
    Arc::new(bucket.with_keys(Keys::parse(KEY).unwrap(), encryption))
}

fn edge(bucket: &Arc<StoreBucket>) -> Edge {
    Edge {
        bucket: Arc::clone(bucket) as _,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    }
}

/// Reads the whole log.
async fn verify(store: &Arc<InMemory>, encryption: ObjectEncryption) -> Result<(), LogError> {
    let bucket = bucket(store, encryption);
    let reader = LogReader::open(edge(&bucket), bucket).await?.expect("there is a log");
    reader.verify(drop).await.map(drop)
}

#[tokio::test]
async fn a_forged_object_is_refused_where_all_are_encrypted() {
    let (store, dir) = (Arc::new(InMemory::new()), TempDir::new().unwrap());
    let encrypted = bucket(&store, Required);
    let replica = SqliteReplica::open(dir.path()).unwrap();
    seed(&edge(&encrypted), &replica).await.unwrap();
    verify(&store, Required).await.unwrap();

    let (first, second) = (Epoch::FIRST, Epoch::FIRST.next());
    for key in [ObjectKey::Claim(first), ObjectKey::Claim(second), ObjectKey::Manifest(first)] {
        // The clear text of the object itself: nothing but its encryption is wrong.
        let GetAnswer::Found(clear) = encrypted.read(&key).await else { panic!("{key} is there") };
        let path = Path::from(format!("jobs/{key}"));
        let stored = store.get(&path).await.unwrap().bytes().await.unwrap();
        store.put(&path, clear.into()).await.unwrap();
        verify(&store, On).await.unwrap();
        match verify(&store, Required).await.unwrap_err() {
            LogError::Object { key: named, problem } => {
                assert_eq!(named, key.to_string());
                assert!(problem.contains("it is not encrypted"), "{key}: {problem}");
            }
            error => panic!("{key}: {error}"),
        }
        store.put(&path, stored.into()).await.unwrap();
    }
    verify(&store, Required).await.unwrap();
}
