//! `tidegate serve --log`: a server whose data is in a bucket.
//!
//! ```text
//!   probe the bucket ─▶ follow: reads ─▶ lead: serve ─┬▶ SIGTERM: announce, finish, end the epoch, exit
//!                                                     └▶ another server leads: exit
//! ```
//!
//! A process leads at most once. What a leadership has in memory, such as the calls under way, must
//! not outlive it, and the end of the process ends all of it. The server that answers reads while the
//! node follows has no tasks, and is dropped when the node leads.

use std::{pin::pin, sync::Arc, time::Duration};

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{
    sync::watch,
    task::{JoinError, JoinHandle},
};

use super::{
    super::{Context, ExitCode, doctor::Leader, make_files_private},
    Assembled, Bound, assemble, bind, supervisor, until_stopped,
};
use tidegate_backends::{
    bucket_log::{BucketAddress, BucketClients, Edge, Ended, Handle, LogError, Node, check_store},
    sqlite::SqliteReplica,
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::port::{Clock, Entropy, job_store::Committed};
use tidegate_server::{
    handlers::{LogRoutes, Proofs, Switch},
    listener::Listener,
    runtime::Server,
    settings::{Settings, Sources},
};

/// How long the end of the epoch may take at a stop. A standby takes over after its wait then.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// How much longer than the set time the server may take to finish, with the wait for a standby. The end of
/// the epoch follows.
const STOP_MARGIN: Duration = Duration::from_secs(5);
/// How long responses in progress may take after another server leads.
const REFUSAL_TIME: Duration = Duration::from_millis(500);

/// How the task of a node ended.
type NodeEnd = Result<Result<Ended, LogError>, JoinError>;

/// Follows and leads the log in `bucket` until SIGTERM or Ctrl-C, or until another server leads.
///
/// # Errors
///
/// A bucket that cannot have a log, a directory that cannot be used, a log that cannot be followed.
pub(super) async fn run(
    bucket: &BucketAddress,
    settings: &Settings,
    sources: &Sources,
    metrics: PrometheusHandle,
    ctx: &Context,
) -> anyhow::Result<ExitCode> {
    make_files_private();
    let Bound { socket, address, limits } = bind(settings)?;
    let keys = settings.keys()?;
    // The settings of a log have keys. Without them, nothing would be encrypted.
    let of_objects = keys.load().context("encryption_key")?;
    let of_objects = of_objects.context("encryption_key: must be given with log")?;
    let clients = bucket.connect().context("log")?;
    let clients = clients.with_keys(of_objects, settings.object_encryption());
    let objects = Arc::clone(&clients.objects);
    let (handle, replica, mut node) = follow(bucket, clients, settings, address).await?;

    let (clock, entropy): (Arc<dyn Clock>, Arc<dyn Entropy>) =
        (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let routes = LogRoutes {
        handle: handle.clone(),
        replica: Arc::clone(&replica),
        clock: Arc::clone(&clock),
        entropy: Arc::clone(&entropy),
    };
    let standby = Server::open_standby(replica.store(), Arc::clone(&objects), keys.clone());
    let standby = assemble(settings, sources, Some(metrics.clone()), None, address, standby);
    let following = match standby.await {
        Ok(Assembled { server, auth, router, .. }) => routes.following(server, auth, router),
        Err(error) => {
            release(&handle, node).await?;
            return Err(error);
        }
    };
    let switch = Switch::new(following);
    let closing = watch::Sender::new(false);
    let listener = Listener { socket, limits, clock: Arc::clone(&clock), entropy };
    let listener = tokio::spawn(listener.serve(switch.router(), closing.subscribe()));
    supervisor::ready(address);
    ctx.note(format_args!("tidegate follows {bucket} on http://{address}"));

    // One for the whole run: a signal between two would be lost.
    let mut stopped = pin!(until_stopped());
    let mut leadership = handle.leadership();
    // The handle has the sender.
    let leads = async { leadership.wait_for(Option::is_some).await.map(drop) };
    tokio::select! {
        _ = leads => {}
        ended = &mut node => return exit(ended),
        stopped = &mut stopped => {
            stopped?;
            supervisor::stopping();
            return release(&handle, node).await;
        }
    }
    let builder = Server::open_replica(replica.store(), objects, settings.guard(), keys)?;
    let leader = Leader::new(handle.clone(), Arc::clone(&clock));
    let proofs = Arc::new(Proofs::new(routes.clone()));
    let builder = builder.health_check(Arc::new(leader)).leadership(Arc::clone(&proofs) as _);
    let assembled = tokio::select! {
        assembled = assemble(settings, sources, Some(metrics), None, address, builder) => {
            match assembled {
                Ok(assembled) => assembled,
                // Another server need not wait for this one.
                Err(error) => {
                    release(&handle, node).await?;
                    return Err(error);
                }
            }
        }
        ended = &mut node => return exit(ended),
        stopped = &mut stopped => {
            stopped?;
            supervisor::stopping();
            return release(&handle, node).await;
        }
    };
    switch.set(proofs.leading(assembled.router.clone()));
    let serving = assembled.serve(address, closing.clone(), listener).await;
    ctx.note(format_args!("tidegate leads {bucket} on http://{address}"));
    let announced = async {
        stopped.await?;
        supervisor::stopping();
        let stopped_at = clock.now();
        handle.hurry();
        // This server serves until a standby waits for its end.
        handle.awaited().await;
        anyhow::Ok(stopped_at)
    };
    tokio::select! {
        ended = &mut node => {
            switch.set(routes.refusing());
            closing.send_replace(true);
            clock.sleep(REFUSAL_TIME).await;
            exit(ended)
        }
        stopped_at = announced => {
            // The last commits of a stop need the bucket.
            let limit = stopped_at? + settings.shutdown_seconds.duration() + STOP_MARGIN;
            tokio::select! {
                spans = serving.finish() => {
                    // A standby waits for the end of the epoch, and not for the collector of spans.
                    let (code, ()) = tokio::join!(release(&handle, node), spans.send());
                    code
                }
                ended = &mut node => exit(ended),
                () = clock.sleep_until(limit) => {
                    tracing::warn!("the server has not finished in time at the stop");
                    release(&handle, node).await
                }
            }
        }
    }
}

/// Starts a node on the log in `bucket`.
async fn follow(
    bucket: &BucketAddress,
    clients: BucketClients,
    settings: &Settings,
    address: std::net::SocketAddr,
) -> anyhow::Result<(Handle<Committed>, Arc<SqliteReplica>, JoinHandle<Result<Ended, LogError>>)> {
    let log = Arc::new(clients.log);
    let edge = Edge {
        bucket: Arc::clone(&log) as _,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    };
    check_store(&edge).await.with_context(|| format!("log: {bucket} cannot have a log"))?;
    let replica = Arc::new(SqliteReplica::open(&settings.data)?);
    let node_settings = settings.log_node(settings.public_url(address));
    let (node, handle) = Node::open(edge, Arc::clone(&replica), node_settings).await?;
    let node = node.with_hints(log);
    replica.connect(handle.clone());
    Ok((handle, replica, tokio::spawn(async move { node.run_once().await })))
}

/// Lets the node end its epoch, so that a standby takes over without a wait.
async fn release(
    handle: &Handle<Committed>,
    node: JoinHandle<Result<Ended, LogError>>,
) -> anyhow::Result<ExitCode> {
    handle.release();
    tokio::select! {
        ended = node => exit(ended),
        () = SystemClock.sleep(RELEASE_TIMEOUT) => {
            if handle.epoch().is_some() {
                tracing::warn!("the bucket does not answer at the stop: the epoch stays open");
            }
            Ok(ExitCode::Ok)
        }
    }
}

/// The exit code for the end of a node.
fn exit(ended: NodeEnd) -> anyhow::Result<ExitCode> {
    match ended.context("the task of the log failed")?.context("the log cannot be followed")? {
        Ended::Released => Ok(ExitCode::Ok),
        Ended::Lost => {
            tracing::error!(
                "another server leads the log, so this one stops; started again, it follows with \
                 --standby, and takes over without"
            );
            Ok(ExitCode::NotLeader)
        }
    }
}
