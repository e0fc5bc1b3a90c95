//! The log lines of a job: a head with the latest lines, and a ring of slots with those before them.
//!
//! ```text
//!   slot 0   slot 1   ...   slot 62        head
//!   4 KiB    4 KiB          4 KiB          the latest lines, up to 4 KiB
//! ```
//!
//! A head that is full goes into a slot as a whole, and only with lines that are stored already. So
//! additions at the same time fill a slot with the same lines, and the condition on the head
//! decides whose own lines follow. The others begin again with the new head.
//!
//! An attempt fills 15 slots and then its own first ones again; attempts follow one another around
//! the ring, and the last lines of one are in the first slot of the next. So an attempt has about
//! 64 KiB and a job 256 KiB, and an addition reads and writes the head only, and the slots that it
//! fills.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Map;
use sha2::{Digest as _, Sha256};

use tidegate_api::{LogLine, NewLogLine};
use tidegate_core::{event::trigger::hex, port::job_store::Record, time::Timestamp};

/// Most bytes of a line.
const MAX_LINE_BYTES: usize = 4 << 10;
/// Most bytes of a line's fields.
const MAX_FIELDS_BYTES: usize = 2 << 10;
/// What a line has in addition to its text and fields, in bytes.
const LINE_OVERHEAD: usize = 160;
/// How many additions are recognised when they are repeated.
const MAX_DIGESTS: usize = 4;
/// Most bytes of the head, and of a slot.
const SLOT_BYTES: usize = 4 << 10;
/// How many slots an attempt fills.
const SLOTS_OF_ATTEMPT: u32 = 15;
/// Most bytes of an addition that are kept: more than the slots of an attempt and the head have.
const MAX_ADDED_BYTES: usize = (SLOTS_OF_ATTEMPT as usize + 2) * SLOT_BYTES;
/// How many slots a job has.
pub(super) const SLOTS: u32 = 63;

/// The latest lines of a job, and where the next ones go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Head {
    /// The latest attempt with lines.
    attempt: u16,
    /// The number of the next line.
    pub next: u64,
    /// The first slot of that attempt.
    first_slot: u32,
    /// How often that attempt has filled a slot.
    filled: u32,
    /// Digests of the latest additions whose lines all had a time.
    added: Vec<String>,
    pub lines: Vec<LogLine>,
}

/// Slots that are filled, with their lines.
pub(super) type Filled = BTreeMap<u32, Vec<LogLine>>;

/// Lines of one attempt that are not in the ring yet.
#[derive(Clone, Debug)]
pub(super) struct Addition {
    attempt: u16,
    lines: VecDeque<LogLine>,
    /// By which a repeat is recognised; none if a line has no time.
    digest: Option<String>,
    /// Whether the ring has some of them.
    has_begun: bool,
}

impl Addition {
    /// The lines that a request of this attempt brings at `now`.
    pub fn new(attempt: u16, lines: Vec<NewLogLine>, now: Timestamp) -> Self {
        let digest = digest(attempt, &lines);
        let lines = lines.into_iter().map(|line| cut(line, attempt, now)).collect();
        Self { attempt, lines, digest, has_begun: false }
    }
}

impl Head {
    /// Takes the lines of `additions`, but for those that a repeat brings again. Additions that are
    /// done are removed. Returns the slots that this fills.
    ///
    /// If not `at_once`, it ends before a slot would get lines that are new in this step. The next
    /// step goes on once this head is stored.
    pub fn step(&mut self, additions: &mut VecDeque<Addition>, at_once: bool) -> Filled {
        let mut filled = Filled::new();
        let mut bytes: usize = self.lines.iter().map(bytes_of).sum();
        let mut has_new_lines = false;
        while let Some(addition) = additions.front_mut() {
            self.begin(addition);
            while let Some(line) = addition.lines.front() {
                let more = bytes_of(&LogLine { number: self.next, ..line.clone() });
                if bytes > 0 && bytes + more > SLOT_BYTES {
                    if has_new_lines && !at_once {
                        return filled;
                    }
                    let (slot, lines) = self.fill();
                    filled.insert(slot, lines);
                    bytes = 0;
                }
                bytes += more;
                let number = self.next;
                self.next += 1;
                let line = addition.lines.pop_front();
                self.lines.extend(line.map(|line| LogLine { number, ..line }));
                has_new_lines = true;
            }
            if let Some(digest) = additions.pop_front().and_then(|addition| addition.digest)
                && !self.added.contains(&digest)
            {
                let over = (self.added.len() + 1).saturating_sub(MAX_DIGESTS);
                self.added.drain(..over);
                self.added.push(digest);
            }
        }
        filled
    }

