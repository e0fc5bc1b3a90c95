//! Questions to the user of a terminal. Without a terminal, an open question is wrong usage that
//! names the flag.

use std::io::{self, BufRead, IsTerminal as _, Write as _};

use crate::cli::UsageError;

/// The user at the terminal, or no user.
pub struct Questions<'a> {
    input: Option<&'a mut (dyn BufRead + Send)>,
}

impl<'a> Questions<'a> {
    /// Answers from `input`.
    pub fn to(input: &'a mut (dyn BufRead + Send)) -> Self {
        Self { input: Some(input) }
    }

    /// No user.
    pub fn none() -> Self {
        Self { input: None }
    }

    /// Whether standard input and standard error are a terminal.
    pub fn has_terminal() -> bool {
        io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// The value that was `given` by `flag`, or the answer to `question`; `default` if that is empty
    /// or there is no user.
    ///
    /// # Errors
    ///
    /// There is neither a value nor a default.
    pub fn value(
        &mut self,
        given: Option<String>,
        flag: &str,
        question: &str,
        default: Option<&str>,
    ) -> anyhow::Result<String> {
        let missing = || UsageError(format!("{flag} is missing: {question}"));
        if let Some(given) = given {
            return Ok(given);
        }
        let prompt = match default {
            Some(default) => format!("{question} [{default}]: "),
            None => format!("{question}: "),
        };
        let answer = self.answer(&prompt)?.unwrap_or_default();
        if answer.is_empty() {
            return Ok(default.map(str::to_owned).ok_or_else(missing)?);
        }
        Ok(answer)
    }

    /// Asks for a yes, unless it was given by `--yes`.
    ///
    /// # Errors
    ///
    /// There is no user.
    pub fn confirm(&mut self, given: bool, question: &str) -> anyhow::Result<bool> {
        if given {
            return Ok(true);
        }
        let answer = self.answer(&format!("{question} [y/N] "))?;
        let answer = answer.ok_or_else(|| UsageError(format!("{question} Confirm with --yes")))?;
        Ok(matches!(answer.to_ascii_lowercase().as_str(), "y" | "yes"))
    }

    /// The line that the user types after `prompt`; `None` without a user.
    fn answer(&mut self, prompt: &str) -> io::Result<Option<String>> {
        let Some(input) = &mut self.input else { return Ok(None) };
        let mut error = io::stderr();
        write!(error, "{prompt}")?;
        error.flush()?;
        let mut line = String::new();
        input.read_line(&mut line)?;
        Ok(Some(line.trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_a_question_and_a_default() {
        let mut typed: &[u8] = b"eu-west-1\n\n";
        let mut questions = Questions::to(&mut typed);
        let mut value = |given: Option<&str>| {
            questions.value(given.map(Into::into), "--region", "Region", Some("us-east-1")).unwrap()
        };
        assert_eq!(value(Some("ap-south-1")), "ap-south-1");
        assert_eq!((value(None), value(None)), ("eu-west-1".into(), "us-east-1".into()));
    }

    #[test]
    fn without_a_terminal_a_missing_value_names_its_flag() {
        let mut questions = Questions::none();
        let error = questions.value(None, "--alarm-email", "Address for alarms", None).unwrap_err();
        assert_eq!(error.to_string(), "--alarm-email is missing: Address for alarms");
        assert!(questions.confirm(true, "Deploy?").unwrap());
        let error = questions.confirm(false, "Deploy?").unwrap_err().to_string();
        assert_eq!(error, "Deploy? Confirm with --yes");
    }

    #[test]
    fn only_a_yes_confirms() {
        for (typed, is_yes) in [("y\n", true), ("YES\n", true), ("\n", false), ("no\n", false)] {
            let mut typed = typed.as_bytes();
            assert_eq!(Questions::to(&mut typed).confirm(false, "?").unwrap(), is_yes);
        }
    }
}
