//! A planned hand-over: the leader announces its end, and a standby goes on.

use std::sync::Arc;

use super::{super::simulation::seeds, MAX_TAKEOVER, Run, SETTLED, replaced, settings};

/// The longest time without an acknowledged commit, in milliseconds.
const MAX_GAP: i64 = 1_000;
/// The longest time of a request, in milliseconds.
const REQUEST: i64 = 80;
/// How long a leader waits for a standby that does not answer, in milliseconds.
const MAX_NOTICE: i64 = 3_000;

/// A run with a leader, 0, that knows of its standby, 1.
fn with_standby(seed: u64) -> Arc<Run> {
    let run = Run::with_leader(seed, settings());
    run.start(1, settings());
    run.pass(SETTLED + run.executor.between(0, 20_000));
    assert!(run.leads(0) && !run.leads(1), "seed {seed}: the leader leads");
    run
}

/// Announces the end of the leadership of node 0: after how many milliseconds it is awaited.
fn announce(run: &Arc<Run>) -> i64 {
    let (leader, executor) = (run.handle(0).expect("the node is open"), Arc::clone(&run.executor));
    run.complete(async move {
        let began = executor.now();
        leader.hurry();
        leader.awaited().await;
        executor.now() - began
    })
}

/// Stops the leader while a client writes. Returns the milliseconds from the last commit that it has
/// acknowledged to the first one of the standby.
fn gap(seed: u64) -> i64 {
    let run = with_standby(seed);
    if seed % 2 == 1 {
        run.offer_jobs(0, 100.0);
    }
    let acknowledged = run.write_always([0, 1]);
    run.pass(3_000);
    announce(&run);
    let announced_at = run.executor.now();
    run.handle(0).expect("the node is open").release();
    run.until(|| acknowledged.lock()[1].first.is_some());
    let [old, new] = *acknowledged.lock();
    let (last, first) = (old.last.expect("it has led"), new.first.expect("it leads"));
    assert!(last >= announced_at - 2 * REQUEST, "seed {seed}: the leader went on until its end");
    assert_eq!(*run.ended.lock(), ["node 0: Ok(Released)"], "seed {seed}");
    run.end();
    first - last
}

#[test]
fn a_planned_hand_over_takes_less_than_a_second() {
    let longest = seeds(10).map(gap).max().unwrap_or(MAX_GAP);
    println!("{longest} ms");
    assert!(longest < MAX_GAP, "{longest} ms");
}

#[test]
fn a_leader_without_a_standby_does_not_wait_for_one() {
    let run = Run::with_leader(1, settings());
    run.pass(SETTLED);
    let took = announce(&run);
    assert!(took <= REQUEST, "{took} ms");
    run.end();
}

#[test]
fn a_leader_does_not_wait_for_long_for_a_lost_standby() {
    let run = with_standby(1);
    run.lose(1);
    let took = announce(&run);
    assert!(took <= MAX_NOTICE, "{took} ms");
    let client = Arc::clone(&run);
    assert!(run.complete(async move { client.submit(0, 1).await }), "it still leads");
    run.end();
}

#[test]
fn a_leader_lost_before_its_announced_end_is_replaced() {
    let run = with_standby(1);
    announce(&run);
    let took = replaced(&run, 1);
    assert!(took < MAX_TAKEOVER, "{took} ms");
}
