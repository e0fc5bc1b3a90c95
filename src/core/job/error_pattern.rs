//! The pattern of an error message: the message without what differs from job to job, so that the
//! failures with one cause are counted together.

/// Most characters of a pattern.
pub const MAX_PATTERN_CHARS: usize = 200;

/// What ends a word, in addition to white space: the punctuation around values.
const SEPARATORS: &[char] =
    &['"', '\'', '`', '(', ')', '[', ']', '{', '}', '<', '>', ',', ';', ':', '=', '|'];

/// What may follow a word and is no part of it.
const SENTENCE_ENDS: &[char] = &['.', '!', '?'];

/// The pattern of `message`: white space is one space, and each word with a digit is `*`, except the
/// status after `HTTP`. It has at most [`MAX_PATTERN_CHARS`] characters.
///
/// ```
/// # use tidegate_core::job::error_pattern::error_pattern;
/// assert_eq!(
///     error_pattern("HTTP 503: no answer from host-7:8080  after 3000 ms"),
///     "HTTP 503: no answer from *:* after * ms"
/// );
/// ```
pub fn error_pattern(message: &str) -> String {
    let mut pattern = String::new();
    let mut last = "";
    let mut rest = message.trim();
    while let Some(first) = rest.chars().next() {
        if first.is_whitespace() {
            pattern.push(' ');
            rest = rest.trim_start();
        } else if SEPARATORS.contains(&first) {
            pattern.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            let is_end = |char: char| char.is_whitespace() || SEPARATORS.contains(&char);
            let (whole, after) = rest.split_at(rest.find(is_end).unwrap_or(rest.len()));
            let word = whole.trim_end_matches(SENTENCE_ENDS);
            let is_value = word.contains(|char: char| char.is_ascii_digit());
            let is_status = last == "HTTP" && word.len() == 3;
            pattern.push_str(if is_value && !is_status { "*" } else { word });
            pattern.push_str(&whole[word.len()..]);
            (last, rest) = (word, after);
        }
    }
    let end = pattern.char_indices().nth(MAX_PATTERN_CHARS).map_or(pattern.len(), |(end, _)| end);
    pattern.truncate(end);
    pattern
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::empty("", "")]
    #[case::without_values("connection refused", "connection refused")]
    #[case::number("timed out after 30 s", "timed out after * s")]
    #[case::status("HTTP 503: busy, retry in 5s.", "HTTP 503: busy, retry in *.")]
    #[case::no_status("HTTP 5031", "HTTP *")]
    #[case::other_number("code 503", "code *")]
    #[case::uuid("user 7c9e6679-7425-40de-944b-e07fc1f90ae7 not found", "user * not found")]
    #[case::quoted(r#"no order "A-17" (of 3)"#, r#"no order "*" (of *)"#)]
    #[case::json(r#"{"id":17,"code":"busy"}"#, r#"{"id":*,"code":"busy"}"#)]
    #[case::path("cannot open /tmp/a9/x: denied", "cannot open *: denied")]
    #[case::lines("  a\n\t b  \n", "a b")]
    #[case::other_alphabet("größe 5 zu groß", "größe * zu groß")]
    #[case::only_ends("...", "...")]
    fn words_with_digits_are_left_out(#[case] message: &str, #[case] pattern: &str) {
        assert_eq!(error_pattern(message), pattern);
        assert_eq!(error_pattern(pattern), pattern, "the pattern of the pattern");
    }

    #[test]
    fn a_long_message_is_cut() {
        assert_eq!(error_pattern(&"ä ".repeat(1000)).chars().count(), MAX_PATTERN_CHARS);
    }
}
