//! What `tidegate top` shows, and what its keys mean. Pure.

use std::{fmt::Write as _, time::Duration};

use crate::cli::{
    output::{self, OutputStyle},
    safe::line,
};
use tidegate_api::{HeldJobs, OverviewMinute, QueueOverview};
use tidegate_core::time::Timestamp;

/// Texts of the screen have no color and no line breaks: the screen cuts their lines.
pub(super) const LOOK: OutputStyle = OutputStyle { color: false, width: None };
/// How many characters the picture of an hour has.
const HOUR_COLUMNS: usize = 20;
/// The heights of a picture.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Lines above the queues: the title, and the names of the columns.
const HEAD_LINES: usize = 2;

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Pause,
    Explain,
    Open,
    Yes,
    Back,
    Quit,
    /// The size of the terminal has changed, or a key without a meaning.
    Other,
}

/// What the screen needs after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Nothing,
    /// Why this queue is idle or slow.
    Explain(String),
    /// The errors and the jobs of this queue.
    Open(String),
    /// Pause this queue, or resume it.
    SetPaused(String, bool),
    Quit,
}

/// What is shown.
#[derive(Debug)]
enum View {
    Queues,
    /// A question before a queue is paused or resumed.
    Question {
        queue: String,
        pause: bool,
    },
    /// A text about a queue, from this line on.
    Text {
        title: String,
        lines: Vec<String>,
        first: usize,
    },
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct Screen {
    server: String,
    queues: Vec<QueueOverview>,
    /// The name of the selected queue, so that it stays selected when others come and go.
    selected: Option<String>,
    view: View,
    /// What the last key did, or why the last read failed.
    note: String,
    read_at: Option<Timestamp>,
}

impl Screen {
    /// A screen without queues.
    pub fn new(server: String) -> Self {
        let (queues, view) = (Vec::new(), View::Queues);
        Self { server, queues, selected: None, view, note: String::new(), read_at: None }
    }

    /// Shows these queues from now on. After a failure the queues read before stay, with the
    /// reason.
    pub fn refresh(&mut self, queues: Result<Vec<QueueOverview>, String>, now: Timestamp) {
        match queues {
            Ok(queues) => {
                (self.queues, self.read_at) = (queues, Some(now));
                self.note.clear();
            }
            Err(reason) => self.note = reason,
        }
        if self.selected_index().is_none() {
            self.selected = self.queues.first().map(|queue| queue.name.to_string());
        }
    }

    /// Shows a line at the end of the screen until the next read.
    pub fn note(&mut self, note: String) {
        self.note = note;
    }

    /// Shows a text in place of the queues.
    pub fn show(&mut self, title: String, text: &str) {
        let lines = text.lines().map(line).collect();
        self.view = View::Text { title, lines, first: 0 };
    }

    fn selected_index(&self) -> Option<usize> {
        let selected = self.selected.as_deref()?;
        self.queues.iter().position(|queue| queue.name.as_str() == selected)
    }

    fn select(&mut self, by: isize) {
        let Some(last) = self.queues.len().checked_sub(1) else { return };
        let next = self.selected_index().unwrap_or(0).saturating_add_signed(by).min(last);
        self.selected = Some(self.queues[next].name.to_string());
    }

    /// Handles a key.
    pub fn press(&mut self, key: Key) -> Ask {
        if key == Key::Quit {
            return Ask::Quit;
        }
        match &mut self.view {
            View::Question { queue, pause } => {
                let answer = match key {
                    Key::Yes => Ask::SetPaused(queue.clone(), *pause),
                    Key::Other => return Ask::Nothing,
                    _ => Ask::Nothing,
                };
                self.view = View::Queues;
                answer
            }
            View::Text { lines, first, .. } => {
                let by = match key {
                    Key::Up => -1,
                    Key::Down => 1,
                    Key::PageUp => -20,
                    Key::PageDown => 20,
                    Key::Back => {
                        self.view = View::Queues;
                        return Ask::Nothing;
                    }
                    _ => 0,
                };
                *first = first.saturating_add_signed(by).min(lines.len().saturating_sub(1));
                Ask::Nothing
            }
            View::Queues => self.press_in_queues(key),
        }
    }

