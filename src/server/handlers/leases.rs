//! Leases: pull workers ask for work, and say what became of the last.

use std::collections::BTreeSet;

use axum::{Extension, extract::State, response::IntoResponse};
use serde::{Deserialize, Serialize};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Answer, Api, MOST_BATCH_BYTES,
    access::{May, Work},
    body::{Body, BodyLimit},
    bound,
    error::Problem,
    jobs::{
        attempt::ReportBody,
        view::{Bodies, JobView},
    },
    media::Accept,
};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName, lifecycle::word},
    time::{Seconds, Timestamp},
};
use tidegate_engine::request::LeaseRequest;

/// Most leases, and most reports, of one call.
const MOST: usize = 1000;
/// What is said of a lease that was taken back.
const TOO_LARGE: &str = "it is larger, in the encoding that its worker asked for, than an answer may be here: push it to its target, ask for it in \
    the other encoding, or keep large data elsewhere and enqueue where it lies";
/// The longest a call may wait.
const LONGEST_WAIT: Seconds = Seconds::new(60);

/// A pull worker's wish.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LeaseRequest)]
pub struct LeaseBody<'a> {
    /// Only from this queue.
    #[schema(value_type = Option<String>)]
    queue: Option<QueueName>,
    /// Only of these types; absent or empty means every pull type.
    #[schema(value_type = Option<Vec<String>>)]
    types: Option<Vec<TypeName>>,
    /// At most this many, 0 to 1000 (default 1); 0 only reports.
    max: Option<u32>,
    /// How long to wait for the first, 0 to 60 (default 0).
    wait_seconds: Option<Seconds>,
    /// How the worker names itself, at most 128 bytes.
    worker: Option<String>,
    /// How long the leases last (default: as the type says).
    lease_seconds: Option<Seconds>,
    /// What became of earlier leases, at most 1000.
    #[serde(borrow, default)]
    reports: Vec<ReportBody<'a>>,
}

/// Leases, and the fate of the reports.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Leases)]
struct LeasesView<'a> {
    /// The leases; none if nothing came within the wait.
    leases: Vec<LeaseView<'a>>,
    /// One answer per report, in order.
    reports: &'a [ReportedView],
}

/// One attempt at a job, and the right to report on it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Lease)]
struct LeaseView<'a> {
    /// The job.
    job: JobView<'a>,
    /// Which attempt.
    attempt: u16,
    /// The attempt's secret: enough, as a bearer token, to report and to send heartbeats.
    token: String,
    /// Without a heartbeat the attempt is given up then.
    expires_at: Timestamp,
}

/// The fate of a report.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Reported)]
struct ReportedView {
    /// The status that the report alone would have been answered with.
    status: u16,
    /// The job.
    #[schema(value_type = String)]
    id: JobId,
    /// Where the job stands now.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    /// Why the report was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<super::schema::Problem>)]
    error: Option<Problem>,
}

/// Lease jobs, and report on earlier ones.
#[utoipa::path(post, path = "/v1/leases", operation_id = "lease", tag = "workers", request_body = LeaseBody,
    responses((status = 200, description = "Leases, perhaps none, and one answer per report", body = LeasesView)),
    security(("bearer" = ["work"]), ("basic" = ["work"])))]
async fn lease(State(api): State<Api>, accept: Accept, _: May<Work>, body: Body) -> Answer {
    let ask: LeaseBody<'_> = body.read()?;
    let max = ask.max.unwrap_or(1);
    if max as usize > MOST {
        return Err(Problem::invalid("max", format!("must be 0 to {MOST}")));
    }
    let wait = ask.wait_seconds.unwrap_or_default();
    if wait > LONGEST_WAIT {
        return Err(Problem::invalid("wait_seconds", "must be 0 to 60"));
    }
    if ask.reports.len() > MOST {
        return Err(Problem::invalid("reports", format!("must have at most {MOST} items")));
    }
    let reports = ask
        .reports
        .into_iter()
        .map(|report| report.into_report(&body, &api, None))
        .collect::<Result<Vec<_>, _>>()?;
    let reported: Vec<JobId> = reports.iter().map(|report| report.id.clone()).collect();
    let request = LeaseRequest {
        queue: ask.queue,
        types: ask.types.unwrap_or_default(),
        max,
        wait: wait.duration(),
        worker: ask.worker,
        lease_seconds: ask.lease_seconds,
        reports,
    };
    // A worker may wait for a minute; what its request was read into need not wait with it.
    drop(body);
    let leased = api.server.lease(request).await?;
    let mut jobs = leased.jobs;
    let reports = reported.into_iter().zip(leased.reports).map(|(id, answer)| match answer {
        Ok(job) => {
            ReportedView { status: 200, id, state: Some(word(&job.life.state)), error: None }
        }
        Err(error) => {
            let problem = Problem::from(error);
            ReportedView {
                status: problem.status().as_u16(),
                id,
                state: None,
                error: Some(problem),
            }
        }
    });
    let reports: Vec<ReportedView> = reports.collect();
    loop {
        let leases = jobs.iter().filter_map(|job| LeaseView::new(job, accept)).collect();
        let answer = accept.ok(LeasesView { leases, reports: &reports }).into_response();
        if jobs.is_empty() || api.fits(&answer) {
            return Ok(answer);
        }
        // What was leased fits as it is kept; converted, it may be several times as long.
        let alone = jobs.len() == 1 && reports.is_empty();
        let back = longest(&mut jobs, api.excess(&answer), accept);
        api.server.give_back(&back, TOO_LARGE, !alone).await;
    }
}

/// Takes the longest of `jobs` out, as few as have `excess` bytes in their leases, so that a long one costs no short one its attempt.
fn longest(jobs: &mut Vec<Job>, excess: u64, accept: Accept) -> Vec<Job> {
    let bytes = |job: &Job| {
        LeaseView::new(job, accept)
            .map_or(0, |lease| bound::bytes(&accept.ok(lease).into_response()))
    };
    let mut by_length: Vec<(u64, usize)> = jobs.iter().map(bytes).zip(0..).collect();
    by_length.sort_unstable_by(|a, b| b.cmp(a));
    let (mut taken, mut freed) = (BTreeSet::new(), 0);
    for (bytes, place) in by_length {
        if freed >= excess && !taken.is_empty() {
            break;
        }
        taken.insert(place);
        freed += bytes;
    }
    let mut places = 0..;
    jobs.extract_if(.., |_| places.next().is_some_and(|place| taken.contains(&place))).collect()
}

impl<'a> LeaseView<'a> {
    /// The lease of a running `job`.
    fn new(job: &'a Job, accept: Accept) -> Option<Self> {
        let run = job.life.running()?;
        let view = JobView::new(job, accept.0, Bodies::Whole);
        Some(Self {
            job: view,
            attempt: job.life.attempt,
            token: format!("{:032x}", run.token.0),
            expires_at: run.lease_until,
        })
    }
}

/// The routes of leases.
pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(lease)).layer(Extension(BodyLimit(MOST_BATCH_BYTES)))
}
