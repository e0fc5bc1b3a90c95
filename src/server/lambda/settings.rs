//! What a deployment says to its functions: their environment, read once.

use tracing::level_filters::LevelFilter;

use crate::auth::TokenItem;
use tidegate_backends::sqs::SqsQueues;
use tidegate_engine::Rules;

use super::http::{DATA_BYTES, first_token};

/// Each is read by every round of its queue.
const MOST_SHARDS: u8 = 16;

/// Everything that can be set. `docs/decisions/0010-serverless-deployment-mode.md` lists the variables.
#[derive(Clone, Debug)]
pub struct CloudSettings {
    /// The table; `memory:` for one that this process has to itself, to try a function with.
    pub table: String,
    /// The bucket for large bodies and plugins; `memory:` likewise.
    pub bucket: String,
    /// What the names of its objects start with.
    pub prefix: String,
    /// The queues' URLs.
    pub queues: SqsQueues,
    /// What callback URLs start with, without a slash at the end.
    pub public_url: Option<String>,
    /// The engine's rules.
    pub max_data_bytes: usize,
    /// Whether an enqueue of an unknown type creates it.
    pub create_unknown_types: bool,
    /// A token that is good before there are any.
    pub first_token: Option<TokenItem>,
    /// The least important level that is logged.
    pub log_level: LevelFilter,
    /// The namespace of metrics for CloudWatch; without one there are none.
    pub metrics_namespace: Option<String>,
    /// Over how many partitions of the table the waiting jobs of a kind are spread.
    pub shards: u8,
}

/// A variable is missing or has a value that it must not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} {problem}")]
pub struct BadVariable {
    /// Which.
    pub variable: &'static str,
    /// What it must be.
    pub problem: &'static str,
}

