//! Starts in windows: never more than the count in any span of the period.
//!
//! A value has the instants of its starts, as numbers: the first instant and its starts, then the
//! milliseconds to the next instant and its starts, and so on. None of an entry's starts is later
//! than its instant, so a start has left the window when its entry has. Starts of one part of the
//! period, a sixteenth, share an entry if the count is over [`EXACT`]. So a window has at most 17
//! entries, and a start counts up to a sixteenth of the period longer.

/// Up to this count, each instant has its own entry.
const EXACT: u64 = 16;

/// Each instant with its starts.
fn entries(numbers: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    let mut at = 0u64;
    numbers.chunks_exact(2).map(move |pair| {
        at = at.saturating_add(pair[0]);
        (at, pair[1])
    })
}

/// The entries that are in the window that ends at `now`.
pub fn current(numbers: &[u64], per: u64, now: u64) -> Vec<u64> {
    let (mut kept, mut last) = (Vec::new(), 0);
    for (at, starts) in entries(numbers) {
        if at.saturating_add(per) > now {
            kept.push(at - last);
            kept.push(starts);
            last = at;
        }
    }
    kept
}

/// When the next attempt may start; none if that is now. The entries are current.
pub fn wait(numbers: &[u64], count: u64, per: u64) -> Option<u64> {
    let mut inside: u64 = entries(numbers).map(|(_, starts)| starts).sum();
    let mut until = None;
    for (at, starts) in entries(numbers) {
        if inside < count {
            break;
        }
        inside -= starts;
        until = Some(at + per);
    }
    until
}

/// Counts a start at `now`. The entries are current.
pub fn start(numbers: &mut Vec<u64>, count: u64, per: u64, now: u64) {
    let part = per.div_ceil(EXACT);
    let last = entries(numbers).last().map_or(0, |(at, _)| at);
    let is_shared = last >= now || (count > EXACT && last / part == now / part);
    if let Some(starts) = numbers.last_mut().filter(|_| is_shared) {
        *starts += 1;
        let place = numbers.len() - 2;
        numbers[place] += now.saturating_sub(last);
    } else {
        numbers.push(now - last);
        numbers.push(1);
    }
}
