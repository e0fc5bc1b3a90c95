//! A Postgres server for the tests of one process: started with the first store, without root, in a
//! folder of its own, on a Unix socket. A shell stops it when the process ends, however it ends.

#![allow(clippy::disallowed_methods, reason = "tests find the programs of this machine")]

use std::{
    fs,
    os::unix::{fs::chown, process::CommandExt as _},
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

/// The socket's folder of the running server.
static SERVER: LazyLock<PathBuf> = LazyLock::new(|| start().expect("Postgres can be started"));

/// Settings of a server without durability, which no test needs.
const SETTINGS: &str = "listen_addresses = ''\nfsync = off\nfull_page_writes = off\n\
     shared_buffers = 64MB\nmax_connections = 100\nautovacuum = off\nlog_min_messages = fatal\n";

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
    places.into_iter().find(has_all).expect("initdb and postgres are installed")
}

/// The user that may run the server: Postgres refuses root.
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
    command.current_dir("/");
    command
}

/// A database cluster that each process copies, made by the first one.
fn template(programs: &Path, user: Option<(u32, u32)>) -> std::io::Result<PathBuf> {
    let owner = user.map_or(0, |(uid, _)| uid);
    let version = programs.to_string_lossy().replace('/', "_");
    let base = std::env::temp_dir().join(format!("tidegate-postgres-{owner}{version}"));
    fs::create_dir_all(&base)?;
    if let Some((uid, gid)) = user {
        chown(&base, Some(uid), Some(gid))?;
    }
    let lock = fs::File::create(base.join("lock"))?;
    lock.lock()?;
    let (made, data) = (base.join("made"), base.join("data"));
    if !made.exists() {
        let _ = fs::remove_dir_all(&data);
        let mut initdb = command(&programs.join("initdb"), user);
        initdb.arg("-D").arg(&data).args(["-U", "tidegate", "-A", "trust", "-E", "UTF8"]);
        initdb.args(["--locale=C", "--no-sync", "--wal-segsize=1"]);
        let output = initdb.output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::write(&made, "")?;
    }
    Ok(data)
}

fn start() -> std::io::Result<PathBuf> {
    let (programs, user) = (programs(), user());
    let template = template(&programs, user)?;
    let dir = std::env::temp_dir().join(format!("tidegate-pg-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    if let Some((uid, gid)) = user {
        chown(&dir, Some(uid), Some(gid))?;
    }
    let data = dir.join("data");
    let copied = command(Path::new("cp"), user).arg("-a").arg(&template).arg(&data).status()?;
    assert!(copied.success());
    fs::write(data.join("postgresql.auto.conf"), SETTINGS)?;
    let server = programs.join("postgres");
    // It ends when its input does: with this process.
    let script = format!(
        "{server} -D {data} -k {dir} </dev/null & pid=$!; read -r _; kill -QUIT $pid; wait $pid; \
         rm -rf {dir}",
        server = server.display(),
        data = data.display(),
        dir = dir.display()
    );
    let mut shell = command(Path::new("sh"), user);
    shell.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // A signal to this process by its terminal must not stop the shell before it has stopped the
    // server.
    shell.process_group(0);
    std::mem::forget(shell.spawn()?);
    let ready = RUNTIME.block_on(async {
        let mut wait = tokio::time::interval(std::time::Duration::from_millis(20));
        for _ in 0..1500 {
            if tokio::net::UnixStream::connect(dir.join(".s.PGSQL.5432")).await.is_ok() {
                let config = address(&dir).parse::<tokio_postgres::Config>().expect("valid");
                if config.connect(tokio_postgres::NoTls).await.is_ok() {
                    return true;
                }
            }
            wait.tick().await;
        }
        false
    });
    assert!(ready, "the server does not answer");
    Ok(dir)
}

fn address(dir: &Path) -> String {
    let host = dir.display().to_string().replace('/', "%2F");
    format!("postgres://tidegate@{host}/postgres?sslmode=disable")
}

/// The settings of a store with empty tables.
pub(super) fn settings() -> Settings {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let settings: Settings = address(&SERVER).parse().expect("it is valid");
    settings.with_schema(&format!("test_{number}"))
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
