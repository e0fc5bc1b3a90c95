//! The stable codes of errors: one table of word, HTTP status and meaning.

use std::fmt;

use serde::{Serialize, Serializer};

macro_rules! error_codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $status:literal $word:literal,)+) => {
        /// Why a request failed, for programs. A code and its status never change; new codes may be
        /// added.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ErrorCode {
            $($(#[doc = $doc])+ $name,)+
        }

        impl ErrorCode {
            /// Every code, by status.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The word in problem documents: `job_not_found`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)+
                }
            }

            /// The HTTP status of its response.
            pub const fn status(self) -> u16 {
                match self {
                    $(Self::$name => $status,)+
                }
            }

            /// What it means, as Markdown.
            pub fn documentation(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc,)+).trim(),)+
                }
            }
        }
    };
}

error_codes! {
    /// A value is outside its bounds, or not well formed.
    InvalidField = 400 "invalid_field",
    /// The body is not what its media type says.
    InvalidBody = 400 "invalid_body",
    /// A header is given twice, is missing, or asks for a coding that is not supported.
    InvalidHeader = 400 "invalid_header",
    /// The request is not well-formed HTTP.
    InvalidRequest = 400 "invalid_request",
    /// The path is not percent-encoded UTF-8.
    InvalidPath = 400 "invalid_path",
    /// A queue configuration has a value outside its bounds.
    InvalidQueue = 400 "invalid_queue",
    /// A job type configuration has a value outside its bounds.
    InvalidType = 400 "invalid_type",
    /// A schedule has a value outside its bounds.
    InvalidSchedule = 400 "invalid_schedule",
    /// A trigger has a value outside its bounds.
    InvalidTrigger = 400 "invalid_trigger",
    /// A JMESPath expression cannot be compiled.
    InvalidExpression = 400 "invalid_expression",
    /// The component cannot be used as a plugin; `reasons` lists why.
    InvalidPlugin = 400 "invalid_plugin",
    /// `max_attempts` does not go with the type's delivery.
    InvalidMaxAttempts = 400 "invalid_max_attempts",
    /// The weight is larger than a limit that counts the job, so it could never start.
    WeightOverLimit = 400 "weight_over_limit",
    /// There is no such field.
    UnknownField = 400 "unknown_field",
    /// There is no such query parameter.
    UnknownParameter = 400 "unknown_parameter",
    /// A value is nested too deeply.
    NestingTooDeep = 400 "nesting_too_deep",
    /// The credentials are missing or not valid.
    Unauthorized = 401 "unauthorized",
    /// The credentials do not allow the request.
    Forbidden = 403 "forbidden",
    /// A browser marked the request as another site's.
    CrossSite = 403 "cross_site",
    /// The request reached the proxy over plain HTTP.
    InsecureRequest = 403 "insecure_request",
    /// The `Host` is not this machine, and the server accepts requests without credentials.
    HostNotAllowed = 403 "host_not_allowed",
    /// There is no such job, or not of this type.
    JobNotFound = 404 "job_not_found",
    /// There is no such job type.
    JobTypeNotFound = 404 "job_type_not_found",
    /// There is no such queue.
    QueueNotFound = 404 "queue_not_found",
    /// There is no such schedule.
    ScheduleNotFound = 404 "schedule_not_found",
    /// There is no such trigger.
    TriggerNotFound = 404 "trigger_not_found",
    /// There is no such dead letter.
    DeadLetterNotFound = 404 "dead_letter_not_found",
    /// There is no such plugin.
    PluginNotFound = 404 "plugin_not_found",
    /// The plugin has no such version.
    PluginVersionNotFound = 404 "plugin_version_not_found",
    /// There is no such recorded call of the plugin: later ones have replaced it.
    PluginCallNotFound = 404 "plugin_call_not_found",
    /// There is no such bulk operation.
    OperationNotFound = 404 "operation_not_found",
    /// There is no such worker.
    WorkerNotFound = 404 "worker_not_found",
    /// There is no such token.
    TokenNotFound = 404 "token_not_found",
    /// There is no such route.
    RouteNotFound = 404 "route_not_found",
    /// The server collects no metrics.
    MetricsOff = 404 "metrics_off",
    /// The server was not started by `tidegate dev`, so its clock cannot be moved.
    NotADevServer = 404 "not_a_dev_server",
    /// The route does not take this method; `Allow` lists those it takes.
    MethodNotAllowed = 405 "method_not_allowed",
    /// No media type in `Accept` can be produced.
    NotAcceptable = 406 "not_acceptable",
    /// The job did not end within `wait`; repeat the request.
    WaitTimeout = 408 "wait_timeout",
    /// The request's body did not come in time.
    BodyTimeout = 408 "body_timeout",
    /// Another request has used this id.
    IdTaken = 409 "id_taken",
    /// A job that has not ended has this correlation key.
    CorrelationKeyTaken = 409 "correlation_key_taken",
    /// Another request has used this idempotency key.
    IdempotencyKeyReused = 409 "idempotency_key_reused",
    /// The job was replayed before, with other values; `holder` names that replay.
    AlreadyReplayed = 409 "already_replayed",
    /// The job was sent to its target without a claim and cannot be changed.
    AlreadyDispatched = 409 "already_dispatched",
    /// The record kept changing during the request; repeat it.
    ConcurrentUpdate = 409 "concurrent_update",
    /// The job has not ended.
    JobNotFinished = 409 "job_not_finished",
    /// The job has not ended, so it has no result.
    NotEnded = 409 "not_ended",
    /// The job ended otherwise than succeeded, so it has no result; `state` says how, and `error`
    /// why.
    JobFailed = 409 "job_failed",
    /// The job is not running.
    NotRunning = 409 "not_running",
    /// The job is not scheduled.
    NotScheduled = 409 "not_scheduled",
    /// The job has ended.
    Ended = 409 "ended",
    /// The attempt is not the running one.
    StaleAttempt = 409 "stale_attempt",
    /// The dead letter has no trigger to replay it with.
    NotReplayable = 409 "not_replayable",
    /// Job types use the queue.
    QueueInUse = 409 "queue_in_use",
    /// Jobs that have not ended wait in the queue.
    QueueHasLiveJobs = 409 "queue_has_live_jobs",
    /// The type has jobs that have not ended.
    TypeHasLiveJobs = 409 "type_has_live_jobs",
    /// A queue or a type uses the plugin.
    PluginInUse = 409 "plugin_in_use",
    /// The plugin's new version rejects a configuration that is in use.
    PluginRefused = 409 "plugin_refused",
    /// The plugin rejects a configuration that is in use.
    ConfigRefused = 409 "config_refused",
    /// No job was enqueued in the queue in the time to simulate.
    NothingToSimulate = 409 "nothing_to_simulate",
    /// There are as many drained workers as there may be.
    TooManyDrains = 409 "too_many_drains",
    /// The type is unknown, and there are as many types as may be created by a first job.
    TooManyTypes = 409 "too_many_types",
    /// There are as many schedules as there may be.
    TooManySchedules = 409 "too_many_schedules",
    /// There are as many triggers as there may be.
    TooManyTriggers = 409 "too_many_triggers",
    /// The first token must have the scope `admin`.
    AdminTokenRequired = 409 "admin_token_required",
    /// Without the token, no caller could administer the server.
    LastAdminToken = 409 "last_admin_token",
    /// The record has changed since it was read; `If-Match` names another version.
    PreconditionFailed = 412 "precondition_failed",
    /// A value is larger than it may be.
    TooLarge = 413 "too_large",
    /// The job's data is larger than it may be.
    DataTooLarge = 413 "data_too_large",
    /// The request body is larger than the route takes.
    BodyTooLarge = 413 "body_too_large",
    /// The response would be larger than this deployment can send; ask for less.
    ResponseTooLarge = 413 "response_too_large",
    /// The path and the query are too long.
    UriTooLong = 414 "uri_too_long",
    /// The body has a media type that the route does not take.
    UnsupportedMediaType = 415 "unsupported_media_type",
    /// The request has too many headers, or too long ones.
    HeadersTooLarge = 431 "headers_too_large",
    /// The server failed; its log has the cause under the request id.
    Internal = 500 "internal",
    /// The job's record is damaged, or a newer release wrote it; `tidegate doctor` says what to do.
    JobUnreadable = 500 "job_unreadable",
    /// The deployment mode simulates no queues.
    SimulationsNotSupported = 501 "simulations_not_supported",
    /// The deployment mode keeps no connections for streams.
    StreamsNotSupported = 501 "streams_not_supported",
    /// The deployment mode keeps no history of workers.
    WorkerHistoryNotSupported = 501 "worker_history_not_supported",
    /// Another simulation runs; there is one at a time.
    SimulationRunning = 503 "simulation_running",
    /// There are as many readers of streams as there may be.
    TooManyStreams = 503 "too_many_streams",
    /// The server does not lead the replicated log of its data. The change that it refuses with this
    /// code was not made, and will not be; of several changes, earlier ones may have been. `detail`
    /// has the address of the leader if the server knows it. Ask the leader, or repeat after
    /// `Retry-After`.
    NotLeader = 503 "not_leader",
    /// The change may have been made, or may still be. Repeat the request if a repeat is harmless, as
    /// with its idempotency key.
    OutcomeUnknown = 503 "outcome_unknown",
    /// The server cannot do this now; repeat after `Retry-After`.
    Unavailable = 503 "unavailable",
}

impl ErrorCode {
    /// The kind of error as a short sentence: "Job not found".
    pub fn title(self) -> String {
        let text = self.as_str().replace('_', " ");
        let mut letters = text.chars();
        letters
            .next()
            .map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
            .unwrap_or_default()
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_distinct_and_sorted_by_status() {
        let words: BTreeSet<&str> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(words.len(), ErrorCode::ALL.len());
        assert!(ErrorCode::ALL.is_sorted_by_key(|code| code.status()));
        assert_eq!(ErrorCode::JobNotFound.title(), "Job not found");
        assert_eq!(
            ErrorCode::JobNotFound.documentation(),
            "There is no such job, or not of this type."
        );
    }
}
