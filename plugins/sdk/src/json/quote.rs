//! Writes a text as a JSON string.

use std::fmt::Write;

/// `text` as a JSON string.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            // Writing to a string cannot fail.
            '\0'..='\u{1f}' => drop(write!(quoted, "\\u{:04x}", character as u32)),
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}
