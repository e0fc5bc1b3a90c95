//! The latest errors of jobs, counted by type, reason and pattern of the message.

use std::collections::BTreeMap;

use tidegate_core::{
    job::{Job, JobId, Outcome, TypeName, error_pattern::error_pattern, lifecycle::Reason},
    port::{
        job_filter::TimeRange,
        job_store::{ListQuery, StateFilter},
    },
    time::Timestamp,
};

use crate::{Engine, Error};

/// Most groups of a page.
pub const MAX_GROUPS: usize = 500;
/// Jobs after which a page ends.
const MAX_COUNTED_JOBS: usize = 20_000;
/// Jobs that one call of the store reads.
const READ_AT_ONCE: u32 = 1000;
/// Most ids of a group.
const MAX_EXAMPLES: usize = 3;

/// Jobs whose latest errors have one type, reason and pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorGroup {
    /// The type of the jobs.
    pub job_type: TypeName,
    /// The reason.
    pub reason: Reason,
    /// The [pattern](error_pattern) of the message; empty without a message.
    pub pattern: String,
    /// The latest message.
    pub message: Option<String>,
    /// How many jobs.
    pub jobs: u64,
    /// When the earliest of these errors came.
    pub first_at: Timestamp,
    /// When the latest of these errors came.
    pub last_at: Timestamp,
    /// Some of the jobs, at most three.
    pub examples: Vec<JobId>,
}

/// The errors of some jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorPage {
    /// The groups, those with most jobs first; at most [`MAX_GROUPS`].
    pub groups: Vec<ErrorGroup>,
    /// How many jobs with errors are in no group, because there are too many groups.
    pub ungrouped: u64,
    /// Where the next page starts; none on the last one. A group may be on several pages.
    pub next_cursor: Option<String>,
}

impl Engine {
    /// Counts the latest errors, of the time `at`, of the jobs that `query` selects: unless it names
    /// states or phases, of those that failed and those that wait after a failure. A page reads at most
    /// 20,000 of these jobs, or with conditions on their data one page of [`Engine::list`]. It may be
    /// empty and still have a cursor.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn errors(&self, query: &ListQuery, at: TimeRange) -> Result<ErrorPage, Error> {
        let mut query = ListQuery { limit: READ_AT_ONCE, ..query.clone() };
        if query.filter.states.is_empty() && query.filter.phases.is_empty() {
            query.filter.states = vec![StateFilter::Scheduled, StateFilter::Ended(Outcome::Failed)];
        }
        // A job was accepted before it failed.
        let created = &mut query.filter.created;
        created.to = created.to.into_iter().chain(at.to).min();
        let mut groups = Groups::default();
        let mut counted = 0;
        loop {
            let page = self.list(&query).await?;
            for job in &page.jobs {
                if let Some(failed_at) = job.failed_at().filter(|failed_at| at.contains(*failed_at))
                {
                    groups.add(job, failed_at);
                }
            }
            counted += page.jobs.len();
            // A short page has read as much as one call of the store may.
            let is_short = page.jobs.len() < query.limit as usize;
            query.cursor = page.next_cursor;
            let is_full = counted >= MAX_COUNTED_JOBS || !query.filter.data.is_empty();
            if query.cursor.is_none() || is_short || is_full {
                return Ok(groups.page(query.cursor));
            }
        }
    }
}

/// The groups while they are counted.
#[derive(Default)]
struct Groups {
    by_key: BTreeMap<(TypeName, &'static str, String), ErrorGroup>,
    ungrouped: u64,
}

impl Groups {
    fn add(&mut self, job: &Job, failed_at: Timestamp) {
        let Some(error) = &job.life.error else { return };
        let pattern = error_pattern(error.message.as_deref().unwrap_or_default());
        let key = (job.spec.job_type.clone(), error.reason.as_str(), pattern);
        if self.by_key.len() == MAX_GROUPS && !self.by_key.contains_key(&key) {
            self.ungrouped += 1;
            return;
        }
        let group =
            self.by_key.entry(key).or_insert_with_key(|(job_type, _, pattern)| ErrorGroup {
                job_type: job_type.clone(),
                reason: error.reason,
                pattern: pattern.clone(),
                message: None,
                jobs: 0,
                first_at: failed_at,
                last_at: failed_at,
                examples: Vec::new(),
            });
        if group.jobs == 0 || failed_at > group.last_at {
            group.message.clone_from(&error.message);
        }
        group.jobs += 1;
        group.first_at = group.first_at.min(failed_at);
        group.last_at = group.last_at.max(failed_at);
        if group.examples.len() < MAX_EXAMPLES {
            group.examples.push(job.id.clone());
        }
    }

    fn page(self, next_cursor: Option<String>) -> ErrorPage {
        let mut groups: Vec<ErrorGroup> = self.by_key.into_values().collect();
        groups.sort_by_key(|group| std::cmp::Reverse((group.jobs, group.last_at)));
        ErrorPage { groups, ungrouped: self.ungrouped, next_cursor }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::job::lifecycle::Failure;

    use super::*;
    use crate::testkit::builders::{at, job};

    fn failed(id: &str, message: &str) -> Job {
        let mut job = job(id).build();
        job.life.error = Some(Failure::new(Reason::Failed, message));
        job
    }

    #[test]
    fn a_group_has_its_first_and_latest_error_and_three_examples() {
        let mut groups = Groups::default();
        for (n, seconds) in [5, 9, 2, 7, 3].into_iter().enumerate() {
            groups.add(&failed(&format!("j{n}"), &format!("busy for {seconds} s")), at(seconds));
        }
        let page = groups.page(None);
        let [group] = &page.groups[..] else { panic!("{page:?}") };
        assert_eq!((group.jobs, group.first_at, group.last_at), (5, at(2), at(9)));
        assert_eq!(group.pattern, "busy for * s");
        assert_eq!(group.message.as_deref(), Some("busy for 9 s"), "the latest");
        assert_eq!(group.examples.len(), MAX_EXAMPLES);
    }

    #[test]
    fn groups_are_bounded_and_come_by_their_size() {
        let mut groups = Groups::default();
        let name = |n: usize| -> String {
            let letter = |digit: usize| char::from(b'a' + digit as u8);
            [n / 676, n / 26 % 26, n % 26].map(letter).iter().collect()
        };
        for n in 0..MAX_GROUPS + 20 {
            groups.add(&failed("j", &name(n)), at(1));
        }
        groups.add(&failed("j", &name(7)), at(2));
        let page = groups.page(None);
        assert_eq!((page.groups.len(), page.ungrouped), (MAX_GROUPS, 20));
        assert_eq!((page.groups[0].jobs, &page.groups[0].pattern), (2, &name(7)));
    }
}
