use super::*;
use crate::demo::{
    event_log::{Scope, Start},
    plan::{self, JobKind, LIMIT, LONE, RANKED, RATE, SHOP, TENANT_LIMIT},
    web,
};
use tidegate_api::HeldBy;
use tidegate_core::time::Timestamp;

/// A run in which everything went as promised.
#[derive(Clone)]
struct Run {
    plan: Vec<Planned>,
    accepted: Accepted,
    pages: Pages,
    jobs: HashMap<String, ObservedJob>,
    explained: Vec<Explanation>,
    kill: Option<Kill>,
}

const BEGAN: i64 = 1_000_000_000_000;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(BEGAN) + Duration::from_millis(millis)
}

impl Run {
    fn good() -> Self {
        let plan = plan::mix("r", 40);
        let mut run = Self {
            accepted: Accepted { repeats: (20, 20), done: true, ..Accepted::default() },
            pages: Pages::default(),
            jobs: HashMap::new(),
            explained: Vec::new(),
            kill: None,
            plan,
        };
        for job in run.plan.clone() {
            run.accepted.jobs.insert(job.id.clone(), (at(0), at(0)));
            run.live(&job);
        }
        // Critical jobs and the lone one were sent later, and begin first.
        let ahead: Vec<String> = run
            .plan
            .iter()
            .filter(|job| job.critical || job.errand.tenant == LONE)
            .map(|job| job.id.clone())
            .collect();
        for id in &ahead {
            run.accepted.jobs.insert(id.clone(), (at(1), at(1)));
        }
        run.pages.starts.sort_by_key(|start| !ahead.contains(&start.id));
        run.pages.most = [
            (Scope::Queue(SHOP), LIMIT),
            (Scope::Queue(RANKED), 1),
            (Scope::Tenant("acme".to_owned()), TENANT_LIMIT),
        ]
        .into();
        run.pages.signatures = (9, 0);
        run.pages.heartbeats = 12;
        run.pages.turned_away = 2;
        run
    }

    fn live(&mut self, planned: &Planned) {
        let data = &planned.request(at(0))["data"]["due_at"];
        let due_at: Option<Timestamp> = serde_json::from_value(data.clone()).unwrap();
        // Paced ones begin when the rate admits them, ranked ones in order.
        let paced =
            self.pages.starts.iter().filter(|start| start.kind == JobKind::Paced).count() as u64;
        let begin = match planned.kind {
            JobKind::Paced => at(paced.saturating_sub(RATE.1 - 1) * 1000 / RATE.0),
            _ => due_at.unwrap_or(at(0)),
        };
        for attempt in 1..=planned.runs() as u16 {
            self.pages.starts.push(Start {
                id: planned.id.clone(),
                kind: planned.kind,
                attempt,
                at: begin,
                due_at,
            });
        }
        self.pages.starts.sort_by_key(|start| match start.kind {
            JobKind::Ranked => {
                self.plan.iter().find(|job| job.id == start.id).map(|job| job.priority)
            }
            _ => None,
        });
        let attempt = planned.runs() as u16;
        let mut job = ObservedJob {
            id: planned.id.clone(),
            state: planned.fate.state().to_owned(),
            attempt,
            ..ObservedJob::default()
        };
        match planned.fate {
            PlannedOutcome::Succeeds => {
                job.result = Some(web::result(&planned.id, attempt));
                self.pages.succeeded.insert((planned.id.clone(), attempt));
            }
            PlannedOutcome::Doubt => {
                job.error = Some(Reason::OutcomeUnknown);
            }
            PlannedOutcome::Waits => {
                let held_by = Some(HeldBy { kind: "window".into(), ..HeldBy::default() });
                self.explained.push(Explanation { held_by, ..Explanation::default() });
            }
            PlannedOutcome::Cancelled => self.pages.stopped_by_heartbeat.push(planned.id.clone()),
            PlannedOutcome::Fails | PlannedOutcome::Expires => {}
        }
        if planned.kind == JobKind::Later {
            self.pages.callbacks = (self.pages.callbacks.0 + 1, self.pages.callbacks.1 + 1);
        }
        self.jobs.insert(planned.id.clone(), job);
    }

    fn of(&self, kind: JobKind) -> String {
        self.plan.iter().find(|job| job.kind == kind).unwrap().id.clone()
    }

    fn broken(&self) -> Vec<&'static str> {
        let Self { plan, accepted, pages, jobs, explained, kill } = self;
        let evidence = Evidence {
            plan,
            accepted,
            pages,
            jobs,
            explained,
            kill: *kill,
            lateness: Duration::from_millis(100),
        };
        table(&evidence).into_iter().filter(|row| !row.ok).map(|row| row.what).collect()
    }
}

/// Returns the broken rows of a manipulated good run.
fn spoilt(spoil: impl FnOnce(&mut Run)) -> Vec<&'static str> {
    let mut run = Run::good();
    spoil(&mut run);
    run.broken()
}

#[test]
fn a_run_without_fault_keeps_every_promise() {
    assert_eq!(Run::good().broken(), Vec::<&str>::new());
}

#[test]
fn a_lost_job_is_noticed() {
    let lost = spoilt(|run| {
        let id = run.of(JobKind::Call);
        run.jobs.remove(&id);
    });
    assert!(
        lost.contains(&"every accepted job ended")
            && lost.contains(&"jobs that ended otherwise than planned"),
        "{lost:?}"
    );
    let stuck = spoilt(|run| {
        let id = run.of(JobKind::Call);
        run.jobs.get_mut(&id).unwrap().state = "running".to_owned();
    });
    assert!(stuck.contains(&"every accepted job ended"), "{stuck:?}");
    let invented =
        spoilt(|run| drop(run.jobs.insert("another".to_owned(), ObservedJob::default())));
    assert_eq!(invented, ["every accepted job ended"]);
}