    /// Leaves out the lines of `addition` that are there already, and those that would be dropped
    /// at once, unless some of its lines are there from an earlier step.
    fn begin(&mut self, addition: &mut Addition) {
        let is_known = |digest: &String| self.added.contains(digest);
        if !addition.has_begun && addition.digest.as_ref().is_some_and(is_known) {
            addition.lines.clear();
            return;
        }
        // Late lines of an earlier attempt are added as well, and use no slots of their own.
        if addition.attempt > self.attempt {
            self.first_slot = (self.first_slot + self.filled.min(SLOTS_OF_ATTEMPT)) % SLOTS;
            (self.attempt, self.filled) = (addition.attempt, 0);
        }
        if mem::replace(&mut addition.has_begun, true) {
            return;
        }
        if addition.digest.is_some() {
            let known = self.known(addition.lines.make_contiguous());
            addition.lines.drain(..known);
        }
        let mut kept = 0;
        let fits = addition.lines.iter().rev().take_while(|line| {
            kept += bytes_of(line);
            kept <= MAX_ADDED_BYTES
        });
        let dropped = addition.lines.len() - fits.count();
        addition.lines.drain(..dropped);
        self.next += dropped as u64;
    }

    /// How many of the first of `lines` are there already: a worker whose request had no answer
    /// sends its lines again, with further ones behind them.
    fn known(&self, lines: &[LogLine]) -> usize {
        let is_same = |(old, new): (&LogLine, &LogLine)| {
            let new = LogLine { number: old.number, ..new.clone() };
            *old == new
        };
        let tails = (0..self.lines.len()).map(|from| &self.lines[from..]);
        let known = tails.clone().find(|tail| tail.iter().zip(lines).all(is_same));
        known.map_or(0, |tail| tail.len().min(lines.len()))
    }

    /// Moves the lines to the attempt's next slot.
    fn fill(&mut self) -> (u32, Vec<LogLine>) {
        let slot = (self.first_slot + self.filled % SLOTS_OF_ATTEMPT) % SLOTS;
        self.filled += 1;
        (slot, mem::take(&mut self.lines))
    }
}

/// What is the same for a repeat of these lines, and for no others: none if a line has no time.
fn digest(attempt: u16, lines: &[NewLogLine]) -> Option<String> {
    lines.iter().all(|line| line.time.is_some()).then(|| {
        let json = serde_json::to_vec(&(attempt, lines)).unwrap_or_default();
        hex(&Sha256::digest(json)[..16])
    })
}

/// The bytes of `value` in a record.
fn bytes_in_json(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |json| json.len())
}

/// The bytes of a line in a record, with the comma.
fn bytes_of(line: &LogLine) -> usize {
    bytes_in_json(line) + 1
}

