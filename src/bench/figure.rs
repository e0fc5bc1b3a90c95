//! A figure of a measurement, with its baseline and its goal.

use serde::Serialize;

use crate::cli::output::{self, OutputStyle};

/// The direction in which a figure improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// One figure of a measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    /// The name of the figure.
    pub what: String,
    /// The unit.
    pub unit: &'static str,
    /// The direction in which it improves.
    pub better: Better,
    /// The value of tidegate.
    pub ours: f64,
    /// The baseline of the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Baseline>,
    /// The lowest and the highest share of the baseline in several runs. Each share is that of one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<[f64; 2]>,
    /// Sets the goal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reach: Option<f64>,
    /// Cores that other programs used during the measurement.
    pub others_cores: f64,
}

/// The comparison of a figure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Baseline {
    /// The name of the baseline.
    pub what: String,
    /// Its value in the same run.
    pub value: f64,
    /// The share of it that is the goal, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reach: Option<f64>,
}

impl Figure {
    /// Returns a figure whose larger values are better.
    pub(super) fn rate(what: impl Into<String>, unit: &'static str, ours: f64) -> Self {
        Self {
            what: what.into(),
            unit,
            better: Better::Higher,
            ours,
            baseline: None,
            shares: None,
            reach: None,
            others_cores: 0.0,
        }
    }

    /// Returns a figure whose smaller values are better.
    pub(super) fn cost(what: impl Into<String>, unit: &'static str, ours: f64) -> Self {
        Self { better: Better::Lower, ..Self::rate(what, unit, ours) }
    }

    /// Sets the goal.
    pub(super) fn reach(self, reach: f64) -> Self {
        Self { reach: Some(reach), ..self }
    }

    /// Sets the baseline without a goal.
    pub(super) fn baseline(self, what: impl Into<String>, value: f64) -> Self {
        Self { baseline: Some(Baseline { what: what.into(), value, reach: None }), ..self }
    }

    /// Sets the baseline, and the share of it that is the goal.
    pub(super) fn share(self, what: impl Into<String>, value: f64, reach: f64) -> Self {
        Self { baseline: Some(Baseline { what: what.into(), value, reach: Some(reach) }), ..self }
    }

    /// Sets the cores that other programs used during the measurement.
    pub(super) fn among(self, others_cores: f64) -> Self {
        Self { others_cores, ..self }
    }

    /// Returns the better of two runs, with the shares of both.
    pub(super) fn better(self, other: Self) -> Self {
        let first = match self.better {
            Better::Higher => self.ours >= other.ours,
            Better::Lower => self.ours <= other.ours,
        };
        let shares = self.spread().into_iter().chain(other.spread());
        let shares =
            shares.reduce(|[low, high], [lowest, highest]| [low.min(lowest), high.max(highest)]);
        Self { shares, ..if first { self } else { other } }
    }

    /// Returns the lowest and the highest share of its runs, if there is a baseline.
    fn spread(&self) -> Option<[f64; 2]> {
        self.shares.or_else(|| self.share_of_baseline().map(|part| [part, part]))
    }

    /// Returns the share of the baseline, if there is one.
    fn share_of_baseline(&self) -> Option<f64> {
        self.baseline
            .as_ref()
            .filter(|baseline| baseline.value > 0.0)
            .map(|baseline| self.ours / baseline.value)
    }

    /// Returns whether the goals are reached, if there are any.
    fn reached(&self) -> Option<bool> {
        let alone = self.reach.map(|reach| match self.better {
            Better::Higher => self.ours >= reach,
            Better::Lower => self.ours <= reach,
        });
        let goal = self.baseline.as_ref().and_then(|baseline| baseline.reach);
        let share = goal.zip(self.share_of_baseline()).map(|(reach, part)| match self.better {
            Better::Higher => part >= reach,
            Better::Lower => part <= reach,
        });
        alone.into_iter().chain(share).reduce(|one, other| one && other)
    }
}

