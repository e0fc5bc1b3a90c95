//! The HTTP API of tidegate: the bodies of requests, the views of answers, and their `OpenAPI`
//! schemas.
//!
//! ```text
//!   server ─▶ api ─▶ core        cli ─▶ api ─▶ core
//! ```
//!
//! The server serialises these types and a client deserialises them, so the two cannot differ. In
//! the server a view borrows its parts (`Cow`); read by a client, it owns everything. With feature
//! `client`, [`client`] sends requests.
//!
//! Configurations are defined in `tidegate-core`, schemas included, and re-exported here.

mod any_value;
mod audit;
#[cfg(feature = "client")]
pub mod client;
mod config;
mod dev;
mod errors;
mod event;
mod explanation;
mod filter;
mod history;
mod job;
mod lease;
mod limits;
mod log;
mod operate;
mod operation;
mod overview;
#[cfg(feature = "client")]
pub mod pages;
mod plugin;
mod problem;
mod push;
mod session;
mod setting;
mod simulation;
mod stream;
mod token;

pub use any_value::{AnyValue, FRAME};
pub use audit::{AuditEntry, AuditPage};
pub use config::{
    ConstraintUse, JobTypePage, JobTypeView, Occurrence, QueuePage, QueueStatus, QueueView,
    ScheduleBody, SchedulePage, ScheduleView, TriggerPage, TriggerView,
};
pub use dev::{DevClockBody, DevClockView};
pub use errors::{ErrorGroup, ErrorPage};
pub use event::{
    Applied, CloudEvent, DeadLetterPage, DeadLetterView, EventAnswer, EventBatch, EventReference,
    EventResult, HandledEvent, Ingested, ReplayDeadLetters, Replayed, ReplayedDeadLetters,
    TriggerAction, TriggerStatus, TriggerTrial,
};
pub use explanation::{
    Explanation, HeldBy, HeldJobs, QueueExplanation, TypeUse, TypeWorkers, WorkerStatus,
};
pub use filter::{FilterBody, Words};
pub use history::{
    History, HistoryPoint, HistoryRange, Quantiles, Throughput, WorkerHistory, WorkerHistoryPoint,
};
pub use job::{
    BatchBody, BatchJob, BatchResult, BatchView, Bodies, EntryView, FailureView, JobPage, JobView,
    NewJobBody, OriginView, PatchBody, ReplayBody, RunningView, ShortView, SortedJobs,
    without_query,
};
pub use lease::{
    BeatView, HeartbeatBody, LeaseBody, LeaseView, LeasesView, RegistrationBody, ReportBody,
    ReportedView, Status, Worker, WorkerPage,
};
pub use limits::Limits;
pub use log::{LogLevel, LogLine, LogPage, NewLogLine};
pub use operate::{CheckView, Doctor, Health};
pub use operation::{
    BulkBody, BulkChanges, BulkKind, BulkPatchBody, BulkReplayBody, Operation, OperationView,
    SkippedJob,
};
pub use overview::{OverviewMinute, OverviewPage, QueueOverview};
pub use plugin::{
    CallFault, CallLogLine, CompiledView, Difference, FaultView, LogView, LogsView, PluginHealth,
    PluginPage, PluginUser, PluginView, PruneBody, PrunedView, RecordedCallView, RecordedCalls,
    RecordedFault, RecordedFaults, RecordingBody, RollbackBody, ShadowBody, ShadowDecision,
    ShadowView, UsageView, VersionPage, VersionView,
};
pub use problem::{JobError, Problem};
pub use push::{PushCallback, PushFailure, PushRequest};
pub use session::{ConsoleView, OtherServer, ServerView, Session};
pub use setting::{SettingView, SettingsView};
pub use simulation::{
    LeftOut, SimulatedDifference, SimulatedGroup, SimulatedPoint, SimulatedQueue, SimulatedRun,
    SimulatedSeries, SimulationBody,
};
pub use stream::{
    JobChange, JobTypeChange, QueueChange, RemovedJob, SkippedChanges, StreamReady, WorkerChange,
};
pub use tidegate_core::{
    calendar::Window,
    error_code::ErrorCode,
    event::TriggerConfig,
    job::{
        Attributes, JobId, JobOptions, QueueName, TypeName, Value as AttributeValue,
        lifecycle::{Outcome, Progress, Reason},
        retry::{Backoff, Jitter, Retry},
        spec::{KeepResult, Unique, UniqueWhile},
        type_config::TypeConfig,
        unique::{Debounce, MergePolicy, OnConflict},
    },
    queue::{
        QueueConfig,
        plugin::{Description, Role},
    },
    schedule::{ScheduleConfig, ScheduleError},
    target::signature,
    time::{Seconds, Timestamp},
};
pub use token::{NewTokenBody, Scope, Scopes, TokenPage, TokenView, UnknownScope};
