//! The capacity in use, kept up to date as grants come and go.

use proptest::prelude::*;

use super::{
    grant,
    properties::{any_job, any_limits},
};
use crate::queue::Usage;

proptest! {
    #[test]
    fn usage_after_changes_is_that_of_the_remaining_grants(
        limits in any_limits(),
        jobs in prop::collection::vec((any_job(), any::<bool>()), 0..20),
    ) {
        let mut usage = Usage::default();
        for (job, _) in &jobs {
            usage.add(&limits, &grant(job));
        }
        for (job, _) in jobs.iter().filter(|(_, ended)| *ended) {
            usage.remove(&limits, &grant(job));
        }
        let left: Vec<_> =
            jobs.iter().filter(|(_, ended)| !ended).map(|(job, _)| grant(job)).collect();
        prop_assert_eq!(&usage, &Usage::of(&limits, &left));
        let weight: u64 = left.iter().map(|grant| u64::from(grant.weight)).sum();
        let live = left.iter().filter(|grant| !grant.critical).count() as u64;
        prop_assert_eq!((usage.weight(), usage.live()), (weight, live));
    }
}
