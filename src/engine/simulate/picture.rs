//! The picture of a simulation: the running weight of each value over time, against the limit, as
//! SVG.
//!
//! The SVG is written without a drawing crate: it has only rectangles, paths and texts, needs no
//! font metrics, and is the same on every machine. The colours are those of Okabe and Ito, which
//! colour-blind readers can distinguish. Every line also has its own dash pattern.

use std::fmt::Write as _;

use super::report::{CHART_COLUMNS, Row, SimulationReport};

const WIDTH: f64 = 960.0;
const LEFT_MARGIN: f64 = 64.0;
const RIGHT_MARGIN: f64 = 24.0;
/// Height of a plot.
const PLOT_HEIGHT: f64 = 240.0;
/// Height of a row of the legend.
const LEGEND_ROW_HEIGHT: f64 = 18.0;
/// Approximate number of labels on the vertical axis.
const VERTICAL_LABELS: f64 = 5.0;
/// Entries of a row of the legend.
const LEGEND_COLUMNS: usize = 3;

/// Colour and dash pattern of the values, the most running first.
const STYLES: [(&str, &str); 7] = [
    ("#0072B2", ""),
    ("#D55E00", "9 3"),
    ("#009E73", "3 2"),
    ("#CC79A7", "12 3 3 3"),
    ("#E69F00", "6 2 2 2 2 2"),
    ("#56B4E9", "1 2"),
    ("#7F4F24", "15 4"),
];

/// The picture of `panels`, one below the other, each with its title. All share one scale.
pub fn draw(panels: &[(&str, &SimulationReport)]) -> String {
    let seconds = panels.iter().map(|(_, report)| report.seconds).fold(0.001, f64::max);
    let tallest = panels.iter().flat_map(|(_, report)| {
        let drawn = drawn(report).into_iter().map(|(_, row)| row);
        drawn.chain([&report.all]).flat_map(|row| [row.most_running, row.limit.unwrap_or(0)])
    });
    let tallest = tallest.max().unwrap_or(0).max(1) as f64 * 1.05;
    let step = nice(tallest / VERTICAL_LABELS);
    let most = (tallest / step).ceil() * step;
    let mut body = String::new();
    let mut top = 12.0;
    for (title, report) in panels {
        top = Panel { report, seconds, most, top }.draw(&mut body, title);
    }
    let height = top + 8.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\" role=\"img\">\n\
         <title>Running weight over time</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

/// The values with their own line, the most running first, each with its index in the report.
fn drawn(report: &SimulationReport) -> Vec<(usize, &Row)> {
    let mut rows: Vec<(usize, &Row)> = report.groups.iter().enumerate().collect();
    rows.sort_by(|(_, a), (_, b)| b.mean_running.total_cmp(&a.mean_running));
    rows.truncate(STYLES.len());
    // Among those the order of the report applies, so that two panels use the same colour for a
    // value.
    rows.sort_by_key(|(index, _)| *index);
    rows
}

struct Panel<'a> {
    report: &'a SimulationReport,
    seconds: f64,
    most: f64,
    top: f64,
}

