//! The random draws of a scenario, from its seed.
//!
//! The one thing to know: a draw depends on its purpose (the attributes of this job, the length of
//! that attempt), not on the order of the simulation. Two policies simulated on one scenario get
//! the same jobs, and each job takes as long in both.

use std::collections::BTreeMap;

use super::scenario::{Drawn, Span};

/// A sequence of draws (`SplitMix64`): the same for the same seed and position in every version of
/// this program.
#[derive(Clone, Debug)]
pub(super) struct Draw(u64);

/// The purpose of a sequence.
#[derive(Clone, Copy)]
pub(super) enum For {
    /// The arrivals of a stream.
    Arrivals = 1,
    /// The attributes of a stream's jobs.
    Attributes = 2,
    /// An attempt.
    Attempt = 3,
}

impl Draw {
    /// The sequence of `seed` for `what`, at the position `index` and `further`.
    pub fn new(seed: u64, what: For, index: u64, further: u64) -> Self {
        let parts = [what as u64, index, further];
        Self(
            parts
                .into_iter()
                .fold(seed, |state, part| mixed(state ^ mixed(part.wrapping_add(GOLDEN)))),
        )
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mixed(self.0)
    }

    /// A number from 0 to 1, without 1.
    pub fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An exponentially distributed span with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.fraction()).ln()
    }

    /// A length drawn from `span`, in seconds.
    pub fn span(&mut self, span: Span) -> f64 {
        match span {
            Span::Fixed(seconds) => seconds,
            Span::Drawn(Drawn::Uniform([least, most])) => least + (most - least) * self.fraction(),
            Span::Drawn(Drawn::Exponential(mean)) => self.exponential(mean),
        }
    }

    /// One of the texts, each with a probability in proportion to its weight.
    pub fn pick<'a>(&mut self, weights: &'a BTreeMap<String, f64>) -> &'a str {
        let sum: f64 = weights.values().sum();
        let mut left = self.fraction() * sum;
        for (text, weight) in weights {
            left -= weight;
            if left < 0.0 {
                return text;
            }
        }
        // A rounding error selects the last text that has a weight.
        weights.iter().rev().find(|(_, weight)| **weight > 0.0).map_or("", |(text, _)| text)
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(span: Span) -> f64 {
        (0..20_000).map(|index| Draw::new(7, For::Attempt, index, 1).span(span)).sum::<f64>()
            / 20_000.0
    }

    #[test]
    fn spans_have_their_stated_mean() {
        assert!((mean(Span::Fixed(3.0)) - 3.0).abs() < 1e-9);
        assert!((mean(Span::Drawn(Drawn::Uniform([2.0, 6.0]))) - 4.0).abs() < 0.05);
        assert!((mean(Span::Drawn(Drawn::Exponential(5.0))) - 5.0).abs() < 0.15);
    }

    #[test]
    fn texts_are_picked_in_proportion_to_their_weights() {
        let weights: BTreeMap<String, f64> = [("a", 3.0), ("b", 1.0), ("never", 0.0)]
            .map(|(text, weight)| (text.to_owned(), weight))
            .into();
        let mut draw = Draw::new(1, For::Attributes, 0, 0);
        let mut counts = BTreeMap::<&str, u32>::new();
        for _ in 0..10_000 {
            *counts.entry(draw.pick(&weights)).or_default() += 1;
        }
        assert!((7300..7700).contains(&counts["a"]) && !counts.contains_key("never"), "{counts:?}");
    }

    #[test]
    fn a_draw_depends_only_on_its_position() {
        let drawn =
            |index, attempt| Draw::new(1, For::Attempt, index, attempt).fraction().to_bits();
        assert_eq!(drawn(1, 1), drawn(1, 1));
        assert!(drawn(1, 1) != drawn(1, 2) && drawn(1, 1) != drawn(2, 1));
    }
}
