//! Token buckets: a rate with bursts.
//!
//! A bucket is stored as its *debt*: what it lacks until it is full. A job costs `per`, the
//! milliseconds of the period. A debt shrinks by `count` each millisecond. All of them are whole
//! numbers, so that no fraction of a token is lost. A full bucket is not stored.

/// The debt after `paid` of it was paid. It is at most that of an empty bucket. Otherwise, after
/// count or burst were lowered, the debt of the larger bucket would hold all jobs until it is paid
/// off.
///
/// If the period has changed from `was`, the debt stays the same number of jobs.
pub fn current(debt: u64, was: u64, per: u64, burst: u64, paid: u64) -> u64 {
    let debt = if was == per {
        debt
    } else {
        (u128::from(debt) * u128::from(per) / u128::from(was.max(1))) as u64
    };
    debt.min(per * burst).saturating_sub(paid)
}

/// In how many milliseconds the next attempt may start; none if that is now.
pub fn wait(debt: u64, per: u64, burst: u64, count: u64) -> Option<u64> {
    let (owed, most) = (debt + per, per * burst);
    (owed > most).then(|| (owed - most).div_ceil(count))
}
