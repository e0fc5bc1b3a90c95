//! The clock of this function, compared with the clock of the table's service.

use std::time::Duration;

use chrono::DateTime;

use super::CloudHealthCheck;
use tidegate_core::{
    error_chain::ErrorChain,
    port::health_check::{Check, CheckLevel},
    time::Timestamp,
};

/// The clock skew from which a check warns: half of [`MAX_CLOCK_SKEW`].
const WARN_CLOCK_SKEW: Duration = Duration::from_secs(3);
/// The clock skew that grants and low watermarks tolerate. With more, a read of due jobs may miss
/// some.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(6);
/// The resolution of the `Date` header.
const DATE_RESOLUTION: Duration = Duration::from_secs(1);
/// The timeout of the request for the endpoint's time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

impl CloudHealthCheck {
    /// Compares this function's clock with that of the service that stores the jobs.
    pub(super) async fn check_clock(&self) -> Check {
        let about = "clock";
        let url = match (&self.endpoint, &self.region) {
            (Some(endpoint), _) => endpoint.clone(),
            (None, Some(region)) => format!("https://dynamodb.{region}.amazonaws.com/"),
            (None, None) => {
                return Check::new(
                    CheckLevel::Error,
                    about,
                    "there is no region",
                    "set AWS_REGION; Lambda sets it by itself",
                );
            }
        };
        let request = async {
            let before = self.clock.now();
            let client = reqwest::Client::builder().timeout(REQUEST_TIMEOUT).build()?;
            let answer = client.get(&url).send().await?;
            Ok::<_, reqwest::Error>((before, answer, self.clock.now()))
        };
        let (before, answer, after) = match request.await {
            Ok(answered) => answered,
            Err(error) => {
                return Check::new(
                    CheckLevel::Warning,
                    about,
                    format!("the request for the time failed: {}", ErrorChain(&error)),
                    format!("see whether the function can connect to {url}"),
                );
            }
        };
        let date = answer.headers().get(reqwest::header::DATE).and_then(|date| date.to_str().ok());
        match date.and_then(|date| DateTime::parse_from_rfc2822(date).ok()) {
            Some(date) => compare(Timestamp::from_utc(date.to_utc()), before, after),
            None => Check::new(
                CheckLevel::Note,
                about,
                format!("the answer of {url} has no Date header"),
                "a local stack may omit it; AWS sends it",
            ),
        }
    }
}

/// Compares the `service` time with the local times `before` and `after` its answer.
pub(super) fn compare(service: Timestamp, before: Timestamp, after: Timestamp) -> Check {
    let about = "clock";
    let skew = before.since(service + DATE_RESOLUTION).max(service.since(after));
    if skew <= WARN_CLOCK_SKEW {
        return Check::ok(about, "it agrees with the table's");
    }
    Check::new(
        if skew > MAX_CLOCK_SKEW { CheckLevel::Error } else { CheckLevel::Warning },
        about,
        format!("it differs from the table's by {} s", skew.as_secs()),
        "with more than 6 s, due jobs may be found late: set the clock by NTP",
    )
}
