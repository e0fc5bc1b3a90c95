//! Spread of claims on a queue without a ledger, so that the workers of many processes do not claim
//! the same jobs.
//!
//! All of them see the same first jobs, and one of them wins each. A process whose claims were
//! refused begins at a random job of a larger window, up to [`MAX_SHIFT`] doublings of the jobs that
//! it takes. Each tick without a refused claim makes the window smaller again, so that a process
//! alone keeps the queue's order.

/// The most doublings of the window.
const MAX_SHIFT: u8 = 6;
/// The largest window.
const MAX_WINDOW: u32 = 256;
/// Ticks in a row whose claims all succeed, before the window is halved.
const CLEAN_TICKS: u8 = 8;

/// How far the claims of a process are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spread {
    shift: u8,
    clean: u8,
}

impl Spread {
    /// The number of due jobs among which a tick that takes `capacity` jobs begins; none if it
    /// begins at the first.
    pub(super) fn window(self, capacity: u32) -> Option<u32> {
        let window = capacity.saturating_mul(1 << self.shift).min(MAX_WINDOW.max(capacity));
        (window > capacity).then_some(window)
    }

    /// Records the claims of a tick, and how many of them were refused.
    pub(super) fn note(&mut self, claims: usize, refused: usize) {
        if refused > 0 {
            // Most claims collide if the window is far too small.
            let more = if refused * 2 >= claims { 2 } else { 1 };
            *self = Self { shift: (self.shift + more).min(MAX_SHIFT), clean: 0 };
        } else if claims > 0 {
            self.clean += 1;
            if self.clean >= CLEAN_TICKS {
                *self = Self { shift: self.shift.saturating_sub(1), clean: 0 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_grows_with_refused_claims_and_shrinks_again() {
        let mut spread = Spread::default();
        assert_eq!(spread.window(1), None, "a process alone keeps the order");
        spread.note(1, 1);
        assert_eq!(spread.window(1), Some(4));
        spread.note(10, 1);
        assert_eq!(spread.window(1), Some(8));
        (0..5).for_each(|_| spread.note(1, 1));
        assert_eq!(spread.window(1), Some(64));
        assert_eq!(spread.window(100), Some(256));
        assert_eq!(spread.window(1000), None);
        (0..6 * usize::from(CLEAN_TICKS)).for_each(|_| spread.note(1, 0));
        assert_eq!(spread, Spread::default());
        (0..99).for_each(|_| spread.note(0, 0));
        assert_eq!(spread, Spread::default());
    }
}
