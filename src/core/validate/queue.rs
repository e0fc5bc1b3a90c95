//! The bounds of a queue and of its constraints.

use super::{
    HeaderUse, LEAST, ValidationError, YEAR, check_count, check_name, check_plugin_config,
    check_span, check_text, check_value,
};
use crate::error_code::ErrorCode;
use crate::{
    job::{Value, extract},
    queue::{
        config::{Constraint, MAX_CONSTRAINTS, OrderKind, QueueConfig, Rate},
        matcher::{Condition, Matcher, Test},
        plugin_calls::{
            CallFilter, MAX_FILTER_ATTRIBUTES, MAX_FILTER_TEXT_BYTES, MAX_REDACTED_PARTS,
        },
    },
    time::Seconds,
};

/// Most levels of a matcher.
pub const MATCHER_DEPTH: usize = 8;
/// Most conditions of a matcher.
pub const MATCHER_CONDITIONS: usize = 64;
/// Most values of a list in a condition.
pub const LIST_VALUES: usize = 100;

/// Checks a queue's configuration.
///
/// # Errors
///
/// The first fault, with code `invalid_queue`.
pub fn check_queue(queue: &QueueConfig) -> Result<(), ValidationError> {
    queue_fields(queue).map_err(|fault| fault.of(ErrorCode::InvalidQueue))
}

fn queue_fields(queue: &QueueConfig) -> Result<(), ValidationError> {
    check_span(
        "order_step_seconds",
        queue.order_step_seconds,
        Seconds::default(),
        Seconds::new(300),
    )?;
    if let Some(ageing) = queue.ageing_seconds {
        if queue.order != OrderKind::Priority {
            return Err(ValidationError::new(
                "ageing_seconds",
                "must be given only with `order: priority`",
            ));
        }
        check_span("ageing_seconds", ageing, LEAST, YEAR)?;
    }
    if let Some(name) = &queue.partition_by {
        check_text("partition_by", name, extract::NAME_BYTES)?;
    }
    if let Some(name) = &queue.partition_then_by {
        check_text("partition_then_by", name, extract::NAME_BYTES)?;
        let fault = match queue {
            QueueConfig { partition_by: None, .. } => "must be given only with `partition_by`",
            QueueConfig { strict_order: true, .. } => "must not be given with `strict_order`",
            _ if queue.partition_by.as_ref() == Some(name) => "must differ from `partition_by`",
            _ => "",
        };
        if !fault.is_empty() {
            return Err(ValidationError::new("partition_then_by", fault));
        }
    }
    if queue.strict_order {
        let fault = match queue {
            QueueConfig { partition_by: None, .. } => "must be given only with `partition_by`",
            QueueConfig { throttler: Some(_), .. } => "must not be given with a `throttler`",
            QueueConfig { order: OrderKind::Priority, .. } => {
                "must not be given with `order: priority`"
            }
            _ => "",
        };
        if !fault.is_empty() {
            return Err(ValidationError::new("strict_order", fault));
        }
    }
    check_count("constraints", queue.constraints.len(), MAX_CONSTRAINTS)?;
    for (index, constraint) in queue.constraints.iter().enumerate() {
        check_constraint(constraint)
            .map_err(|fault| fault.within(format_args!("constraints[{index}]")))?;
        if queue.constraints[..index].iter().any(|other| other.name == constraint.name) {
            return Err(ValidationError::new(
                format!("constraints[{index}].name"),
                "must differ from the names of the other constraints",
            ));
        }
    }
    let redacted = queue.plugin_calls.as_ref().map_or(0, |calls| calls.redact.len());
    check_count("plugin_calls.redact", redacted, MAX_REDACTED_PARTS)?;
    queue
        .throttler
        .as_ref()
        .map_or(Ok(()), |throttler| check_plugin_config("throttler.config", &throttler.config))
}

/// Checks which calls of a plugin are stored.
///
/// # Errors
///
/// The first fault.
pub fn check_filter(filter: &CallFilter) -> Result<(), ValidationError> {
    check_count("attributes", filter.attributes.len(), MAX_FILTER_ATTRIBUTES)?;
    for (name, value) in &filter.attributes {
        check_text("attributes", name, extract::NAME_BYTES)?;
        check_text(&format!("attributes.{name}"), value, MAX_FILTER_TEXT_BYTES)?;
    }
    let reason = filter.reason.as_ref();
    reason.map_or(Ok(()), |reason| check_text("reason", reason, MAX_FILTER_TEXT_BYTES))
}

fn check_constraint(constraint: &Constraint) -> Result<(), ValidationError> {
    check_text("name", &constraint.name, 64)?;
    check_matcher(&constraint.matcher).map_err(|fault| fault.within("match"))?;
    if let Some(name) = &constraint.per {
        check_text("per", name, extract::NAME_BYTES)?;
    }
    match &constraint.rate {
        Some(rate) => check_rate(rate).map_err(|fault| fault.within("rate")),
        None if constraint.concurrency.is_none() => {
            Err(ValidationError::new("concurrency", "must be given, unless `rate` is"))
        }
        None => Ok(()),
    }
}

