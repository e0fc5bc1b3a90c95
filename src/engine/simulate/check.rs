//! The bounds of a scenario. The documentation of each field states them.

use std::fmt::Display;

use super::scenario::{
    Arrival, BadScenario, Choice, Drawn, Expect, FailureRule, LongestWait, Scenario, Service, Span,
    TracedJob,
};
use tidegate_core::{
    job::{TypeName, lifecycle::Reason},
    time::Seconds,
    validate::{
        self, ValidationError, check_matcher, check_queue, check_span, check_text, check_type,
    },
};

/// Most jobs of a scenario.
pub(crate) const MAX_JOBS: u64 = 1_000_000;
/// Longest duration of a scenario or an attempt: 366 days.
const MAX_SPAN: Seconds = Seconds::new(31_622_400);
const MILLISECOND: Seconds = Seconds::from_millis(1);
/// Most bytes of a failure's message, and of its details as JSON: as in a report.
const MAX_MESSAGE_BYTES: usize = 4 << 10;
const MAX_DETAILS_BYTES: usize = 16 << 10;
/// Most bytes of the name of an attribute.
const MAX_NAME_BYTES: usize = 64;
/// Most bytes of a host.
const MAX_HOST_BYTES: usize = 255;

impl From<ValidationError> for BadScenario {
    fn from(fault: ValidationError) -> Self {
        Self { field: fault.field, message: fault.message }
    }
}

impl Scenario {
    /// Checks every bound.
    ///
    /// # Errors
    ///
    /// The first bound that is exceeded.
    pub fn check(&self) -> Result<(), BadScenario> {
        Ok(self.fields()?)
    }

    fn fields(&self) -> Result<(), ValidationError> {
        check_span("duration_seconds", self.duration_seconds, MILLISECOND, MAX_SPAN)?;
        check_span("tick_seconds", self.tick_seconds, MILLISECOND, Seconds::new(3600))?;
        check_queue(&self.queue).map_err(|fault| fault.within("queue"))?;
        for (name, config) in &self.types {
            check_type(config).map_err(|fault| fault.within(name).within("types"))?;
            own_name(name).map_err(|fault| fault.within("types"))?;
        }
        if !(1..=100_000).contains(&self.workers) {
            return Err(ValidationError::new("workers", "must be 1 to 100000"));
        }
        at_most("arrivals", self.arrivals.len(), 1000)?;
        at_most("service", self.service.len(), 100)?;
        if self.job_count() > MAX_JOBS {
            return Err(ValidationError::new(
                "arrivals",
                format!("must be at most {MAX_JOBS} jobs, including those of `jobs`"),
            ));
        }
        each("arrivals", &self.arrivals, check_arrival)?;
        each("jobs", &self.jobs, check_job)?;
        each("service", &self.service, check_service)?;
        check_expect(&self.expect).map_err(|fault| fault.within("expect"))
    }
}

fn each<T>(
    field: impl Display,
    items: &[T],
    check: impl Fn(&T) -> Result<(), ValidationError>,
) -> Result<(), ValidationError> {
    items.iter().enumerate().try_for_each(|(index, item)| {
        check(item).map_err(|fault| fault.within(format_args!("{field}[{index}]")))
    })
}

fn at_most(field: &str, count: usize, most: usize) -> Result<(), ValidationError> {
    if count <= most {
        Ok(())
    } else {
        Err(ValidationError::new(field, format!("must have at most {most} entries")))
    }
}

fn own_name(name: &TypeName) -> Result<(), ValidationError> {
    if name.is_internal() {
        Err(ValidationError::new(
            name.as_str(),
            "must not start with tidegate., which is reserved for the server",
        ))
    } else {
        Ok(())
    }
}

fn check_arrival(arrival: &Arrival) -> Result<(), ValidationError> {
    own_name(&arrival.job_type).map_err(|fault| ValidationError::new("type", fault.message))?;
    if !(1..=MAX_JOBS).contains(&u64::from(arrival.count)) {
        return Err(ValidationError::new("count", format!("must be 1 to {MAX_JOBS}")));
    }
    check_span("from_seconds", arrival.from_seconds, Seconds::default(), MAX_SPAN)?;
    let patterns = [
        ("at_once", arrival.at_once.is_some()),
        ("every_seconds", arrival.every_seconds.is_some()),
        ("per_second", arrival.per_second.is_some()),
        ("poisson_per_second", arrival.poisson_per_second.is_some()),
        ("burst", arrival.burst.is_some()),
    ];
    let mut given = patterns.iter().filter(|(_, given)| *given);
    if let (Some((first, _)), Some((second, _))) = (given.next(), given.next()) {
        return Err(ValidationError::new(
            *second,
            format!("must not be given together with {first}"),
        ));
    }
    if arrival.at_once == Some(false) {
        return Err(ValidationError::new("at_once", "must be true if it is given"));
    }
    if let Some(every) = arrival.every_seconds {
        check_span("every_seconds", every, MILLISECOND, MAX_SPAN)?;
    }
    for (field, rate) in
        [("per_second", arrival.per_second), ("poisson_per_second", arrival.poisson_per_second)]
    {
        if rate.is_some_and(|rate| !(rate > 0.0 && rate <= 1e6)) {
            return Err(ValidationError::new(field, "must be over 0, and at most 1000000"));
        }
    }
    if let Some(burst) = arrival.burst {
        if !(1..=MAX_JOBS).contains(&u64::from(burst.jobs)) {
            return Err(ValidationError::new("burst.jobs", format!("must be 1 to {MAX_JOBS}")));
        }
        check_span("burst.every_seconds", burst.every_seconds, MILLISECOND, MAX_SPAN)?;
    }
    for (name, choice) in &arrival.attributes {
        check_text("attributes", name, MAX_NAME_BYTES)?;
        let Choice::Weighted(weights) = choice else {
            continue;
        };
        let field = || format!("attributes.{name}");
        at_most(&field(), weights.len(), 1000)?;
        let sum: f64 = weights.values().sum();
        if !(sum > 0.0 && sum.is_finite()) || weights.values().any(|weight| *weight < 0.0) {
            return Err(ValidationError::new(
                field(),
                "must have weights of 0 or more, and a sum over 0",
            ));
        }
    }
    if let Some(delay) = arrival.delay_seconds {
        check_span("delay_seconds", delay, Seconds::default(), validate::DECADE)?;
    }
    match &arrival.correlation_key {
        Some(key) if arrival.count > 1 && !key.contains("{n}") => {
            Err(ValidationError::new("correlation_key", "must have {n}, the number of the job"))
        }
        _ => Ok(()),
    }
}

