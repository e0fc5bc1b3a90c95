//! A clock that follows the machine's until a test freezes or moves it: that of `tidegate dev`.
//!
//! ```text
//!   machine ──────▶ + offset ──────▶ now       frozen: now stays, and a move changes it
//! ```
//!
//! It never goes backwards. Each move wakes the sleepers at once. While it is frozen, a sleep also
//! ends once the machine's clock has passed its span, so that loops and waits between two tries go on.
//! Such a sleep ends before its instant: the caller looks at the clock again.

#![allow(clippy::disallowed_methods, reason = "an implementation of the clock port")]

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::clock::{MAX_TIMER, SystemClock};
use tidegate_core::{port::Clock, time::Timestamp};

/// The shortest sleep that ends without a move while the clock is frozen. What is due in a
/// millisecond must not be looked for a thousand times a second.
const MIN_FROZEN_SLEEP: Duration = Duration::from_millis(100);

/// A clock that tests freeze and move forward.
#[derive(Debug)]
pub struct DevClock(watch::Sender<State>);

/// How the clock differs from the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It runs, this many milliseconds ahead of the machine's; behind it if negative.
    Runs(i64),
    /// It is frozen at this instant.
    Frozen(Timestamp),
}

impl State {
    /// What the clock shows when the machine's shows `machine`.
    fn now(self, machine: Timestamp) -> Timestamp {
        match self {
            Self::Runs(ahead) => {
                let millis = machine.millis().saturating_add(ahead);
                Timestamp::from_millis(millis).min(Timestamp::MAX)
            }
            Self::Frozen(at) => at,
        }
    }

    /// The state that shows `at` when the machine's clock shows `machine`.
    fn at(self, at: Timestamp, machine: Timestamp) -> Self {
        match self {
            Self::Runs(_) => Self::Runs(at.millis().saturating_sub(machine.millis())),
            Self::Frozen(_) => Self::Frozen(at),
        }
    }
}

/// The clock would go backwards, from `now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is before the clock's {now}, and it never goes backwards")]
pub struct Backwards {
    /// What the clock shows.
    pub now: Timestamp,
}

impl DevClock {
    /// A clock that runs with the machine's.
    pub fn new() -> Self {
        Self(watch::Sender::new(State::Runs(0)))
    }

    /// Whether it is frozen.
    pub fn is_frozen(&self) -> bool {
        matches!(*self.0.borrow(), State::Frozen(_))
    }

    /// Stops the clock, or lets it run on from what it shows. A repeat changes nothing.
    pub fn freeze(&self, frozen: bool) {
        self.0.send_if_modified(|state| {
            let machine = SystemClock.now();
            let next = match (*state, frozen) {
                (State::Runs(_), true) => State::Frozen(state.now(machine)),
                (State::Frozen(at), false) => State::Runs(0).at(at, machine),
                (same, _) => same,
            };
            std::mem::replace(state, next) != next
        });
    }

    /// Moves the clock forward by `span`, whether it is frozen or runs. It ends at the last
    /// instant that can be written.
    pub fn advance(&self, span: Duration) {
        self.0.send_modify(|state| {
            let machine = SystemClock.now();
            *state = state.at(state.now(machine) + span, machine);
        });
    }

    /// Moves the clock to `at`.
    ///
    /// # Errors
    ///
    /// [`Backwards`] if the clock shows a later instant.
    pub fn set(&self, at: Timestamp) -> Result<(), Backwards> {
        let mut refused = None;
        self.0.send_if_modified(|state| {
            let machine = SystemClock.now();
            let now = state.now(machine);
            if at < now {
                refused = Some(Backwards { now });
                return false;
            }
            *state = state.at(at, machine);
            true
        });
        refused.map_or(Ok(()), Err)
    }
}