/// The line as it is kept, without its number: with at most [`MAX_LINE_BYTES`].
fn cut(line: NewLogLine, attempt: u16, now: Timestamp) -> LogLine {
    let NewLogLine { time, level, text, fields } = line;
    let time = time.unwrap_or(now);
    let mut kept = LogLine { number: 0, attempt, time, level, text, fields, cut: false };
    if bytes_in_json(&kept.fields) > MAX_FIELDS_BYTES {
        kept.fields = Map::new();
        kept.cut = true;
    }
    let text = mem::take(&mut kept.text);
    let mut left = MAX_LINE_BYTES - LINE_OVERHEAD - bytes_in_json(&kept.fields);
    let end = text.char_indices().find(|(_, char)| {
        let bytes = match char {
            '"' | '\\' | '\n' | '\r' | '\t' => 2,
            control if control.is_ascii_control() => 6,
            other => other.len_utf8(),
        };
        let fits = bytes <= left;
        left = left.saturating_sub(bytes);
        !fits
    });
    match end {
        Some((end, _)) => {
            text[..end].clone_into(&mut kept.text);
            kept.cut = true;
        }
        None => kept.text = text,
    }
    kept
}

/// The content of a record; the default if there is none, or if it cannot be read.
pub(super) fn read<T: DeserializeOwned + Default>(record: Option<&Record>) -> T {
    let read = record.map(|record| serde_json::from_slice(&record.bytes));
    read.transpose()
        .inspect_err(|error| tracing::error!(%error, "log lines cannot be read"))
        .ok()
        .flatten()
        .unwrap_or_default()
}

/// The lines of a page, and how many before or between them are not kept: those from number `from`
/// on, at most `limit`.
pub(super) fn page(head: Head, slots: &[Record], from: u64, limit: usize) -> (Vec<LogLine>, u64) {
    let kept = slots.iter().flat_map(|slot| read::<Vec<LogLine>>(Some(slot)));
    // A slot is written before its head.
    let kept: BTreeMap<u64, LogLine> =
        kept.chain(head.lines).map(|line| (line.number, line)).collect();
    let lines: Vec<LogLine> = kept
        .into_iter()
        .filter(|(number, _)| *number >= from)
        .take(limit)
        .map(|kept| kept.1)
        .collect();
    let next = lines.last().map_or(head.next, |line| line.number + 1);
    let dropped = next.saturating_sub(from) - lines.len() as u64;
    (lines, dropped)
}

#[cfg(test)]
mod tests {
    use tidegate_core::port::job_store::RecordKind;

    use super::*;

    fn lines(count: usize, bytes: usize) -> Vec<NewLogLine> {
        let line = |_| NewLogLine { text: "x".repeat(bytes), ..NewLogLine::default() };
        (0..count).map(line).collect()
    }

    /// The log of a job, as its records have it.
    #[derive(Default)]
    struct Log {
        head: Head,
        slots: BTreeMap<u32, Vec<LogLine>>,
    }

    impl Log {
        /// Adds lines step by step, as where a transaction is not atomic.
        fn add(&mut self, attempt: u16, lines: Vec<NewLogLine>) {
            let addition = Addition::new(attempt, lines, Timestamp::EPOCH);
            let mut at_once = self.head.clone();
            at_once.step(&mut VecDeque::from([addition.clone()]), true);
            let mut additions = VecDeque::from([addition]);
            while !additions.is_empty() {
                let stored = self.head.lines.clone();
                let filled = self.head.step(&mut additions, false);
                assert!(filled.len() <= 1 && filled.values().all(|lines| *lines == stored));
                self.slots.extend(filled);
            }
            assert_eq!(self.head, at_once);
        }

        fn page(&self, from: u64, limit: usize) -> (Vec<u64>, u64) {
            let record = |(slot, lines): (&u32, &Vec<LogLine>)| Record {
                kind: RecordKind::Log,
                name: format!("slot{slot}"),
                until: Timestamp::EPOCH,
                bytes: serde_json::to_vec(lines).unwrap(),
            };
            let slots: Vec<Record> = self.slots.iter().map(record).collect();
            let (lines, dropped) = page(self.head.clone(), &slots, from, limit);
            (lines.iter().map(|line| line.number).collect(), dropped)
        }

        fn bytes(&self, attempt: Option<u16>) -> usize {
            let all = self.slots.values().flatten().chain(&self.head.lines);
            let of = all.filter(|line| attempt.is_none_or(|attempt| attempt == line.attempt));
            of.map(bytes_of).sum()
        }
    }

