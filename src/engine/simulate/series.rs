//! A quantity over time that changes in steps: the running weight.

/// A step function of milliseconds, zero at first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// The value from each instant on, in order of time.
    steps: Vec<(u64, u64)>,
    /// Its maximum, also within a millisecond.
    most: u64,
}

impl Series {
    /// Adds `by` at `at`, or subtracts it if `more` is false. `at` is not before the previous
    /// change.
    pub fn change(&mut self, at: u64, by: u64, more: bool) {
        let now = if more { self.now() + by } else { self.now().saturating_sub(by) };
        self.most = self.most.max(now);
        match self.steps.last_mut() {
            Some((last, value)) if *last == at => *value = now,
            _ => self.steps.push((at, now)),
        }
    }

    /// Its last value.
    pub fn now(&self) -> u64 {
        self.steps.last().map_or(0, |(_, value)| *value)
    }

    /// Its maximum.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Its mean up to `end`.
    pub fn mean(&self, end: u64) -> f64 {
        if end == 0 {
            return 0.0;
        }
        self.pieces(end).map(|(from, to, value)| (to - from) as f64 * value as f64).sum::<f64>()
            / end as f64
    }

    /// Its intervals of equal value up to `end`: from, to, value.
    fn pieces(&self, end: u64) -> impl Iterator<Item = (u64, u64, u64)> {
        let ends = self.steps.iter().skip(1).map(|(at, _)| *at).chain([u64::MAX]);
        self.steps
            .iter()
            .zip(ends)
            .map(move |((from, value), to)| (*from, to.min(end), *value))
            .filter(|(from, to, _)| from < to)
    }

    /// Its maximum in each of `count` equal parts of the time up to `end`.
    pub fn columns(&self, end: u64, count: usize) -> Vec<u64> {
        let mut columns = vec![0; count];
        let column = |at: u64| (u128::from(at) * count as u128 / u128::from(end.max(1))) as usize;
        for (from, to, value) in self.pieces(end) {
            let last = column(to - 1).min(count - 1);
            columns[column(from).min(last)..=last]
                .iter_mut()
                .for_each(|most| *most = value.max(*most));
        }
        columns
    }

    /// The intersection divided by the union of two series, up to `end`: 1 if they are the same, 0
    /// if they never overlap.
    pub fn overlap(&self, other: &Self, end: u64) -> f64 {
        let (mut both, mut either) = (0.0, 0.0);
        let mut ours = self.pieces(end).peekable();
        let mut theirs = other.pieces(end).peekable();
        let mut at = 0;
        while at < end {
            while ours.next_if(|(_, to, _)| *to <= at).is_some() {}
            while theirs.next_if(|(_, to, _)| *to <= at).is_some() {}
            let look = |piece: Option<&(u64, u64, u64)>| match piece {
                Some((from, to, value)) if *from <= at => (*value, *to),
                Some((from, ..)) => (0, *from),
                None => (0, end),
            };
            let ((a, until), (b, others_until)) = (look(ours.peek()), look(theirs.peek()));
            let next = until.min(others_until).min(end);
            let span = (next - at) as f64;
            both += a.min(b) as f64 * span;
            either += a.max(b) as f64 * span;
            at = next;
        }
        if either == 0.0 { 1.0 } else { both / either }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Series {
        /// The series of quantities that each last for a while: from, to, amount.
        fn of_spans(spans: impl IntoIterator<Item = (u64, u64, u64)>) -> Self {
            let mut changes: Vec<(u64, bool, u64)> = Vec::new();
            for (from, to, weight) in spans {
                changes.extend([(from, true, weight), (to, false, weight)]);
            }
            // At the same instant, ends are counted before starts.
            changes.sort_unstable();
            let mut series = Self::default();
            for (at, more, by) in changes {
                series.change(at, by, more);
            }
            series
        }
    }

    fn series(spans: &[(u64, u64, u64)]) -> Series {
        Series::of_spans(spans.iter().copied())
    }

    #[test]
    fn the_mean_weighs_time() {
        let running = series(&[(0, 10, 4), (5, 10, 2)]);
        assert!((running.mean(10) - 5.0).abs() < 1e-9);
        assert!((running.mean(20) - 2.5).abs() < 1e-9);
        assert_eq!((running.most(), running.now()), (6, 0));
    }

    #[test]
    fn what_ends_and_begins_at_one_moment_does_not_overlap() {
        assert_eq!(series(&[(0, 10, 1), (10, 20, 1)]).most(), 1);
    }

    #[test]
    fn a_column_has_the_most_of_its_time() {
        let running = series(&[(0, 10, 1), (12, 13, 5), (30, 40, 2)]);
        assert_eq!(running.columns(40, 4), [1, 5, 0, 2]);
        assert_eq!(Series::default().columns(0, 2), [0, 0]);
        // A change on a border counts in the part after it.
        assert_eq!(series(&[(0, 20, 3)]).columns(40, 4), [3, 3, 0, 0]);
    }

    #[test]
    fn overlap_tells_how_alike_two_series_are() {
        let a = series(&[(0, 10, 2)]);
        assert!((a.overlap(&a, 10) - 1.0).abs() < 1e-9);
        assert!((a.overlap(&series(&[(10, 20, 2)]), 20)).abs() < 1e-9);
        // 2 for 10 ms against 1 from 5 ms to 15 ms: 5 of 25 in common.
        assert!((a.overlap(&series(&[(5, 15, 1)]), 15) - 0.2).abs() < 1e-9);
        assert!((Series::default().overlap(&Series::default(), 5) - 1.0).abs() < 1e-9);
    }
}
