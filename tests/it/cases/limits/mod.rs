//! Limits that are set and changed while jobs run are never exceeded, and their ledger stays small.

mod concurrency;
mod ledger;
mod rates;
mod read_ahead;
mod unclaimed;

use std::collections::BTreeMap;

use tidegate_core::job::Job;

fn by_tenant(jobs: &[Job]) -> BTreeMap<String, usize> {
    let mut tenants = BTreeMap::new();
    for job in jobs {
        *tenants.entry(job.spec.attributes["tenant"].text()).or_default() += 1;
    }
    tenants
}
