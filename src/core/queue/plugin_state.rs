//! The state of a throttler, in pages.
//!
//! A key is in the page that its checksum selects, so that a change touches one page. Pages are
//! shared between copies until one is changed: a copy is cheap, and a commit compares pages to find
//! those that it must write.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, SeqAccess, Visitor},
};

use crate::{checksum::checksum, time::Timestamp};

/// Most bytes of a state, as [`PolicyState::bytes`] counts them.
pub const STATE_BYTES: usize = 256 << 10;
/// Most bytes of a key.
pub const STATE_KEY_BYTES: usize = 128;
/// Most bytes of a value.
pub const STATE_VALUE_BYTES: usize = 16 << 10;
/// Bytes that an entry counts in addition to its key and value.
const ENTRY_BYTES: usize = 32;
/// The bytes of a page, on average. A strongly consistent read of `DynamoDB` returns as much for
/// one unit.
const PAGE_BYTES: usize = 4 << 10;
/// Most pages of a state.
pub const STATE_PAGES: usize = STATE_BYTES / PAGE_BYTES;

/// A value in a throttler's state. Serialised as the text, or as a pair of the text and the
/// expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateValue {
    /// The value.
    pub text: String,
    /// From then on it counts as deleted.
    pub expires_at: Option<Timestamp>,
}

impl From<String> for StateValue {
    fn from(text: String) -> Self {
        Self { text, expires_at: None }
    }
}

impl From<&str> for StateValue {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl StateValue {
    /// Whether it counts at `now`.
    pub fn counts(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|at| now < at)
    }
}

impl Serialize for StateValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.expires_at {
            None => serializer.serialize_str(&self.text),
            Some(at) => (&self.text, at).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for StateValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfStateValue;
        impl<'de> Visitor<'de> for OfStateValue {
            type Value = StateValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or a pair of a text and the time of its expiry")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<StateValue, E> {
                Ok(text.into())
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<StateValue, E> {
                Ok(text.into())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<StateValue, A::Error> {
                let missing = |index| de::Error::invalid_length(index, &self);
                let text = pair.next_element()?.ok_or_else(|| missing(0))?;
                let expires_at = Some(pair.next_element()?.ok_or_else(|| missing(1))?);
                Ok(StateValue { text, expires_at })
            }
        }
        deserializer.deserialize_any(OfStateValue)
    }
}

/// The entries of a page, by key.
pub type StatePage = BTreeMap<String, StateValue>;

/// A throttler's state: texts by key. Two states are equal if they have the same entries.
#[derive(Clone, Debug, Default)]
pub struct PolicyState {
    /// None, or a power of two of them.
    pages: Vec<Arc<StatePage>>,
    bytes: usize,
    /// No entry expires before.
    next_expiry: Option<Timestamp>,
}

impl PartialEq for PolicyState {
    fn eq(&self, other: &Self) -> bool {
        if self.pages.len() == other.pages.len() {
            let mut pages = self.pages.iter().zip(&other.pages);
            return pages.all(|(a, b)| Arc::ptr_eq(a, b) || a == b);
        }
        self.bytes == other.bytes
            && self.iter().count() == other.iter().count()
            && self.iter().all(|(key, value)| other.get(key) == Some(value))
    }
}

impl<K: Into<String>, V: Into<StateValue>> FromIterator<(K, V)> for PolicyState {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut state = Self::default();
        for (key, value) in entries {
            state.set(key.into(), value.into());
        }
        state.balance();
        state
    }
}

impl<K: Into<String>, V: Into<StateValue>, const N: usize> From<[(K, V); N]> for PolicyState {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl PolicyState {
    /// The state in `pages`, which are pages of a state in their order.
    pub fn of_pages(pages: Vec<Arc<StatePage>>) -> Self {
        let entries = pages.iter().flat_map(|page| page.iter());
        let bytes = entries.clone().map(|(key, value)| bytes_of(key, value)).sum();
        let next_expiry = entries.filter_map(|(_, value)| value.expires_at).min();
        Self { pages, bytes, next_expiry }
    }

    /// Its pages.
    pub fn pages(&self) -> &[Arc<StatePage>] {
        &self.pages
    }

    /// The bytes of its keys and values, and 32 for each entry.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Its entries, by no order.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &StateValue)> {
        self.pages.iter().flat_map(|page| page.iter())
    }

    /// The value of `key`, whether it has expired or not.
    pub fn get(&self, key: &str) -> Option<&StateValue> {
        self.pages.get(self.page_of(key))?.get(key)
    }

