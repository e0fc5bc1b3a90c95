//! The units that a maintenance sweep consumes.

use std::{sync::Arc, time::Duration};

use tidegate_backends::{
    cost::case,
    dynamodb::{memory::MemoryTable, table::Table},
    http::{Guard, HttpTarget},
    testkit::meter::Metered,
};
use tidegate_core::{
    event::trigger::{Reply, TriggerOutcome},
    job::lifecycle::ReplyId,
    port::Clock,
};
use tidegate_engine::{events::reply::Replied, memory::FakeClock, testkit::builders::name};
use tidegate_server::Server;

use super::{TYPE, numbers, ports};
use crate::dynamodb::deployment::{Deployment, Scenario};

#[tokio::test]
async fn an_idle_sweep_consumes_its_documented_units() {
    let idle = async |queues: usize, limit| {
        let scenario = Scenario { limit, queues, jobs: 30, ..Scenario::default() };
        let deployment = Deployment::new(&scenario).await;
        deployment.run_all(&scenario).await;
        // While the hour of the last jobs has not ended, they are counted.
        deployment.run(deployment.clock.now() + Duration::from_mins(90)).await;
        deployment.idle_sweep().await
    };
    let (one, more, limited) = (idle(1, None).await, idle(11, None).await, idle(1, Some(1)).await);
    let each = more.and(one.times(-1.0)).over(10.0);
    let sweep = one.and(each.times(-1.0));
    println!("sweep: {}\nqueue: {}\nlimited: {}", numbers(sweep), numbers(each), numbers(limited));
    for (what, said, taken) in
        [("a sweep", case::IDLE_SWEEP, sweep), ("a queue", case::IDLE_QUEUE, each)]
    {
        assert!(
            (said.writes - taken.writes).abs() < 0.2 && (said.reads - taken.reads).abs() < 1.0,
            "{what} takes {}",
            numbers(taken)
        );
    }
    assert!(
        limited.reads <= one.reads + 2.0,
        "a limited queue takes no more than one without: {}",
        numbers(limited)
    );
}

/// Read units of a maintenance sweep with this many unmatched replies.
async fn sweep_with_replies(replies: usize) -> f64 {
    let (table, clock) = (Metered::new(MemoryTable::new()), Arc::new(FakeClock::default()));
    let ports = ports(Arc::clone(&table) as Arc<dyn Table>, &clock);
    let server = Server::builder(ports, Arc::new(HttpTarget::new(Guard::On).unwrap()))
        .serverless()
        .start()
        .await
        .unwrap();
    let of = |n: usize| Reply {
        id: ReplyId(n as u128),
        job_type: name(TYPE),
        correlation_key: format!("never-{n}"),
        attempt: None,
        said: TriggerOutcome::Succeeded(None),
    };
    let sweep = async || {
        let before = table.bill();
        server.maintenance_sweep(clock.now() + Duration::from_mins(1)).await;
        (table.bill() - before).reads
    };
    sweep().await;
    let idle = sweep().await;
    let all: Vec<Reply> = (0..replies).map(of).collect();
    assert!(
        server
            .engine()
            .reply(&all)
            .await
            .answers
            .iter()
            .all(|answer| matches!(answer, Ok(Replied::Pending(_))))
    );
    let taken = sweep().await - idle;
    clock.advance(Duration::from_mins(10));
    sweep().await;
    let left = sweep().await;
    assert!(
        left < idle + 2.0,
        "all are dropped when their time is over: {left}, and {idle} without any"
    );
    taken
}

#[tokio::test]
async fn a_sweep_reads_each_pending_reply_once() {
    let (some, many) = (sweep_with_replies(1000).await, sweep_with_replies(4000).await);
    println!("1000 pending replies take {some} read units, 4000 take {many}");
    assert!(many < some * 4.5, "four times as many take {many} and not {some}");
}