fn check_job(job: &TracedJob) -> Result<(), ValidationError> {
    own_name(&job.job_type).map_err(|fault| ValidationError::new("type", fault.message))?;
    check_span("at_seconds", job.at_seconds, Seconds::default(), MAX_SPAN)?;
    at_most("attempts", job.attempts.len(), 100)?;
    if job.deadline_seconds.is_some_and(|deadline| deadline <= job.at_seconds) {
        return Err(ValidationError::new("deadline_seconds", "must be after at_seconds"));
    }
    job.attempts.iter().enumerate().try_for_each(|(index, attempt)| {
        let details = attempt.details.as_ref();
        check_reported(attempt.message.as_deref(), details, attempt.not_before_seconds)
            .map_err(|fault| fault.within(format_args!("attempts[{index}]")))
    })
}

/// Checks what a worker reports about a failure, within the bounds of a report.
fn check_reported(
    message: Option<&str>,
    details: Option<&serde_json::Value>,
    not_before: Option<Seconds>,
) -> Result<(), ValidationError> {
    if message.is_some_and(|message| message.len() > MAX_MESSAGE_BYTES) {
        let bound = format!("must have at most {MAX_MESSAGE_BYTES} bytes");
        return Err(ValidationError::new("message", bound));
    }
    if details.is_some_and(|details| details.to_string().len() > MAX_DETAILS_BYTES) {
        let bound = format!("must have at most {MAX_DETAILS_BYTES} bytes");
        return Err(ValidationError::new("details", bound));
    }
    match not_before {
        Some(span) => check_span("not_before_seconds", span, Seconds::default(), MAX_SPAN),
        None => Ok(()),
    }
}

fn check_service(rule: &Service) -> Result<(), ValidationError> {
    check_matcher(&rule.matcher).map_err(|fault| fault.within("match"))?;
    if let Some(host) = &rule.host {
        check_text("host", host, MAX_HOST_BYTES)?;
    }
    check_drawn("seconds", rule.seconds)?;
    rule.failure
        .as_ref()
        .map_or(Ok(()), |failure| check_failure(failure).map_err(|fault| fault.within("failure")))
}

fn check_failure(failure: &FailureRule) -> Result<(), ValidationError> {
    if !(0.0..=1.0).contains(&failure.rate) {
        return Err(ValidationError::new("rate", "must be 0 to 1"));
    }
    if !matches!(
        failure.reason,
        Reason::Failed
            | Reason::Timeout
            | Reason::LeaseExpired
            | Reason::ConnectionLost
            | Reason::NotDelivered
    ) {
        return Err(ValidationError::new(
            "reason",
            "must be failed, timeout, lease_expired, connection_lost or not_delivered",
        ));
    }
    if failure.status.is_some_and(|status| !(100..600).contains(&status)) {
        return Err(ValidationError::new("status", "must be 100 to 599"));
    }
    if failure.during_seconds.is_some_and(|[from, to]| from >= to) {
        return Err(ValidationError::new(
            "during_seconds",
            "must be [from, to] with from before to",
        ));
    }
    let details = failure.details.as_ref();
    check_reported(failure.message.as_deref(), details, failure.not_before_seconds)?;
    failure.seconds.map_or(Ok(()), |seconds| check_drawn("seconds", seconds))
}

fn check_drawn(field: &str, span: Span) -> Result<(), ValidationError> {
    let fits = |seconds: f64| (0.0..=MAX_SPAN.as_f64()).contains(&seconds);
    let good = match span {
        Span::Fixed(seconds) | Span::Drawn(Drawn::Exponential(seconds)) => fits(seconds),
        Span::Drawn(Drawn::Uniform([least, most])) => fits(least) && fits(most) && least <= most,
    };
    if good {
        Ok(())
    } else {
        Err(ValidationError::new(
            field,
            format!("must be 0 to {}, the least before the most", MAX_SPAN.as_f64()),
        ))
    }
}

fn check_expect(expect: &Expect) -> Result<(), ValidationError> {
    let waits = expect.longest_wait_seconds.iter().flat_map(LongestWait::named);
    let waits: Vec<&str> = waits.map(|(key, _)| key).collect();
    let running: Vec<&str> = expect.max_running.keys().map(String::as_str).collect();
    for (field, groups) in [("max_running", running), ("longest_wait_seconds", waits)] {
        at_most(field, groups.len(), 1000)?;
        if let Some(key) = groups.iter().find(|key| !key.is_empty() && !key.contains('=')) {
            return Err(ValidationError::new(
                format!("{field}.{key}"),
                "must be named attribute=value, type=name, or by an empty text",
            ));
        }
    }
    Ok(())
}
