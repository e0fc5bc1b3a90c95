//! The separate parts of a body belong to the write that its job names.

use tidegate_core::{
    job::Revision,
    port::{Write, job_store::Committed},
};

use super::*;

#[tokio::test]
async fn a_repeated_enqueue_leaves_no_parts_of_its_body() {
    let mut shop = Shop::new(kept()).await;
    for seconds in [0, 1, 60] {
        shop.clock.advance(Duration::from_secs(seconds));
        let job = NewJob { id: Some(name("mine")), data: of_size(3000), ..work() };
        shop.harness.enqueue(job).await;
        shop.restart(10 + seconds);
        assert_eq!(shop.items(&["D#"]).len(), 1);
    }
    let found = shop.harness.job(&name("mine")).await;
    assert_eq!(shop.harness.engine.data(&found).await.unwrap(), of_size(3000));
}

#[tokio::test]
async fn a_refused_change_leaves_no_parts_of_its_body() {
    let shop = Shop::new(kept()).await;
    let job = shop.harness.enqueue(named(of_size(3000))).await;
    let changed = Job { data: Body::Inline(of_size(5000)), ..job.clone() };
    let set = |was| Write::SetJob { job: changed.clone(), was, all: true };
    let conflicts = vec![vec![set(Revision(9))], vec![Write::Together(vec![set(Revision(9))])]];
    for txn in conflicts {
        let committed = shop.harness.store.commit(vec![txn]).await.unwrap();
        assert!(matches!(committed[0], Committed::Conflict { .. }));
        assert_eq!(shop.items(&["D#"]).len(), 1);
        assert_eq!(
            shop.harness.engine.data(&shop.harness.job(&job.id).await).await.unwrap(),
            of_size(3000)
        );
    }
    shop.harness.store.commit(vec![vec![set(job.life.revision)]]).await.unwrap();
    assert_eq!(shop.items(&["D#"]).len(), 1, "the parts that it replaces go");
    assert_eq!(
        shop.harness.engine.data(&shop.harness.job(&job.id).await).await.unwrap(),
        of_size(5000)
    );
}