impl Panel<'_> {
    /// Draws the panel. Returns where the next one starts.
    fn draw(&self, body: &mut String, title: &str) -> f64 {
        let rows = drawn(self.report);
        let entries = self.legend(&rows);
        text(
            body,
            LEFT_MARGIN,
            self.top + 12.0,
            "start",
            "font-size=\"14\" font-weight=\"bold\"",
            title,
        );
        let legend = self.top + 32.0;
        for (index, (stroke, label)) in entries.iter().enumerate() {
            let x = LEFT_MARGIN
                + (index % LEGEND_COLUMNS) as f64 * (WIDTH - LEFT_MARGIN - RIGHT_MARGIN)
                    / LEGEND_COLUMNS as f64;
            let y = legend + (index / LEGEND_COLUMNS) as f64 * LEGEND_ROW_HEIGHT;
            let _ =
                writeln!(body, "<path d=\"M{x:.0} {:.0}h30\" fill=\"none\" {stroke}/>", y - 4.0);
            text(body, x + 36.0, y, "start", "", label);
        }
        let plot = legend + entries.len().div_ceil(LEGEND_COLUMNS) as f64 * LEGEND_ROW_HEIGHT;
        self.axes(body, plot);
        for ((index, row), (colour, dashes)) in rows.iter().zip(STYLES) {
            if let Some(limit) = row.limit {
                self.limit(body, plot, limit, colour);
            }
            let stroke =
                format!("stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"");
            self.line(body, plot, &self.report.chart.groups[*index], &stroke);
        }
        if let Some(limit) = self.report.all.limit {
            self.limit(body, plot, limit, "#000");
        }
        if rows.len() > 1 {
            self.line(body, plot, &self.report.chart.all, ALL);
        }
        plot + PLOT_HEIGHT + 52.0
    }

    /// The entries of the legend: the stroke and the label of each line.
    fn legend(&self, rows: &[(usize, &Row)]) -> Vec<(String, String)> {
        let mut entries: Vec<(String, String)> = Vec::new();
        for ((_, row), (colour, dashes)) in rows.iter().zip(STYLES) {
            let limit = row.limit.map_or_else(String::new, |limit| format!(" of {limit}"));
            let label = format!(
                "{}: most {}{limit}, mean {:.1}",
                row.value, row.most_running, row.mean_running
            );
            entries.push((
                format!("stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\""),
                label,
            ));
        }
        let all = &self.report.all;
        let limit = all.limit.map_or_else(String::new, |limit| format!(" of {limit}"));
        entries.push((
            ALL.to_owned(),
            format!("all: most {}{limit}, mean {:.1}", all.most_running, all.mean_running),
        ));
        let more = self.report.groups.len() - rows.len();
        if more > 0 {
            entries.push((
                "stroke=\"none\"".to_owned(),
                format!("{more} more values are only in `all`"),
            ));
        }
        entries
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT_MARGIN + seconds / self.seconds * (WIDTH - LEFT_MARGIN - RIGHT_MARGIN)
    }

    fn y(&self, plot: f64, value: f64) -> f64 {
        plot + PLOT_HEIGHT * (1.0 - value / self.most)
    }

    fn axes(&self, body: &mut String, plot: f64) {
        let (floor, right) = (plot + PLOT_HEIGHT, WIDTH - RIGHT_MARGIN);
        for value in ticks(self.most, VERTICAL_LABELS) {
            let y = self.y(plot, value);
            let _ = writeln!(body, "<path d=\"M{LEFT_MARGIN} {y:.1}H{right}\" stroke=\"#ddd\"/>");
            text(body, LEFT_MARGIN - 6.0, y + 4.0, "end", "", &value.to_string());
        }
        for seconds in ticks(self.seconds, 10.0) {
            let x = self.x(seconds);
            let _ = writeln!(body, "<path d=\"M{x:.1} {floor}v5\" stroke=\"#222\"/>");
            text(
                body,
                x,
                floor + 18.0,
                "middle",
                "",
                &format!("{}", (seconds * 1000.0).round() / 1000.0),
            );
        }
        let _ = writeln!(
            body,
            "<path d=\"M{LEFT_MARGIN} {plot}V{floor}H{right}\" fill=\"none\" stroke=\"#222\"/>"
        );
        text(body, f64::midpoint(LEFT_MARGIN, right), floor + 36.0, "middle", "", "seconds");
        let middle = plot + PLOT_HEIGHT / 2.0;
        text(
            body,
            0.0,
            0.0,
            "middle",
            &format!("transform=\"translate(14 {middle}) rotate(-90)\""),
            &format!("running, by {}", self.report.by),
        );
    }

    /// A step line; equal values form one segment.
    fn line(&self, body: &mut String, plot: f64, columns: &[u64], stroke: &str) {
        let column = self.report.seconds / CHART_COLUMNS as f64;
        let mut path = String::new();
        let mut last = None;
        for (index, value) in columns.iter().enumerate() {
            if last != Some(value) {
                let (x, y) = (self.x(index as f64 * column), self.y(plot, *value as f64));
                let _ = if last.is_none() {
                    write!(path, "M{x:.1} {y:.1}")
                } else {
                    write!(path, "H{x:.1}V{y:.1}")
                };
            }
            last = Some(value);
        }
        let _ = writeln!(
            body,
            "<path d=\"{path}H{:.1}\" fill=\"none\" {stroke}/>",
            self.x(self.report.seconds)
        );
    }

    fn limit(&self, body: &mut String, plot: f64, limit: u64, colour: &str) {
        let (y, right) = (self.y(plot, limit as f64), WIDTH - RIGHT_MARGIN);
        let _ = writeln!(
            body,
            "<path d=\"M{LEFT_MARGIN} {y:.1}H{right}\" stroke=\"{colour}\" \
             stroke-width=\"1\" stroke-dasharray=\"2 4\"/>"
        );
        text(
            body,
            right - 2.0,
            y - 3.0,
            "end",
            &format!("fill=\"{colour}\" font-size=\"11\""),
            &format!("limit {limit}"),
        );
    }
}

const ALL: &str = "stroke=\"#000\" stroke-width=\"1\" stroke-opacity=\"0.7\"";

fn text(body: &mut String, x: f64, y: f64, anchor: &str, more: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let words: String = words.chars().filter(|letter| !letter.is_control()).collect();
    let gap = if more.is_empty() { "" } else { " " };
    let _ = writeln!(
        body,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{gap}{more}>{words}</text>"
    );
}

/// The least of 1, 2, 2.5, 5 times a power of ten that is not below `value`.
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|step| *step >= value * 0.999_999)
        .unwrap_or(value)
}

/// Round numbers from 0 to `most`, about `count` of them.
fn ticks(most: f64, count: f64) -> impl Iterator<Item = f64> {
    let step = nice(most / count);
    (0..=1000)
        .map(move |index| f64::from(index) * step)
        .take_while(move |value| *value <= most * 1.000_001)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(ticks(100.0, 5.0).collect::<Vec<_>>(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(7.0, 5.0).collect::<Vec<_>>(), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(
            [42.0, 105.0, 1.0, 0.003].map(nice).map(|number| number.to_string()),
            ["50", "200", "1", "0.005"]
        );
    }
}
