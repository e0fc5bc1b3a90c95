//! "What if": the recorded last hour of a queue, simulated with a change.

use axum::extract::State;
use tidegate_api::{SimulatedQueue, SimulationBody};

use super::{
    Api, HandlerResult,
    access::{Admin, May},
    body::Body,
    error::Problem,
    media::Accept,
    params::Name,
    routes::{Routes, routes},
};
use tidegate_core::{error_code::ErrorCode, job::QueueName};

#[cfg(feature = "embedded")]
mod embedded {
    use std::{collections::BTreeMap, time::Duration};

    use axum::response::IntoResponse as _;
    use serde::Deserialize;
    use tidegate_api::{
        LeftOut, Quantiles, SimulatedDifference, SimulatedGroup, SimulatedPoint, SimulatedQueue,
        SimulatedRun, SimulatedSeries,
    };
    use tidegate_core::{
        job::{QueueName, TypeName},
        strict::or_default,
        time::Seconds,
    };
    use tidegate_engine::simulate::{
        By, Difference, Summary,
        summary::{GroupSummary, Percentiles},
    };

    use crate::{
        handlers::{
            Api, HandlerResult,
            body::Body,
            config::{Fields, patched},
            error::Problem,
            job_types::{blamed, with_change},
            media::Accept,
        },
        runtime::{Simulated, WhatIf},
    };

    /// Most types of a request.
    const MAX_TYPES: usize = 100;

    /// The request: [`SimulationBody`](tidegate_api::SimulationBody) with merge patches.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Request {
        #[serde(default)]
        over_seconds: Option<Seconds>,
        #[serde(default)]
        queue: Option<Fields>,
        #[serde(default, deserialize_with = "or_default")]
        types: BTreeMap<TypeName, Option<Fields>>,
        #[serde(default)]
        throttler_version: Option<u32>,
        #[serde(default)]
        by: Option<String>,
        #[serde(default)]
        workers: Option<u32>,
    }

    pub(super) async fn simulate(
        api: &Api,
        accept: Accept,
        name: &QueueName,
        body: &Body,
    ) -> HandlerResult {
        let what = read(api, name, body.read()?).await?;
        let simulated = api.server.simulate_queue(name, what).await?;
        Ok(accept.ok(view(simulated)).into_response())
    }

    /// The change that a request names, checked as if it were made.
    async fn read(api: &Api, name: &QueueName, request: Request) -> Result<WhatIf, Problem> {
        let Request { over_seconds, queue, types, throttler_version, by, workers } = request;
        let over = over_seconds.map_or(Duration::from_hours(1), Seconds::duration);
        if !(Duration::from_mins(1)..=Duration::from_hours(24)).contains(&over) {
            return Err(Problem::invalid("over_seconds", "must be 60 to 86400"));
        }
        if workers.is_some_and(|workers| !(1..=100_000).contains(&workers)) {
            return Err(Problem::invalid("workers", "must be 1 to 100000"));
        }
        let by = match by.as_deref() {
            None | Some("type") => By::Type,
            Some(text) => match text.strip_prefix("attribute.") {
                Some(name) if !name.is_empty() => By::Attribute(name.to_owned()),
                _ => return Err(Problem::invalid("by", "must be `type` or `attribute.NAME`")),
            },
        };
        if types.len() > MAX_TYPES {
            return Err(Problem::invalid(
                "types",
                format!("must have at most {MAX_TYPES} entries"),
            ));
        }
        let stored = api.server.queue(name).await?;
        let config = patched(&stored.config, queue.unwrap_or_default());
        let config = config.map_err(|problem| problem.within("queue"))?;
        let queue = api.server.preview_queue(name, config, None).await;
        let queue = queue.map_err(|error| Problem::from(error).within("queue"))?.config;
        let mut changed = BTreeMap::new();
        for (job_type, patch) in types {
            let field = format!("types.{job_type}");
            let checked = async {
                let stored = api.server.job_type(&job_type).await?;
                if stored.config.queue != *name {
                    return Err(Problem::invalid("queue", "is another queue"));
                }
                let config = with_change(&stored.config, patch.unwrap_or_default())?;
                if config.queue != *name {
                    return Err(Problem::invalid("queue", "cannot be changed in a simulation"));
                }
                let item = api.server.preview_type(&job_type, config, None).await;
                Ok(item.map_err(|error| blamed(error.into()))?.config)
            };
            let config = checked.await.map_err(|problem: Problem| problem.within(&field))?;
            changed.insert(job_type, config);
        }
        Ok(WhatIf { over, queue, types: changed, throttler_version, by, workers })
    }

    fn view(simulated: Simulated) -> SimulatedQueue {
        let Simulated {
            jobs,
            from,
            workers,
            left_out,
            recorded,
            current,
            changed,
            limits: [limit, new_limit],
            differences,
            different_jobs,
        } = simulated;
        let difference = |Difference { job, value, at_seconds, one, other }| SimulatedDifference {
            job,
            value,
            at_seconds,
            current: one,
            changed: other,
        };
        let left_out = left_out.into_iter();
        SimulatedQueue {
            jobs,
            from,
            workers,
            left_out: left_out
                .map(|(reason, jobs)| LeftOut { reason: reason.to_owned(), jobs })
                .collect(),
            stopped_early: current.stopped_early || changed.stopped_early,
            recorded: recorded.map(|recorded| run(recorded, limit)),
            current: run(current, limit),
            changed: run(changed, new_limit),
            differences: differences.into_iter().map(difference).collect(),
            different_jobs,
        }
    }

    fn run(from: Summary, limit: Option<u32>) -> SimulatedRun {
        let step_seconds = from.part_seconds;
        let points = from.waiting.iter().zip(&from.running).enumerate();
        let points = points.map(|(index, (waiting, running))| SimulatedPoint {
            at: index as f64 * step_seconds,
            waiting: *waiting,
            running: *running,
            limit,
        });
        let group = |GroupSummary { value, jobs, start_delay_seconds, share }| SimulatedGroup {
            value,
            jobs,
            start_delay_seconds: quantiles(start_delay_seconds),
            share,
        };
        let throughput = if from.seconds > 0.0 { from.finished as f64 / from.seconds } else { 0.0 };
        SimulatedRun {
            finished: from.finished,
            failed: from.failed,
            expired: from.expired,
            start_delay_seconds: quantiles(from.start_delay_seconds),
            run_seconds: quantiles(from.run_seconds),
            throughput_per_second: throughput,
            utilization: from.utilization,
            drained_after_seconds: from.drained_after_seconds,
            series: SimulatedSeries { step_seconds, points: points.collect() },
            groups: from.groups.into_iter().map(group).collect(),
        }
    }

    fn quantiles(from: Percentiles) -> Quantiles {
        let Percentiles { p50, p95, p99 } = from;
        Quantiles { p50, p95, p99 }
    }
}