#[test]
fn a_limit_that_was_exceeded_is_noticed() {
    let over = |scope: Scope, most: u64| {
        spoilt(|run| {
            run.pages.most.insert(scope, most);
        })
    };
    assert_eq!(over(Scope::Queue(SHOP), LIMIT + 1), ["most weight at once in demo-shop"]);
    assert_eq!(
        over(Scope::Tenant("blue".to_owned()), TENANT_LIMIT + 1),
        ["most weight at once of one tenant"]
    );
    assert_eq!(over(Scope::Queue(RANKED), 2), ["by priority, one at a time"]);
}

#[test]
fn a_start_out_of_turn_is_noticed() {
    let swapped = spoilt(|run| {
        let mut ranked: Vec<usize> = (0..run.pages.starts.len())
            .filter(|at| run.pages.starts[*at].kind == JobKind::Ranked)
            .collect();
        let last = ranked.pop().unwrap();
        run.pages.starts.swap(ranked[0], last);
    });
    assert_eq!(swapped, ["by priority, one at a time"]);
    let behind = spoilt(|run| {
        let lone = run.plan.iter().find(|job| job.errand.tenant == LONE).unwrap().id.clone();
        run.pages.starts.sort_by_key(|start| start.id == lone);
    });
    assert_eq!(behind, ["critical jobs, and a tenant's only job"]);
}

#[test]
fn a_start_before_its_time_or_too_late_is_noticed() {
    let shifted = |by: i64| {
        spoilt(|run| {
            let start = run.pages.starts.iter_mut().find(|start| start.due_at.is_some()).unwrap();
            start.at = Timestamp::from_millis(start.at.millis() + by);
        })
    };
    assert_eq!(shifted(-1), ["delayed jobs: lateness"]);
    assert_eq!(shifted(101), ["delayed jobs: lateness"]);
    assert_eq!(shifted(99), Vec::<&str>::new());
    let hasty = spoilt(|run| {
        for start in
            run.pages.starts.iter_mut().filter(|start| start.kind == JobKind::Paced).skip(5).take(2)
        {
            start.at = at(0);
        }
    });
    assert_eq!(hasty, ["rate: attempts that started"]);
}

#[test]
fn a_second_start_is_noticed() {
    let again = |kind: JobKind| {
        spoilt(|run| {
            let first = run.pages.starts.iter().find(|start| start.kind == kind).unwrap().clone();
            run.pages.starts.push(Start { attempt: 2, ..first });
        })
    };
    assert_eq!(
        again(JobKind::Payment),
        ["attempts that workers saw", "at most once: starts of one job"]
    );
    assert_eq!(again(JobKind::Call), ["attempts that workers saw"]);
}

#[test]
fn what_was_said_between_server_and_workers_is_compared() {
    let foreign = spoilt(|run| {
        let id = run.of(JobKind::Call);
        run.jobs.get_mut(&id).unwrap().result = Some(web::result("another", 1));
    });
    assert_eq!(foreign, ["results that are the worker's own"]);
    assert_eq!(spoilt(|run| run.pages.callbacks.1 -= 1), ["202, answered later by callback"]);
    assert_eq!(spoilt(|run| run.pages.signatures.1 = 1), ["pushes whose signature fits"]);
    assert_eq!(spoilt(|run| run.pages.stopped_by_heartbeat.clear()), ["cancelled while it ran"]);
    assert_eq!(spoilt(|run| run.accepted.repeats = (20, 19)), ["enqueued again with the same id"]);
    assert_eq!(spoilt(|run| run.explained[0].held_by = None), Vec::<&str>::new());
    assert_eq!(spoilt(|run| run.explained.clear()), ["outside their window: wait, and say why"]);
    for (kind, row) in [
        (JobKind::Busy, "503 with Retry-After"),
        (JobKind::Render, "pull jobs longer than their lease"),
    ] {
        let again = spoilt(|run| {
            let id = run.of(kind);
            run.jobs.get_mut(&id).unwrap().attempt = 2;
        });
        assert_eq!(again, [row]);
    }
}

#[test]
fn a_kill_excuses_the_attempts_it_cost_and_nothing_else() {
    let kill = Some(Kill { outage: Duration::from_secs(1), loses_disk: false });
    let lost = |reason: Reason, kill: Option<Kill>| {
        spoilt(|run| {
            run.kill = kill;
            let id = run.of(JobKind::Payment);
            let job = run.jobs.get_mut(&id).unwrap();
            job.failures.push(reason);
            (job.state, job.error) = ("failed".to_owned(), Some(reason));
        })
    };
    assert_eq!(lost(Reason::OutcomeUnknown, kill), Vec::<&str>::new());
    assert!(lost(Reason::OutcomeUnknown, None).contains(&"jobs that ended otherwise than planned"));
    assert!(lost(Reason::Failed, kill).contains(&"jobs that ended otherwise than planned"));
    let over = spoilt(|run| {
        run.kill = kill;
        run.pages.most.insert(Scope::Queue(SHOP), LIMIT + 1);
    });
    assert_eq!(over, ["most weight at once in demo-shop"]);
}
