//! The mix: how many jobs of each kind, and how they differ.

use super::{JobKind, LEASE, Planned, PlannedJob, PlannedOutcome, Timing, Wave};

/// Returns a mix of about `size` jobs. Each id starts with `run`.
pub fn mix(run: &str, size: usize) -> Vec<Planned> {
    let mut mix = Mix { run, jobs: Vec::with_capacity(size + size / 4) };
    let part = |percent: usize| (size * percent / 100).max(2);
    mix.add(JobKind::Call, part(30), |job, i| job.errand.weight = 1 + i % 3);
    mix.add(JobKind::Crunch, part(9), |job, _| job.errand.weight = 3);
    mix.add(JobKind::Flaky, part(8), |job, i| {
        (job.errand.failures, job.fate) = if i % 4 == 3 {
            (3, PlannedOutcome::Fails)
        } else {
            (1 + (i % 2) as u16, PlannedOutcome::Succeeds)
        };
    });
    mix.add(JobKind::Hopeless, part(2), |job, _| {
        (job.errand.failures, job.fate) = (1, PlannedOutcome::Fails);
    });
    mix.add(JobKind::Later, part(8), |job, i| job.errand.work_ms = 200 + i * 97 % 500);
    mix.add(JobKind::Busy, part(3), |_, _| {});
    mix.add(JobKind::Payment, part(4), |job, i| {
        if i % 2 == 1 {
            (job.errand.breaks_off, job.fate) = (true, PlannedOutcome::Doubt);
        }
    });
    mix.add(JobKind::Render, 3, |job, i| {
        job.errand.work_ms = LEASE.as_millis() as u64 + 1000;
        TENANTS[i as usize].clone_into(&mut job.errand.tenant);
    });
    mix.add(JobKind::Render, 1, |job, _| {
        job.errand.work_ms = 30_000;
        job.fate = PlannedOutcome::Cancelled;
    });
    mix.add(JobKind::Timer, part(20), |job, i| {
        job.timing = Timing::After(1000 + i * 7000 / part(20) as u64);
        job.errand.work_ms = 5;
    });
    mix.add(JobKind::Paced, 30, |job, _| job.errand.work_ms = 5);
    mix.add(JobKind::Ranked, 16, |job, i| {
        job.priority = (i * 7 % 16) as i32;
        job.errand.work_ms = 20;
    });
    mix.add(JobKind::Call, 3, |job, _| job.timing = Timing::OpenWindow);
    mix.add(JobKind::Call, 2, |job, _| {
        (job.timing, job.fate) = (Timing::ClosedWindow, PlannedOutcome::Waits);
    });
    mix.add(JobKind::Call, 2, |job, _| {
        (job.timing, job.fate) = (Timing::Expiring, PlannedOutcome::Expires);
    });
    mix.add(JobKind::Call, 3, |job, _| {
        (job.critical, job.wave) = (true, Wave::Behind);
        job.errand.weight = 0;
    });
    mix.add(JobKind::Call, 1, |job, _| {
        job.wave = Wave::Behind;
        LONE.clone_into(&mut job.errand.tenant);
    });
    mix.add(JobKind::Call, part(15), |job, i| {
        job.wave = Wave::Trickle;
        job.errand.weight = 1 + i % 2;
    });
    mix.jobs
}

/// The tenants; the first has the most jobs.
const TENANTS: [&str; 3] = ["acme", "blue", "coda"];
/// The tenant with a single job, enqueued after the jobs of all others.
pub const LONE: &str = "dune";

struct Mix<'a> {
    run: &'a str,
    jobs: Vec<Planned>,
}

impl Mix<'_> {
    /// Adds `count` jobs of `kind`, each changed by `special`.
    fn add(&mut self, kind: JobKind, count: usize, special: impl Fn(&mut Planned, u64)) {
        for i in 0..count as u64 {
            let number = self.jobs.len() as u64;
            let tenant = TENANTS[[0, 1, 0, 2, 0, 1, 0, 2, 1, 0][(number % 10) as usize]];
            let errand = PlannedJob {
                tenant: tenant.to_owned(),
                weight: 1,
                work_ms: 40 + number * 37 % 100,
                ..PlannedJob::default()
            };
            let mut job = Planned {
                id: format!("{}-{number}", self.run),
                kind,
                errand,
                priority: 100,
                critical: false,
                timing: Timing::Now,
                wave: Wave::Backlog,
                fate: PlannedOutcome::Succeeds,
            };
            special(&mut job, i);
            self.jobs.push(job);
        }
    }
}
