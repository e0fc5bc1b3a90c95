//! What any server shows of all.

use super::*;
use tidegate_api::HistoryRange;
use tidegate_core::time::Seconds;

#[tokio::test]
async fn each_server_lists_what_a_worker_runs_by_all() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    owner.register_worker("w", Registration::default()).await.unwrap();
    owner.enqueue(job()).await.unwrap();
    let of_worker = LeaseRequest { worker: Some("w".into()), ..request() };
    let leased = deployment.within(BY_NOTICE, owner.lease(of_worker)).await.unwrap();
    let listed = async |server: &Server| {
        let workers = server.workers().await.unwrap();
        workers.into_iter().map(|worker| (worker.name, worker.running)).collect::<Vec<_>>()
    };
    for server in [&owner, &other] {
        assert_eq!(listed(server).await, [("w".to_owned(), 1)]);
    }
    let answers = other.report(vec![success(&leased.jobs[0])]);
    deployment.within(BY_NOTICE, answers).await.pop().unwrap().unwrap();
    deployment.pass(MAX_RUNNING_AGE).await;
    for server in [&owner, &other] {
        assert_eq!(listed(server).await, [("w".to_owned(), 0)]);
    }
}

#[tokio::test]
async fn the_owner_shows_the_weight_that_another_server_started() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    let config = QueueConfig { concurrency: Some(3), ..QueueConfig::default() };
    owner.put_queue(&name("default"), config, None).await.unwrap();
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    other.enqueue(job()).await.unwrap();
    deployment.pass(BY_NOTICE).await;
    let leased = deployment.within(BY_NOTICE, other.lease(request())).await.unwrap();
    assert_eq!(leased.jobs.len(), 1);
    for server in [&owner, &other] {
        let status = server.queue_status(&name("default")).await.unwrap();
        assert_eq!(status.running_weight, 1);
    }
}

#[tokio::test]
async fn the_history_of_any_server_has_the_phases_of_jobs() {
    let deployment = Deployment::new();
    // The default queue, without a configuration.
    let (owner, other) = deployment.two(SWEEP).await;
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    for delay_seconds in [None, Some(Seconds::new(86_400)), None] {
        other.enqueue(NewJob { delay_seconds, ..job() }).await.unwrap();
    }
    deployment.pass(Duration::from_secs(130)).await;
    for server in [&owner, &other] {
        let queue = name("default");
        let history = server.queue_history(&queue, HistoryRange::Hour).await.unwrap();
        let last = history.points.last().expect("it was swept");
        assert_eq!((last.ready, last.scheduled, last.running), (2, 1, 0));
    }
}
