//! The limits of queues: their configuration, and usage added up from the grants.

use std::collections::BTreeMap;

use tidegate_core::{
    job::{QueueName, type_config::TypeItem},
    port::job_store::ItemKind,
    queue::{
        Grant, Limits,
        config::{Constraint, QueueItem, Rate},
        matcher::Subject,
    },
    time::Timestamp,
};

use super::{super::releases::has_field, Granted, Model};

/// The starts under a rate, and their instants.
pub(super) struct Starts {
    rate: Rate,
    at: Vec<Timestamp>,
}

impl Starts {
    /// Continues under `rate` at `now`. A rate that gets or loses its burst counts from now on;
    /// otherwise the starts count that the rate before could still see.
    fn change_to(&mut self, rate: Rate, now: Timestamp) {
        if self.rate != rate {
            let window = self.rate.per_seconds.duration();
            let restarts = self.rate.burst.is_some() || rate.burst.is_some();
            self.at.retain(|at| !restarts && *at + window > now);
            self.rate = rate;
        }
    }

    /// Whether a start at `now`, the last of them, is one too many.
    fn exceeded(&self, now: Timestamp) -> bool {
        let Rate { count, per_seconds, burst } = self.rate;
        let Some(burst) = burst else {
            let inside = self.at.iter().filter(|at| **at + per_seconds.duration() > now);
            return inside.count() > count as usize;
        };
        self.at.iter().enumerate().any(|(index, from)| {
            let back = now.since(*from).as_secs_f64() * f64::from(count) / per_seconds.as_f64();
            (self.at.len() - index) as f64 > f64::from(burst) + back + 1e-6
        })
    }
}

impl Model {
    /// Checks that no window has more starts than its count, and that no period has more starts
    /// than a full bucket and its refill.
    pub(super) fn check_rates(
        &mut self,
        queue: &QueueName,
        limits: &Limits,
        admitted: &[Grant],
        now: Timestamp,
    ) {
        let rates: BTreeMap<&str, Rate> = limits
            .queue
            .constraints
            .iter()
            .filter_map(|constraint| Some((constraint.name.as_str(), constraint.rate?)))
            .collect();
        self.starts.retain(|(of, name, _), starts| {
            let rate = rates.get(name.as_str());
            if let Some(rate) = rate.filter(|_| of == queue) {
                starts.change_to(*rate, now);
            }
            of != queue || rate.is_some()
        });
        for grant in admitted.iter().filter(|grant| !grant.critical) {
            for constraint in &limits.queue.constraints {
                let (Some(rate), Some(value)) = (constraint.rate, value(constraint, grant)) else {
                    continue;
                };
                let starts = self
                    .starts
                    .entry((queue.clone(), constraint.name.clone(), value))
                    .or_insert_with(|| Starts { rate, at: Vec::new() });
                starts.at.push(now);
                if starts.exceeded(now) {
                    self.fault(format!("the rate of {} was exceeded", constraint.name));
                }
            }
        }
    }

    pub(super) fn configure(
        &mut self,
        kind: ItemKind,
        name: &str,
        bytes: Option<&[u8]>,
        version: u64,
    ) {
        let extended = bytes.is_some_and(has_field);
        let known = (kind, name.to_owned());
        if bytes.is_some() && self.extended.contains(&known) && !extended {
            self.fault(format!("{name} lost a field of the next release"));
        }
        if extended {
            self.extended.insert(known);
        } else {
            self.extended.remove(&known);
        }
        let bytes = bytes.unwrap_or(b"{}");
        match kind {
            ItemKind::Queue => {
                let mut item: QueueItem = serde_json::from_slice(bytes).expect("a queue");
                item.version = version;
                self.note(format!(
                    "queue {name} v{version} paused {} {:?}",
                    item.paused, item.config
                ));
                self.queues.insert(name.parse().expect("a queue's name"), item);
            }
            ItemKind::Type => {
                let item: TypeItem = serde_json::from_slice(bytes).expect("a type");
                self.types.insert(name.parse().expect("a type's name"), item);
            }
            ItemKind::Token
            | ItemKind::TokenUse
            | ItemKind::Closed
            | ItemKind::Operation
            | ItemKind::Plugin
            | ItemKind::Horizon
            | ItemKind::Schedule
            | ItemKind::ScheduleState
            | ItemKind::Trigger
            | ItemKind::Drain
            | ItemKind::Schema => return,
        }
        for (queue, item) in &self.queues {
            let types = self
                .types
                .iter()
                .filter(|(_, of)| of.config.queue == *queue)
                .filter_map(|(name, of)| Some((name.clone(), of.config.concurrency?)))
                .collect();
            let limits = Limits {
                version: item.version,
                queue: item.config.clone(),
                paused: item.paused,
                unreadable: false,
                types,
                throttler: None,
            };
            let shapes = self.limits.entry((queue.clone(), item.version)).or_default();
            if !shapes.contains(&limits) {
                shapes.push(limits);
            }
        }
    }
}

/// The value under which `constraint` counts `grant`, if it applies.
fn value(constraint: &Constraint, grant: &Grant) -> Option<String> {
    let subject = Subject {
        job_type: &grant.job_type,
        priority: grant.priority,
        attributes: &grant.attributes,
    };
    let value = match &constraint.per {
        None => String::new(),
        Some(name) => grant.attributes.get(name)?.text(),
    };
    constraint.matcher.matches(subject).then_some(value)
}

/// The limit that the live grants exceed, if `added` contributes to it.
pub(super) fn exceeded_limit(limits: &Limits, added: &[&Grant], live: &Granted) -> Option<String> {
    if limits.paused && !added.is_empty() {
        return Some("admitted while paused".into());
    }
    let weight = |counts: &dyn Fn(&Grant) -> bool| -> u64 {
        live.values()
            .filter(|grant| !grant.critical && counts(grant))
            .map(|grant| u64::from(grant.weight))
            .sum()
    };
    for grant in added.iter().filter(|grant| !grant.critical && grant.weight > 0) {
        if let Some(most) = limits.queue.concurrency {
            let used = weight(&|_| true);
            if used > u64::from(most) {
                return Some(format!("{used} is granted, and the queue's limit is {most}"));
            }
        }
        if let Some(most) = limits.types.get(&grant.job_type) {
            let used = weight(&|other| other.job_type == grant.job_type);
            if used > u64::from(*most) {
                return Some(format!(
                    "{used} is granted, and the limit of type {} is {most}",
                    grant.job_type
                ));
            }
        }
        for constraint in &limits.queue.constraints {
            let (Some(most), Some(of)) = (constraint.concurrency, value(constraint, grant)) else {
                continue;
            };
            let used = weight(&|other| value(constraint, other).as_ref() == Some(&of));
            if used > u64::from(most) {
                return Some(format!(
                    "{used} is granted, and the limit of constraint {} for {of:?} is {most}",
                    constraint.name
                ));
            }
        }
    }
    None
}
