//! The work of an invocation that is not claimed yet, and how many requests run at once.

use std::collections::{BTreeMap, VecDeque};

use tidegate_core::{job::QueueName, port::Work, time::Timestamp};

/// Most requests at once, once none was refused for a while.
const MAX_REQUESTS: usize = 8;

/// Most pieces of a queue that are claimed together with those of other queues. More could have the
/// others wait for the capacity that they use up.
const MAX_SHARED: usize = 10;

/// What a delivery takes in addition to the data of its job: its connection, the job and a short
/// response.
const BASE_BYTES: u64 = 64 << 10;

/// The memory that concurrent deliveries may take, in bytes.
struct Memory {
    most: u64,
    taken: u64,
}

impl Memory {
    /// Takes memory for the first of `pieces`, as many as fit. A delivery that is alone always
    /// fits. Returns their number.
    fn take(&mut self, work: &[Work], pieces: &[usize]) -> usize {
        let mut fitting = 0;
        for index in pieces {
            let needed = delivery_bytes(work[*index].data_bytes);
            if self.taken > 0 && self.taken.saturating_add(needed) > self.most {
                break;
            }
            self.taken = self.taken.saturating_add(needed);
            fitting += 1;
        }
        fitting
    }

    fn give_back(&mut self, bytes: u64) {
        self.taken = self.taken.saturating_sub(bytes);
    }
}

/// How many requests to the store run at once: one in the beginning, because other invocations may
/// have begun too, half as many after a refused request, and one more after as many others.
pub(super) struct Pace {
    running: usize,
    most: usize,
    /// Answered ones since `most` has changed.
    answered: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { running: 0, most: 1, answered: 0 }
    }
}

impl Pace {
    /// Whether a claim may begin.
    pub(super) fn has_room(&self) -> bool {
        self.running < self.most
    }

    /// Whether a settlement may begin. It need not wait for a claim.
    pub(super) fn has_room_for_settlement(&self) -> bool {
        self.running <= self.most
    }

    /// Records the begin of a request.
    pub(super) fn start(&mut self) {
        self.running += 1;
    }

    /// Records the answer to a request.
    pub(super) fn answered(&mut self, is_refused: bool) {
        self.running -= 1;
        self.answered += 1;
        let most = if is_refused {
            (self.most / 2).max(1)
        } else {
            MAX_REQUESTS.min(self.most + usize::from(self.answered >= self.most))
        };
        if most != self.most {
            (self.most, self.answered) = (most, 0);
        }
    }
}

/// The work of an invocation that is not claimed yet.
pub(super) struct Unclaimed<'w> {
    work: &'w [Work],
    /// The indices of pieces that can be claimed together, and from when.
    waiting: VecDeque<(Timestamp, Vec<usize>)>,
    memory: Memory,
}

impl<'w> Unclaimed<'w> {
    /// No work yet of `work`; deliveries at once may take `most_bytes` of memory.
    pub(super) fn new(work: &'w [Work], most_bytes: u64) -> Self {
        let memory = Memory { most: most_bytes, taken: 0 };
        Self { work, waiting: VecDeque::new(), memory }
    }

    /// Adds pieces that can be claimed together from `at` on.
    pub(super) fn push(&mut self, at: Timestamp, pieces: Vec<usize>) {
        self.waiting.push_back((at, pieces));
    }

    /// When the next pieces can be claimed, if any wait.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        self.waiting.iter().map(|(at, _)| *at).min()
    }

    /// Takes the next pieces to claim at `now`, at most `most`; none if none is due, or if the
    /// memory is taken.
    pub(super) fn next(&mut self, now: Timestamp, most: usize) -> Option<Vec<usize>> {
        let due = self.waiting.iter().position(|(at, _)| *at <= now)?;
        let (_, waiting) = &mut self.waiting[due];
        let fitting = self.memory.take(self.work, &waiting[..waiting.len().min(most)]);
        let rest = waiting.split_off(fitting);
        let pieces = std::mem::replace(waiting, rest);
        if self.waiting[due].1.is_empty() {
            self.waiting.remove(due);
        }
        (!pieces.is_empty()).then_some(pieces)
    }

    /// Removes the pieces that cannot be claimed by `last`.
    pub(super) fn take_after(&mut self, now: Timestamp, last: Timestamp) -> Vec<usize> {
        let mut late = Vec::new();
        self.waiting.retain(|(at, pieces)| {
            let is_late = now.max(*at) > last;
            late.extend(pieces.iter().copied().filter(|_| is_late));
            !is_late
        });
        late
    }

    /// Gives back the memory of a piece whose delivery is over or does not happen.
    pub(super) fn give_back(&mut self, piece: usize) {
        self.memory.give_back(delivery_bytes(self.work[piece].data_bytes));
    }
}

/// The memory that a delivery takes: the data, once as stored and once in its request.
pub(super) fn delivery_bytes(data_bytes: u64) -> u64 {
    data_bytes.saturating_mul(2).saturating_add(BASE_BYTES)
}

/// Groups the pieces by when they can be claimed. Pieces due within the same tenth of a second are
/// claimed together, when the last of them is due, but those of a queue with many of them follow on
/// their own.
pub(super) fn by_time(work: &[Work], now: Timestamp) -> Vec<(Timestamp, Vec<usize>)> {
    let at = |index: usize| {
        if work[index].granted_at.is_some() { now } else { work[index].run_at.max(now) }
    };
    let tenth = |at: Timestamp| (at > now).then(|| at.millis().div_euclid(100));
    let mut order: Vec<usize> = (0..work.len()).collect();
    order.sort_by_key(|index| at(*index));
    let mut groups = Vec::new();
    for due in order.chunk_by(|a, b| tenth(at(*a)) == tenth(at(*b))) {
        let Some(last) = due.last().map(|index| at(*index)) else { continue };
        let mut queues: BTreeMap<&QueueName, Vec<usize>> = BTreeMap::new();
        for index in due {
            queues.entry(&work[*index].queue).or_default().push(*index);
        }
        let (large, small): (Vec<_>, Vec<_>) =
            queues.into_values().partition(|pieces| pieces.len() > MAX_SHARED);
        let small = small.concat();
        let first = (!small.is_empty()).then_some(small);
        groups.extend(first.into_iter().chain(large).map(|pieces| (last, pieces)));
    }
    groups
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tidegate_core::job::{JobId, Version};

    fn piece(number: usize, queue: &str, run_at: Timestamp) -> Work {
        let job: JobId = format!("job-{number}").parse().unwrap();
        Work {
            job,
            queue: queue.parse().unwrap(),
            version: Version(0),
            run_at,
            granted_at: None,
            data_bytes: 0,
        }
    }

    #[test]
    fn a_queue_with_much_work_is_claimed_after_the_others() {
        let now = Timestamp::from_millis(1_000_000);
        let later = now + Duration::from_secs(1);
        let mut work: Vec<Work> = (0..20).map(|number| piece(number, "much", now)).collect();
        work.extend([piece(20, "a", now), piece(21, "b", now), piece(22, "a", later)]);
        let groups = by_time(&work, now);
        assert_eq!(groups, [(now, vec![20, 21]), (now, (0..20).collect()), (later, vec![22])]);
    }
}