    #[test]
    fn an_attempt_and_a_job_keep_their_latest_lines() {
        let mut log = Log::default();
        let text = 930;
        for attempt in 1..=9 {
            for count in [1, 7, 40, 200] {
                log.add(attempt, lines(count, text));
                let bytes = log.bytes(Some(attempt));
                assert!(bytes <= 64 << 10, "{bytes}");
            }
            assert!(log.bytes(Some(attempt)) > 60 << 10);
            assert!(log.bytes(None) <= 256 << 10);
            let (numbers, dropped) = log.page(log.head.next - 60, 100);
            assert_eq!((numbers.len(), dropped), (60, 0), "the latest are there");
        }
        assert!(log.bytes(None) > 250 << 10);
        let (numbers, dropped) = log.page(0, 10_000);
        assert_eq!(numbers.len() as u64 + dropped, 9 * 248);
        assert!(log.slots.len() == SLOTS as usize);
    }

    #[test]
    fn many_short_attempts_keep_their_lines() {
        let mut log = Log::default();
        for attempt in 1..=300 {
            log.add(attempt, lines(3, 100));
        }
        let (numbers, dropped) = log.page(0, 1000);
        assert_eq!((numbers, dropped), ((0..900).collect(), 0));
        assert_eq!(log.page(140, 4), ((140..144).collect(), 0));
        assert_eq!(log.page(900, 4), (Vec::new(), 0));
    }

    #[test]
    fn what_an_attempt_dropped_is_a_gap() {
        let mut log = Log::default();
        log.add(1, lines(2, 3900));
        log.add(2, lines(100, 3900));
        let (numbers, dropped) = log.page(0, 1000);
        assert_eq!((&numbers[..3], numbers.len(), dropped), (&[0, 86, 87][..], 17, 85));
        assert_eq!(log.page(0, 2), (vec![0, 86], 85));
        assert_eq!(log.page(2, 1), (vec![86], 84));
    }

    #[test]
    fn late_lines_of_an_earlier_attempt_take_no_slots() {
        let mut log = Log::default();
        for _ in 0..100 {
            log.add(2, lines(1, 10));
            log.add(1, lines(1, 10));
        }
        let (numbers, dropped) = log.page(0, 1000);
        assert_eq!((numbers.len(), dropped, log.head.first_slot), (200, 0, 0));
    }

    #[test]
    fn a_repeat_of_lines_with_times_is_added_once() {
        let mut log = Log::default();
        let timed = |seconds: i64| {
            let time = Some(Timestamp::from_millis(seconds * 1000));
            vec![NewLogLine { time, text: "a".into(), ..NewLogLine::default() }]
        };
        for batch in [timed(1), timed(1), timed(2), lines(1, 1), timed(1), lines(1, 1)] {
            log.add(1, batch);
        }
        assert_eq!(log.head.next, 4);
        // The answer to the request with the first of them was lost.
        log.add(2, timed(5));
        log.add(2, [timed(5), timed(6)].concat());
        assert_eq!(log.head.next, 6);
        log.add(2, lines(1, 1));
        assert_eq!(log.head.next, 7);
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let fields: Map<_, _> = [("k".to_owned(), "v".repeat(3000).into())].into_iter().collect();
        for text in ["é".repeat(MAX_LINE_BYTES), "\u{1}".repeat(5000), "\"".repeat(5000)] {
            let long = NewLogLine { text, fields: fields.clone(), ..NewLogLine::default() };
            let kept = cut(long, 1, Timestamp::EPOCH);
            let bytes = bytes_of(&LogLine { number: u64::MAX, ..kept.clone() });
            assert!(kept.cut && kept.fields.is_empty(), "{}", kept.text);
            assert!((MAX_LINE_BYTES - 100..=MAX_LINE_BYTES).contains(&bytes), "{bytes}");
        }
        let short = NewLogLine { text: "é\n".into(), ..NewLogLine::default() };
        let kept = cut(short, 1, Timestamp::EPOCH);
        assert!(!kept.cut && kept.text == "é\n");
    }
}
