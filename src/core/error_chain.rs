//! Errors with their causes, as one line of text.

use std::{error::Error, fmt};

/// Displays an error and every cause of it, separated by `: `.
///
/// Some errors repeat their cause in their own message; a cause that is already in the text is
/// left out.
///
/// ```
/// use tidegate_core::{error_chain::ErrorChain, port::StoreError};
///
/// let error = StoreError::unavailable("connection reset");
/// assert_eq!(ErrorChain(&error).to_string(), "the store did not answer: connection reset");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut source = self.0.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            source = cause.source();
        }
        f.write_str(&text)
    }
}
