//! The open files that the system allows this process: the connections of clients share them with
//! the store and with the calls of targets.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tidegate_server::settings::Settings;

/// The soft limit is raised no higher than this.
const MOST: u64 = 65_536;
/// Most connections without a setting. Each takes some KiB of memory.
const DEFAULT_CONNECTIONS: u64 = 16_384;
/// What the store, the log and the runtime open.
const OWN: u64 = 64;

/// How many files this process may open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptors(u64);

impl Descriptors {
    /// Raises the soft limit to the hard one. Many systems start a program with 1024 and allow
    /// more.
    pub fn raise() -> Self {
        let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
            return Self(1024);
        };
        let wanted = hard.min(MOST);
        if soft >= wanted {
            return Self(soft);
        }
        match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
            Ok(()) => Self(wanted),
            Err(error) => {
                tracing::warn!(soft, hard, %error, "the limit of open files was not raised");
                Self(soft)
            }
        }
    }

    /// How many connections are served at once. At least half of the files, or one for each push
    /// slot, are left to the store and to the calls of targets. With `peer_url`, each connection may
    /// need another one, to the server that owns a queue.
    ///
    /// # Errors
    ///
    /// `max_connections` leaves too few.
    pub fn connections(self, settings: &Settings) -> anyhow::Result<usize> {
        let own = (OWN + u64::from(settings.push_slots)).min(self.0 / 2);
        let files_of_one = if settings.peer_url.is_some() { 2 } else { 1 };
        let most = (self.0 - own) / files_of_one;
        let connections = match settings.max_connections.map(u64::from) {
            None => most.min(DEFAULT_CONNECTIONS),
            Some(set) if set <= most => set,
            Some(set) => anyhow::bail!(
                "max_connections: {set} connections need {} open files, and the system allows {}: \
                 raise the limit (ulimit -n)",
                set * files_of_one + own,
                self.0
            ),
        };
        Ok(usize::try_from(connections).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_to_the_store_and_to_pushes() {
        let settings = |max_connections| Settings { max_connections, ..Settings::default() };
        let found = |files, set| Descriptors(files).connections(&settings(set)).ok();
        assert_eq!(found(256, None), Some(128));
        assert_eq!(found(1024, None), Some(704));
        assert_eq!(found(65_536, None), Some(16_384));
        assert_eq!(found(1024, Some(704)), Some(704));
        assert_eq!(found(1024, Some(705)), None);
        assert_eq!(found(65_536, Some(60_000)), Some(60_000));
    }

    #[test]
    fn a_connection_may_need_another_one_to_a_peer() {
        let peer_url = Some("http://10.0.0.7:8080".parse().unwrap());
        let found = |files, max_connections| {
            let settings =
                Settings { max_connections, peer_url: peer_url.clone(), ..Settings::default() };
            Descriptors(files).connections(&settings).ok()
        };
        assert_eq!(found(1024, None), Some(352));
        assert_eq!(found(1024, Some(352)), Some(352));
        assert_eq!(found(1024, Some(353)), None);
    }
}
