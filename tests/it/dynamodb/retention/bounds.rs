//! What one sweep reads and removes is bounded, and jobs that share a timer do not wait for each other.

use tidegate_core::{
    job::{Event, Revision, Spec},
    port::{Write, job_store::Committed},
};

use super::*;

#[tokio::test]
async fn one_read_of_timers_forgets_a_bounded_number_of_jobs() {
    const JOBS: usize = 6000;
    let mut shop = Shop::new(kept()).await;
    let expires_at = Some(shop.clock.now() + Duration::from_secs(5));
    for first in (0..JOBS).step_by(500) {
        let id = |n| format!("job-{n}").parse().ok();
        let new = |n| NewJob { id: id(n), expires_at, ..work() };
        shop.harness.enqueue_many((first..first + 500).map(new)).await;
    }
    shop.clock.advance(Duration::from_secs(6));
    while shop.harness.engine.sweep().await.unwrap().changed.len() == 500 {}
    shop.clock.advance(Duration::from_secs(SETTLED));
    shop.restart(3);
    let (mut left, mut reads) = (JOBS, 0);
    while left > 0 {
        let page = shop.harness.store.overdue(shop.clock.now(), None, 500).await.unwrap();
        assert!(page.jobs.is_empty());
        let now = shop.items(&["I#"]).len();
        assert!(left - now <= 5100, "{} in one read", left - now);
        assert_eq!(page.next_at.is_some_and(|at| at <= shop.clock.now()), now > 0, "{now}");
        (left, reads) = (now, reads + 1);
        assert!(reads < 10);
    }
    assert!(reads > 1);
}

#[tokio::test]
async fn a_job_that_cannot_be_read_keeps_no_other_of_its_timer() {
    let mut shop = Shop::new(kept()).await;
    let ended = shop.harness.enqueue(named(of_size(3000))).await;
    let run = shop.harness.lease(1).await.remove(0);
    let waiting = shop.harness.enqueue(work()).await;
    // One commit writes one timer: for the end of the retention of one job, and for the other one.
    let now = shop.clock.now();
    let event = Event::Succeed { attempt: 1, result: None };
    let after = run.apply(event, now).unwrap();
    let expires_at = Some(now + Duration::from_secs(RETENTION + 20));
    let spec = Arc::new(Spec { expires_at, ..(*waiting.spec).clone() });
    let mut life = waiting.life.clone();
    life.revision = Revision(life.revision.0 + 1);
    let changed = Job { spec, life, ..waiting.clone() };
    let set = |job: &Job, was: &Job| Write::SetJob {
        job: job.clone(),
        was: was.life.revision,
        all: job.life.ended().is_none(),
    };
    let timers = shop.items(&["T#"]).len();
    let txns = vec![vec![set(&after, &run)], vec![set(&changed, &waiting)]];
    let committed = shop.harness.store.commit(txns).await.unwrap();
    assert!(committed.iter().all(|done| matches!(done, Committed::All)));
    assert_eq!(shop.items(&["T#"]).len(), timers + 1);

    damage(&shop, &waiting).await;
    shop.clock.advance(Duration::from_secs(RETENTION + 2000));
    for _ in 0..2 {
        shop.sweep().await.unwrap();
        assert_eq!(shop.items(&["K#", "D#", "I#"]), []);
        assert_eq!(shop.items(&["T#"]).len(), 1);
    }
    assert!(shop.harness.engine.job(&ended.id, None).await.is_err());
    damage(&shop, &waiting).await;
    assert_eq!(shop.harness.engine.sweep().await.unwrap().changed.len(), 1, "it has expired");
}

/// Damages the row of `job`. A second call restores it.
async fn damage(shop: &Shop, job: &Job) {
    let entropy = Arc::new(SeededEntropy::new(9));
    let store =
        DynamoStore::new(Arc::clone(&shop.dying) as _, Arc::clone(&shop.clock) as _, entropy);
    store.damage_job(&job.id).await;
}
