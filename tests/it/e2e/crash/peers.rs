//! Servers on Postgres whose connections to each other are cut, slow, silent or without answers, while
//! workers lease. The database can be reached all the time.

use tidegate_backends::postgres::test_server;
use tokio::sync::watch;

use super::{
    Running, forwarded,
    proxy::{Link, Place, proxy},
    shared_at,
};
use crate::e2e::wait::eventually;

/// Three servers under load, which reach each other through proxies only.
async fn behind_proxies(seed: u64) -> (Running, Vec<watch::Sender<Link>>) {
    let mut links = Vec::new();
    let addresses: [String; 3] = std::array::from_fn(|_| test_server::address("postgres"));
    let servers = shared_at(&addresses, |own| {
        let (port, link) = proxy(Place::Port(own.to_owned()));
        links.push(link);
        format!("http://127.0.0.1:{port}")
    });
    (Running::start(servers, seed).await, links)
}

/// Waits until a lease request has been forwarded with this outcome.
async fn forwards(running: &Running, outcome: &str) {
    let tides: Vec<_> = running.tides.iter().collect();
    let before = forwarded(&tides, outcome).await;
    eventually(&format!("a request is forwarded: {outcome}"), || async {
        (forwarded(&tides, outcome).await > before).then_some(())
    })
    .await;
}

/// Injects each of `faults` into all connections between the servers, until requests have met it.
async fn lose_nothing(faults: impl IntoIterator<Item = Link>) {
    let (mut running, links) = behind_proxies(20_261_131).await;
    for fault in faults {
        forwards(&running, "forwarded").await;
        for link in &links {
            link.send_replace(fault);
        }
        forwards(&running, if fault == Link::Slow { "forwarded" } else { "failed" }).await;
        running.go_on().await;
        for link in &links {
            link.send_replace(Link::Good);
        }
    }
    forwards(&running, "forwarded").await;
    running.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_servers_cut_off_from_each_other_lose_nothing() {
    lose_nothing([Link::Cut]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; cargo xtask check --full runs it"]
async fn postgres_servers_cut_off_twenty_times_lose_nothing() {
    let kinds = [Link::Cut, Link::Slow, Link::Silent, Link::Unanswered];
    lose_nothing(kinds.into_iter().cycle().take(20)).await;
}
