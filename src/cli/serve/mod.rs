//! `tidegate serve`: the embedded server, until a signal stops it.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use tokio::{net::TcpListener, signal::unix::SignalKind, sync::watch};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    filter::Targets, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

#[cfg(target_os = "linux")]
use super::memory;
use super::{Context, ExitCode, UsageError, doctor::Served};
use tidegate_backends::{
    http::HttpTarget,
    sealed::KeySource,
    sqlite::forget_database,
    system::{DevClock, SystemClock, SystemEntropy},
    wasm::{compile::Compiler, compile_process::Process},
};
use tidegate_core::port::{Clock, Entropy, Spans};
use tidegate_engine::{EventRules, Rules};
use tidegate_server::{
    auth::{Anonymous, Authenticate, BuiltIn, JwtAuthenticator, TokenItem, oidc::SignIn},
    dashboard::ConsoleOptions,
    handlers::{self, ApiOptions},
    listener::{Limits, Listener, listen},
    runtime::{Builder, Options, Server},
    settings::{LogFormat, Settings, Sources, reference_list, unknown_variables},
    telemetry::{
        otlp::Exporter,
        process::{MetricsCollection, span_exporter},
    },
};

mod access;
mod descriptors;
mod log;
mod supervisor;

use access::{no_token, record_token_uses, warn_of_access};
use descriptors::Descriptors;

/// Run the embedded server on a data directory.
///
/// Settings are read from a TOML file, then from the environment (`TIDEGATE_...`), then from these
/// flags; a later one wins.
#[derive(Debug, Default, clap::Args)]
#[command(after_long_help = reference_list())]
pub struct Args {
    /// A TOML file with settings.
    #[arg(long, env = "TIDEGATE_CONFIG")]
    pub config: Option<PathBuf>,
    /// The address and port to listen on [default: 127.0.0.1:8080].
    #[arg(long)]
    pub listen: Option<SocketAddr>,
    /// The directory of the data [default: ./tidegate-data].
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// A Postgres database instead of the data directory, which several servers may share:
    /// `postgres://HOST/DATABASE`. A password is safer in `TIDEGATE_STORE`.
    #[arg(long, conflicts_with_all = ["data", "log", "new"])]
    pub store: Option<String>,
    /// The URL of a bucket for a replicated log (file, s3, gs or az). What the server acknowledged is
    /// in it, so the data directory may be lost.
    #[arg(long)]
    pub log: Option<url::Url>,
    /// With --log: follow the log until its leader is gone.
    #[arg(long)]
    pub standby: bool,
    /// Start without a database in a directory that had one. What it had is not recovered.
    #[arg(long)]
    pub new: bool,
    /// The base of callback URLs [default: the listen address].
    #[arg(long)]
    pub public_url: Option<url::Url>,
    /// Print the effective settings without secrets, and exit.
    #[arg(long)]
    pub print_settings: bool,
}

/// The flags that are settings.
#[derive(Serialize)]
struct Flags<'a> {
    listen: Option<SocketAddr>,
    data: Option<&'a Path>,
    store: Option<&'a str>,
    log: Option<&'a url::Url>,
    standby: Option<bool>,
    public_url: Option<&'a url::Url>,
}

/// The interval at which unused memory is released.
#[cfg(target_os = "linux")]
const MEMORY_STAYS: Duration = Duration::from_secs(2);
/// How long the responses in progress may take at least, after jobs have taken all the time of a stop.
const RESPONSE_TIME: Duration = Duration::from_millis(500);
/// The longest that a stop waits for the collector of spans.
const SPANS: Duration = Duration::from_secs(5);

/// Why a log is not begun again.
const NEW_LOG: &str = "--new is for a data directory without --log: the bucket has the data, and a \
                       directory without a database is filled from it";

/// Environment variables of the command line, which are not settings of the server.
const COMMAND_VARIABLES: [&str; 6] = [
    "TIDEGATE_URL",
    "TIDEGATE_TOKEN",
    "TIDEGATE_PROFILE",
    "TIDEGATE_PROFILES",
    "TIDEGATE_CONFIG",
    crate::bench::STORE_VARIABLE,
];
/// Environment variables of the project's tests, which a developer may have exported.
const TEST_VARIABLES: [&str; 6] = [
    "TIDEGATE_FUZZ_SECONDS",
    "TIDEGATE_LOCAL_STACK_ROUNDS",
    "TIDEGATE_POSTGRES_GROUPS",
    "TIDEGATE_POSTGRES_ROWS",
    "TIDEGATE_SEED",
    "TIDEGATE_SEEDS",
];

