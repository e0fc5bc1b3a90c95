//! A Postgres server that all tests of a run share: started by the first one, without root, in a
//! folder of its own, on a Unix socket. A shell stops it when the run ends, however it ends. In one stage of
//! the full check, a pooler is between it and the tests.

#![allow(clippy::disallowed_methods, reason = "tests find the programs of this machine")]

use std::{
    fs,
    io::{self, Write as _},
    net::TcpListener,
    os::unix::{
        fs::{DirBuilderExt as _, PermissionsExt as _, lchown},
        net::UnixStream,
        process::{CommandExt as _, parent_id},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::test_pooler;

/// The socket's folder of the server that tests share.
static SERVER: LazyLock<PathBuf> = LazyLock::new(|| shared().expect("Postgres can be started"));
/// The port of servers that have only a socket, in whose name it is.
pub(super) const PORT: u16 = 5432;

/// Settings of a server without durability, which no test needs.
const SETTINGS: &str = "listen_addresses = ''\nfsync = off\nfull_page_writes = off\n\
     shared_buffers = 64MB\nmax_connections = 300\nautovacuum = off\nlog_min_messages = fatal\n";

/// The programs of the server: of the folder `TIDEGATE_TEST_POSTGRES`, where Debian has them, or of the
/// path.
fn programs() -> PathBuf {
    if let Some(place) = std::env::var_os("TIDEGATE_TEST_POSTGRES") {
        return place.into();
    }
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
pub(super) fn user() -> Option<(u32, u32)> {
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

pub(super) fn command(program: &Path, user: Option<(u32, u32)>) -> Command {
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
    if UnixStream::connect(socket_of(&dir, PORT)).is_err() {
        drop(start(&dir, PORT, owner, "")?);
    }
    test_pooler::start(&dir)?;
    Ok(dir)
}

/// A server that only one test uses.
pub struct OwnServer {
    dir: PathBuf,
    port: u16,
    /// Its process. As long as nothing waits for the end of a killed one, it seems to run.
    process: Mutex<Child>,
}

impl OwnServer {
    /// Starts the server.
    pub fn start() -> Self {
        Self::start_with(own_folder(), PORT, |_| Ok(String::new()))
    }

    /// Starts the server in a folder that exists and is empty.
    pub fn start_in(dir: &Path) -> Self {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).expect("the folder is ours");
        give(dir).expect("the folder is ours");
        Self::start_with(dir.to_owned(), PORT, |_| Ok(String::new()))
    }

    /// Starts the server with these lines of settings in addition to the usual ones.
    pub fn start_as(settings: &str) -> Self {
        Self::start_with(own_folder(), PORT, |_| Ok(settings.to_owned()))
    }

    /// Starts a server that accepts encrypted connections on a port of `localhost`, with this certificate
    /// and its key in PEM.
    pub fn with_tls(certificate: &str, key: &str) -> Self {
        let port = TcpListener::bind("localhost:0").and_then(|free| free.local_addr());
        Self::start_with(own_folder(), port.expect("a port is free").port(), |dir| {
            for (name, text) in [("tls.crt", certificate), ("tls.key", key)] {
                let file = dir.join(name);
                fs::write(&file, text)?;
                fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
                give(&file)?;
            }
            let dir = dir.display();
            Ok(format!(
                "listen_addresses = 'localhost'\nssl = on\nssl_cert_file = '{dir}/tls.crt'\n\
                 ssl_key_file = '{dir}/tls.key'\n"
            ))
        })
    }

    /// Starts a server with the settings that `prepare` returns after it has made files in the folder.
    fn start_with(
        dir: PathBuf,
        port: u16,
        prepare: impl FnOnce(&Path) -> io::Result<String>,
    ) -> Self {
        let process = make_folder(&dir)
            .and_then(|()| prepare(&dir))
            .and_then(|settings| start(&dir, port, std::process::id(), &settings))
            .expect("it can be started");
        Self { dir, port, process: Mutex::new(process) }
    }

    /// The port of `localhost` of a server with TLS.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address of its database, over its socket.
    pub fn address(&self) -> String {
        address_of(&self.dir, self.port, "postgres")
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        socket_of(&self.dir, self.port)
    }

    /// The address of this server and of its standby: a connection leads to the one that takes writes.
    pub fn address_with(&self, standby: &Self) -> String {
        let place = |server: &Self| format!("{}:{}", host_of(&server.dir), server.port);
        let places = format!("{},{}", place(self), place(standby));
        format!(
            "postgres://tidegate@{places}/postgres?sslmode=disable&target_session_attrs=read-write"
        )
    }

    /// Kills it with SIGKILL, unless it has ended. It cannot be started again.
    pub fn kill(&self) {
        self.end();
        // What stops servers at the end of the tests must not take its number for that of another process.
        fs::remove_file(self.dir.join("data/postmaster.pid")).expect("a killed server leaves it");
    }

    /// Kills it with SIGKILL, unless it has ended, and starts it again on its data.
    pub fn kill_and_start(&self) {
        self.end();
        *self.process.lock() = serve(&self.dir, self.port).expect("it can be started again");
    }

    fn end(&self) {
        let mut process = self.process.lock();
        process.kill().and_then(|()| process.wait()).expect("it is a child of this process");
    }

    /// Stops it as for an update, which ends all connections, and starts it again.
    pub fn restart(&self) {
        let mut process = self.process.lock();
        stop(&mut process).expect("it is a child of this process");
        *process = serve(&self.dir, self.port).expect("it can be started again");
    }

    /// Starts a standby of this server, which confirms each of its commits from now on. It begins with a
    /// cold copy: no more than the server's own program is needed, and this server is stopped meanwhile.
    #[must_use]
    pub fn start_standby(&self) -> Self {
        self.start_copy("synchronous_standby_names = 'standby'\n")
    }

    /// Starts a standby of this server, as [`Self::start_standby`] does. No commit waits for it.
    #[must_use]
    pub fn start_asynchronous_standby(&self) -> Self {
        self.start_copy("")
    }

    /// Starts a standby of this server, which gets more `settings` itself.
    fn start_copy(&self, settings: &str) -> Self {
        let dir = PathBuf::from(format!("{}-standby", self.dir.display()));
        let process = self.copy_and_serve(&dir, settings).expect("a standby can be started");
        Self { dir, port: PORT, process: Mutex::new(process) }
    }

    fn copy_and_serve(&self, dir: &Path, settings: &str) -> io::Result<Child> {
        let mut process = self.process.lock();
        stop(&mut process)?;
        make_folder(dir)?;
        let (own, data) = (self.dir.join("data"), dir.join("data"));
        let copied = Command::new("cp").arg("-a").arg(&own).arg(&data).status()?;
        assert!(copied.success(), "the data can be copied");
        let signal = data.join("standby.signal");
        fs::write(&signal, "")?;
        give(&signal)?;
        let primary = format!(
            "primary_conninfo = 'host={} port={} user=tidegate application_name=standby'\n",
            self.dir.display(),
            self.port
        );
        add_settings(&data, &primary)?;
        add_settings(&own, settings)?;
        *process = serve(&self.dir, self.port)?;
        end_with(dir, std::process::id())?;
        serve(dir, PORT)
    }

    /// Makes a standby a server that takes writes.
    pub fn promote(&self) {
        let config: tokio_postgres::Config = self.address().parse().expect("it is valid");
        wait_for(async move {
            let (client, connection) = config.connect(tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            client.simple_query("SELECT pg_promote()").await
        })
        .expect("it is a standby");
    }
}

/// The folder of a server that only one test uses.
fn own_folder() -> PathBuf {
    std::env::temp_dir().join(format!("tidegate-pg-own-{}", std::process::id()))
}

/// A folder that only the user of the server can enter, unless a process of this run has made it.
pub(super) fn make_folder(dir: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => give(dir),
    }
}

/// Makes the user of the server the owner of a file.
fn give(file: &Path) -> io::Result<()> {
    user().map_or(Ok(()), |(uid, gid)| lchown(file, Some(uid), Some(gid)))
}

/// Makes the data of a server in `dir`, and starts it with more settings than the usual ones. It ends when
/// the process `owner` does.
fn start(dir: &Path, port: u16, owner: u32, settings: &str) -> io::Result<Child> {
    let data = dir.join("data");
    let mut initdb = command(&programs().join("initdb"), user());
    initdb.arg("-D").arg(&data).args(["-U", "tidegate", "-A", "trust", "-E", "UTF8"]);
    initdb.args(["--locale=C", "--no-sync", "--wal-segsize=1"]);
    let output = initdb.output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::write(data.join("postgresql.auto.conf"), format!("{SETTINGS}{settings}"))?;
    let process = serve(dir, port)?;
    end_with(dir, owner)?;
    Ok(process)
}

/// Adds lines to the settings of the server whose data is in `data`.
fn add_settings(data: &Path, settings: &str) -> io::Result<()> {
    let file = data.join("postgresql.auto.conf");
    fs::File::options().append(true).open(file)?.write_all(settings.as_bytes())
}

/// Stops the server in `dir`, and a pooler before it, when the process `owner` ends, and removes the folder.
fn end_with(dir: &Path, owner: u32) -> io::Result<()> {
    let data = dir.join("data");
    let script = format!(
        "while kill -0 {owner}; do sleep 1; done; server=$(head -n 1 '{data}/postmaster.pid'); \
         kill -KILL $(cat '{dir}/pooler/pid'); kill -QUIT $server; \
         while kill -0 $server; do sleep 0.1; done; rm -rf '{dir}'",
        data = data.display(),
        dir = dir.display()
    );
    let mut shell = command(Path::new("sh"), None);
    shell.args(["-c", &script]).stdout(Stdio::null()).stderr(Stdio::null());
    shell.process_group(0).spawn()?;
    Ok(())
}

/// Stops a server, which ends all its connections.
fn stop(process: &mut Child) -> io::Result<()> {
    let mut shell = command(Path::new("sh"), None);
    shell.args(["-c", &format!("kill -INT {}", process.id())]).status()?;
    process.wait().map(drop)
}

/// Starts the server in `dir` on its data, and waits until it answers.
fn serve(dir: &Path, port: u16) -> io::Result<Child> {
    let mut start = command(&programs().join("postgres"), user());
    start.arg("-D").arg(dir.join("data")).arg("-k").arg(dir).args(["-p", &port.to_string()]);
    let log = fs::File::options().create(true).append(true).open(dir.join("log"))?;
    // A signal to the tests by their terminal must not stop it.
    start.stdout(Stdio::null()).stderr(log).process_group(0);
    let mut server = start.spawn()?;
    let config = address_of(dir, port, "postgres");
    let config: tokio_postgres::Config = config.parse().expect("it is valid");
    let ready = async move {
        let mut wait = tokio::time::interval(Duration::from_millis(20));
        for _ in 0..1500 {
            // A killed server may accept connections that it never answers.
            let connecting = config.connect(tokio_postgres::NoTls);
            let connected = tokio::time::timeout(Duration::from_secs(1), connecting).await;
            if matches!(connected, Ok(Ok(_))) {
                return Ok(Some(server));
            }
            // It refuses to start while a process of a killed one still uses the data.
            if server.try_wait()?.is_some() {
                server = start.spawn()?;
            }
            wait.tick().await;
        }
        io::Result::Ok(None)
    };
    Ok(wait_for(ready)?.unwrap_or_else(|| {
        let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
        panic!("the server does not answer: {log}")
    }))
}

/// The output of `future`. The caller may be on a runtime.
pub(super) fn wait_for<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let waiter = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be made").block_on(future)
    });
    waiter.join().expect("it does not panic")
}

/// The address of a database of the server with its socket in `dir`.
pub fn address_in(dir: &Path, database: &str) -> String {
    address_of(dir, PORT, database)
}

fn address_of(dir: &Path, port: u16, database: &str) -> String {
    format!("postgres://tidegate@{}:{port}/{database}?sslmode=disable", host_of(dir))
}

/// A folder with a socket as the host of an address.
fn host_of(dir: &Path) -> String {
    dir.display().to_string().replace('/', "%2F")
}

/// The socket of the server on `port` whose sockets are in `dir`.
pub(super) fn socket_of(dir: &Path, port: u16) -> PathBuf {
    dir.join(format!(".s.PGSQL.{port}"))
}

/// The address of a database of the server that tests share. It leads through a pooler if there is one.
pub fn address(database: &str) -> String {
    let pooler = test_pooler::folder(&SERVER);
    address_in(pooler.as_deref().unwrap_or(&SERVER), database)
}

/// The socket of the server that tests share.
pub fn socket() -> PathBuf {
    socket_of(&SERVER, PORT)
}

/// A name for a schema or a database that no other test has.
pub fn new_name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("test_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}