    fn press_in_queues(&mut self, key: Key) -> Ask {
        match key {
            Key::Up => self.select(-1),
            Key::Down => self.select(1),
            Key::PageUp => self.select(-20),
            Key::PageDown => self.select(20),
            Key::Explain | Key::Open | Key::Pause => {
                let Some(queue) = self.selected_index().map(|index| &self.queues[index]) else {
                    return Ask::Nothing;
                };
                let name = queue.name.to_string();
                match key {
                    Key::Explain => return Ask::Explain(name),
                    Key::Open => return Ask::Open(name),
                    _ => self.view = View::Question { queue: name, pause: !queue.paused },
                }
            }
            Key::Yes | Key::Back | Key::Quit | Key::Other => {}
        }
        Ask::Nothing
    }

    /// The lines of a terminal of this many columns and rows.
    pub fn lines(&self, (columns, rows): (u16, u16), now: Timestamp) -> Vec<String> {
        let (columns, rows) = (usize::from(columns), usize::from(rows));
        let mut lines = match &self.view {
            View::Text { title, lines, first } => {
                let shown = rows.saturating_sub(HEAD_LINES + 1);
                let body = lines.iter().skip(*first).take(shown).cloned();
                [title.clone(), String::new()].into_iter().chain(body).collect()
            }
            View::Queues | View::Question { .. } => self.queue_lines(rows, now),
        };
        lines.resize(rows.saturating_sub(1), String::new());
        lines.push(self.last_line());
        lines.into_iter().map(|line| line.chars().take(columns).collect()).collect()
    }

    fn queue_lines(&self, rows: usize, now: Timestamp) -> Vec<String> {
        let waiting: u64 = self.queues.iter().map(|queue| phase(queue, "ready")).sum();
        let running: u64 = self.queues.iter().map(|queue| phase(queue, "running")).sum();
        let mut lines = vec![format!(
            "{}  {} queues, {waiting} jobs ready, {running} running; read {}",
            self.server,
            self.queues.len(),
            output::when_known(self.read_at, now)
        )];
        let table = table(LOOK, &self.queues, now);
        let mut table = table.lines();
        lines.extend(table.next().map(|head| format!("  {head}")));
        let selected = self.selected_index().unwrap_or(0);
        let shown = rows.saturating_sub(HEAD_LINES + 1).max(1);
        let first = (selected + 1).saturating_sub(shown);
        lines.extend(
            table.enumerate().skip(first).take(shown).map(|(index, line)| {
                format!("{} {line}", if index == selected { '>' } else { ' ' })
            }),
        );
        lines
    }