impl CloudSettings {
    /// The settings in `vars`.
    ///
    /// # Errors
    ///
    /// The first variable that is missing or wrong.
    pub fn from_vars(
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, BadVariable> {
        let vars: std::collections::HashMap<String, String> =
            vars.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        let required = |variable| {
            vars.get(variable).cloned().ok_or(BadVariable { variable, problem: "is not set" })
        };
        let queue = |variable| {
            let url = required(variable)?;
            if url.starts_with("http") {
                Ok(url)
            } else {
                Err(BadVariable { variable, problem: "must be the URL of a queue" })
            }
        };
        let size = |variable, default: usize| match vars.get(variable) {
            None => Ok(default),
            Some(text) => {
                let bytes = text.parse().ok().filter(|bytes| (1024..=DATA_BYTES).contains(bytes));
                bytes.ok_or(BadVariable { variable, problem: "must be 1024 to 4500000" })
            }
        };
        let first_token = match vars.get("TIDEGATE_ADMIN_TOKEN") {
            None => None,
            Some(text) => Some(first_token(text).ok_or(BadVariable {
                variable: "TIDEGATE_ADMIN_TOKEN",
                problem: "must be a token's id, `:`, and the base64 of its secret's SHA-256",
            })?),
        };
        let create_unknown_types =
            match vars.get("TIDEGATE_CREATE_UNKNOWN_TYPES").map(String::as_str) {
                None | Some("false") => false,
                Some("true") => true,
                Some(_) => {
                    return Err(BadVariable {
                        variable: "TIDEGATE_CREATE_UNKNOWN_TYPES",
                        problem: "must be true or false",
                    });
                }
            };
        Ok(Self {
            table: required("TIDEGATE_TABLE")?,
            bucket: required("TIDEGATE_BUCKET")?,
            prefix: vars.get("TIDEGATE_PREFIX").cloned().unwrap_or_default(),
            queues: SqsQueues {
                work: queue("TIDEGATE_WORK_QUEUE_URL")?,
                hints: queue("TIDEGATE_HINT_QUEUE_URL")?,
                wakes: queue("TIDEGATE_WAKE_QUEUE_URL")?,
            },
            public_url: vars
                .get("TIDEGATE_PUBLIC_URL")
                .map(|url| url.trim_end_matches('/').to_owned()),
            max_data_bytes: size("TIDEGATE_MAX_DATA_BYTES", Rules::default().max_data_bytes)?,
            create_unknown_types,
            first_token,
            log_level: match vars.get("TIDEGATE_LOG_LEVEL").map(|text| text.parse()) {
                None => LevelFilter::INFO,
                Some(Ok(level)) => level,
                Some(Err(_)) => {
                    return Err(BadVariable {
                        variable: "TIDEGATE_LOG_LEVEL",
                        problem: "must be off, error, warn, info, debug or trace",
                    });
                }
            },
            metrics_namespace: match vars.get("TIDEGATE_EMF_NAMESPACE") {
                Some(name) if name.starts_with("AWS/") || name.starts_with(':') => {
                    let problem =
                        "must begin neither with AWS/, which is CloudWatch's own, nor with a colon";
                    return Err(BadVariable { variable: "TIDEGATE_EMF_NAMESPACE", problem });
                }
                name => name.cloned(),
            },
            shards: match vars.get("TIDEGATE_SHARDS").map(|text| text.parse()) {
                None => 1,
                Some(Ok(shards @ 1..=MOST_SHARDS)) => shards,
                Some(_) => {
                    return Err(BadVariable {
                        variable: "TIDEGATE_SHARDS",
                        problem: "must be 1 to 16",
                    });
                }
            },
        })
    }

    /// The same, for a function that tells workers where to call back.
    ///
    /// # Errors
    ///
    /// `TIDEGATE_PUBLIC_URL` is not set.
    pub fn with_public_url(self) -> Result<Self, BadVariable> {
        if self.public_url.is_some() {
            Ok(self)
        } else {
            Err(BadVariable { variable: "TIDEGATE_PUBLIC_URL", problem: "is not set" })
        }
    }

    /// The engine's rules. What events and replies are bounded by is fixed here, at the defaults that `docs/events.md` names.
    pub fn rules(&self) -> Rules {
        Rules {
            max_data_bytes: self.max_data_bytes,
            create_unknown_types: self.create_unknown_types,
            object_bytes: tidegate_backends::cost::OBJECT_BYTES,
            ..Rules::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars() -> Vec<(String, String)> {
        let url = "https://sqs.eu-west-1.amazonaws.com/1/q";
        [
            ("TIDEGATE_TABLE", "jobs"),
            ("TIDEGATE_BUCKET", "bodies"),
            ("TIDEGATE_WORK_QUEUE_URL", url),
            ("TIDEGATE_HINT_QUEUE_URL", url),
            ("TIDEGATE_WAKE_QUEUE_URL", url),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        assert_eq!(CloudSettings::from_vars(vars()).unwrap().shards, 1);
        let most = vars().into_iter().chain([("TIDEGATE_SHARDS".to_owned(), "16".to_owned())]);
        assert_eq!(CloudSettings::from_vars(most).unwrap().shards, 16);
        for (name, _) in vars() {
            let without = vars().into_iter().filter(|(of, _)| *of != name);
            assert_eq!(CloudSettings::from_vars(without).unwrap_err().variable, name);
        }
        for (name, value) in [
            ("TIDEGATE_MAX_DATA_BYTES", "12"),
            ("TIDEGATE_ADMIN_TOKEN", "x"),
            ("TIDEGATE_CREATE_UNKNOWN_TYPES", "yes"),
            ("TIDEGATE_LOG_LEVEL", "tidegate=debug"),
            ("TIDEGATE_EMF_NAMESPACE", "AWS/Lambda"),
            ("TIDEGATE_SHARDS", "0"),
            ("TIDEGATE_SHARDS", "17"),
        ] {
            let with = vars().into_iter().chain([(name.to_owned(), value.to_owned())]);
            assert_eq!(CloudSettings::from_vars(with).unwrap_err().variable, name);
        }
    }

    #[test]
    fn who_tells_workers_where_to_call_back_must_know_it() {
        let without = CloudSettings::from_vars(vars()).unwrap();
        assert_eq!(without.with_public_url().unwrap_err().variable, "TIDEGATE_PUBLIC_URL");
        let with = vars()
            .into_iter()
            .chain([("TIDEGATE_PUBLIC_URL".to_owned(), "https://api.example/".to_owned())]);
        let with = CloudSettings::from_vars(with).unwrap().with_public_url().unwrap();
        assert_eq!(with.public_url.as_deref(), Some("https://api.example"));
    }
}
