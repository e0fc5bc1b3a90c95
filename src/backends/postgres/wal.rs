//! Whether the database still has each commit that this server acknowledged.
//!
//! ```text
//!   BEGIN  writes ...  position of the log  COMMIT        kept once the commit is acknowledged
//!   a single statement with the position of the log       the same
//!   a new connection: cluster, timeline, position         before the kept one: commits are lost
//! ```
//!
//! A failover to a standby that had not received everything loses the latest commits, and nothing in the
//! answers shows that. But the new primary goes on with the write-ahead log from an earlier position, on a
//! new timeline. The position that is kept was read before the `COMMIT`, so all of its log was durable with
//! the commit, and a crash of the database that loses nothing is not taken for a loss.
//!
//! Only what this process remembers can show it. A position in the database would be lost with the commits:
//! one that the new primary has is never after its own. What a server finds is kept in [`super::losses`], for
//! those that start later. A loss that is smaller than what the new primary has written before the first
//! connection of this server is not found.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio_postgres::{Error, Row, SimpleQueryMessage};

use super::{connect::Link, error::Fault, losses, row::column};
use tidegate_core::{error_chain::ErrorChain, port::StoreError, time::Timestamp};

/// The place of a connection. Every role may read it. The first eight digits of a file's name are the
/// timeline.
pub(super) const PLACE: &str = "SELECT c.system_identifier, pg_walfile_name(pg_current_wal_insert_lsn()), \
     pg_current_wal_insert_lsn()::text FROM pg_control_system() c";
/// Sent before a commit, in the same message as the setting that each group needs. A commit that is
/// cancelled may have happened.
const BEFORE_COMMIT: &str =
    "SET LOCAL statement_timeout = 0; SELECT pg_current_wal_insert_lsn()::text";

/// A position in the write-ahead log: how many bytes are before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lsn(u64);

impl Lsn {
    /// The position in its form of two numbers, such as `16/B374D848`.
    fn parse(text: &str) -> Option<Self> {
        let (high, low) = text.split_once('/')?;
        let half = |text| u32::from_str_radix(text, 16).ok().map(u64::from);
        Some(Self((half(high)? << 32) | half(low)?))
    }
}

/// What a position belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct History {
    /// The number of the cluster, which all of its standbys have.
    cluster: i64,
    /// Counts the promotions of standbys.
    timeline: u32,
}

/// A position in the log of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    history: History,
    lsn: Lsn,
}

impl Place {
    /// That of a row of [`PLACE`].
    fn read(row: &Row) -> Option<Self> {
        let file: &str = column(row, 1).ok()?;
        let timeline = u32::from_str_radix(file.get(..8)?, 16).ok()?;
        let history = History { cluster: column(row, 0).ok()?, timeline };
        Some(Self { history, lsn: Lsn::parse(column(row, 2).ok()?)? })
    }

    /// How many bytes of log up to here, at least, the server at `now` does not have; none if it may have
    /// all of them, or is of another cluster.
    ///
    /// A server on an earlier timeline is a former primary: it has nothing of this one.
    fn lost_at(self, now: Self) -> Option<u64> {
        let (was, is) = (self.history, now.history);
        let is_lost =
            was.cluster == is.cluster && (is.timeline < was.timeline || now.lsn < self.lsn);
        is_lost.then(|| self.lsn.0.saturating_sub(now.lsn.0))
    }
}

/// What was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    /// When the latest loss was found, by the clock of this server.
    pub found_at: Timestamp,
    /// How many bytes of log were lost then, at least.
    pub bytes: u64,
}

/// What this server knows about the log of its database.
#[derive(Default)]
pub(super) struct Wal(Mutex<State>);

#[derive(Default)]
struct State {
    known: Known,
    loss: Option<Loss>,
}

/// What a new connection is compared with: what was known before it read its place. A later commit may be
/// noted before the answer of that read arrives, and is after the place.
#[derive(Clone, Copy, Default)]
struct Known {
    /// A place that the latest acknowledged commit is after.
    last: Option<Place>,
    /// How many losses were found.
    losses: u64,
}