    /// The text of `key`, whether it has expired or not.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).map(|value| value.text.as_str())
    }

    /// The bytes that it would have if `key` had `value`.
    pub fn bytes_with(&self, key: &str, value: &StateValue) -> usize {
        let old = self.get(key).map_or(0, |old| bytes_of(key, old));
        self.bytes - old + bytes_of(key, value)
    }

    /// Sets the value of `key`.
    pub fn set(&mut self, key: String, value: StateValue) {
        self.bytes = self.bytes_with(&key, &value);
        self.next_expiry = [self.next_expiry, value.expires_at].into_iter().flatten().min();
        if self.pages.is_empty() {
            self.pages.push(Arc::default());
        }
        let page = self.page_of(&key);
        Arc::make_mut(&mut self.pages[page]).insert(key, value);
    }

    /// Removes `key`.
    pub fn remove(&mut self, key: &str) {
        let Some(old) = self.get(key) else { return };
        self.bytes -= bytes_of(key, old);
        let page = self.page_of(key);
        Arc::make_mut(&mut self.pages[page]).remove(key);
    }

    /// Removes what has expired at `now`.
    pub fn remove_expired(&mut self, now: Timestamp) {
        if self.next_expiry.is_none_or(|at| now < at) {
            return;
        }
        for page in &mut self.pages {
            if page.values().any(|value| !value.counts(now)) {
                Arc::make_mut(page).retain(|key, value| {
                    let counts = value.counts(now);
                    self.bytes -= if counts { 0 } else { bytes_of(key, value) };
                    counts
                });
            }
        }
        self.next_expiry = self.iter().filter_map(|(_, value)| value.expires_at).min();
    }

    /// Gives it as many pages as its size needs. A state that shrinks keeps its pages until it
    /// needs less than a quarter of them.
    pub fn balance(&mut self) {
        let (have, need) = (self.pages.len(), self.bytes.div_ceil(PAGE_BYTES));
        let need = if need == 0 { 0 } else { need.next_power_of_two().min(STATE_PAGES) };
        if need <= have && need * 4 > have || need == have {
            return;
        }
        let entries = std::mem::take(&mut self.pages);
        let mut pages = vec![StatePage::new(); need];
        for page in entries {
            for (key, value) in Arc::unwrap_or_clone(page) {
                pages[page_among(need, &key)].insert(key, value);
            }
        }
        self.pages = pages.into_iter().map(Arc::new).collect();
    }

    fn page_of(&self, key: &str) -> usize {
        page_among(self.pages.len(), key)
    }
}

/// The page of `key` among `pages`, which is a power of two or none.
fn page_among(pages: usize, key: &str) -> usize {
    checksum(&[key.as_bytes()]) as usize & pages.saturating_sub(1)
}

fn bytes_of(key: &str, value: &StateValue) -> usize {
    key.len() + value.text.len() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn full(keys: usize, bytes: usize) -> PolicyState {
        (0..keys).map(|key| (format!("key {key}"), "v".repeat(bytes))).collect()
    }

    #[test]
    fn a_state_has_about_as_many_pages_as_it_has_times_four_kb() {
        for (keys, bytes, pages) in [(1, 10, 1), (30, 60, 1), (100, 100, 4), (1000, 200, 64)] {
            let state = full(keys, bytes);
            assert_eq!(state.pages().len(), pages, "{keys} keys of {bytes} bytes");
            let largest = state.pages().iter().map(|page| page.len()).max().unwrap();
            assert!(largest <= (keys / pages) * 2 + 2, "{largest} of {keys} on a page");
            assert_eq!(state.iter().count(), keys);
        }
        assert_eq!(PolicyState::default().pages().len(), 0);
    }

    #[test]
    fn a_change_touches_one_page_of_a_copy() {
        let before = full(1000, 200);
        let mut after = before.clone();
        after.set("key 7".into(), "other".into());
        after.remove("key 7 of another");
        let changed = before.pages().iter().zip(after.pages());
        assert_eq!(changed.filter(|(a, b)| !Arc::ptr_eq(a, b)).count(), 1);
        assert_ne!(before, after);
        assert_eq!(before.bytes() - after.bytes(), 195);
        after.set("key 7".into(), "v".repeat(200).into());
        assert_eq!(before, after);
    }

    #[test]
    fn a_state_that_shrinks_gives_its_pages_back_late() {
        let mut state = full(1000, 200);
        let keys: Vec<String> = state.iter().map(|(key, _)| key.clone()).collect();
        for key in &keys[..600] {
            state.remove(key);
        }
        state.balance();
        assert_eq!(state.pages().len(), 64);
        for key in &keys[600..] {
            state.remove(key);
        }
        assert!(state.is_empty());
        state.balance();
        assert_eq!(state, PolicyState::default());
        assert_eq!(state.pages().len(), 0);
    }

    #[test]
    fn what_has_expired_is_removed_and_the_rest_stays() {
        let until = |millis| StateValue { text: "v".into(), expires_at: Some(at(millis)) };
        let mut state = PolicyState::from([("a", until(5)), ("b", until(9)), ("c", "v".into())]);
        state.remove_expired(at(4));
        assert_eq!(state.iter().count(), 3);
        state.remove_expired(at(5));
        assert_eq!(state, PolicyState::from([("b", until(9)), ("c", "v".into())]));
        assert_eq!(state.bytes(), 2 * 34);
        state.remove_expired(at(i64::MAX));
        assert_eq!(state, PolicyState::from([("c", "v")]));
    }

    #[test]
    fn two_states_with_other_pages_are_equal() {
        let many = full(200, 100);
        let mut unbalanced = PolicyState::default();
        for (key, value) in many.iter() {
            unbalanced.set(key.clone(), value.clone());
        }
        assert_ne!(unbalanced.pages().len(), many.pages().len());
        assert_eq!(unbalanced, many);
        unbalanced.remove("key 3");
        assert_ne!(unbalanced, many);
        assert_eq!(PolicyState::of_pages(many.pages().to_vec()), many);
    }
}
