//! Whether a store can have a log: it must create an object once, even if several callers try.
//!
//! Some stores and emulators accept the condition of a PUT and ignore it. A log in them would lose
//! what it acknowledged. So a server calls [`check_store`] at every start, before it opens a node. That
//! also ends a start without credentials, rights or a bucket, where a node repeats its requests until
//! the store answers. `tidegate doctor` does it, too: rights may have been taken away since.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use super::{
    bucket::Edge,
    create::{GetAnswer, PutAnswer},
    key::ObjectKey,
    truncate::Removable,
};

/// How many PUTs of one object are sent at once.
const PUTS_AT_ONCE: u8 = 8;
/// How often a store is probed that seems unfit: it may be busy.
const MAX_PROBES: u32 = 3;
/// The time between two probes.
const PROBE_PAUSE: Duration = Duration::from_secs(1);

/// Why a store cannot have a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnfitStore {
    /// It created an object twice: it ignores the condition of a PUT.
    #[error(
        "it overwrites an object that must be created once: it ignores the condition of a PUT \
         (If-None-Match, or ifGenerationMatch)"
    )]
    Overwrites,
    /// It does not create an object, or does not answer.
    #[error("an object cannot be written: check the credentials and the right to write")]
    NoWrites,
    /// What was written is not what is read.
    #[error("an object that was written is not read back as it was: check the right to read")]
    NoReads,
    /// It does not remove an object.
    #[error("an object cannot be removed: check the right to delete")]
    NoRemovals,
    /// It does not return that an object is absent.
    #[error(
        "it is not known whether an object is absent: check the right to list the bucket \
         (s3:ListBucket), without which S3 refuses to read what is absent"
    )]
    NoAbsence,
}

/// Checks that the store of `edge` can have a log, again if it seems not to.
///
/// # Errors
///
/// [`UnfitStore`], as the last probe has found it. One that overwrites is not probed again.
pub async fn check_store(edge: &Edge) -> Result<(), UnfitStore> {
    for _ in 1..MAX_PROBES {
        match probe(edge).await {
            Ok(()) => return Ok(()),
            Err(UnfitStore::Overwrites) => return Err(UnfitStore::Overwrites),
            Err(_) => edge.pause(PROBE_PAUSE).await,
        }
    }
    probe(edge).await
}

/// Checks with one object that the store of `edge` can have a log. Each request is sent once, so
/// a store that is busy may be called unfit; check again then.
///
/// # Errors
///
/// [`UnfitStore`].
pub async fn probe(edge: &Edge) -> Result<(), UnfitStore> {
    let nonce = edge.entropy.bits();
    let key = ObjectKey::Probe(nonce);
    let bytes = |writer: u8| Bytes::from(format!("{nonce:032x} {writer}"));
    let puts =
        join_all((0..PUTS_AT_ONCE).map(|writer| edge.bucket.create(&key, bytes(writer)))).await;
    let again = edge.bucket.create(&key, bytes(PUTS_AT_ONCE)).await;
    let read = edge.bucket.read(&key).await;
    let is_removed = edge.bucket.remove(&Removable::probe(nonce)).await;
    let found = edge.bucket.read(&key).await;
    conclude(&puts, again, &read, bytes)?;
    conclude_removal(is_removed, &found)
}

/// What follows from the answers to `puts` at once, to one more PUT, and to a read after them.
fn conclude(
    puts: &[PutAnswer],
    again: PutAnswer,
    read: &GetAnswer,
    bytes: impl Fn(u8) -> Bytes,
) -> Result<(), UnfitStore> {
    let is_created = |answer: &&PutAnswer| **answer == PutAnswer::Created;
    let created = puts.iter().filter(is_created).count();
    if created > 1 || (created == 1 && again == PutAnswer::Created) {
        return Err(UnfitStore::Overwrites);
    }
    let Some(writer) = puts.iter().position(|answer| *answer == PutAnswer::Created) else {
        return Err(UnfitStore::NoWrites);
    };
    if *read != GetAnswer::Found(bytes(writer as u8)) {
        return Err(UnfitStore::NoReads);
    }
    Ok(())
}

/// What follows from the answers to a removal, and to a read after it.
fn conclude_removal(is_removed: bool, found: &GetAnswer) -> Result<(), UnfitStore> {
    match found {
        GetAnswer::Absent if is_removed => Ok(()),
        GetAnswer::Unknown if is_removed => Err(UnfitStore::NoAbsence),
        _ => Err(UnfitStore::NoRemovals),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_store_that_reports_what_is_absent_is_fit() {
        let found = GetAnswer::Found(Bytes::new());
        for (is_removed, read, concluded) in [
            (true, GetAnswer::Absent, Ok(())),
            (true, GetAnswer::Unknown, Err(UnfitStore::NoAbsence)),
            (true, found.clone(), Err(UnfitStore::NoRemovals)),
            (false, GetAnswer::Absent, Err(UnfitStore::NoRemovals)),
            (false, GetAnswer::Unknown, Err(UnfitStore::NoRemovals)),
            (false, found, Err(UnfitStore::NoRemovals)),
        ] {
            assert_eq!(conclude_removal(is_removed, &read), concluded, "{is_removed} {read:?}");
        }
    }

    #[test]
    fn only_a_store_that_creates_once_is_fit() {
        use PutAnswer::{Created, Exists, Unknown};
        let bytes = |writer: u8| Bytes::from(vec![writer]);
        let found = |writer: u8| GetAnswer::Found(bytes(writer));
        for (puts, again, read, concluded) in [
            ([Exists, Created, Exists], Exists, found(1), Ok(())),
            ([Exists, Created, Unknown], Exists, found(1), Ok(())),
            ([Created, Exists, Created], Exists, found(2), Err(UnfitStore::Overwrites)),
            ([Created, Exists, Exists], Created, found(0), Err(UnfitStore::Overwrites)),
            ([Unknown, Unknown, Unknown], Unknown, GetAnswer::Unknown, Err(UnfitStore::NoWrites)),
            ([Created, Exists, Exists], Exists, found(1), Err(UnfitStore::NoReads)),
            ([Created, Exists, Exists], Exists, GetAnswer::Absent, Err(UnfitStore::NoReads)),
        ] {
            assert_eq!(conclude(&puts, again, &read, bytes), concluded, "{puts:?} {again:?}");
        }
    }
}