impl Wal {
    /// The latest loss since this server started.
    pub(super) fn loss(&self) -> Option<Loss> {
        self.0.lock().loss
    }

    /// A position that the latest acknowledged commit is after.
    #[cfg(test)]
    pub(super) fn noted(&self) -> Option<Lsn> {
        self.0.lock().known.last.map(|place| place.lsn)
    }

    /// What a connection that reads its place next is compared with.
    fn known(&self) -> Known {
        self.0.lock().known
    }

    /// Compares the place of a new connection, opened at `now`, with what was known `before` it was read.
    /// A loss is found by one connection. Returns it.
    fn opened(&self, before: Known, place: Place, now: Timestamp) -> Option<Loss> {
        let mut state = self.0.lock();
        let last = before.last.filter(|_| before.losses == state.known.losses)?;
        if last.history.cluster != place.history.cluster {
            state.known.last = None;
            return None;
        }
        let loss = Loss { found_at: now, bytes: last.lost_at(place)? };
        // A commit that a former primary still acknowledges is not after it.
        let last = Some(Place { history: place.history, lsn: Lsn(0) });
        state.known = Known { last, losses: before.losses + 1 };
        state.loss = Some(loss);
        Some(loss)
    }

    /// Notes an acknowledged commit after `place`.
    fn committed(&self, place: Place) {
        let mut state = self.0.lock();
        let order = |place: Place| (place.history.timeline, place.lsn);
        let is_later = state.known.last.is_none_or(|last| {
            last.history.cluster != place.history.cluster || order(last) < order(place)
        });
        if is_later {
            state.known.last = Some(place);
        }
    }
}

/// The log of the server behind a connection.
pub(super) struct Watched {
    wal: Arc<Wal>,
    history: History,
}

impl Watched {
    /// Notes a commit that is acknowledged, whose transaction read `lsn` before it.
    pub(super) fn committed(&self, lsn: Lsn) {
        self.wal.committed(Place { history: self.history, lsn });
    }
}

/// Compares what the server behind a new connection has with what was acknowledged, and watches the commits
/// of the connection from now on. A server that does not show its log is not watched.
///
/// # Errors
///
/// The connection broke.
pub(super) async fn watch(
    link: &mut Link,
    wal: &Arc<Wal>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let before = wal.known();
    let rows = match link.query(PLACE, &[]).await {
        Ok(rows) => rows,
        Err(Fault::Broken(error)) => return Err(error),
        Err(fault) => {
            let error = fault.into_error();
            let error = ErrorChain(&error);
            tracing::debug!(%error, "the database does not show the position of its log");
            return Ok(());
        }
    };
    let Some(place) = rows.first().and_then(Place::read) else { return Ok(()) };
    if let Some(loss) = wal.opened(before, place, now) {
        metrics::counter!("tidegate_postgres_losses_total").increment(1);
        tracing::error!(
            bytes = loss.bytes,
            timeline = place.history.timeline,
            "the database has lost acknowledged commits: it is a standby that was promoted before it had \
             all of the log, or was restored; restart each server, and see `tidegate doctor`"
        );
        let of = (place.history.cluster, place.history.timeline);
        if let Err(fault) = losses::add(link, of, loss).await {
            let error = fault.into_error();
            let error = ErrorChain(&error);
            tracing::warn!(%error, "the loss is not kept for servers that start later");
        }
    }
    link.watched = Some(Watched { wal: Arc::clone(wal), history: place.history });
    Ok(())
}

/// Prepares the commit of a transaction. Returns the position of the log, which is before the commit.
pub(super) async fn before_commit(link: &Link) -> Result<Option<Lsn>, Error> {
    let answer = link.client.simple_query(BEFORE_COMMIT).await?;
    let position = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    Ok(position.and_then(Lsn::parse))
}

