//! Names and ids: short strings of a fixed form, checked where they enter.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize};

use crate::parsed::parsed;

/// The text does not have the form of its kind of name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to 64 of {0}")]
pub struct BadName(&'static str);

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $form:literal, $allowed:pat) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Whether it is reserved for the server's own jobs, such as completion callbacks.
            pub fn is_internal(&self) -> bool {
                self.0.starts_with("tidegate.")
            }
        }

        impl FromStr for $name {
            type Err = BadName;
            fn from_str(text: &str) -> Result<Self, BadName> {
                let fits = (1..=64).contains(&text.len())
                    && text.bytes().all(|byte| matches!(byte, $allowed))
                    && !matches!(text, "." | "..");
                if fits { Ok(Self(text.into())) } else { Err(BadName($form)) }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                parsed(deserializer)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<$name> for Arc<str> {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// A job's id: unique on its server. Given by the client, or a ULID in lower case.
    JobId,
    "A-Z a-z 0-9 _ . : -, and not \".\" or \"..\"",
    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b':' | b'-'
);
name!(
    /// The name of a job type.
    TypeName,
    "A-Z a-z 0-9 _ . -, and not \".\" or \"..\"",
    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-'
);
name!(
    /// The name of a queue.
    QueueName,
    "A-Z a-z 0-9 _ . -, and not \".\" or \"..\"",
    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-'
);
name!(
    /// The name of a plugin.
    PluginName,
    "A-Z a-z 0-9 _ . -, and not \".\" or \"..\"",
    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-'
);
name!(
    /// The name of a schedule.
    ScheduleName,
    "A-Z a-z 0-9 _ . -, and not \".\" or \"..\"",
    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-'
);

name!(
    /// The name of a trigger.
    TriggerName,
    "A-Z a-z 0-9 _ . -, and not \".\" or \"..\"",
    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-'
);

/// Words that routes use in the position of an id or a name: `POST /v1/jobs/batch` is not a job
/// type.
pub const ROUTE_WORDS: [&str; 4] = ["batch", "cancel", "replay", "result"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_form_and_a_length() {
        for good in ["a", "Invoice.v2", "x_-9", &"n".repeat(64)] {
            assert!(good.parse::<TypeName>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a b", "a/b", "a:b", "é", &"n".repeat(65)] {
            assert!(bad.parse::<TypeName>().is_err(), "{bad}");
        }
        assert!("order:17".parse::<JobId>().is_ok());
    }
}