/// Serves until SIGTERM or Ctrl-C.
///
/// # Errors
///
/// A wrong setting, a directory that cannot be served, an address that cannot be listened on.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let flags = Flags {
        listen: args.listen,
        data: args.data.as_deref(),
        store: args.store.as_deref(),
        log: args.log.as_ref(),
        standby: args.standby.then_some(true),
        public_url: args.public_url.as_ref(),
    };
    let (settings, sources) = Settings::load_with_sources(args.config.as_deref(), &flags)?;
    if args.data.is_some() && settings.store.is_some() {
        anyhow::bail!("--data: the setting `store` names a database, which has the data");
    }
    if args.print_settings {
        ctx.print(&settings)?;
        return Ok(ExitCode::Ok);
    }
    log(&settings);
    for name in unused_variables(std::env::vars()) {
        tracing::warn!("{name} is set but is not a setting of tidegate");
    }
    if args.new {
        anyhow::ensure!(settings.log.is_none(), UsageError(NEW_LOG.into()));
        forget_database(&settings.data)?;
    }
    let metrics = MetricsCollection::start(&settings)?;
    if let Some(bucket) = settings.log_address()? {
        let ended = log::run(&bucket, &settings, &sources, metrics.prometheus(), ctx).await;
        metrics.stop().await;
        return ended;
    }
    let serving = start(&settings, &sources, Some(metrics.prometheus()), None).await?;
    supervisor::ready(serving.address);
    let place = place(&settings);
    ctx.note(format_args!("tidegate serves {place} on http://{}", serving.address));
    until_stopped().await?;
    supervisor::stopping();
    serving.stop().await;
    metrics.stop().await;
    Ok(ExitCode::Ok)
}

/// Returns at SIGTERM or Ctrl-C.
pub(super) async fn until_stopped() -> anyhow::Result<()> {
    let mut terminate = tokio::signal::unix::signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        done = tokio::signal::ctrl_c() => done?,
    }
    tracing::info!("stopping: no job is admitted, responses in progress finish");
    Ok(())
}

/// The settings from the environment, with this data directory and, if it is given, this address.
pub(super) fn settings_of(
    listen: Option<SocketAddr>,
    data: &Path,
) -> anyhow::Result<(Settings, Sources)> {
    let flags =
        Flags { listen, data: Some(data), store: None, log: None, standby: None, public_url: None };
    Ok(Settings::load_with_sources(None, &flags)?)
}

/// The variables that look like settings, and that neither the server nor a command reads.
fn unused_variables(environment: impl IntoIterator<Item = (String, String)>) -> Vec<String> {
    let is_used = |name: &str| COMMAND_VARIABLES.contains(&name) || TEST_VARIABLES.contains(&name);
    unknown_variables(environment).into_iter().filter(|name| !is_used(name)).collect()
}

/// What differs on a server for development.
pub struct Development {
    /// The clock that callers may move.
    pub clock: Arc<DevClock>,
    /// Whether callers of every machine need no token.
    pub is_insecure: bool,
}

/// A server that listens.
pub struct Serving {
    /// The address it listens on.
    pub address: SocketAddr,
    /// The server.
    pub server: Server,
    auth: Arc<BuiltIn>,
    closing: watch::Sender<bool>,
    listener: tokio::task::JoinHandle<()>,
    exporter: Option<Arc<Exporter>>,
}

impl Serving {
    /// Stops gracefully: admits no job and finishes responses in progress, within the set time. Then sends
    /// the spans.
    pub async fn stop(self) {
        self.finish().await.send().await;
    }

