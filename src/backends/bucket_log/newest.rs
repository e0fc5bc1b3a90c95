//! Which epoch is the newest, found with few requests.
//!
//! Claims have no gaps and are never removed, so the newest one is found by doubling steps from a
//! known one, and then by halving the last step.

use super::key::Epoch;

/// The search for the newest claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochSearch {
    /// The newest epoch that is known to be claimed; 0 for none.
    claimed: u64,
    /// The oldest epoch that is known not to be, once there is one.
    unclaimed: Option<u64>,
    step: u64,
}

impl EpochSearch {
    /// A search that starts at `known`, an epoch that is claimed; none if no claim is known.
    pub(super) fn from(known: Option<Epoch>) -> Self {
        Self { claimed: known.map_or(0, Epoch::number), unclaimed: None, step: 1 }
    }

    /// The epoch whose claim must be read next; none if the search is over.
    pub(super) fn probe(&self) -> Option<Epoch> {
        let probe = match self.unclaimed {
            None => self.claimed + self.step,
            Some(unclaimed) if unclaimed == self.claimed + 1 => return None,
            Some(unclaimed) => self.claimed + (unclaimed - self.claimed) / 2,
        };
        Epoch::new(probe)
    }

    /// Notes whether `epoch` is claimed.
    pub(super) fn note(&mut self, epoch: Epoch, is_claimed: bool) {
        if is_claimed {
            self.claimed = self.claimed.max(epoch.number());
            self.step *= 2;
            // Claims that were made during the search may be above a bound that was read before.
            self.unclaimed = self.unclaimed.filter(|unclaimed| *unclaimed > self.claimed);
        } else {
            self.unclaimed = Some(epoch.number());
        }
    }

    /// The newest claimed epoch, once the search is over; none for an empty log.
    pub(super) fn found(&self) -> Option<Epoch> {
        Epoch::new(self.claimed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_epoch_is_found_from_every_known_one() {
        for newest in 0..70 {
            for known in 0..=newest {
                let mut search = EpochSearch::from(Epoch::new(known));
                let mut requests = 0;
                while let Some(epoch) = search.probe() {
                    search.note(epoch, epoch.number() <= newest);
                    requests += 1;
                }
                assert_eq!(search.found(), Epoch::new(newest));
                let bound = 1 + 2 * (newest - known + 1).ilog2();
                assert!(requests <= bound + 1, "{requests} from {known} to {newest}");
            }
        }
    }
}
