//! How often a request is repeated that the table refused for lack of capacity.
//!
//! A call that did nothing fails soon: its caller repeats it, or tells the client to. A call that
//! did a part is repeated longer. The failure of a write would leave open which changes happened,
//! and the failure of a read would have the same items read again.

use std::time::Duration;

/// Most repeats of a request while nothing of its call was done. All waits together are less than
/// half a second, because an entry counts only if it is written within 4 s of its instant.
pub(crate) const MAX_REPEATS: u32 = 4;
/// Most repeats of a request once a part of its call was done. All waits together are less than 4 s.
const MAX_REPEATS_IN_PART: u32 = 12;
/// The longest wait before the first repeat.
pub(crate) const FIRST_DELAY: Duration = Duration::from_millis(25);
/// The longest wait before any repeat.
const MAX_DELAY: Duration = Duration::from_millis(400);

/// Most repeats of a request; `is_partly_done` says whether a part of its call was done.
pub(crate) fn max_repeats(is_partly_done: bool) -> u32 {
    if is_partly_done { MAX_REPEATS_IN_PART } else { MAX_REPEATS }
}

/// The longest wait before the repeat with this number, which begins at 1: twice that of the repeat
/// before it.
pub(crate) fn max_delay(repeat: u32) -> Duration {
    FIRST_DELAY.saturating_mul(1 << (repeat - 1).min(16)).min(MAX_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_waits_of_a_call_are_bounded() {
        let all = |partly| (1..=max_repeats(partly)).map(max_delay).sum::<Duration>();
        assert_eq!(all(false), Duration::from_millis(375));
        assert_eq!(all(true), Duration::from_millis(3575));
    }
}
