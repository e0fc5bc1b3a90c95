//! Leases: pull workers ask for work, and say what became of the last.

use std::{borrow::Cow, collections::BTreeSet};

use axum::{Extension, extract::State, response::IntoResponse};
use tidegate_api::{LeaseBody, LeaseView, LeasesView, ReportedView};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Answer, Api, MOST_BATCH_BYTES,
    access::{May, Work},
    body::{Body, BodyLimit},
    bound,
    error::Problem,
    jobs::attempt::read_report,
    media::Accept,
};
use tidegate_core::{
    job::{Job, JobId, lifecycle::word},
    time::Seconds,
};
use tidegate_engine::request::LeaseRequest;

/// Most leases, and most reports, of one call.
const MOST: usize = 1000;
/// What is said of a lease that was taken back.
const TOO_LARGE: &str = "it is larger, in the encoding that its worker asked for, than an answer may be here: push it to its target, ask for it in \
    the other encoding, or keep large data elsewhere and enqueue where it lies";
/// The longest a call may wait.
const LONGEST_WAIT: Seconds = Seconds::new(60);

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
        .map(|report| read_report(report, &body, &api, None))
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
            ReportedView { status: 200, id, state: Some(word(&job.life.state).into()), error: None }
        }
        Err(error) => {
            let problem = Problem::from(error);
            ReportedView {
                status: problem.status().as_u16(),
                id,
                state: None,
                error: Some(problem.document()),
            }
        }
    });
    let reports: Vec<ReportedView> = reports.collect();
    loop {
        let leases = jobs.iter().filter_map(|job| LeaseView::new(job, accept.0)).collect();
        let answer =
            accept.ok(LeasesView { leases, reports: Cow::Borrowed(&reports) }).into_response();
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
        LeaseView::new(job, accept.0)
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

/// The routes of leases.
pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(lease)).layer(Extension(BodyLimit(MOST_BATCH_BYTES)))
}
