//! Limits, order and times: what ran at once, and when.

use std::collections::HashMap;

use super::{Evidence, Row, row};
use crate::demo::{
    event_log::{Scope, Start, percentile},
    plan::{JobKind, LIMIT, LONE, PACED, RANKED, RATE, SHOP, TENANT_LIMIT},
};
use tidegate_core::time::Timestamp;

impl Evidence<'_> {
    /// What ran at once, as the workers counted it.
    pub(super) fn limits(&self) -> Vec<Row> {
        let most = |scope: &Scope| self.pages.most.get(scope).copied().unwrap_or_default();
        let shop = most(&Scope::Queue(SHOP));
        let tenants: Vec<(&str, u64)> = self
            .pages
            .most
            .iter()
            .filter_map(|(scope, most)| match scope {
                Scope::Tenant(name) => Some((name.as_str(), *most)),
                Scope::Queue(_) => None,
            })
            .collect();
        let said: Vec<String> =
            tenants.iter().map(|(name, most)| format!("{name} {most}")).collect();
        let kept = !tenants.is_empty() && tenants.iter().all(|(_, most)| *most <= TENANT_LIMIT);
        let begun = self.pages.first_starts();
        let passed: Vec<usize> = self
            .acknowledged()
            .filter(|job| job.critical || job.errand.tenant == LONE)
            .map(|job| {
                self.accepted.overtaken(job, self.plan, |id| begun.get(id).map(|(place, _)| *place))
            })
            .collect();
        let least = passed.iter().min().copied().unwrap_or_default();
        let ranked = self.ranks();
        let misplaced = ranked.windows(2).filter(|pair| pair[0] > pair[1]).count();
        vec![
            row(
                "most weight at once in demo-shop",
                format!("at most {LIMIT}"),
                shop.to_string(),
                (1..=LIMIT).contains(&shop),
            ),
            row(
                "most weight at once of one tenant",
                format!("at most {TENANT_LIMIT}"),
                said.join(", "),
                kept,
            ),
            row(
                "critical jobs, and a tenant's only job",
                "pass the backlog",
                format!("each passed {least} or more"),
                least > 0,
            ),
            row(
                "by priority, one at a time",
                "in place, 1 at once",
                format!("{misplaced} misplaced, {} at once", most(&Scope::Queue(RANKED))),
                // One attempt at most was under way when the server was killed, and comes again
                // later.
                misplaced <= usize::from(self.kill.is_some()) && most(&Scope::Queue(RANKED)) == 1,
            ),
        ]
    }

    /// The priorities of the ranked jobs in the order of their first starts.
    fn ranks(&self) -> Vec<i32> {
        let priorities: HashMap<&str, i32> = self
            .plan
            .iter()
            .filter(|job| job.kind == JobKind::Ranked)
            .map(|job| (job.id.as_str(), job.priority))
            .collect();
        let mut begun: Vec<(usize, i32)> = self
            .pages
            .first_starts()
            .into_iter()
            .filter_map(|(id, (place, _))| Some((place, *priorities.get(id)?)))
            .collect();
        begun.sort_unstable();
        begun.into_iter().map(|(_, priority)| priority).collect()
    }

    /// When jobs started.
    pub(super) fn times(&self) -> Vec<Row> {
        let late = self.pages.lateness();
        let at = |percent| percentile(&late, percent).unwrap_or(-1);
        let most = i64::try_from(self.lateness.as_millis()).unwrap_or(i64::MAX);
        // A job whose first attempt a kill swallowed is not among them, and one that was due
        // meanwhile is late.
        let fine = !late.is_empty() && late[0] >= 0 && (self.kill.is_some() || at(99) <= most);
        let promise = if self.kill.is_some() {
            "never early".to_owned()
        } else {
            format!("never early, p99 at most {most} ms")
        };
        let paced: Vec<&Start> =
            self.pages.starts.iter().filter(|start| start.kind.queue() == PACED).collect();
        let first = self
            .acknowledged()
            .filter(|job| job.kind == JobKind::Paced)
            .filter_map(|job| Some(self.accepted.jobs.get(&job.id)?.0))
            .min();
        let took =
            paced.last().zip(first).map(|(last, first)| last.at.since(first)).unwrap_or_default();
        vec![
            row(
                "delayed jobs: lateness",
                promise,
                format!("p50 {} ms, p99 {} ms, of {}", at(50), at(99), late.len()),
                fine,
            ),
            row(
                "rate: attempts that started",
                format!("{} at first, then {} a second", RATE.1, RATE.0),
                format!("{} in {:.1} s", paced.len(), took.as_secs_f64()),
                !paced.is_empty() && first.is_some_and(|first| within_rate(&paced, first)),
            ),
        ]
    }
}

/// Whether at no time since `first`, the enqueue of the first job, more starts happened than the
/// rate allows.
///
/// A delivery may be slow, so two starts may be closer together than their admissions. No start can
/// precede its admission.
fn within_rate(starts: &[&Start], first: Timestamp) -> bool {
    starts.iter().enumerate().all(|(before, start)| {
        let allowed = RATE.1 as f64 + start.at.since(first).as_secs_f64() * RATE.0 as f64;
        (before + 1) as f64 <= allowed + 0.02
    })
}