    /// Stops like [`Self::stop`], and returns the spans that are not sent yet.
    async fn finish(self) -> UnsentSpans {
        let wait = self.server.options().shutdown;
        let deadline = self.server.drain().await;
        // Before requests are refused: a standby waits for what is stored after that.
        tokio::join!(
            self.server.store_recorded(),
            self.server.record_token_uses(&self.auth, Duration::ZERO),
        );
        self.closing.send_replace(true);
        self.server.refuse();
        let clock = Arc::clone(&self.server.engine().ports().clock);
        let deadline = deadline.max(clock.now() + RESPONSE_TIME);
        tokio::select! {
            _ = self.listener => {}
            () = clock.sleep_until(deadline) => {
                tracing::warn!("some responses were still in progress at the stop");
            }
        }
        // Its tasks have handed back the leases in responses that were not received.
        tokio::join!(self.server.stop(), self.server.record_token_uses(&self.auth, Duration::ZERO));
        UnsentSpans { exporter: self.exporter, wait: wait.clamp(Duration::from_secs(1), SPANS) }
    }
}

/// The spans of a stopped server that its collector may not have yet.
struct UnsentSpans {
    exporter: Option<Arc<Exporter>>,
    wait: Duration,
}

impl UnsentSpans {
    /// Sends them within `shutdown_seconds`, or within 1 or 5 seconds if that is less or more. What is not
    /// sent by then is lost, which is logged.
    async fn send(self) {
        if let Some(exporter) = self.exporter {
            exporter.stop(self.wait).await;
        }
    }
}

/// Starts a server as `settings` say, for production or for `development`.
///
/// # Errors
///
/// A directory that cannot be served; an address that cannot be listened on, or not without tokens.
pub async fn start(
    settings: &Settings,
    sources: &Sources,
    metrics: Option<PrometheusHandle>,
    development: Option<Development>,
) -> anyhow::Result<Serving> {
    super::make_files_private();
    let Bound { socket, address, limits } = bind(settings)?;
    let builder = open(settings).await?;
    let assembled = assemble(settings, sources, metrics, development, address, builder).await?;
    let closing = watch::Sender::new(false);
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let listener = Listener { socket, limits, clock, entropy };
    let listener = tokio::spawn(listener.serve(assembled.router.clone(), closing.subscribe()));
    Ok(assembled.serve(address, closing, listener).await)
}

/// A builder of a server on the data directory, or on the database of the settings.
async fn open(settings: &Settings) -> anyhow::Result<Builder> {
    let (guard, keys) = (settings.guard(), settings.keys()?);
    Ok(match (settings.database()?, keys) {
        (Some(database), KeySource::Given(keys)) => {
            let builder = Server::open_postgres(database, guard, keys).await?;
            match &settings.peer_url {
                Some(url) => builder.peer_url(url)?,
                None => builder,
            }
        }
        (_, keys) => Server::open_with_keys(&settings.data, guard, keys)?,
    })
}

/// A socket that listens, and the bounds of its connections.
struct Bound {
    socket: TcpListener,
    address: SocketAddr,
    limits: Limits,
}

fn bind(settings: &Settings) -> anyhow::Result<Bound> {
    let limits = Limits {
        connections: Descriptors::raise().connections(settings)?,
        head: settings.head_timeout_seconds.duration(),
        idle: settings.idle_timeout_seconds.duration(),
    };
    let socket = listen(settings.listen)
        .with_context(|| format!("listen: {} cannot be listened on", settings.listen))?;
    let address = socket.local_addr()?;
    Ok(Bound { socket, address, limits })
}

/// A server that runs, with its routes.
struct Assembled {
    server: Server,
    auth: Arc<BuiltIn>,
    router: axum::Router,
    exporter: Option<Arc<Exporter>>,
}