/// The position in a column of the only row of a statement.
pub(super) fn position(rows: &[Row], index: usize) -> Option<Lsn> {
    Lsn::parse(column(rows.first()?, index).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(timeline: u32, lsn: u64) -> Place {
        Place { history: History { cluster: 7, timeline }, lsn: Lsn(lsn) }
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    /// Opens a connection that finds `place` at once.
    fn opened(wal: &Wal, place: Place, now: Timestamp) -> Option<Loss> {
        wal.opened(wal.known(), place, now)
    }

    #[test]
    fn a_position_has_two_numbers() {
        assert_eq!(Lsn::parse("16/B374D848"), Some(Lsn(0x16_B374_D848)));
        assert_eq!(Lsn::parse("0/0"), Some(Lsn(0)));
        assert_eq!(Lsn::parse("FFFFFFFF/FFFFFFFF"), Some(Lsn(u64::MAX)));
        for text in ["", "16", "16/", "/1", "x/1", "1/100000000"] {
            assert_eq!(Lsn::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_position_before_the_last_commit_is_a_loss() {
        for (now, lost) in [
            // A restart, a crash, and a failover that loses nothing.
            (place(3, 1000), None),
            (place(3, 2000), None),
            (place(4, 1000), None),
            (place(6, 9000), None),
            // A failover, and a restore on the same timeline.
            (place(4, 999), Some(1)),
            (place(3, 400), Some(600)),
            // A former primary.
            (place(2, 400), Some(600)),
            (place(2, 5000), Some(0)),
        ] {
            assert_eq!(place(3, 1000).lost_at(now), lost, "{now:?}");
        }
        let other = Place { history: History { cluster: 8, timeline: 1 }, lsn: Lsn(1) };
        assert_eq!(place(3, 1000).lost_at(other), None, "nothing is known of another cluster");
    }

    #[test]
    fn a_loss_is_found_once() {
        let wal = Wal::default();
        assert_eq!(opened(&wal, place(1, 500), at(0)), None, "nothing was acknowledged");
        wal.committed(place(1, 900));
        wal.committed(place(1, 800));
        let loss = Loss { found_at: at(5), bytes: 200 };
        assert_eq!(opened(&wal, place(2, 700), at(5)), Some(loss));
        assert_eq!(opened(&wal, place(2, 710), at(6)), None);
        // An answer of the former primary that came late.
        wal.committed(place(1, 950));
        assert_eq!(opened(&wal, place(2, 720), at(7)), None);
        assert_eq!(wal.loss(), Some(loss));
        wal.committed(place(2, 730));
        assert_eq!(opened(&wal, place(3, 725), at(8)).map(|loss| loss.bytes), Some(5));
        assert_eq!(wal.loss().map(|loss| loss.found_at), Some(at(8)));
    }

    #[test]
    fn a_commit_after_the_read_of_a_place_is_no_loss() {
        let wal = Wal::default();
        wal.committed(place(1, 500));
        let before = wal.known();
        wal.committed(place(1, 900));
        assert_eq!(wal.opened(before, place(1, 700), at(0)), None);
        assert_eq!(opened(&wal, place(1, 899), at(1)).map(|loss| loss.bytes), Some(1));
    }

    #[test]
    fn connections_of_one_time_find_one_loss() {
        let wal = Wal::default();
        wal.committed(place(1, 900));
        let before = wal.known();
        assert!(wal.opened(before, place(2, 700), at(0)).is_some());
        wal.committed(place(2, 710));
        assert_eq!(wal.opened(before, place(2, 705), at(0)), None);
    }

    #[test]
    fn another_cluster_begins_again() {
        let wal = Wal::default();
        let other = |lsn| Place { history: History { cluster: 8, timeline: 1 }, lsn: Lsn(lsn) };
        wal.committed(place(3, 1000));
        assert_eq!(opened(&wal, other(10), at(0)), None);
        wal.committed(other(20));
        assert_eq!(opened(&wal, other(15), at(0)).map(|loss| loss.bytes), Some(5));
    }
}
