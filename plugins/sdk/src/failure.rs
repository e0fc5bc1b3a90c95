//! Conditions on a failure, as a part of configurations.

use serde::Deserialize;

use crate::Failure;

/// The condition of a rule. Every given field must match the failure. A list matches if one of its
/// elements does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct When {
    /// Numbers of the failed attempt, from 1.
    pub attempts: Option<Vec<u32>>,
    /// Reasons: `failed`, `timeout`, `lease_expired`, `connection_lost` or `not_delivered`.
    pub reasons: Option<Vec<String>>,
    /// HTTP statuses of the target's response.
    pub statuses: Option<Vec<u16>>,
    /// Prefixes of the message.
    pub messages: Option<Vec<String>>,
}

impl When {
    /// Whether `failure` matches every given field.
    pub fn holds(&self, failure: &Failure) -> bool {
        let message = failure.message.as_deref().unwrap_or_default();
        self.attempts.as_ref().is_none_or(|those| those.contains(&failure.attempt))
            && self.reasons.as_ref().is_none_or(|those| those.contains(&failure.reason))
            && self
                .statuses
                .as_ref()
                .is_none_or(|those| failure.status.is_some_and(|status| those.contains(&status)))
            && self
                .messages
                .as_ref()
                .is_none_or(|those| those.iter().any(|start| message.starts_with(start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_given_must_hold_and_one_of_each_list() {
        let failure = Failure {
            attempt: 2,
            reason: "failed".into(),
            message: Some("quota exceeded for today".into()),
            status: Some(429),
            details: None,
            started_at: 0,
            ended_at: 0,
            not_before: None,
        };
        let holds = |text: &str| crate::parse::<When>(text).expect("a condition").holds(&failure);
        assert!(holds("{}"));
        assert!(holds(
            r#"{"attempts": [1, 2], "reasons": ["failed"],
                "statuses": [503, 429], "messages": ["no", "quota"]}"#
        ));
        assert!(!holds(r#"{"attempts": [1]}"#));
        assert!(!holds(r#"{"statuses": [429], "reasons": ["timeout"]}"#));
        assert!(!holds(r#"{"messages": ["exceeded"]}"#));
        assert!(
            !When { statuses: Some(vec![429]), ..When::default() }
                .holds(&Failure { status: None, ..failure.clone() })
        );
    }
}
