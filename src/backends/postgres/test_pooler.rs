//! `PgBouncer` between the tests and the Postgres server that they share. Only `tests/postgres/pooler` has it
//! started.

#![allow(clippy::disallowed_methods, reason = "tests find the programs of this machine")]

use std::{
    fs, io,
    os::unix::{net::UnixStream, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use super::test_server::{PORT, command, make_folder, socket_of, user, wait_for};

/// The program of the pooler; none if tests reach the server itself.
fn program() -> Option<PathBuf> {
    std::env::var_os("TIDEGATE_TEST_PGBOUNCER").map(PathBuf::from)
}

/// The socket's folder of the pooler before the server in `dir`; none if there is no pooler.
pub(super) fn folder(dir: &Path) -> Option<PathBuf> {
    program().map(|_| dir.join("pooler"))
}

/// Starts the pooler before the server in `dir`, unless it runs or there is none. It ends with the server.
pub(super) fn start(dir: &Path) -> io::Result<()> {
    let (Some(program), Some(own)) = (program(), folder(dir)) else { return Ok(()) };
    let socket = socket_of(&own, PORT);
    if UnixStream::connect(&socket).is_ok() {
        return Ok(());
    }
    make_folder(&own)?;
    let (config, log) = (own.join("config"), own.join("log"));
    fs::write(&config, settings(dir, &own))?;
    let mut pooler = command(&program, user());
    pooler.arg(&config).stdout(Stdio::null()).stderr(fs::File::create(&log)?);
    // A signal to the tests by their terminal must not stop it.
    pooler.process_group(0).spawn()?;
    let is_ready = wait_for(async move {
        let mut wait = tokio::time::interval(Duration::from_millis(20));
        for _ in 0..1500 {
            if UnixStream::connect(&socket).is_ok() {
                return true;
            }
            wait.tick().await;
        }
        false
    });
    let said = fs::read_to_string(&log).unwrap_or_default();
    assert!(is_ready, "the pooler does not answer: {said}");
    Ok(())
}

/// Its settings. Each connection has a session of the server as long as it is open.
fn settings(dir: &Path, own: &Path) -> String {
    let (server, own) = (dir.display(), own.display());
    format!(
        "[databases]\n* = host={server} port={PORT} user=tidegate\n\
         [pgbouncer]\npool_mode = session\nunix_socket_dir = {own}\nlisten_port = {PORT}\n\
         auth_type = any\nmax_client_conn = 400\ndefault_pool_size = 250\npidfile = {own}/pid\n"
    )
}
