//! The data of jobs, small and large.

use bytes::Bytes;

use super::super::{add, claim, done, get, step};
use crate::testkit::builders::{at, job, name};
use tidegate_core::{
    job::{Body, Encoding, Job, Payload, Revision},
    port::job_store::{Expect, INLINE_BYTES, JobStore, Key, Write},
    time::Timestamp,
};

/// Data of every size and encoding is read back unchanged. Large data is stored separately from the
/// job.
pub async fn data_of_every_size_comes_back_byte_for_byte(store: &dyn JobStore) {
    let sizes =
        [0, 1, 2, 100, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 101 * 1024, 1024 * 1024];
    for encoding in [Encoding::Json, Encoding::MessagePack] {
        for size in sizes {
            let bytes: Bytes = (0..size).map(|n| (n * 31 % 251) as u8).collect();
            let first = job(&format!("{encoding:?}-{size}")).data(encoding, bytes.clone()).build();
            add(store, [first.clone()]).await;
            let (write, mut running) = step(&first, claim(&first, true), at(5));
            let whole = Payload { encoding, bytes };
            let expect = async |life: &tidegate_core::job::Lifecycle| {
                let found = get(store, &first).await;
                assert_eq!(found.life, *life);
                let bodies =
                    store.bodies(std::slice::from_ref(&first.id)).await.expect("the store answers");
                if size > INLINE_BYTES {
                    assert_eq!(
                        (found.data, bodies),
                        (Body::Separate(size as u32), vec![Ok(Some(whole.clone()))]),
                        "{size} bytes"
                    );
                } else {
                    assert_eq!(
                        (found.data, bodies),
                        (Body::Inline(whole.clone()), vec![Ok(None)]),
                        "{size} bytes"
                    );
                }
            };
            expect(&first.life).await;
            // A job may be written back as it was read, without its large body.
            running.data = get(store, &first).await.data;
            done(store, vec![write]).await;
            expect(&running.life).await;
            let patched = Job {
                life: tidegate_core::job::Lifecycle {
                    revision: Revision(3),
                    ..running.life.clone()
                },
                ..running.clone()
            };
            done(store, vec![Write::SetJob { job: patched.clone(), was: Revision(2), all: true }])
                .await;
            expect(&patched.life).await;
        }
    }
}

/// New data replaces the old: larger or smaller, inline, separate, or in the object
/// store.
pub async fn a_large_body_follows_its_job(store: &dyn JobStore) {
    let large = |fill: u8| {
        Body::Inline(Payload { encoding: Encoding::MessagePack, bytes: vec![fill; 5000].into() })
    };
    let small = Body::Inline(Payload::json("[1]"));
    let object = |encoding| Body::Object { encoding, key: "bodies/é".into(), len: 123_456 };
    let mut now = job("one").build();
    add(store, [now.clone()]).await;
    let changes = [
        large(1),
        large(2),
        small.clone(),
        large(3),
        object(Encoding::Json),
        large(4),
        object(Encoding::MessagePack),
        small.clone(),
    ];
    for data in changes {
        let mut next = now.clone();
        next.life.revision.0 += 1;
        next.data = data.clone();
        done(store, vec![Write::SetJob { job: next.clone(), was: now.life.revision, all: true }])
            .await;
        let found = get(store, &next).await;
        let body = store
            .bodies(std::slice::from_ref(&next.id))
            .await
            .expect("the store answers")
            .remove(0)
            .expect("it can be read");
        match &data {
            Body::Inline(payload) if payload.bytes.len() > INLINE_BYTES => {
                assert_eq!((found.data, body.as_ref()), (Body::Separate(5000), Some(payload)));
            }
            _ => assert_eq!((found.data, body), (data, None)),
        }
        now = next;
    }
}

/// A removed job leaves nothing behind, and its id is free.
pub async fn a_removed_job_is_gone_with_its_body_and_its_keys(store: &dyn JobStore) {
    let big = job("one").data(Encoding::Json, vec![b'1'; 4000]).build();
    let (own, others) =
        (Key::Idempotency("own".into()), Key::Unique(name("work"), "other's".into()));
    let key =
        |key: &Key, id| Write::SetKey { key: key.clone(), job: name(id), was: Expect::Absent };
    done(store, vec![key(&own, "one"), key(&others, "two"), Write::AddJob(big.clone())]).await;
    done(store, vec![Write::RemoveJob { id: big.id.clone(), was: Revision(1) }]).await;
    let id = std::slice::from_ref(&big.id);
    assert_eq!(store.get(id).await.expect("the store answers"), [Ok(None)]);
    assert_eq!(store.bodies(id).await.expect("the store answers"), [Ok(None)]);
    assert_eq!(
        store.keys(&[own, others]).await.expect("the store answers"),
        [Ok(None), Ok(Some(name("two")))]
    );
    let late = store.overdue(Timestamp::MAX, None, 10).await.expect("the store answers");
    assert_eq!((late.jobs, late.next_at), (vec![], None));
    let again = job("one").data(Encoding::Json, "2").build();
    add(store, [again.clone()]).await;
    assert_eq!(get(store, &again).await, again);
    assert_eq!(
        store.bodies(id).await.expect("the store answers"),
        [Ok(None)],
        "no body is left over for another job"
    );
}
