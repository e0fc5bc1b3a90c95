//! A Postgres server that all tests of a run share: started by the first one, without root, in a
//! folder of its own, on a Unix socket. A shell stops it when the run ends, however it ends.

#![allow(clippy::disallowed_methods, reason = "tests find the programs of this machine")]

use std::{
    fs, io,
    os::unix::{
        fs::{DirBuilderExt as _, lchown},
        process::{CommandExt as _, parent_id},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use tokio::runtime::Runtime;

use crate::postgres::{PostgresStore, Settings};
use tidegate_core::{port::Clock, time::Timestamp};
use tidegate_engine::memory::FakeClock;

/// The runtime of all stores. A clause has its own, which ends before the store does.
pub(super) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be made")
});

/// The socket's folder of the server that tests share.
static SERVER: LazyLock<PathBuf> = LazyLock::new(|| shared().expect("Postgres can be started"));

/// Settings of a server without durability, which no test needs.
const SETTINGS: &str = "listen_addresses = ''\nfsync = off\nfull_page_writes = off\n\
     shared_buffers = 64MB\nmax_connections = 300\nautovacuum = off\nlog_min_messages = fatal\n";

/// A row for each statement of this test that waits for a lock. Within a transaction it would be the
/// first answer again and again.
pub(super) const WAITING: &str = "SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
     WHERE NOT l.granted AND a.application_name = current_setting('application_name')";

