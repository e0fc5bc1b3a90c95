//! A figure: what was reached, beside what the machine allows, and what was to be reached.

use serde::Serialize;

use super::super::show::{self, OutputStyle};

/// Which way a figure is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Better {
    Higher,
    Lower,
}

/// One figure of a measure.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    /// What was measured.
    pub what: String,
    /// In what.
    pub unit: &'static str,
    /// Which way is good.
    pub better: Better,
    /// What tidegate reached.
    pub ours: f64,
    /// What was measured beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<Beside>,
    /// What is to be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reach: Option<f64>,
    /// Cores that other programs used meanwhile.
    pub others_cores: f64,
}

/// What a figure is compared with.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Beside {
    /// What it is.
    pub what: &'static str,
    /// What it reached in the same run.
    pub value: f64,
    /// The part of it that is to be reached, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reach: Option<f64>,
}

impl Figure {
    /// A figure of which more is better.
    pub(super) fn rate(what: impl Into<String>, unit: &'static str, ours: f64) -> Self {
        Self {
            what: what.into(),
            unit,
            better: Better::Higher,
            ours,
            beside: None,
            reach: None,
            others_cores: 0.0,
        }
    }

    /// A figure of which less is better.
    pub(super) fn cost(what: impl Into<String>, unit: &'static str, ours: f64) -> Self {
        Self { better: Better::Lower, ..Self::rate(what, unit, ours) }
    }

    /// What is to be reached.
    pub(super) fn reach(self, reach: f64) -> Self {
        Self { reach: Some(reach), ..self }
    }

    /// What was measured beside it, of which no part is asked.
    pub(super) fn beside(self, what: &'static str, value: f64) -> Self {
        Self { beside: Some(Beside { what, value, reach: None }), ..self }
    }

    /// What was measured beside it, and the part of it that is to be reached.
    pub(super) fn share(self, what: &'static str, value: f64, reach: f64) -> Self {
        Self { beside: Some(Beside { what, value, reach: Some(reach) }), ..self }
    }

    /// The cores that others used meanwhile.
    pub(super) fn among(self, others_cores: f64) -> Self {
        Self { others_cores, ..self }
    }

    /// The better of two runs.
    pub(super) fn better(self, other: Self) -> Self {
        let first = match self.better {
            Better::Higher => self.ours >= other.ours,
            Better::Lower => self.ours <= other.ours,
        };
        if first { self } else { other }
    }

    /// The part of what was beside it; none if nothing was.
    fn part(&self) -> Option<f64> {
        self.beside.filter(|beside| beside.value > 0.0).map(|beside| self.ours / beside.value)
    }

    /// Whether what is to be reached was; none if nothing is.
    fn reached(&self) -> Option<bool> {
        let alone = self.reach.map(|reach| match self.better {
            Better::Higher => self.ours >= reach,
            Better::Lower => self.ours <= reach,
        });
        let share =
            self.beside.and_then(|beside| beside.reach).zip(self.part()).map(|(reach, part)| {
                match self.better {
                    Better::Higher => part >= reach,
                    Better::Lower => part <= reach,
                }
            });
        alone.into_iter().chain(share).reduce(|one, other| one && other)
    }
}

/// The figures for people.
pub(super) fn table(look: OutputStyle, figures: &[Figure]) -> String {
    let rows = figures.iter().map(|figure| {
        let asked = [
            figure.reach.map(number),
            figure
                .beside
                .and_then(|beside| beside.reach)
                .map(|reach| format!("{:.0} %", reach * 100.0)),
        ];
        let asked: Vec<String> = asked.into_iter().flatten().collect();
        [
            figure.what.clone(),
            format!("{} {}", number(figure.ours), figure.unit),
            figure.beside.map_or_else(show::dash, |beside| {
                format!("{} {}", number(beside.value), beside.what)
            }),
            figure.part().map_or_else(show::dash, |part| format!("{:.0} %", part * 100.0)),
            if asked.is_empty() { show::dash() } else { asked.join(" and ") },
            figure
                .reached()
                .map_or_else(show::dash, |reached| if reached { "yes" } else { "no" }.to_owned()),
            format!("{:.1}", figure.others_cores),
        ]
    });
    show::table(
        look,
        ["measure", "tidegate", "beside it", "part", "to reach", "reached", "cores of others"],
        rows,
    )
}

/// A number with as many digits as say something.
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
    fn both_what_is_asked_alone_and_the_part_must_be_reached() {
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
        assert_eq!(Figure::cost("p99", "ms", 20.0).beside("a bare handler", 3.0).reached(), None);
    }

    #[test]
    fn the_better_run_of_two_is_kept_whole() {
        let cost = |ours, beside| Figure::cost("p99", "ms", ours).beside("bare", beside);
        let kept = cost(2.0, 1.0).better(cost(3.0, 0.5));
        assert_eq!(
            (kept.ours.round() as u64, kept.beside.map(|beside| beside.value.round() as u64)),
            (2, Some(1))
        );
        assert_eq!(
            Figure::rate("x", "/s", 2.0).better(Figure::rate("x", "/s", 3.0)).ours.round() as u64,
            3
        );
    }
}
