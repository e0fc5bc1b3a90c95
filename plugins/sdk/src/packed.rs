//! The candidates of a call. The host passes them in two lists, and the records are made of them here.
//! To make them itself, the host would call the component for the memory of each text.

use std::slice::Iter;

use crate::{Attribute, Job, bindings::throttler::tidegate::plugin::candidates::PackedCandidates};

/// The candidates, in their order.
pub(crate) fn unpack(packed: &PackedCandidates) -> Vec<Job> {
    let mut rest = Rest { words: packed.words.iter(), text: &packed.text };
    let mut jobs = Vec::new();
    while !rest.words.as_slice().is_empty() {
        jobs.push(rest.job());
    }
    jobs
}

/// What is not read yet. The host writes as much as is read, so nothing is missing.
struct Rest<'a> {
    words: Iter<'a, u64>,
    text: &'a str,
}

impl Rest<'_> {
    fn word(&mut self) -> u64 {
        self.words.next().copied().unwrap_or_default()
    }

    fn number(&mut self) -> u32 {
        self.word() as u32
    }

    fn text(&mut self) -> String {
        let bytes = self.word() as usize;
        let (text, rest) = self.text.split_at_checked(bytes).unwrap_or_default();
        self.text = rest;
        text.to_owned()
    }

    fn job(&mut self) -> Job {
        let priority = self.word() as i32;
        let (weight, attempt, attempts) = (self.number(), self.number(), self.number());
        let (created_at, run_at) = (self.word(), self.word());
        let fields = self.word();
        let has = |field: u64| fields & field != 0;
        let expires_at = has(1).then(|| self.word());
        let deadline_at = has(2).then(|| self.word());
        let (id, job_type) = (self.text(), self.text());
        let target_host = has(4).then(|| self.text());
        let replay_of = has(8).then(|| self.text());
        let correlation_key = has(16).then(|| self.text());
        let count = self.word();
        let attributes =
            (0..count).map(|_| Attribute { name: self.text(), value: self.text() }).collect();
        Job {
            id,
            job_type,
            priority,
            weight,
            attributes,
            attempt,
            attempts,
            created_at,
            run_at,
            expires_at,
            deadline_at,
            target_host,
            replay_of,
            correlation_key,
            earlier: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_made_of_the_words_and_the_text() {
        let least = i64::from(i32::MIN) as u64;
        let words = vec![
            // Without optional fields and attributes.
            least, 2, 1, 3, 10, 20, 0, 1, 4, 0, //
            // With all of them.
            5, 1, 2, 4, 11, 21, 31, 90, 91, 2, 4, 1, 0, 3, 2, 3, 1, 1, 6,
        ];
        let text = "amail".to_owned() + "ä" + "workhkeyabcde" + "cäö|";
        let jobs = unpack(&PackedCandidates { words, text });
        assert_eq!(jobs.len(), 2);
        let first = &jobs[0];
        assert_eq!((first.id.as_str(), first.job_type.as_str()), ("a", "mail"));
        assert_eq!((first.priority, first.weight), (i32::MIN, 2));
        assert_eq!((first.attempt, first.attempts), (1, 3));
        assert_eq!((first.created_at, first.run_at), (10, 20));
        assert_eq!((first.expires_at, first.deadline_at), (None, None));
        assert!(first.target_host.is_none() && first.replay_of.is_none());
        assert!(first.correlation_key.is_none() && first.attributes.is_empty());
        let second = &jobs[1];
        assert_eq!((second.id.as_str(), second.job_type.as_str()), ("ä", "work"));
        assert_eq!((second.expires_at, second.deadline_at), (Some(90), Some(91)));
        assert_eq!(second.target_host.as_deref(), Some("h"));
        assert_eq!(second.replay_of.as_deref(), Some(""));
        assert_eq!(second.correlation_key.as_deref(), Some("key"));
        assert_eq!(second.attribute("abc"), Some("d"));
        assert_eq!(second.attribute("e"), Some("cäö|"));
    }
}
