//! Texts of callers as texts of Postgres, which have no NUL.
//!
//! A NUL is stored as `\u{1}\u{1}`, and `\u{1}` as `\u{1}\u{2}`. This keeps the order of texts.

use std::borrow::Cow;

/// `text` as it is stored.
pub(super) fn stored(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', '\u{1}']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('\u{1}', "\u{1}\u{2}").replace('\0', "\u{1}\u{1}"))
}

/// The text that [`stored`] turned into `text`.
pub(super) fn original(text: &str) -> Cow<'_, str> {
    if !text.contains('\u{1}') {
        return Cow::Borrowed(text);
    }
    let mut original = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        original.push(match char {
            '\u{1}' if chars.next() == Some('\u{1}') => '\0',
            char => char,
        });
    }
    Cow::Owned(original)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_read_as_written_and_keeps_its_order() {
        let mut texts = vec![String::new()];
        for _ in 0..4 {
            let longer =
                |text: &String| ["\0", "\u{1}", "\u{2}", "a"].map(|end| format!("{text}{end}"));
            texts.extend(texts.clone().iter().flat_map(longer));
        }
        texts.sort();
        for text in &texts {
            let stored = stored(text);
            assert!(!stored.contains('\0'));
            assert_eq!(original(&stored), *text);
        }
        assert!(texts.is_sorted_by_key(|text| stored(text).into_owned()));
    }
}
