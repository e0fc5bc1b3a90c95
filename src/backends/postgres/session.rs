//! The settings of every session.

use super::{connect::Link, error::Fault};
use tidegate_core::port::StoreError;

/// Without these a plan may be right for an empty table and read all of a full one, or lock rows in the
/// order of the heap, in which two servers deadlock; statements would be planned at each execution; and a
/// frozen server would hold its locks.
const SETTINGS: &str = "SET jit = off; SET enable_seqscan = off; SET enable_bitmapscan = off; \
     SET enable_nestloop = off; SET enable_mergejoin = off; \
     SET plan_cache_mode = force_generic_plan; SET max_parallel_workers_per_gather = 0; \
     SET statement_timeout = '5s'; SET idle_in_transaction_session_timeout = '2s'; \
     SET lock_timeout = '2s'; SET default_transaction_isolation = 'read committed'; \
     SET synchronous_commit = on";

/// A statement ends when its client is gone. Else a change of the tables by a server that was killed
/// would hold its locks for a minute. A `COMMIT` that waits for a standby does not check.
const CHECK_CLIENT: &str = "SET client_connection_check_interval = '3s'";
/// The first release of Postgres that has this setting.
const CHECKS_CLIENT: u32 = 14;

/// Sets what the session of `link` needs, which uses the tables in `schema`.
///
/// # Errors
///
/// The database refuses a setting that is needed, or does not answer.
pub(super) async fn begin(link: &Link, schema: &str) -> Result<(), StoreError> {
    let settings = format!("{SETTINGS}; SET search_path = \"{schema}\"");
    link.run(&settings).await.map_err(Fault::into_error)?;
    if link.release.is_none_or(|release| release < CHECKS_CLIENT) {
        return Ok(());
    }
    match link.run(CHECK_CLIENT).await {
        Err(Fault::Broken(error)) => Err(error),
        // A server on some operating systems cannot check, and refuses. It is of use, but not needed.
        Err(fault) => {
            let error = fault.into_error();
            tracing::debug!(%error, "the database does not check whether its clients are there");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// The release of a server by its `version`; none if it has no number.
pub(super) fn release(version: &str) -> Option<u32> {
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::release;

    #[test]
    fn a_release_is_the_first_number_of_a_version() {
        for (version, number) in [
            ("13.23", Some(13)),
            ("15.18 (Debian 15.18-0+deb12u1)", Some(15)),
            ("19devel", Some(19)),
            ("devel", None),
            ("", None),
        ] {
            assert_eq!(release(version), number, "{version}");
        }
    }
}
