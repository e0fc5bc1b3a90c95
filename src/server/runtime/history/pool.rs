//! Quantiles of several steps together, from the quantiles of each.

/// How many values each step has in a pool, each for the same share of its attempts.
const POOLED: u32 = 20;

/// The durations of several steps: values, each with the number of attempts that it represents.
///
/// A step keeps three quantiles. Between them, durations are taken to be spread evenly.
#[derive(Default)]
pub(super) struct Pool {
    attempts: f64,
    values: Vec<(f32, f64)>,
}

impl Pool {
    /// Adds the quantiles 0.5, 0.95 and 0.99 of a step's attempts.
    pub fn add(&mut self, attempts: u32, [p50, p95, p99]: [f32; 3]) {
        let between = |from: f32, to: f32, way: f32| from + (to - from) * way;
        self.attempts += f64::from(attempts);
        let weight = f64::from(attempts) / f64::from(POOLED);
        let value = |number: u32| match number as f32 / POOLED as f32 {
            share if share <= 0.5 => between(0.0, p50, share / 0.5),
            share if share <= 0.95 => between(p50, p95, (share - 0.5) / 0.45),
            _ => p99,
        };
        self.values.extend((1..=POOLED).map(|number| (value(number), weight)));
    }

    /// The quantiles 0.5, 0.95 and 0.99 of all attempts. None without any.
    pub fn quantiles(mut self) -> Option<[f32; 3]> {
        self.values.sort_unstable_by(|(one, _), (other, _)| one.total_cmp(other));
        let last = self.values.last()?.0;
        let quantile = |share: f64| {
            let mut waited = 0.0;
            let reaches = |(_, attempts): &&(f32, f64)| {
                waited += attempts;
                // Sums of shares are not exact.
                waited >= share * self.attempts * (1.0 - 1e-9)
            };
            self.values.iter().find(reaches).map_or(last, |(value, _)| *value)
        };
        Some([0.5, 0.95, 0.99].map(quantile))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_steps_are_weighed_by_their_attempts() {
        let quantiles = |steps: &[(u32, [f32; 3])]| {
            let mut pool = Pool::default();
            for (attempts, values) in steps {
                pool.add(*attempts, *values);
            }
            pool.quantiles()
        };
        assert_eq!(quantiles(&[]), None);
        assert_eq!(quantiles(&[(4, [1.0, 2.0, 3.0])]), Some([1.0, 2.0, 3.0]));
        let many = [(1000, [1.0, 2.0, 3.0]), (1, [60.0, 60.0, 60.0])];
        let [p50, p95, p99] = quantiles(&many).unwrap();
        assert!(p50 < 1.2 && p95 <= 3.0 && p99 <= 3.0, "{p50} {p95} {p99}");
        let few = [(10, [1.0, 2.0, 3.0]), (90, [60.0, 60.0, 60.0])];
        let [p50, p95, p99] = quantiles(&few).unwrap();
        assert!(p50 > 3.0 && (p95, p99) == (60.0, 60.0), "{p50} {p95} {p99}");
    }
}