/// Simulate the last hour of a queue again, as it is configured and with a change.
///
/// The jobs that were enqueued in this time, at most the latest 100000, arrive again at their
/// times, and their attempts take as long and end as they did. Nothing is changed. The data of jobs
/// is null, also for plugins. There is one simulation at a time, of at most 5 seconds for each of
/// the two runs; a run that takes longer ends early.
///
/// A serverless deployment answers 501 `simulations_not_supported`.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/simulate", operation_id = "simulate_queue", tag = "queues",
    request_body = SimulationBody,
    params(("queue" = String, Path, description = "The queue's name")),
    responses(
        (status = 200, description = "The recorded and the simulated runs", body = SimulatedQueue),
        (
            status = 404,
            description = "`queue_not_found`, `job_type_not_found`, `plugin_not_found`, \
                `plugin_version_not_found`",
        ),
        (
            status = 409,
            description = "`nothing_to_simulate`: no job was enqueued in this time; \
                `config_refused`, `plugin_refused`",
        ),
        (status = 501, description = "`simulations_not_supported`"),
        (status = 503, description = "`simulation_running`: another one runs; `unavailable`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn simulate(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<QueueName>,
    body: Body,
) -> HandlerResult {
    #[cfg(feature = "embedded")]
    if !api.server.is_serverless() {
        return embedded::simulate(&api, accept, &name, &body).await;
    }
    let _ = (&api, accept, &name, &body);
    let detail = "a function is too small for simulations: use `tidegate simulate` with a \
                  trace of the queue";
    Err(Problem::new(ErrorCode::SimulationsNotSupported, detail))
}

/// The route of simulations.
pub fn routes() -> Routes {
    routes!(simulate)
}