/// Starts the server of `builder` as `settings` say, for requests that arrive at `address`.
async fn assemble(
    settings: &Settings,
    sources: &Sources,
    metrics: Option<PrometheusHandle>,
    development: Option<Development>,
    address: SocketAddr,
    builder: Builder,
) -> anyhow::Result<Assembled> {
    let is_standby = builder.is_standby();
    let is_insecure = development.as_ref().is_some_and(|development| development.is_insecure);
    let dev_clock = development.map(|development| development.clock);
    let rules = Rules {
        max_data_bytes: settings.max_data_bytes as usize,
        create_unknown_types: settings.create_unknown_types,
        default_target: settings.default_target.clone(),
        accept_target: tidegate_backends::aws_targets::accept,
        guard: settings.guard(),
        allowed_targets: settings.allowed_targets.clone(),
        allowed_callbacks: settings.allowed_callbacks.clone(),
        events: EventRules {
            max_bytes: settings.max_event_bytes as usize,
            max_hops: settings.max_event_hops,
            reply_wait: settings.reply_wait_seconds.duration(),
            dead_letter_retention: settings.dead_letter_retention_seconds.duration(),
            max_dead_letters: settings.max_dead_letters.into(),
        },
        ..Rules::default()
    };
    let options = Options {
        push_slots: settings.push_slots,
        public_url: settings.public_url(address),
        shutdown: settings.shutdown_seconds.duration(),
        ..Options::default()
    };
    let builder = builder.compiler(compiler()?);
    let of_jobs: Arc<dyn Clock> = match &dev_clock {
        Some(clock) => Arc::clone(clock) as _,
        None => Arc::new(SystemClock),
    };
    let mut builder = builder.rules(rules).options(options);
    builder = builder.health_check(Arc::new(settings.key_origin()));
    if settings.store.is_none() {
        builder = builder.health_check(Arc::new(Served::new(settings.data.clone(), of_jobs)));
    }
    if let Some(clock) = &dev_clock {
        builder = builder.clock(Arc::clone(clock) as Arc<dyn Clock>);
    }
    // A standby has no spans, and reads its tokens when it answers.
    let exporter = if is_standby { None } else { span_exporter(settings)? };
    if let Some(exporter) = &exporter {
        builder =
            builder.traces(Arc::clone(exporter) as Arc<dyn Spans>, settings.tracing.sample_ratio);
    }
    let server = builder.start().await.map_err(|error| unusable(error, settings))?;

    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let http = || HttpTarget::new(settings.guard());
    let jwt = JwtAuthenticator::new(&settings.jwt, http()?, Arc::clone(&clock)).map(Arc::new);
    let public_url = settings.public_url(address);
    let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
    let sign_in =
        SignIn::new(&settings.oidc, &public_url, jwt.clone(), http()?, Arc::clone(&clock), entropy);
    let has_provider = jwt.is_some();
    let anonymous = match (is_insecure, settings.is_local()) {
        (true, _) => Anonymous::AdminFromEveryMachine,
        (false, true) => Anonymous::AdminWithoutTokens,
        (false, false) => Anonymous::Refused,
    };
    let auth = Arc::new(BuiltIn::new(jwt, anonymous, clock));
    let of_settings = settings.admin_token.as_deref().and_then(TokenItem::of_admin_setting);
    let mut tokens = if is_standby { Vec::new() } else { server.tokens().await? };
    tokens.extend(of_settings.clone());
    let has_access = has_provider || !tokens.is_empty();
    if anonymous == Anonymous::Refused && !has_access && !is_standby {
        server.stop().await;
        anyhow::bail!(no_token(settings));
    }
    auth.set_tokens(tokens);
    if !is_standby && server.is_closed().await? {
        auth.close();
    }
    if dev_clock.is_none() && !is_standby {
        warn_of_access(&auth, has_access, settings);
    }
    let updated = Arc::clone(&auth);
    server.watch_tokens(move |tokens| {
        updated.set_tokens(tokens.into_iter().chain(of_settings.clone()).collect());
    });
    let options = ApiOptions {
        auth: Arc::clone(&auth) as Arc<dyn Authenticate>,
        entropy: Arc::new(SystemEntropy),
        clock: Arc::new(SystemClock),
        body_timeout: settings.body_timeout_seconds.duration(),
        max_data_bytes: settings.max_data_bytes as usize,
        console: ConsoleOptions::from(&settings.console),
        sign_in: sign_in.map(Arc::new),
        settings: settings.described(sources),
        log_traffic: settings.log_traffic,
        allow_unencrypted_proxy: settings.allow_unencrypted_proxy,
        metrics,
        dev_clock,
    };
    let router = handlers::router(server.clone(), options);
    Ok(Assembled { server, auth, router, exporter })
}