/// Returns the figures as a table.
pub(crate) fn table(look: OutputStyle, figures: &[Figure]) -> String {
    let rows = figures.iter().map(|figure| {
        let goals = [
            figure.reach.map(number),
            figure
                .baseline
                .as_ref()
                .and_then(|baseline| baseline.reach)
                .map(|reach| format!("{:.0} %", reach * 100.0)),
        ];
        let goals: Vec<String> = goals.into_iter().flatten().collect();
        [
            figure.what.clone(),
            format!("{} {}", number(figure.ours), figure.unit),
            figure.baseline.as_ref().map_or_else(output::dash, |baseline| {
                format!("{} {}", number(baseline.value), baseline.what)
            }),
            figure.share_of_baseline().map_or_else(output::dash, |part| match figure.shares {
                Some([low, high]) => {
                    format!("{:.0} % ({:.0} to {:.0})", part * 100.0, low * 100.0, high * 100.0)
                }
                None => format!("{:.0} %", part * 100.0),
            }),
            if goals.is_empty() { output::dash() } else { goals.join(" and ") },
            figure
                .reached()
                .map_or_else(output::dash, |reached| if reached { "yes" } else { "no" }.to_owned()),
            format!("{:.1}", figure.others_cores),
        ]
    });
    output::table(
        look,
        ["measure", "tidegate", "baseline", "share", "goal", "reached", "other cores"],
        rows,
    )
}

/// Returns a number with its significant digits, grouped.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0..10.0 => 2,
        10.0..1000.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0
            && (whole.len() - place) % 3 == 0
            && whole.as_bytes()[place - 1].is_ascii_digit()
        {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_grouped_and_has_few_digits() {
        assert_eq!(
            [number(0.4567), number(38.25), number(15_000.4), number(1_234_567.0)],
            ["0.46", "38.2", "15,000", "1,234,567"]
        );
    }

    #[test]
    fn a_figure_must_reach_its_goal_and_its_share() {
        let figure = |ours| {
            Figure::rate("enqueue", "jobs/s", ours).reach(15_000.0).share(
                "a bare handler",
                40_000.0,
                0.5,
            )
        };
        assert_eq!(
            [figure(16_000.0).reached(), figure(14_000.0).reached(), figure(21_000.0).reached()],
            [Some(false), Some(false), Some(true)]
        );
        assert_eq!(Figure::cost("memory", "MB", 20.0).reach(30.0).reached(), Some(true));
        assert_eq!(Figure::cost("p99", "ms", 20.0).baseline("a bare handler", 3.0).reached(), None);
    }

    #[test]
    fn the_best_of_three_runs_has_the_spread_of_their_shares() {
        let rate = |ours, bare| Figure::rate("x", "/s", ours).share("bare", bare, 0.5);
        assert!(rate(50.0, 100.0).shares.is_none(), "one run has none");
        // The best run has neither the lowest nor the highest share.
        let best = rate(50.0, 100.0).better(rate(60.0, 80.0)).better(rate(70.0, 100.0));
        let percent = |part: f64| (part * 100.0).round() as u64;
        assert_eq!(best.shares.map(|shares| shares.map(percent)), Some([50, 75]));
        let text = table(OutputStyle::default(), &[best]);
        assert!(text.contains("70 % (50 to 75)"), "{text}");
        assert!(Figure::rate("x", "/s", 2.0).better(Figure::rate("x", "/s", 3.0)).shares.is_none());
    }

    #[test]
    fn the_better_of_two_runs_is_kept_whole() {
        let cost = |ours, baseline| Figure::cost("p99", "ms", ours).baseline("bare", baseline);
        let kept = cost(2.0, 1.0).better(cost(3.0, 0.5));
        assert_eq!(
            (kept.ours.round() as u64, kept.baseline.map(|baseline| baseline.value.round() as u64)),
            (2, Some(1))
        );
        assert_eq!(
            Figure::rate("x", "/s", 2.0).better(Figure::rate("x", "/s", 3.0)).ours.round() as u64,
            3
        );
    }
}
