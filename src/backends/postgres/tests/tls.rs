//! Encrypted connections.

use super::server::{RUNTIME, clock, open, rows, settings_at};
use crate::postgres::{OpenError, PostgresStore, test_server::OwnServer};
use tidegate_core::error_chain::ErrorChain;

/// A certificate of `localhost` that has signed itself, until 2126, and its key.
const CERTIFICATE: &str = include_str!("tls.crt");
const KEY: &str = include_str!("tls.key");

#[test]
fn an_encrypted_connection_is_to_the_named_server_alone() {
    let server = OwnServer::with_tls(CERTIFICATE, KEY);
    let dir = tempfile::tempdir().unwrap();
    let authorities = dir.path().join("ca.pem");
    std::fs::write(&authorities, CERTIFICATE).unwrap();
    let settings = |host: &str, rest: &str| {
        let port = server.port();
        settings_at(&format!("postgres://tidegate@{host}:{port}/postgres?sslmode=require{rest}"))
    };
    let with_authorities = format!("&sslrootcert={}", authorities.display());

    let store = open(&settings("localhost", &with_authorities));
    let is_encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert!(rows(&store, is_encrypted)[0].get::<_, bool>(0));

    // The certificate is of no public authority, and not for this name.
    for (host, rest) in [("localhost", ""), ("127.0.0.1", &with_authorities)] {
        let opened = RUNTIME.block_on(PostgresStore::open(settings(host, rest), clock()));
        let error: OpenError = opened.err().expect("the certificate is refused");
        let error = ErrorChain(&error).to_string();
        assert!(error.contains("certificate"), "{host}{rest}: {error}");
    }
}