impl Assembled {
    /// The server behind `listener`, which serves its routes until `closing` is set.
    async fn serve(
        self,
        address: SocketAddr,
        closing: watch::Sender<bool>,
        listener: tokio::task::JoinHandle<()>,
    ) -> Serving {
        let Self { server, auth, exporter, .. } = self;
        #[cfg(target_os = "linux")]
        tokio::spawn(keep_memory_small(released().await, closing.subscribe()));
        tokio::spawn(record_token_uses(server.clone(), Arc::clone(&auth), closing.subscribe()));
        Serving { address, server, auth, closing, listener, exporter }
    }
}

/// Where the data is, for a person.
fn place(settings: &Settings) -> String {
    match &settings.store {
        Some(_) => "a Postgres database".to_owned(),
        None => settings.data.display().to_string(),
    }
}

/// The error of a start. If the stored data cannot be used, it says what to do.
fn unusable(error: tidegate_engine::Error, settings: &Settings) -> anyhow::Error {
    let is_of_data = matches!(error, tidegate_engine::Error::Internal(_));
    let error = anyhow::Error::from(error);
    if !is_of_data || settings.store.is_some() {
        return error;
    }
    let data = settings.data.display();
    let remedy = match &settings.log {
        Some(_) => "remove it: a start fills it from the bucket of the log",
        None => "restore it from a backup",
    };
    error.context(format!(
        "the data in {data} cannot be used; see `tidegate doctor --data {data}`, or {remedy}"
    ))
}

/// Releases the memory that only the start needed. Returns the mappings of the program.
#[cfg(target_os = "linux")]
async fn released() -> Arc<memory::Code> {
    let code = Arc::new(memory::Code::loaded());
    release(&code).await;
    code
}

/// Releases unused memory at an interval. Code in use is mapped again within microseconds; without
/// the release, unused code and freed heap would stay resident.
#[cfg(target_os = "linux")]
async fn keep_memory_small(code: Arc<memory::Code>, mut closing: watch::Receiver<bool>) {
    while tokio::time::timeout(MEMORY_STAYS, closing.changed()).await.is_err() {
        release(&code).await;
    }
}

/// Releases unused memory, on a thread that serves no request. It holds the locks of the heaps one
/// by one: a request that needs more of a heap meanwhile waits.
#[cfg(target_os = "linux")]
async fn release(code: &Arc<memory::Code>) {
    let code = Arc::clone(code);
    let give_back = move || {
        code.unload();
        memory::trim_heap();
    };
    let _ = tokio::task::spawn_blocking(give_back).await;
}

/// Compiles plugins in a separate process of this same program, even if another release has
/// replaced its file on disk.
fn compiler() -> anyhow::Result<Compiler> {
    let own = Path::new("/proc/self/exe");
    let program = if own.exists() {
        own.to_owned()
    } else {
        std::env::current_exe().context("the path of this program is unknown")?
    };
    Ok(Compiler::Process(Process::new(program, ["compile-plugin"])))
}

/// Starts logging to standard error.
pub(super) fn log(settings: &Settings) {
    let filter =
        Targets::new().with_default(LevelFilter::WARN).with_target("tidegate", settings.log_level);
    let lines = fmt::layer().with_ansi(Context::colored_errors()).with_writer(std::io::stderr);
    let log = tracing_subscriber::registry().with(filter);
    match settings.log_format {
        LogFormat::Text => log.with(lines).init(),
        LogFormat::Json => log.with(lines.json()).init(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    fn variables(command: &clap::Command, found: &mut Vec<String>) {
        let of_arguments = command.get_arguments().filter_map(clap::Arg::get_env);
        found.extend(of_arguments.map(|name| name.to_string_lossy().into_owned()));
        command.get_subcommands().for_each(|subcommand| variables(subcommand, found));
    }

    #[test]
    fn variables_of_commands_and_tests_cause_no_warning() {
        let mut used: Vec<String> = TEST_VARIABLES.map(str::to_owned).into();
        used.push("TIDEGATE_PROFILES".to_owned());
        variables(&Cli::command(), &mut used);
        assert!(used.iter().any(|name| name == "TIDEGATE_PROFILE"), "{used:?}");
        let environment = used.into_iter().chain(["TIDEGATE_PORT".to_owned()]);
        assert_eq!(
            unused_variables(environment.map(|name| (name, "x".to_owned()))),
            ["TIDEGATE_PORT"]
        );
    }
}