impl Default for DevClock {
    /// A clock that runs with the machine's.
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Clock for DevClock {
    fn now(&self) -> Timestamp {
        self.0.borrow().now(SystemClock.now())
    }

    fn machine_now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn at_machine_time(&self, at: Timestamp) -> Timestamp {
        self.now() + at.since(self.machine_now())
    }

    fn monotonic_now(&self) -> Duration {
        SystemClock.monotonic_now()
    }

    async fn sleep(&self, span: Duration) {
        SystemClock.sleep(span).await;
    }

    async fn sleep_until(&self, at: Timestamp) {
        let mut moves = self.0.subscribe();
        // Since the latest move of a frozen clock.
        let mut slept = Duration::ZERO;
        loop {
            let state = *moves.borrow_and_update();
            let left = at.since(state.now(SystemClock.now()));
            if left.is_zero() {
                return;
            }
            let is_frozen = matches!(state, State::Frozen(_));
            let left =
                if is_frozen { left.max(MIN_FROZEN_SLEEP).saturating_sub(slept) } else { left };
            let timer = left.min(MAX_TIMER);
            tokio::select! {
                changed = moves.changed() => {
                    changed.expect("the sender is borrowed by this call");
                    slept = Duration::ZERO;
                }
                () = tokio::time::sleep(timer) => {
                    slept += timer;
                    if is_frozen && timer == left {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::{FutureExt as _, poll};

    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn frozen() -> (DevClock, Timestamp) {
        let clock = DevClock::new();
        clock.freeze(true);
        let now = clock.now();
        (clock, now)
    }

    #[test]
    fn a_frozen_clock_moves_only_when_it_is_moved() {
        let (clock, start) = frozen();
        assert!(clock.is_frozen());
        clock.freeze(true);
        let machine = SystemClock.now();
        while SystemClock.now() == machine {
            std::hint::spin_loop();
        }
        assert_eq!(clock.now(), start);
        clock.advance(HOUR);
        assert_eq!(clock.now(), start + HOUR);
        clock.set(start + 2 * HOUR).unwrap();
        assert_eq!(clock.now(), start + 2 * HOUR);
    }

    #[test]
    fn a_clock_that_runs_again_goes_on_from_what_it_showed() {
        let (clock, start) = frozen();
        clock.advance(HOUR);
        clock.freeze(false);
        assert!(!clock.is_frozen());
        let now = clock.now();
        assert!(now >= start + HOUR && now < start + HOUR + Duration::from_mins(1), "{now}");
        clock.advance(HOUR);
        let now = clock.now();
        assert!(
            now >= start + 2 * HOUR && now < start + 2 * HOUR + Duration::from_mins(1),
            "{now}"
        );
    }

    #[test]
    fn the_clock_never_goes_backwards() {
        let (clock, start) = frozen();
        let earlier = Timestamp::from_millis(start.millis() - 1);
        assert_eq!(clock.set(earlier), Err(Backwards { now: start }));
        assert_eq!((clock.now(), clock.set(start)), (start, Ok(())));
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Timestamp::MAX);
        clock.freeze(false);
        clock.advance(HOUR);
        assert_eq!(clock.now(), Timestamp::MAX);
    }

    #[tokio::test]
    async fn every_move_wakes_those_that_sleep_until_then() {
        let (clock, start) = frozen();
        let mut sleeper = pin!(clock.sleep_until(start + HOUR));
        assert!(poll!(&mut sleeper).is_pending());
        clock.advance(Duration::from_millis(3_599_999));
        assert!(poll!(&mut sleeper).is_pending());
        clock.advance(Duration::from_millis(1));
        assert!(poll!(&mut sleeper).is_ready());

        let clock = DevClock::new();
        let mut sleeper = pin!(clock.sleep_until(clock.now() + HOUR));
        assert!(poll!(&mut sleeper).is_pending());
        clock.set(clock.now() + HOUR).unwrap();
        assert!(poll!(&mut sleeper).is_ready());
        assert!(clock.sleep_until(clock.now()).now_or_never().is_some(), "it is there");
    }

    #[tokio::test]
    async fn a_sleep_of_a_frozen_clock_ends_with_its_real_span() {
        let (clock, start) = frozen();
        let machine = SystemClock.now();
        clock.sleep_until(start + Duration::from_millis(150)).await;
        assert_eq!(clock.now(), start);
        assert!(SystemClock.now().since(machine) >= Duration::from_millis(149));
    }
}
