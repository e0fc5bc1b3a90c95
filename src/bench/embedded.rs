//! The server under test in this process, as in a program that embeds it.

use std::{
    future::Future,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use tokio::sync::Notify;

use super::{
    DATA, JOB_TYPE,
    place::{KEY, Place, Schema},
};
use crate::cli::context::pause;
use tidegate_backends::{http::Guard, postgres::Settings, sealed::Keys, sqlite::OpenError};
use tidegate_core::{
    job::{Outcome, Payload, TypeName, type_config::TypeConfig},
    port::job_store::StateFilter,
    time::Timestamp,
};
use tidegate_engine::request::NewJob;
use tidegate_server::runtime::{Builder, DirectoryOpenError, Handled, Server};

/// Jobs of one enqueue that fills a store.
const FILL: u64 = 1000;
/// Most retries to open a directory that another server is about to release.
const MAX_OPEN_RETRIES: u32 = 1000;

/// The type under test.
pub(super) fn job_type() -> TypeName {
    JOB_TYPE.parse().expect("a good name")
}

/// Returns a job of the type under test.
pub(super) fn job() -> NewJob {
    NewJob::new(job_type(), Payload::json(DATA))
}

/// The observations of a handler.
#[derive(Default)]
pub(super) struct Handling {
    calls: AtomicU64,
    started: Notify,
}

impl Handling {
    /// Returns the number of calls.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Receives a message at the start of each call.
    pub(super) fn started(&self) -> &Notify {
        &self.started
    }
}

/// Starts a server on `place` that runs no jobs.
pub(super) async fn accepting(place: &Place) -> anyhow::Result<Server> {
    start(builder(place).await?).await
}

/// Starts a server on `place` that runs at most `concurrency` jobs of the type at once. The jobs do
/// nothing.
pub(super) async fn handling(
    place: &Place,
    concurrency: u32,
) -> anyhow::Result<(Server, Arc<Handling>)> {
    let handling = Arc::new(Handling::default());
    let seen = Arc::clone(&handling);
    let builder = builder(place).await?.handler(job_type(), concurrency, move |_| {
        seen.calls.fetch_add(1, Ordering::Relaxed);
        seen.started.notify_one();
        Box::pin(std::future::ready(Handled::Succeeded(None)))
    });
    Ok((start(builder).await?, handling))
}

/// Starts a server on a database. It runs no jobs, and finds those of other servers by polling.
pub(super) async fn polling(place: &Schema) -> anyhow::Result<Server> {
    start(on_database(place.settings()?.without_notifications()).await?).await
}

/// A builder of a server on `place`.
async fn builder(place: &Place) -> anyhow::Result<Builder> {
    match place {
        Place::Directory(dir) => on_directory(dir.path()).await,
        Place::Schema(schema) => on_database(schema.settings()?).await,
    }
}

async fn on_database(settings: Settings) -> anyhow::Result<Builder> {
    Ok(Server::open_postgres(settings, Guard::On, Keys::parse(KEY)?).await?)
}

async fn on_directory(dir: &Path) -> anyhow::Result<Builder> {
    let mut tries = 0;
    loop {
        match Server::open(dir, Guard::On) {
            // The previous server has stopped, and its last task is about to end.
            Err(DirectoryOpenError::Store(OpenError::Held { .. })) if tries < MAX_OPEN_RETRIES => {
                tries += 1;
                pause(Duration::from_millis(5)).await;
            }
            other => return Ok(other?),
        }
    }
}

/// Starts a server that has the type under test.
async fn start(builder: Builder) -> anyhow::Result<Server> {
    let server = builder.start().await?;
    if server.job_type(&job_type()).await.is_err() {
        server.put_type(&job_type(), TypeConfig::default(), None).await?;
    }
    Ok(server)
}

/// Enqueues `jobs` jobs that `make` creates by number.
pub(super) async fn fill(
    server: &Server,
    jobs: u64,
    make: impl Fn(u64) -> NewJob,
) -> anyhow::Result<()> {
    let mut done = 0;
    while done < jobs {
        let upto = jobs.min(done + FILL);
        for answer in server.enqueue_many((done..upto).map(&make).collect()).await {
            answer.context("a job was not accepted")?;
        }
        done = upto;
    }
    Ok(())
}

/// Waits until `jobs` jobs of the type have succeeded.
pub(super) async fn succeeded(
    server: &Server,
    jobs: u64,
    patience: Duration,
) -> anyhow::Result<()> {
    let wait = async {
        loop {
            let depth = server.engine().ports().store.depth(None).await?.counts;
            let ended = depth.iter().filter(|one| {
                one.state == StateFilter::Ended(Outcome::Succeeded) && one.job_type == job_type()
            });
            if ended.map(|one| one.jobs).sum::<u64>() >= jobs {
                return anyhow::Ok(());
            }
            pause(Duration::from_millis(1)).await;
        }
    };
    within(patience, wait).await?
}

/// Returns the output of `work`, unless it times out.
pub(super) async fn within<T>(
    patience: Duration,
    work: impl Future<Output = T>,
) -> anyhow::Result<T> {
    let done = tokio::time::timeout(patience, work).await;
    ensure!(done.is_ok(), "not done within {} s", patience.as_secs());
    Ok(done?)
}

/// Returns an instant after the end of every measurement.
pub(super) fn far(server: &Server, number: u64) -> Timestamp {
    server.now() + Duration::from_hours(24) + Duration::from_millis(number)
}
