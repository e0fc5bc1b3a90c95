//! The CPU time of a Postgres server on this machine, from `/proc`.

use std::time::Duration;

use super::meter::{Stat, stat};

/// The name of each of its processes.
const NAME: &str = "postgres";

/// The first process of a Postgres server, whose children serve connections and write to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Postmaster(u32);

impl Postmaster {
    /// The one whose child `process` serves a connection; none if it runs on another machine.
    pub(super) fn of(process: u32) -> Option<Self> {
        let child = stat(process).filter(|stat| stat.name == NAME)?;
        let postmaster = stat(child.parent).filter(|stat| stat.name == NAME)?;
        Some(Self(postmaster.id))
    }

    /// The CPU time of its processes so far, with those that have ended.
    pub(super) fn processor(self) -> Duration {
        let ids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.filter_map(stat).map(|stat| self.share_of(&stat)).sum()
    }

    /// What a process adds to the CPU time.
    fn share_of(self, stat: &Stat) -> Duration {
        if stat.id == self.0 {
            stat.own + stat.of_ended_children
        } else if stat.parent == self.0 {
            stat.own
        } else {
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_consists_of_its_first_process_and_the_children() {
        let seconds = Duration::from_secs;
        let process = |id, parent| Stat {
            id,
            name: NAME.into(),
            parent,
            own: seconds(1),
            of_ended_children: seconds(5),
        };
        let shares = [process(7, 1), process(8, 7), process(9, 8)];
        let shares = shares.map(|process| Postmaster(7).share_of(&process));
        assert_eq!(shares, [seconds(6), seconds(1), seconds(0)]);
    }

    #[test]
    fn a_process_that_is_no_server_of_postgres_has_none() {
        assert_eq!(Postmaster::of(std::process::id()), None);
    }
}
