//! An id that is used again, seen by processes that know where the row of the first job was.

use tidegate_core::job::JobId;

use super::*;

fn mine() -> JobId {
    name("mine")
}

/// A job under the id, which expires in half a minute.
fn expiring(shop: &Shop, data: Payload) -> NewJob {
    let expires_at = Some(shop.clock.now() + Duration::from_secs(30));
    NewJob { expires_at, ..named(data) }
}

#[tokio::test]
async fn the_timer_of_a_new_job_under_a_known_id_counts() {
    // A body that is an object is deleted by the sweep of the engine, parts by that of the store.
    for data in [large(), of_size(3000)] {
        let mut shop = Shop::new(kept()).await;
        shop.harness.enqueue(named(data.clone())).await;
        let run = shop.harness.lease(1).await.remove(0);
        shop.end(&run, None).await.unwrap();
        // Two processes know where the first job is; one of them sweeps.
        let (first, second) = (shop.process(50), shop.process(51));
        for process in [&first, &second] {
            process.job(&mine(), None).await.unwrap();
        }
        shop.clock.advance(Duration::from_secs(SETTLED));
        first.sweep().await.unwrap();
        shop.restart(52);
        shop.harness.enqueue(expiring(&shop, data)).await;
        shop.clock.advance(Duration::from_secs(25));
        second.sweep().await.unwrap();
        assert_eq!(shop.items(&["K#"]).len(), 3, "the keys of the new job stay");
        shop.clock.advance(Duration::from_secs(6));
        let (of_first, of_second) = (first.sweep().await.unwrap(), second.sweep().await.unwrap());
        assert_eq!(of_first.changed.len() + of_second.changed.len(), 1, "it expires once");
        assert!(shop.harness.job(&mine()).await.life.ended().is_some());
        for _ in 0..3 {
            shop.clock.advance(Duration::from_secs(1000));
            second.sweep().await.unwrap();
        }
        shop.assert_forgotten("the new job").await;
    }
}

#[tokio::test]
async fn a_sweep_of_a_known_id_ends_the_new_job() {
    // The first sweep removes a job with an object, whose row goes at once.
    let mut shop = Shop::new(kept()).await;
    let sweeping = shop.process(50);
    shop.harness.enqueue(named(large())).await;
    let run = shop.harness.lease(1).await.remove(0);
    shop.end(&run, None).await.unwrap();
    shop.clock.advance(Duration::from_secs(SETTLED));
    sweeping.sweep().await.unwrap();
    shop.restart(51);
    shop.harness.enqueue(expiring(&shop, large())).await;
    shop.clock.advance(Duration::from_secs(31));
    assert_eq!(sweeping.sweep().await.unwrap().changed.len(), 1);
}

#[tokio::test]
async fn a_new_job_under_a_known_id_is_claimed_where_it_is() {
    // A change of the new job writes an entry, by which it is found at another place than its row.
    for (retention, changes) in [(0, false), (0, true), (RETENTION, false), (RETENTION, true)] {
        let config =
            TypeConfig { retention_seconds: Seconds::new(retention), ..TypeConfig::default() };
        let mut shop = Shop::new(config).await;
        let other = shop.process(50);
        let alone = || NewJob { id: Some(mine()), ..work() };
        shop.harness.enqueue(alone()).await;
        other.cancel(&mine(), None, false).await.unwrap();
        // The row of the first job may stay for days, at the revision of the second one.
        shop.clock.advance(Duration::from_secs(retention + 40));
        other.sweep().await.unwrap();
        other.enqueue(vec![alone()]).await.remove(0).unwrap();
        if changes {
            let patch = JobPatch { data: Some(of_size(10)), ..JobPatch::default() };
            other.patch(&mine(), None, patch, None).await.unwrap();
        }
        let mut claimed = Vec::new();
        for _ in 0..2 {
            claimed.extend(shop.harness.lease(1).await);
        }
        assert_eq!(claimed.len(), 1, "{retention} {changes}");
        let found = other.job(&mine(), None).await.unwrap();
        assert_eq!(found.life.revision, claimed[0].life.revision);
        assert!(found.life.running().is_some());
    }
}