fn check_rate(rate: &Rate) -> Result<(), ValidationError> {
    let bounded = |field, count| {
        let good = (1..=1_000_000).contains(&count);
        if good { Ok(()) } else { Err(ValidationError::new(field, "must be 1 to 1000000")) }
    };
    bounded("count", rate.count)?;
    check_span("per_seconds", rate.per_seconds, LEAST, Seconds::new(2_592_000))?;
    bounded("burst", rate.burst.unwrap_or(1))
}

/// Checks a matcher: its depth, its size, and that each condition can hold.
///
/// # Errors
///
/// The first fault.
pub fn check_matcher(matcher: &Matcher) -> Result<(), ValidationError> {
    check_level(matcher, 1, &mut 0)
}

fn check_level(
    matcher: &Matcher,
    depth: usize,
    conditions: &mut usize,
) -> Result<(), ValidationError> {
    if depth > MATCHER_DEPTH {
        return Err(ValidationError::new("", format!("must have at most {MATCHER_DEPTH} levels")));
    }
    *conditions += usize::from(matcher.job_type.is_some())
        + usize::from(matcher.priority.is_some())
        + matcher.attribute.len();
    if *conditions > MATCHER_CONDITIONS {
        return Err(ValidationError::new(
            "",
            format!("must have at most {MATCHER_CONDITIONS} conditions in all"),
        ));
    }
    if let Some(condition) = &matcher.job_type {
        check_condition_on(condition, HeaderUse::Text).map_err(|fault| fault.within("type"))?;
    }
    if let Some(condition) = &matcher.priority {
        check_condition_on(condition, HeaderUse::Number)
            .map_err(|fault| fault.within("priority"))?;
    }
    for (name, condition) in &matcher.attribute {
        check_name("attribute", name)?;
        check_condition_on(condition, HeaderUse::Any)
            .map_err(|fault| fault.within(name).within("attribute"))?;
    }
    let lists = [("all", &matcher.all), ("any", &matcher.any)];
    for (field, index, inner) in lists.iter().flat_map(|(field, list)| {
        list.iter().enumerate().map(move |(index, inner)| (field, index, inner))
    }) {
        check_level(inner, depth + 1, conditions)
            .map_err(|fault| fault.within(format_args!("{field}[{index}]")))?;
    }
    matcher.not.as_ref().map_or(Ok(()), |inner| {
        check_level(inner, depth + 1, conditions).map_err(|fault| fault.within("not"))
    })
}

/// Checks one condition on a value of any kind.
///
/// # Errors
///
/// The first fault.
pub fn check_condition(condition: &Condition) -> Result<(), ValidationError> {
    check_condition_on(condition, HeaderUse::Any)
}

fn check_condition_on(condition: &Condition, kind: HeaderUse) -> Result<(), ValidationError> {
    match condition {
        Condition::Equals(value) => check_value("", value, kind),
        Condition::In(list) => check_list("", list, kind),
        Condition::Test(test) => check_test(test, kind),
    }
}

fn check_test(test: &Test, kind: HeaderUse) -> Result<(), ValidationError> {
    if *test == Test::default() {
        return Err(ValidationError::new(
            "",
            "must have one of eq, in, lt, lte, gt, gte, prefix, exists",
        ));
    }
    if test.exists == Some(false) && *test != (Test { exists: Some(false), ..Test::default() }) {
        return Err(ValidationError::new("exists", "must be the only comparison if it is false"));
    }
    let compared = [
        ("eq", &test.eq),
        ("lt", &test.lt),
        ("lte", &test.lte),
        ("gt", &test.gt),
        ("gte", &test.gte),
    ];
    for (field, value) in
        compared.into_iter().filter_map(|(field, value)| Some((field, value.as_ref()?)))
    {
        check_value(field, value, kind)?;
    }
    if let Some(list) = &test.within {
        check_list("in", list, kind)?;
    }
    match &test.prefix {
        Some(_) if kind == HeaderUse::Number => {
            Err(ValidationError::new("prefix", "must be given only with texts"))
        }
        Some(prefix) => check_text("prefix", prefix, extract::TEXT_BYTES),
        None => Ok(()),
    }
}

fn check_list(field: &str, list: &[Value], kind: HeaderUse) -> Result<(), ValidationError> {
    if list.is_empty() || list.len() > LIST_VALUES {
        return Err(ValidationError::new(field, format!("must have 1 to {LIST_VALUES} values")));
    }
    let faulty = list
        .iter()
        .enumerate()
        .find_map(|(index, value)| check_value(&format!("{field}[{index}]"), value, kind).err());
    faulty.map_or(Ok(()), Err)
}