/// The programs of the server: of the path, or where Debian has them.
fn programs() -> PathBuf {
    let mut places: Vec<PathBuf> = Vec::new();
    if let Ok(versions) = fs::read_dir("/usr/lib/postgresql") {
        places.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    places.sort();
    places.reverse();
    let path = std::env::var_os("PATH").unwrap_or_default();
    places.extend(std::env::split_paths(&path));
    let has_all = |place: &PathBuf| ["initdb", "postgres"].iter().all(|it| place.join(it).exists());
    let place = places.into_iter().find(has_all).expect("initdb and postgres are installed");
    // A link may be where the user of the server cannot read it.
    let program = fs::canonicalize(place.join("initdb")).expect("it exists");
    program.parent().expect("it is in a folder").to_owned()
}

/// The user that may run the server, if this one is root: Postgres refuses root.
fn user() -> Option<(u32, u32)> {
    let me = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_root = me.lines().any(|line| line.starts_with("Uid:\t0\t"));
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let numbers = |name: &str| {
        let line = users.lines().find(|line| line.starts_with(&format!("{name}:")))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    is_root.then(|| numbers("postgres").or_else(|| numbers("nobody")).expect("a user for it"))
}

fn command(program: &Path, user: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    command.current_dir("/").stdin(Stdio::null());
    command
}

/// The name of this run, and the process that ends with it. The test runner makes a process for each
/// test.
fn run() -> (String, u32) {
    let own = || (std::process::id().to_string(), std::process::id());
    let runner = std::env::var_os("NEXTEST_RUN_ID").map(|id| id.to_string_lossy().into_owned());
    // Random digits enough, and short: a socket's path has at most 104 bytes.
    runner.map_or_else(own, |id| (id.chars().take(13).collect(), parent_id()))
}

fn shared() -> io::Result<PathBuf> {
    let (name, owner) = run();
    let dir = std::env::temp_dir().join(format!("tidegate-pg-{name}"));
    // No other user knows its name before it exists.
    make_folder(&dir)?;
    let lock = fs::File::create(dir.join("lock"))?;
    lock.lock()?;
    if std::os::unix::net::UnixStream::connect(dir.join(".s.PGSQL.5432")).is_err() {
        start(&dir, owner)?;
    }
    Ok(dir)
}

/// Starts a server that only one test uses. Returns the address of its database.
pub(super) fn own_server() -> String {
    let dir = std::env::temp_dir().join(format!("tidegate-pg-own-{}", std::process::id()));
    make_folder(&dir).and_then(|()| start(&dir, std::process::id())).expect("it can be started");
    address(&dir, "postgres")
}

/// A folder that only the user of the server can enter, unless a process of this run has made it.
fn make_folder(dir: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => user().map_or(Ok(()), |(uid, gid)| lchown(dir, Some(uid), Some(gid))),
    }
}

/// Starts a server in `dir`, which ends when the process `owner` does.
fn start(dir: &Path, owner: u32) -> io::Result<()> {
    let (programs, user, data) = (programs(), user(), dir.join("data"));
    let mut initdb = command(&programs.join("initdb"), user);
    initdb.arg("-D").arg(&data).args(["-U", "tidegate", "-A", "trust", "-E", "UTF8"]);
    initdb.args(["--locale=C", "--no-sync", "--wal-segsize=1"]);
    let output = initdb.output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::write(data.join("postgresql.auto.conf"), SETTINGS)?;
    let mut server = command(&programs.join("postgres"), user);
    server.arg("-D").arg(&data).arg("-k").arg(dir).stdout(Stdio::null()).stderr(Stdio::null());
    // A signal to the tests by their terminal must not stop it.
    let server = server.process_group(0).spawn()?.id();
    let script = format!(
        "while kill -0 {owner}; do sleep 1; done; kill -QUIT {server}; \
         while kill -0 {server}; do sleep 0.1; done; rm -rf '{dir}'",
        dir = dir.display()
    );
    let mut shell = command(Path::new("sh"), None);
    shell.args(["-c", &script]).stdout(Stdio::null()).stderr(Stdio::null());
    shell.process_group(0).spawn()?;
    let config: tokio_postgres::Config = address(dir, "postgres").parse().expect("it is valid");
    let ready = RUNTIME.block_on(async {
        let mut wait = tokio::time::interval(std::time::Duration::from_millis(20));
        for _ in 0..1500 {
            if config.connect(tokio_postgres::NoTls).await.is_ok() {
                return true;
            }
            wait.tick().await;
        }
        false
    });
    assert!(ready, "the server does not answer");
    Ok(())
}

/// The address of a database of the server with its socket in `dir`.
pub(super) fn address(dir: &Path, database: &str) -> String {
    let host = dir.display().to_string().replace('/', "%2F");
    format!("postgres://tidegate@{host}/{database}?sslmode=disable")
}

/// The folder of the socket of the server that tests share.
pub(super) fn socket() -> PathBuf {
    SERVER.join(".s.PGSQL.5432")
}

/// A name that no other test has.
fn new_name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("test_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// The settings of a store with empty tables, in the database of an address. Its connections have a
/// name of their own.
pub(super) fn settings_at(address: &str) -> Settings {
    let name = new_name();
    let settings: Settings =
        format!("{address}&application_name={name}").parse().expect("it is valid");
    settings.with_schema(&name)
}

/// The settings of a store with empty tables.
pub(super) fn settings() -> Settings {
    settings_at(&address(&SERVER, "postgres"))
}

/// The settings of a store in a database of its own, for what Postgres counts for each database.
pub(super) fn settings_of_a_database() -> Settings {
    let (server, name) = (address(&SERVER, "postgres"), new_name());
    let config: tokio_postgres::Config = server.parse().expect("it is valid");
    RUNTIME.block_on(async {
        let (client, connection) =
            config.connect(tokio_postgres::NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("it is made");
    });
    settings_at(&address(&SERVER, &name))
}

/// An empty store, at the epoch.
pub(super) fn store() -> PostgresStore {
    open(&settings())
}

/// A store with the tables of `settings`, at the epoch.
pub(super) fn open(settings: &Settings) -> PostgresStore {
    RUNTIME.block_on(PostgresStore::open(settings.clone(), clock())).expect("the store opens")
}

/// A store with the tables of `settings`, and this clock.
pub(super) fn open_at(settings: &Settings, clock: Arc<FakeClock>) -> PostgresStore {
    RUNTIME.block_on(PostgresStore::open(settings.clone(), clock)).expect("the store opens")
}

/// A clock that shows the epoch.
pub(super) fn clock() -> Arc<dyn Clock> {
    Arc::new(FakeClock::new(NOW))
}

/// The time of most tests.
pub(super) const NOW: Timestamp = Timestamp::EPOCH;

/// The rows of a statement.
pub(super) fn rows(store: &PostgresStore, sql: &str) -> Vec<tokio_postgres::Row> {
    RUNTIME.block_on(async {
        let link = store.readers.link().await.expect("the server answers");
        link.client.query(sql, &[]).await.expect("the statement succeeds")
    })
}