    fn last_line(&self) -> String {
        match &self.view {
            View::Question { queue, pause } => {
                let verb = if *pause { "Pause" } else { "Resume" };
                format!("{verb} {queue}? y: yes, any other key: no")
            }
            _ if !self.note.is_empty() => line(&self.note),
            View::Queues => "j/k select  enter errors and jobs  e explain  p pause  q quit".into(),
            View::Text { .. } => "j/k scroll  esc back  q quit".into(),
        }
    }
}

fn phase(queue: &QueueOverview, phase: &str) -> u64 {
    queue.phases.get(phase).copied().unwrap_or_default()
}

/// The queues as a table.
pub(super) fn table(look: OutputStyle, queues: &[QueueOverview], now: Timestamp) -> String {
    let took = |seconds: f64| {
        Duration::try_from_secs_f64(seconds).map_or_else(|_| output::dash(), output::took)
    };
    let rows = queues.iter().map(|queue| {
        let delay = queue.start_delay_seconds;
        let rates = queue.throughput;
        let limit = queue.concurrency.map_or_else(String::new, |limit| format!("/{limit}"));
        let at_least = if queue.depth_at_least { "+" } else { "" };
        [
            queue.name.to_string(),
            format!("{}{at_least}", phase(queue, "ready")),
            format!("{}{limit}", queue.running_weight),
            (phase(queue, "scheduled") + phase(queue, "retrying")).to_string(),
            rates.enqueued_per_second.map_or_else(output::dash, |rate| format!("{rate:.2}")),
            format!("{:.2}", rates.finished_per_second),
            format!("{:.2}", rates.failed_per_second),
            delay.map_or_else(output::dash, |of| format!("{} / {}", took(of.p50), took(of.p99))),
            match queue.time_to_empty_seconds {
                Some(seconds) if seconds > 0.0 => took(seconds),
                Some(_) => String::new(),
                None => output::dash(),
            },
            format!("{}/{}", queue.workers, queue.desired_workers),
            picture(&queue.minutes, now),
            held(queue),
        ]
    });
    let headers = [
        "queue",
        "ready",
        "running",
        "later",
        "in/s",
        "out/s",
        "failed/s",
        "delay p50/p99",
        "empty in",
        "workers",
        "jobs out, last hour",
        "held by",
    ];
    output::table(look, headers, rows)
}

/// What holds the jobs of a queue, the most jobs first.
fn held(queue: &QueueOverview) -> String {
    if queue.paused {
        return "paused".to_owned();
    }
    let mut held: Vec<&HeldJobs> = queue.held.iter().collect();
    held.sort_by_key(|held| std::cmp::Reverse(held.jobs));
    let mut text = String::new();
    for HeldJobs { kind, name, jobs, .. } in held.into_iter().take(3) {
        let comma = if text.is_empty() { "" } else { ", " };
        let name = name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
        let _ = write!(text, "{comma}{kind}{name} ({jobs})");
    }
    text
}

/// The jobs that ended in the hour before `now`, as bars.
fn picture(minutes: &[OverviewMinute], now: Timestamp) -> String {
    let mut columns = [0_u64; HOUR_COLUMNS];
    let hour = Duration::from_hours(1).as_millis();
    for minute in minutes {
        let age = now.since(minute.at).as_millis();
        if age < hour {
            let column = (hour - 1 - age) * HOUR_COLUMNS as u128 / hour;
            columns[column as usize] += minute.finished;
        }
    }
    let most = columns.iter().copied().max().unwrap_or_default();
    if most == 0 {
        return String::new();
    }
    let bar = |jobs: &u64| match jobs {
        0 => ' ',
        jobs => BARS[((jobs * BARS.len() as u64).div_ceil(most) as usize - 1).min(7)],
    };
    columns.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn queue(name: &str, paused: bool) -> QueueOverview {
        serde_json::from_value(json!({
            "name": name, "paused": paused, "concurrency": 5,
            "phases": {"ready": 7, "running": 2, "scheduled": 1, "retrying": 2},
            "counted_at": null, "depth_at_least": false, "running_weight": 2,
            "oldest_due_at": null, "desired_workers": 3, "workers": 1,
            "held": [{"kind": "worker", "jobs": 7, "types": {}, "since": null, "reason": "",
                "earliest_at": null}],
            "start_delay_seconds": {"p50": 0.25, "p95": 1.0, "p99": 2.0},
            "throughput": {"over_seconds": 300.0, "enqueued_per_second": 1.0,
                "finished_per_second": 0.5, "failed_per_second": 0.25},
            "time_to_empty_seconds": 90.0, "minutes": [],
        }))
        .unwrap()
    }

    fn screen() -> Screen {
        let mut screen = Screen::new("http://server/".into());
        let queues = ["a", "b", "c"].map(|name| queue(name, name == "b"));
        screen.refresh(Ok(queues.into()), Timestamp::EPOCH);
        screen
    }

    #[test]
    fn a_pause_needs_a_confirmation() {
        let mut screen = screen();
        assert_eq!(screen.press(Key::Pause), Ask::Nothing);
        assert!(screen.last_line().starts_with("Pause a?"), "{}", screen.last_line());
        assert_eq!(screen.press(Key::Other), Ask::Nothing, "the question stays");
        assert_eq!(screen.press(Key::Down), Ask::Nothing, "any other key is a no");
        assert_eq!(screen.press(Key::Yes), Ask::Nothing, "there was no question");
        screen.press(Key::Pause);
        assert_eq!(screen.press(Key::Yes), Ask::SetPaused("a".into(), true));
        screen.press(Key::Down);
        screen.press(Key::Pause);
        assert!(screen.last_line().starts_with("Resume b?"));
        assert_eq!(screen.press(Key::Yes), Ask::SetPaused("b".into(), false));
    }

    #[test]
    fn the_selection_follows_its_queue() {
        let mut screen = screen();
        screen.press(Key::Down);
        assert_eq!(screen.press(Key::Open), Ask::Open("b".into()));
        let queues = ["0", "a", "b"].map(|name| queue(name, false));
        screen.refresh(Ok(queues.into()), Timestamp::EPOCH);
        assert_eq!(screen.press(Key::Explain), Ask::Explain("b".into()));
        screen.press(Key::PageDown);
        screen.press(Key::PageUp);
        assert_eq!(screen.press(Key::Explain), Ask::Explain("0".into()));
        screen.refresh(Ok(Vec::new()), Timestamp::EPOCH);
        assert_eq!(screen.press(Key::Explain), Ask::Nothing, "there is no queue");
        assert_eq!(screen.press(Key::Quit), Ask::Quit);
    }

    #[test]
    fn a_failed_read_keeps_the_queues_and_says_why() {
        let mut screen = screen();
        screen.refresh(Err("not reachable".into()), Timestamp::EPOCH);
        let lines = screen.lines((200, 10), Timestamp::EPOCH);
        assert!(lines[2].starts_with("> a ") && lines[9] == "not reachable", "{lines:#?}");
    }

    #[test]
    fn lines_fit_the_terminal_and_show_the_selected_queue() {
        let mut screen = screen();
        let queues: Vec<_> = (10..60).map(|n| queue(&format!("q{n}"), false)).collect();
        screen.refresh(Ok(queues), Timestamp::EPOCH);
        for _ in 0..30 {
            screen.press(Key::Down);
        }
        let lines = screen.lines((40, 12), Timestamp::EPOCH);
        assert_eq!(lines.len(), 12);
        assert!(lines.iter().all(|line| line.chars().count() <= 40), "{lines:#?}");
        assert!(lines.iter().any(|line| line.starts_with("> q40 ")), "{lines:#?}");
    }

    #[test]
    fn a_text_scrolls_and_goes_back() {
        let mut screen = screen();
        let text: Vec<String> = (0..50).map(|n| format!("line {n}")).collect();
        screen.show("Title".into(), &text.join("\n"));
        screen.press(Key::Down);
        let lines = screen.lines((40, 10), Timestamp::EPOCH);
        assert_eq!((lines[0].as_str(), lines[2].as_str()), ("Title", "line 1"));
        screen.press(Key::Back);
        assert!(screen.lines((80, 10), Timestamp::EPOCH)[2].starts_with("> a "));
    }

    #[test]
    fn a_table_shows_what_matters_of_a_queue() {
        let minute = |minutes: i64, finished| OverviewMinute {
            at: Timestamp::from_millis(minutes * 60_000),
            finished,
            ..OverviewMinute::default()
        };
        let minutes = vec![minute(0, 4), minute(30, 1), minute(59, 8)];
        let queues = [QueueOverview { minutes, ..queue("mail", false) }, queue("sms", true)];
        insta::assert_snapshot!(table(LOOK, &queues, Timestamp::from_millis(3_599_999)));
    }
}
