//! Notices that a server does not need, and those that must not wait.

use std::{collections::BTreeSet, sync::Arc};

use futures_util::poll;

use super::server::{RUNTIME, open, rows, settings, settings_at};
use crate::postgres::{PostgresNotices, test_server::OwnServer};
use tidegate_core::port::{
    Notice, Notices,
    job_store::{JobStore, Write},
};
use tidegate_engine::testkit::builders::job;

/// Returns when `receiver` listens, and has got a notice of `sender`.
async fn listens(receiver: &PostgresNotices, sender: &PostgresNotices) {
    let mut first = receiver.receive();
    while poll!(&mut first).is_pending() {
        sender.send(&[Notice::Tokens].into()).await.unwrap();
    }
}

/// What `receiver` gets up to `last`.
async fn received(receiver: &PostgresNotices, last: &Notice) -> BTreeSet<Notice> {
    let mut received = BTreeSet::new();
    while !received.contains(last) {
        received.extend(receiver.receive().await.unwrap());
    }
    received
}

#[test]
fn a_server_gets_no_notice_of_its_own_commits_of_jobs() {
    let settings = settings();
    let (one, other) = (open(&settings), open(&settings));
    let (one, other) = (one.notices(), other.notices());
    RUNTIME.block_on(async {
        listens(&one, &other).await;
        listens(&other, &one).await;
        let mail = Notice::Queue("mail".parse().unwrap());
        one.send(&[mail.clone(), Notice::Operations].into()).await.unwrap();
        other.send(&[Notice::Schedules].into()).await.unwrap();
        let own = received(&one, &Notice::Schedules).await;
        assert!(!own.contains(&mail), "{own:?}");
        assert!(own.contains(&Notice::Operations), "{own:?}");
        assert!(received(&other, &Notice::Schedules).await.contains(&mail));
        // Its sender is another session than that of its listener.
        other.send(&[mail.clone()].into()).await.unwrap();
        received(&one, &mail).await;
    });
}

/// No standby confirms a commit, so each one waits. A notice does not wait for the disk either.
#[test]
fn notices_do_not_wait_for_a_standby() {
    let server = OwnServer::start();
    let settings = settings_at(&server.address());
    let (one, other) = (Arc::new(open(&settings)), open(&settings));
    let (sender, receiver) = (one.notices(), other.notices());
    RUNTIME.block_on(listens(&receiver, &sender));
    rows(&one, "ALTER SYSTEM SET synchronous_standby_names = 'absent'");
    rows(&one, "SELECT pg_reload_conf()");
    let waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    // Commits do not wait before another process of the server has read the setting too.
    let waiting = (0..1000).find_map(|n| {
        let (store, write) = (Arc::clone(&one), Write::AddJob(job(&format!("job-{n}")).build()));
        let committing = RUNTIME.spawn(async move { store.commit(vec![vec![write]]).await });
        while rows(&one, waits).is_empty() {
            if committing.is_finished() {
                return None;
            }
            std::thread::yield_now();
        }
        Some(committing)
    });
    let waiting = waiting.expect("a commit waits for the standby");
    RUNTIME.block_on(async {
        sender.send(&[Notice::Operations].into()).await.unwrap();
        received(&receiver, &Notice::Operations).await;
    });
    assert!(!waiting.is_finished(), "the commit still waits");
    waiting.abort();
}
