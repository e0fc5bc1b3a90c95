"""The types of the HTTP API.

Generated from /openapi.json by clients/conformance/generate.py: do not edit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class AppliedAlreadyEnqueued(TypedDict):
    """An object."""
    action: Literal["already_enqueued"]
    job: JobId
    """The job."""
    trigger: str
    """The trigger."""


class AppliedAlreadyProcessed(TypedDict):
    """An object."""
    action: Literal["already_processed"]
    job: JobId
    """The job."""
    trigger: str
    """The trigger."""


class AppliedCompleted(TypedDict):
    """An object."""
    action: Literal["completed"]
    job: JobId
    """The job."""
    trigger: str
    """The trigger."""


class AppliedDeadLettered(TypedDict):
    """An object."""
    action: Literal["dead_lettered"]
    letter: str
    """The dead letter."""
    reason: str
    """Why."""
    trigger: str
    """The trigger."""


class AppliedDropped(TypedDict):
    """An object."""
    action: Literal["dropped"]
    reason: str
    """Why."""
    trigger: str
    """The trigger."""


class AppliedEnqueued(TypedDict):
    """An object."""
    action: Literal["enqueued"]
    job: JobId
    """The job."""
    trigger: str
    """The trigger."""
    type: TypeName
    """Its type."""


class AppliedLate(TypedDict):
    """An object."""
    action: Literal["late"]
    job: JobId
    """The job."""
    trigger: str
    """The trigger."""


class AppliedPending(TypedDict):
    """An object."""
    action: Literal["pending"]
    trigger: str
    """The trigger."""
    until: Timestamp
    """Until when it is kept."""


class AppliedRecorded(TypedDict):
    """An object."""
    action: Literal["recorded"]
    job: JobId
    """The job."""
    trigger: str
    """The trigger."""


AuditEntry = TypedDict(
    "AuditEntry",
    {
        "action": "str",
        "at": "Timestamp",
        "caller": "str",
        "path": "str",
        "query": "NotRequired[str | None]",
        "request_id": "str",
        "status": "int",
        "with": "NotRequired[AnyValue]",
    },
)
"""A change that a caller made."""

class AuditPage(TypedDict):
    """A page of the audit log."""
    entries: list[AuditEntry]
    """The entries, newest first."""
    next_cursor: NotRequired[str | None]
    """Where the next page starts; absent on the last. A page may be short and still have one.
    """


class AwsServiceEventBridge(TypedDict):
    """A bus of `EventBridge`."""
    event_bridge: EventBridgeTarget
    """A bus of `EventBridge`."""


AwsServiceLambda = TypedDict(
    "AwsServiceLambda",
    {
        "lambda": "LambdaTarget",
    },
)
"""A Lambda function."""

class AwsServiceSns(TypedDict):
    """A topic of SNS."""
    sns: SnsTarget
    """A topic of SNS."""


class AwsServiceSqs(TypedDict):
    """A queue of SQS."""
    sqs: SqsTarget
    """A queue of SQS."""


class Backoff(TypedDict):
    """A wait that doubles: min(`max_seconds`, `base_seconds` x 2^(n-1)) after attempt n."""
    base_seconds: NotRequired[Seconds | None]
    """The wait after the first attempt (default 2; 0 to 86400)."""
    jitter: NotRequired[Jitter | None]
    """Whether a random part of the wait is taken (default `full`)."""
    max_seconds: NotRequired[Seconds | None]
    """No wait is longer (default 3600; 0 to 2592000)."""


class BasicAuth(TypedDict):
    """HTTP Basic credentials; the password is write-only."""
    password: NotRequired[str]
    """The password: at most 1024 bytes."""
    username: str
    """The user: at most 256 bytes, no `:`."""


class BatchResult(TypedDict):
    """The outcome of one job of a batch."""
    error: NotRequired[Problem | None]
    """Why the job was refused."""
    job: NotRequired[Job | None]
    """The job."""
    status: int
    """201 if it is new, 200 if it existed, else the status of the problem."""


class BatchView(TypedDict):
    """The outcome of each job of a batch, in order."""
    results: list[BatchResult]
    """One answer per job."""


class Beat(TypedDict):
    """The answer to a heartbeat."""
    cancel: bool
    """Whether a cancel was requested: stop, and report."""
    expires_at: Timestamp
    """When the lease expires now."""


class Bulk(TypedDict):
    """Which jobs."""
    all: NotRequired[bool | None]
    """Every job. Without it, a request that names no condition is refused."""
    dry_run: NotRequired[bool | None]
    """Count what it would do, and change nothing."""
    filter: NotRequired[JobFilter | None]
    """What the jobs have in common: at least one condition, unless `all` is true."""


class BulkChanges(TypedDict):
    """What a bulk change sets. Absent fields stay; null is the value of the job's type."""
    priority: NotRequired[int | None]
    """Their priority; null means that of the type."""
    run_at: NotRequired[Timestamp | None]
    """Their due time; in the past and null mean now."""
    windows: NotRequired[list[Window] | None]
    """The windows in which they may start, at most 32; an empty list means always, null those of
    the type.
    """


class BulkPatch(TypedDict):
    """A change of every scheduled job that a filter matches."""
    all: NotRequired[bool | None]
    """Every job. Without it, a request that names no condition is refused."""
    dry_run: NotRequired[bool | None]
    """Count what it would do, and change nothing."""
    filter: NotRequired[JobFilter | None]
    """What the jobs have in common: at least one condition, unless `all` is true."""
    patch: BulkChanges
    """What changes: at least one field."""


class BulkReplay(TypedDict):
    """Which jobs are replayed."""
    again: NotRequired[bool | None]
    """Replay jobs that were replayed before, too. Without it they are skipped."""
    all: NotRequired[bool | None]
    """Every job. Without it, a request that names no condition is refused."""
    dry_run: NotRequired[bool | None]
    """Count what it would do, and change nothing."""
    filter: NotRequired[JobFilter | None]
    """What the jobs have in common: at least one condition, unless `all` is true."""


class Check(TypedDict):
    """The result of one check."""
    about: str
    """The subject of the check."""
    advice: NotRequired[str | None]
    """What to do; absent if nothing is wrong."""
    finding: str
    """What was found."""
    level: str
    """`error`, `warning`, `note` or `ok`."""


class CloudEvent(TypedDict):
    """An event, in the JSON format of CloudEvents 1.0. In addition it may have up to 32
    extensions: their names are small letters and digits, their values texts, whole numbers,
    true or false.
    """
    data: NotRequired[AnyValue]
    """Its data, kept byte for byte."""
    data_base64: NotRequired[str | None]
    """Binary data, in place of `data`."""
    datacontenttype: NotRequired[str | None]
    """The media type of its data."""
    dataschema: NotRequired[str | None]
    """The schema of its data."""
    id: str
    """Its id, unique within its source; at most 1024 bytes, as every text here."""
    source: str
    """Where it happened: a URI reference."""
    specversion: str
    """`1.0`."""
    subject: NotRequired[str | None]
    """The subject of the event."""
    time: NotRequired[str | None]
    """When it happened."""
    type: str
    """What kind of thing happened."""


class ConsoleView(TypedDict):
    """The options of the console, from the settings of the server."""
    embed: NotRequired[str | None]
    """A page that it embeds."""
    read_only: bool
    """Whether it offers no changes."""
    servers: list[OtherServer]
    """The consoles of other servers, by name."""
    title: str
    """Its title."""
    trace_url: NotRequired[str | None]
    """The URL of a trace, with `{trace_id}` in place of its id."""


class Constraint(TypedDict):
    """A limit on the jobs that match a condition. With `per`, each value of an attribute has its
    own limit.
    """
    concurrency: NotRequired[int | None]
    """Most weight that runs at once. At least one of this and `rate` must be given."""
    match: NotRequired[Matcher | None]
    """Which jobs it counts (default: every job). At most 8 levels and 64 conditions."""
    name: str
    """Its name in explanations: unique in its queue, 1 to 64 bytes."""
    per: NotRequired[str | None]
    """The attribute whose values each have their own limit: a name of 1 to 64 bytes. A job without
    it is not counted.
    """
    rate: NotRequired[Rate | None]
    """Most attempts that start in a period. The rates of a queue count in at most 200,000 bytes:
    for each value of `per` that has started lately its text, the constraint's name and 32
    bytes, and 10 for each instant of a start (at most 33 for each value). A start beyond that
    waits.
    """


class ConstraintUse(TypedDict):
    """The weight that runs under a constraint, or under one value of its attribute."""
    limit: int
    """The limit."""
    name: str
    """The constraint's name."""
    per: NotRequired[str | None]
    """The attribute whose values each have a limit of their own, if it has one."""
    running_weight: int
    """The weight that runs."""
    value: NotRequired[str | None]
    """The value."""


class DeadLetter(TypedDict):
    """An event that a trigger could not handle."""
    event: CloudEvent
    """The event."""
    failed_at: Timestamp
    """When."""
    id: str
    """Its id here, derived from the trigger and the event."""
    reason: str
    """Why the trigger could not handle it."""
    trigger: NotRequired[TriggerName | None]
    """The trigger; absent if no trigger could read it as an event."""


class DeadLetterPage(TypedDict):
    """A page of dead letters."""
    dead_letters: list[DeadLetter]
    """The dead letters, in no particular order."""
    next_cursor: NotRequired[str | None]
    """Where the next page starts; absent on the last. A page may be short, even empty, and still
    have a next one.
    """


class Debounce(TypedDict):
    """A debounce: each request with the key, before the job starts, moves its due time."""
    max_seconds: Seconds
    """But at most this long after the first request; at least `seconds`, at most a year."""
    merge: NotRequired[MergePolicy | None]
    """Which request counts (default `last`)."""
    seconds: Seconds
    """The due time is this long after the latest request."""


class Description(TypedDict):
    """The description that a plugin gives of itself in one role: `description` in `plugins/wit`.
    """
    about: str
    """A sentence for operators."""
    config_schema: NotRequired[str | None]
    """JSON Schema of its configuration."""
    group_by: list[str]
    """Attributes by which it groups the running jobs."""
    needs_data: bool
    """Whether it reads jobs' data."""
    needs_earlier: NotRequired[bool]
    """Whether it reads the earlier attempts of candidates."""
    needs_ended: bool
    """Whether it reads the attempts that ended."""
    needs_running_jobs: bool
    """Whether it reads the running jobs one by one."""
    state_version: int
    """The format of its state; a version with another number starts with an empty state."""
    waiting_by: NotRequired[list[str]]
    """Attributes by which it groups the waiting jobs."""


class DevClock(TypedDict):
    """The clock of a server that `tidegate dev` started."""
    frozen: bool
    """Whether it is stopped."""
    now: Timestamp
    """What it shows."""


class DevClockChange(TypedDict):
    """A change of that clock: exactly one field."""
    advance_seconds: NotRequired[Seconds | None]
    """By how much it moves forward, 0 to 3155760000 (100 years)."""
    freeze: NotRequired[bool | None]
    """Whether it is stopped from now on, or runs on from what it shows."""
    set: NotRequired[Timestamp | None]
    """What it shows from now on; not before what it shows now."""


class Difference(TypedDict):
    """A job about which the live version and its shadow decided differently."""
    at: Timestamp
    """The time of the decision."""
    job: JobId
    """The job."""
    live: ShadowDecision
    """What was done."""
    queue: QueueName
    """Its queue."""
    shadow: ShadowDecision
    """What the shadow would have done."""


class Doctor(TypedDict):
    """The results of the server's checks."""
    checks: list[Check]
    """Every check."""
    ok: bool
    """Whether no check is an error."""
    version: str
    """The server's version."""


class EndError(TypedDict):
    """Why an ended job failed."""
    message: NotRequired[str | None]
    """For people."""
    reason: Reason
    """The reason."""


class Ended(TypedDict):
    """What a `callback_url` receives, and the data of the event about the end of a job."""
    attempt: int
    """Its latest attempt."""
    correlation_key: NotRequired[str | None]
    """The key by which a later reply finds the job."""
    ended_at: Timestamp
    """When it ended."""
    error: NotRequired[EndError | None]
    """The latest failure."""
    id: JobId
    """The job."""
    kind: str
    """Always `completion`: it tells the notice from a pushed job, which has no such field."""
    result: AnyValue
    """Its result, unless that is too large to be stored in the notice."""
    state: str
    """Its final state: `succeeded`, `failed`, `expired`, `cancelled` or `dropped`."""
    type: TypeName
    """Its type."""


class ErrorGroup(TypedDict):
    """Jobs whose latest errors have one type, reason and pattern."""
    examples: list[str]
    """Some of the jobs, at most three."""
    first_at: Timestamp
    """When the first of these errors came."""
    jobs: int
    """How many jobs."""
    last_at: Timestamp
    """When the latest of these errors came."""
    message: NotRequired[str | None]
    """The latest message."""
    pattern: str
    """The message with `*` in place of each word that has a digit; empty without a message. It is
    the value of the filter `error_pattern`.
    """
    reason: Reason
    """The reason."""
    type: str
    """The type of the jobs."""


class Errors(TypedDict):
    """Groups of errors."""
    errors: list[ErrorGroup]
    """The groups, those with most jobs first; at most 500."""
    next_cursor: NotRequired[str | None]
    """Where the next page starts; none on the last one. A group may be on several pages: its
    counts add up.
    """
    ungrouped: int
    """How many jobs with errors are in no group, because there are more than 500."""


class EventBatch(TypedDict):
    """The outcome of each event of a batch, in order."""
    results: list[EventResult]
    """One answer per event."""


class EventBridgeTarget(TypedDict):
    """A bus of `EventBridge`: the JSON is the event's `detail`."""
    bus: NotRequired[str | None]
    """Its name or ARN (default `default`; 1 to 1600 bytes)."""
    detail_type: NotRequired[str | None]
    """The event's `detail-type` (default: the job's type; 1 to 128 bytes)."""
    source: NotRequired[str | None]
    """The event's `source` (default `tidegate`; 1 to 256 bytes)."""


EventFilter = TypedDict(
    "EventFilter",
    {
        "all": "NotRequired[list[EventFilter] | None]",
        "any": "NotRequired[list[EventFilter] | None]",
        "attribute": "NotRequired[dict[str, Condition] | None]",
        "data": "NotRequired[dict[str, Condition] | None]",
        "not": "NotRequired[EventFilter | None]",
        "source": "NotRequired[Condition | None]",
        "subject": "NotRequired[Condition | None]",
        "type": "NotRequired[Condition | None]",
    },
)
"""Conditions that all hold for an event that matches; an empty one matches every event."""

class EventReference(TypedDict):
    """The attributes that identify an event, and its type."""
    id: str
    """Its id."""
    source: str
    """Its source."""
    type: str
    """What kind of thing happened."""


class EventResult(TypedDict):
    """The outcome of one event of a batch."""
    error: NotRequired[Problem | None]
    """Why it was refused."""
    event: NotRequired[Ingested | None]
    """What each trigger did about it."""
    status: int
    """200, or the status of the problem."""


class Explanation(TypedDict):
    """Why a job waits."""
    earliest_at: NotRequired[Timestamp | None]
    """The earliest start, where that is known."""
    held_by: NotRequired[HeldBy | None]
    """What holds it; absent if nothing does. Of several, the one that it meets first."""
    phase: str
    """The name of its phase, as a job shows it."""
    reason: str
    """For people."""
    since: NotRequired[Timestamp | None]
    """Since when."""
    state: str
    """The name of its state."""
    workers: NotRequired[WorkerStatus | None]
    """The workers that take jobs of its type; null if it does not wait."""


class ExternalTargetEventBridge(TypedDict):
    """An object."""
    complete: NotRequired[Complete | None]
    """When a job ends (default `on_result`); `on_delivery` means when the service has accepted it.
    """
    event_bridge: EventBridgeTarget
    """A bus of `EventBridge`."""


ExternalTargetLambda = TypedDict(
    "ExternalTargetLambda",
    {
        "complete": "NotRequired[Complete | None]",
        "lambda": "LambdaTarget",
    },
)
"""An object."""

class ExternalTargetSns(TypedDict):
    """An object."""
    complete: NotRequired[Complete | None]
    """When a job ends (default `on_result`); `on_delivery` means when the service has accepted it.
    """
    sns: SnsTarget
    """A topic of SNS."""


class ExternalTargetSqs(TypedDict):
    """An object."""
    complete: NotRequired[Complete | None]
    """When a job ends (default `on_result`); `on_delivery` means when the service has accepted it.
    """
    sqs: SqsTarget
    """A queue of SQS."""


class Failure(TypedDict):
    """What went wrong."""
    details: AnyValue
    """Details from the worker."""
    message: NotRequired[str | None]
    """For people."""
    reason: Reason
    """The reason."""
    retry_after_seconds: NotRequired[float | None]
    """The shortest wait before the next attempt that the target asked for, as with `Retry-After`.
    """
    status: NotRequired[int | None]
    """The HTTP status of the target's response, if there was one."""


class HandledEventAlreadyEnqueued(TypedDict):
    """An object."""
    action: Literal["already_enqueued"]
    at: Timestamp
    """When."""
    event: EventReference
    """The event."""
    job: JobId
    """The job."""


class HandledEventAlreadyProcessed(TypedDict):
    """An object."""
    action: Literal["already_processed"]
    at: Timestamp
    """When."""
    event: EventReference
    """The event."""
    job: JobId
    """The job."""


class HandledEventCompleted(TypedDict):
    """An object."""
    action: Literal["completed"]
    at: Timestamp
    """When."""
    event: EventReference
    """The event."""
    job: JobId
    """The job."""


class HandledEventDeadLettered(TypedDict):
    """An object."""
    action: Literal["dead_lettered"]
    at: Timestamp
    """When."""
    event: EventReference
    """The event."""
    letter: str
    """The dead letter."""
    reason: str
    """Why."""


class HandledEventDropped(TypedDict):
    """An object."""
    action: Literal["dropped"]
    at: Timestamp
    """When."""
    event: EventReference
    """The event."""
    reason: str
    """Why."""


class HandledEventEnqueued(TypedDict):
    """An object."""
    action: Literal["enqueued"]
    at: Timestamp
    """When."""
    event: EventReference
    """The event."""
    job: JobId
    """The job."""
    type: TypeName
    """Its type."""


class HandledEventLate(TypedDict):
    """An object."""
    action: Literal["late"]
    at: Timestamp
    """When."""
    event: EventReference
    """The event."""
    job: JobId
    """The job."""


class HandledEventPending(TypedDict):
    """An object."""
    action: Literal["pending"]
    at: Timestamp
    """When."""
    event: EventReference
    """The event."""
    until: Timestamp
    """Until when it is kept."""


class HandledEventRecorded(TypedDict):
    """An object."""
    action: Literal["recorded"]
    at: Timestamp
    """When."""
    event: EventReference
    """The event."""
    job: JobId
    """The job."""


class Health(TypedDict):
    """The state of the server."""
    status: str
    """`ok`."""
    version: str
    """The server's version."""


class Heartbeat(TypedDict):
    """A heartbeat of an attempt."""
    attempt: int
    """The attempt."""
    checkpoint: NotRequired[AnyValue]
    """What the next attempt needs to go on, any value of at most 64 KiB. It replaces an earlier
    one; null leaves that.
    """
    lease_seconds: NotRequired[Seconds | None]
    """How long the lease lasts from now (default: the type's setting)."""
    log: NotRequired[list[NewLogLine] | None]
    """Log lines of the attempt since its heartbeat before, oldest first. At most 64 KiB of an
    attempt and 256 KiB of a job are kept, the latest.
    """
    note: NotRequired[str | None]
    """A note on the progress, at most 4 KiB."""
    progress: NotRequired[float | None]
    """The attempt's progress, 0 to 100."""


class HeldBy(TypedDict):
    """What holds a job."""
    kind: str
    """`due_time`, `snoozed`, `window`, `paused`, `concurrency`, `type_concurrency`, `constraint`,
    `throttler`, `order`, `worker` or `retry`.
    """
    name: NotRequired[str | None]
    """Its name, where there are several. Of `order` in a queue with strict order: the job of the
    same partition that goes first.
    """
    value: NotRequired[str | None]
    """The value of the attribute, for a constraint with a limit per value."""


class HeldJobs(TypedDict):
    """The examined due jobs of a queue that one thing holds."""
    earliest_at: NotRequired[Timestamp | None]
    """The earliest start of the first of them, where that is known."""
    jobs: int
    """How many."""
    kind: str
    """As `kind` of [`HeldBy`]."""
    name: NotRequired[str | None]
    """Its name, where there are several."""
    reason: str
    """Why the first of them waits, for people."""
    since: NotRequired[Timestamp | None]
    """Since when."""
    types: dict[str, int]
    """How many of each type."""
    value: NotRequired[str | None]
    """The value of the attribute, for a constraint with a limit per value."""


History = TypedDict(
    "History",
    {
        "from": "NotRequired[Timestamp | None]",
        "points": "list[HistoryPoint]",
        "step_seconds": "int",
        "throughput": "Throughput",
        "time_to_empty_seconds": "NotRequired[float | None]",
    },
)
"""The last hour or the last day of a queue or a type, in steps."""

class HistoryEntry(TypedDict):
    """One finished attempt."""
    attempt: int
    """The attempt, from 1."""
    duration_ms: int
    """How many milliseconds it took, from `started_at` to `ended_at`."""
    ended_at: Timestamp
    """When its result arrived or its lease expired."""
    error: NotRequired[Failure | None]
    """What went wrong."""
    message: NotRequired[str | None]
    """Why it was handed back, for people."""
    outcome: EndedAs
    """`succeeded`, `failed` or `cancelled`; `released` or `snoozed` if it was handed back."""
    retry_at: NotRequired[Timestamp | None]
    """When the next attempt was due, if there was one."""
    started_at: Timestamp
    """When it was claimed."""
    waited_ms: NotRequired[int | None]
    """How many milliseconds it had waited when it started: the first attempt since the job's
    `due_at`, a later one since the end of the attempt before it. Absent if that attempt is no
    longer in the history.
    """
    worker: NotRequired[str | None]
    """The worker's name."""


class HistoryPoint(TypedDict):
    """One step of a history."""
    at: Timestamp
    """When the step began."""
    enqueued: NotRequired[int | None]
    """Jobs that were accepted. Absent on AWS."""
    failed: int
    """Jobs that ended `failed`."""
    finished: int
    """Jobs that ended, in whatever way."""
    limit: NotRequired[int | None]
    """The `concurrency` of the queue, or of the type, at the end of the step, if it had jobs.
    """
    ready: int
    """Jobs in phase `ready` at the end of the step."""
    retrying: int
    """Jobs in phase `retrying` at the end of the step."""
    run_seconds: NotRequired[Quantiles | None]
    """From the start to the end of the attempts that ended. Absent without any, and on AWS."""
    running: int
    """Jobs in phase `running` at the end of the step."""
    scheduled: int
    """Jobs in phase `scheduled` at the end of the step."""
    start_delay_seconds: NotRequired[Quantiles | None]
    """From the due time to the start of the attempts that were claimed. Absent without any, and on
    AWS.
    """
    started: NotRequired[int | None]
    """Attempts that were claimed. Absent on AWS."""
    weight: NotRequired[int | None]
    """The weight of the running jobs of the queue at the end of the step, if it had jobs."""


class Ingested(TypedDict):
    """The outcome of an event: one entry per trigger that matched it."""
    id: str
    """The event's id."""
    outcomes: list[Applied]
    """What each trigger did, by name; empty if none matched."""
    source: str
    """Its source."""


class Job(TypedDict):
    """A job."""
    attempt: int
    """Attempts started so far."""
    attributes: dict[str, AttributeValue]
    """What limits, partitions and searches match on."""
    callback_url: NotRequired[str | None]
    """The URL that is notified of its end. A query of it is shown as `***`."""
    checkpoint: NotRequired[AnyValue]
    """What an attempt has stored for the next one; a success clears it."""
    checkpoint_bytes: NotRequired[int | None]
    """How many bytes `checkpoint` has, where it is not shown."""
    correlation_key: NotRequired[str | None]
    """The key by which a later reply finds the job."""
    created_at: Timestamp
    """When it was accepted."""
    critical: bool
    """Whether it is exempt from limits."""
    data: NotRequired[AnyValue]
    """What it carries. Absent in lists when it is over 1 KiB."""
    data_bytes: NotRequired[int | None]
    """How many bytes `data` has, where it is not shown."""
    deadline_at: NotRequired[Timestamp | None]
    """When it ends `failed` if it has not ended by then."""
    due_at: Timestamp
    """When it was first due. A retry, a closed window and a deferral by a throttler do not change
    it.
    """
    ended_at: NotRequired[Timestamp | None]
    """When it ended."""
    enqueued_by: NotRequired[str | None]
    """The name of the token that enqueued it; of a replay, of the token that enqueued the first
    job. Absent if there was no token, or if an event or a schedule made it.
    """
    error: NotRequired[Failure | None]
    """The latest failure."""
    expires_at: NotRequired[Timestamp | None]
    """It never starts after this instant."""
    handed_back: NotRequired[int]
    """How many attempts were handed back (`released`, `snoozed`)."""
    headers: NotRequired[dict[str, str]]
    """Passed on to the worker."""
    history: list[HistoryEntry]
    """One entry per finished attempt."""
    id: str
    """Its id."""
    keep_result: KeepResult
    """How long its result is kept."""
    max_attempts: int
    """Most attempts, without those that were handed back."""
    merged: NotRequired[Merged | None]
    """In the answer to an enqueue: what the request changed in this job, which waited and held its
    unique key. Absent if the job is new, or stayed as it was.
    """
    origin: NotRequired[JobOrigin | None]
    """The schedule or the trigger that made it; of a replay, what made the first job. Absent if a
    caller enqueued it, or replaced its data.
    """
    original: NotRequired[OriginalJob | None]
    """The job as it came, if a retry strategy has changed it."""
    phase: str
    """The state when it was read, with `scheduled` divided: `scheduled` is due later, `ready` is
    due now, `retrying` waits for its next attempt.
    """
    priority: int
    """Jobs with a lower priority start first."""
    queue: str
    """The queue that it entered when it was accepted."""
    replay_of: NotRequired[str | None]
    """The job that it replays."""
    replayed_by: NotRequired[str | None]
    """The latest job that replays it."""
    result: AnyValue
    """Its result, while it is kept; a result that is kept `once` is shown by `GET …/result` alone.
    """
    result_bytes: NotRequired[int | None]
    """How many bytes `result` has, where it is not shown."""
    retry: Retry
    """What follows a failed attempt."""
    retry_target: NotRequired[str | None]
    """The name of the target that a retry strategy chose for its next attempt, of those in
    `retry_targets` of its type. Absent for the type's own target.
    """
    run_at: Timestamp
    """The earliest start: of the next attempt while it is scheduled, and of the latest one later.
    `started_at` shows how late that attempt started. A job that ended before any attempt keeps
    the one that it had.
    """
    running: NotRequired[Running | None]
    """The running attempt."""
    started_at: NotRequired[Timestamp | None]
    """When its latest attempt was claimed."""
    state: str
    """`scheduled`, `running`, `succeeded`, `failed`, `expired`, `cancelled` or `dropped`."""
    timeout_seconds: Seconds
    """From claim to result."""
    type: str
    """Its type."""
    unique: NotRequired[Unique | None]
    """The rule against duplicates."""
    weight: int
    """Capacity units that it uses while it runs."""
    windows: NotRequired[list[Window]]
    """The windows in which it may start."""


class JobChange(TypedDict):
    """Event `job`: a job was accepted or has changed."""
    at: Timestamp
    """When it was committed."""
    attempt: int
    """Attempts started so far."""
    error_reason: NotRequired[Reason | None]
    """The reason of the latest error."""
    id: str
    """The job."""
    phase: str
    """Its phase at the time of the change."""
    progress: NotRequired[Progress | None]
    """The latest progress of the running attempt, without a note of over 200 bytes."""
    queue: str
    """Its queue."""
    revision: int
    """The number of this change, as in the `ETag` of the job. Changes of a job may arrive in
    another order; the one with the highest number is the latest.
    """
    run_at: NotRequired[Timestamp | None]
    """The earliest start, of a job that waits."""
    state: str
    """Its state, as in the job."""
    type: str
    """Its type."""
    worker: NotRequired[str | None]
    """The worker of the running attempt."""


class JobError(TypedDict):
    """The error of a job that did not succeed."""
    message: NotRequired[str | None]
    """For people."""
    reason: Reason
    """The reason."""
    status: NotRequired[int | None]
    """The HTTP status of the target's response, if there was one."""


class JobFilter(TypedDict):
    """Conditions; a job matches if all of them hold."""
    attribute: NotRequired[dict[str, AttributeValue] | None]
    """Only with these attribute values."""
    created_from: NotRequired[Timestamp | None]
    """Only accepted at this instant or later."""
    created_to: NotRequired[Timestamp | None]
    """Only accepted before this instant."""
    data: NotRequired[dict[str, AttributeValue] | None]
    """Only with these values in the data: JSON pointers, each with a text or a number, at most 8.
    The data of every other matching job is read.
    """
    due_from: NotRequired[Timestamp | None]
    """Only first due at this instant or later."""
    due_to: NotRequired[Timestamp | None]
    """Only first due before this instant."""
    ended_from: NotRequired[Timestamp | None]
    """Only ended at this instant or later."""
    ended_to: NotRequired[Timestamp | None]
    """Only ended before this instant."""
    error_contains: NotRequired[str | None]
    """Only those whose latest error's message contains this text, in upper or lower case."""
    error_pattern: NotRequired[str | None]
    """Only those whose latest error's message has this pattern, as `GET /v1/errors` shows it, or
    is like this message.
    """
    error_reason: NotRequired[Words | None]
    """Only those whose latest error has one of these reasons."""
    id: NotRequired[Words | None]
    """Only these jobs: an id or a list of at most 1000."""
    max_attempt: NotRequired[int | None]
    """Only with at most this many attempts."""
    min_attempt: NotRequired[int | None]
    """Only with at least this many attempts."""
    phase: NotRequired[Words | None]
    """Only these phases: a word or a list of words."""
    queue: NotRequired[str | None]
    """Only this queue."""
    started_from: NotRequired[Timestamp | None]
    """Only those whose latest attempt started at this instant or later."""
    started_to: NotRequired[Timestamp | None]
    """Only those whose latest attempt started before this instant."""
    state: NotRequired[Words | None]
    """Only these states: a word or a list of words, `ended` among them."""
    type: NotRequired[str | None]
    """Only this type."""
    worker: NotRequired[str | None]
    """Only those whose latest attempt runs or ran at the worker of this name."""


class JobOrigin(TypedDict):
    """What made a job that no caller enqueued: a schedule, or a trigger from an event."""
    event: NotRequired[str | None]
    """The id of the event; absent if it has over 256 bytes."""
    occurrence: NotRequired[Timestamp | None]
    """The occurrence of the schedule; absent if a request ran the schedule."""
    schedule: NotRequired[str | None]
    """The schedule; absent if a trigger made the job."""
    source: NotRequired[str | None]
    """The source of the event; absent if it has over 256 bytes."""
    trigger: NotRequired[str | None]
    """The trigger; absent if a schedule made the job."""


class JobPage(TypedDict):
    """A page of jobs."""
    jobs: list[Job]
    """The jobs, newest first by creation; on AWS by when they were first due, from the present
    back, and then those due later. With `sort`, in that order.
    """
    next_cursor: NotRequired[str | None]
    """Where the next page starts; absent on the last."""
    sorted: NotRequired[SortedJobs | None]
    """With `sort`: which jobs were compared. Absent if the list has this order anyway."""
    unreadable: NotRequired[list[str]]
    """The ids of jobs that may belong to the list and cannot be read, at most 100: their records
    are damaged, or a newer release wrote them. `GET` of one says why.
    """


class JobPatch(TypedDict):
    """Changes to a scheduled job. Absent fields stay; null is what an enqueue without the field
    has.
    """
    data: NotRequired[AnyValue]
    """The new data; null is a value."""
    expires_at: NotRequired[Timestamp | None]
    """The new instant after which it never starts; null means none."""
    priority: NotRequired[int | None]
    """The new priority; null means that of the type."""
    run_at: NotRequired[Timestamp | None]
    """The new due time; in the past and null mean now. A job that is due stays due since then.
    """
    windows: NotRequired[list[Window] | None]
    """The new windows; an empty list means always, null those of the type."""


class JobType(TypedDict):
    """A job type."""
    attributes: NotRequired[dict[str, str]]
    """Attributes extracted from the data, at most 16: a name of 1 to 64 bytes, and a JSON pointer
    of at most 1024 bytes.
    """
    callback_signing_secret: NotRequired[Secrets]
    """The secret that signs the notifications to `callback_url`, or two during a rotation; write-
    only. It has the form of a target's `signing_secret`, and should differ from it.
    """
    callback_url: NotRequired[str | None]
    """The URL that is notified when a job ends: http or https, without credentials, at most 2048
    bytes.
    """
    changed_secrets: NotRequired[list[str] | None]
    """In a dry run, the secrets that the change sets, replaces or removes, by their paths; absent
    otherwise.
    """
    concurrency: NotRequired[int | None]
    """Most weight of this type that runs at once."""
    deadline_seconds: NotRequired[Seconds | None]
    """From a job's creation to its end, at most (0.001 to 315360000)."""
    delivery: NotRequired[Delivery]
    """Whether a job may be started twice (default `at_least_once`)."""
    headers: NotRequired[dict[str, str]]
    """Passed on to the worker: at most 32, names of 1 to 128 bytes, values of at most 4096 bytes
    of visible ASCII. Headers that frame the request are refused, and so are credentials
    (`authorization`, `proxy-authorization`, `cookie`), `webhook-` and `tidegate-` ones. A
    header of the target has precedence.
    """
    hold_slot_until: NotRequired[HoldSlotUntil]
    """What frees a job's slot (default `lease_end`)."""
    keep_result: NotRequired[KeepResult]
    """How long a result can be read (default 86400 s; 0 to 315360000)."""
    lease_seconds: NotRequired[Seconds]
    """How long a lease of a pull worker lasts without a heartbeat (default 30; 0.001 to 31536000).
    """
    max_attempts: NotRequired[int | None]
    """Most attempts (default 3, with `at_most_once` 1; 1 to 65535)."""
    max_releases: NotRequired[int]
    """Most attempts in a row that workers hand back (`released`, `snoozed`) without progress. A
    further one fails as `not_delivered` and counts against `max_attempts` (default 100; 0 to
    65535).
    """
    name: str
    """Its name."""
    on_response_timeout: NotRequired[OnResponseTimeout]
    """What follows when no response comes in time (default `fail`)."""
    priority: NotRequired[int]
    """Its jobs' priority (default 100)."""
    queue: NotRequired[QueueName]
    """The queue of its jobs (default `default`)."""
    response_timeout_seconds: NotRequired[Seconds]
    """How long a push target may take to answer (default 30; 0.001 to 31536000)."""
    retention_seconds: NotRequired[Seconds]
    """How long an ended job is kept (default 30 days; 0 to 315360000, 0 deletes it at its end).
    One with a correlation key is kept for `reply_wait_seconds` at least, so that a second
    delivery of its reply is recognised.
    """
    retry: NotRequired[Retry]
    """What follows a failed attempt. Default:
    `{"config":{"base_seconds":2,"jitter":"full","max_seconds":3600},"strategy":"exponential"}`.
    """
    retry_after_restart: NotRequired[bool]
    """Whether a push that was under way when the server stopped is retried at its next start
    (default false: it keeps its slot until its response timeout, because its worker may still
    work or call back). True needs a push target, `at_least_once`, `hold_slot_until: lease_end`
    and `on_response_timeout: fail`. Without effect on AWS.
    """
    retry_targets: NotRequired[dict[str, str]]
    """Other URLs that a retry strategy may choose for the next attempt, by name: at most 16, of
    the form of `target.url`. Headers, credentials and signature are those of `target`, which
    must have a `url`.
    """
    secrets: NotRequired[list[str] | None]
    """The secrets that it has, by the paths of their settings: `target.signing_secret`,
    `target.basic_auth.password`, `target.headers.NAME`, `callback_signing_secret`. Absent if it
    has none.
    """
    start: NotRequired[Start]
    """Whether a push is claimed before it is sent (default `claim`). `plain` needs a push target,
    `at_least_once`, `on_response_timeout: fail` and no `concurrency`.
    """
    target: NotRequired[TargetConfig | None]
    """Where its jobs go (default: the server's default target, or pull workers)."""
    timeout_seconds: NotRequired[Seconds]
    """From claim to result (default 86400; 0.001 to 31536000)."""
    version: int
    """Raised by every change; the `ETag` contains it."""
    weight: NotRequired[int]
    """Its jobs' weight (default 1)."""
    windows: NotRequired[list[Window]]
    """When its jobs may start: at most 32."""


class JobTypeChange(TypedDict):
    """Event `job_type`: the configuration of a type has changed."""
    type: str
    """The type."""
    version: NotRequired[int | None]
    """Its new version; absent if it was removed."""


class JobTypePage(TypedDict):
    """A page of job types."""
    job_types: list[JobType]
    """The types, by name."""
    next_cursor: NotRequired[str | None]
    """Where the next page starts; absent on the last."""


class KeepResultSeconds(TypedDict):
    """An object."""
    seconds: float
    """A span in seconds; fractions down to a millisecond."""


class LambdaTarget(TypedDict):
    """A Lambda function."""
    function: str
    """Its name or ARN, optionally with a version or an alias (1 to 256 bytes)."""
    invocation: NotRequired[Invocation | None]
    """How it is called (default `wait`)."""


class Lease(TypedDict):
    """One attempt at a job, and the right to report on it."""
    attempt: int
    """The attempt, from 1."""
    expires_at: Timestamp
    """Without a heartbeat the lease expires then."""
    job: Job
    """The job."""
    token: str
    """The attempt's secret: enough, as a bearer token, to report and to send heartbeats."""


class LeaseRequest(TypedDict):
    """A request of a pull worker for jobs."""
    lease_seconds: NotRequired[Seconds | None]
    """How long the leases last (default: the type's setting)."""
    max: NotRequired[int | None]
    """At most this many, 0 to 1000 (default 1). With 0 the call only reports, and gets the leases
    of the call that it repeats.
    """
    max_pause_seconds: NotRequired[Seconds | None]
    """The longest pause that the worker makes before its next call if there is no job, 0 to 60
    (default 0). A server that pays for held requests then answers at once, and names the pause
    in `retry_after_seconds`. Any other server holds the request for `wait_seconds`.
    """
    min: NotRequired[int | None]
    """At least this many, 0 to `max` (default 1, and 0 is 1), unless the wait ends: then what is
    there. No job is leased before. More than 1 needs a request to one queue: `queue`, or types
    of one. A worker that registered a smaller capacity waits for no more than that.
    """
    queue: NotRequired[str | None]
    """Only from this queue."""
    reports: NotRequired[list[Report] | None]
    """The results of earlier leases, at most 1000."""
    request_id: NotRequired[str | None]
    """The name of the request: 16 to 128 bytes, such as a UUID. A worker that has no answer
    repeats the request with it, and gets the same leases while they last; a repeat renews them.
    The next request has another one.
    """
    types: NotRequired[list[str] | None]
    """Only of these types; absent or empty means every pull type."""
    wait_seconds: NotRequired[Seconds | None]
    """How long to wait for the first, or for `min` of them, 0 to 60 (default 0)."""
    worker: NotRequired[str | None]
    """The worker's name, at most 128 bytes."""


class Leases(TypedDict):
    """Leases, and the answers to the reports."""
    leases: list[Lease]
    """The leases; none if no job became available within the wait."""
    reports: list[Reported]
    """One answer per report, in order."""
    retry_after_seconds: NotRequired[Seconds | None]
    """How long to pause before the next call; absent: not at all."""
    stop: NotRequired[bool]
    """Whether the worker is to end in order: it sends no more lease requests, finishes and reports
    what it runs, and is deleted. Absent: no.
    """


class LeftOut(TypedDict):
    """Jobs that a simulation leaves out."""
    jobs: NotRequired[int | None]
    """How many; null: not known."""
    reason: str
    """Why, for people."""


class Limits(TypedDict):
    """The bounds of requests and answers. A server of another version, deployment mode or setting
    may have others.
    """
    answer_bytes: NotRequired[int | None]
    """Most bytes of an answer; null: there is no bound."""
    batch_events: int
    """Most events in a request."""
    batch_jobs: int
    """Most jobs in a batch."""
    batch_request_bytes: int
    """Most bytes of a request with many jobs, reports or events."""
    checkpoint_bytes: int
    """Most bytes of a checkpoint."""
    data_bytes: int
    """Most bytes of a job's data, and of a result."""
    error_bytes: int
    """Most bytes of the `error` of a report."""
    leases: int
    """Most leases of a request."""
    log_lines: int
    """Most log lines in a heartbeat, and in a report."""
    message_bytes: int
    """Most bytes of the `message` of a report, and of the `note` of a heartbeat."""
    page_items: int
    """Most items of a page."""
    reports: int
    """Most reports in a lease request."""
    request_bytes: int
    """Most bytes of a request about one job."""
    wait_seconds: Seconds
    """The longest wait of a request for leases, for a result or for log lines."""


class LogLine(TypedDict):
    """A log line of an attempt."""
    attempt: int
    """The attempt."""
    cut: NotRequired[bool]
    """Whether a part of it was left out, because it had more than 4 KiB."""
    fields: NotRequired[dict[str, AnyValue] | None]
    """Values that belong to it."""
    level: LogLevel
    """Its level."""
    number: int
    """Its number among the lines of its job, from 0. Numbers that are missing are of lines that
    are no longer kept.
    """
    text: str
    """The text."""
    time: Timestamp
    """When it was written."""


class LogPage(TypedDict):
    """A page of the log lines of a job."""
    dropped: int
    """How many lines of this page's range are no longer kept."""
    lines: list[LogLine]
    """The lines, oldest first."""
    next_cursor: NotRequired[str | None]
    """Where the next page starts; absent if the job has ended and has no more lines."""


Matcher = TypedDict(
    "Matcher",
    {
        "all": "NotRequired[list[Matcher] | None]",
        "any": "NotRequired[list[Matcher] | None]",
        "attribute": "NotRequired[dict[str, Condition] | None]",
        "not": "NotRequired[Matcher | None]",
        "priority": "NotRequired[Condition | None]",
        "type": "NotRequired[Condition | None]",
    },
)
"""Conditions that all hold for a job that matches; an empty one matches every job."""

class NewJob(TypedDict):
    """A job to enqueue. Absent fields are taken from its type, then from the server's defaults.
    """
    attributes: NotRequired[dict[str, Any] | None]
    """What limits, partitions and searches compare, at most 16; those extracted from the data win.
    """
    callback_url: NotRequired[str | None]
    """The URL that is notified when the job ends."""
    correlation_key: NotRequired[str | None]
    """The key by which a later reply finds the job; unique among the live jobs of the type."""
    critical: NotRequired[bool | None]
    """Not held by limits, and takes no capacity. An enqueue needs scope `enqueue:critical`.
    Default: `false`.
    """
    data: AnyValue
    """What it carries: any value, kept byte for byte."""
    deadline_seconds: NotRequired[Seconds | None]
    """From creation to end."""
    delay_seconds: NotRequired[Seconds | None]
    """The same as a span from now; not together with `run_at`."""
    expires_at: NotRequired[Timestamp | None]
    """It never starts after this instant."""
    headers: NotRequired[dict[str, str] | None]
    """Passed on to the worker."""
    id: NotRequired[str | None]
    """The id that makes the enqueue idempotent: 1 to 64 of `A-Z a-z 0-9 _ . : -`. Absent, the
    server generates one.
    """
    keep_result: NotRequired[KeepResult | None]
    """How long the result can be read."""
    max_attempts: NotRequired[int | None]
    """Most attempts (default 3)."""
    priority: NotRequired[int | None]
    """Lower goes first (default 100)."""
    retry: NotRequired[Retry | None]
    """What follows a failed attempt."""
    run_at: NotRequired[Timestamp | None]
    """The earliest start; in the past means now."""
    timeout_seconds: NotRequired[Seconds | None]
    """From claim to result (default 86400)."""
    type: NotRequired[str | None]
    """Its type: 1 to 64 of `A-Z a-z 0-9 _ . -`. With PUT it may be left to the path."""
    unique: NotRequired[Unique | None]
    """A key that refuses duplicates: no second job of the type while one has it."""
    weight: NotRequired[int | None]
    """Capacity units that it takes while it runs; 0 takes none (default 1)."""
    windows: NotRequired[list[Window] | None]
    """When it may start; an empty list clears the type's windows."""


class NewJobs(TypedDict):
    """Many jobs."""
    jobs: list[NewJob]
    """The jobs, at most 1000."""


class NewLogLine(TypedDict):
    """A log line that a worker sends about its attempt."""
    fields: NotRequired[dict[str, AnyValue] | None]
    """Values that belong to it."""
    level: NotRequired[LogLevel | None]
    """Its level (default `info`)."""
    text: str
    """The text. Of a line with more than 4 KiB, fields and text are cut."""
    time: NotRequired[Timestamp | None]
    """When it was written (default: when the server receives it). Lines that all have a time are
    kept once, although their request is repeated.
    """


class NewSchedule(TypedDict):
    """A schedule's configuration, and the data of its jobs."""
    anchor: NotRequired[Timestamp | None]
    """An instant from which every occurrence is a multiple of `every_seconds` away (default
    `starts_at`, else the epoch).
    """
    attributes: NotRequired[dict[str, Any] | None]
    """What limits, partitions and searches compare, at most 16; those extracted from the data win.
    """
    callback_url: NotRequired[str | None]
    """The URL that is notified when the job ends."""
    critical: NotRequired[bool | None]
    """Not held by limits, and takes no capacity. An enqueue needs scope `enqueue:critical`.
    Default: `false`.
    """
    cron: NotRequired[str | None]
    """A cron pattern: minute, hour, day of the month, month, day of the week; or those after a
    second. At most 256 bytes. Either this or `every_seconds` must be given.
    """
    data: NotRequired[AnyValue]
    """The data of its jobs: any value of at most 64 KiB, kept byte for byte (default null)."""
    deadline_seconds: NotRequired[Seconds | None]
    """From creation to end."""
    ends_at: NotRequired[Timestamp | None]
    """No occurrence after this."""
    every_seconds: NotRequired[Seconds | None]
    """The span from one occurrence to the next (1 to 31536000)."""
    expires_after_seconds: NotRequired[Seconds | None]
    """Most time between an occurrence and the start of its job (0.001 to 315360000)."""
    headers: NotRequired[dict[str, str] | None]
    """Passed on to the worker."""
    keep_result: NotRequired[KeepResult | None]
    """How long the result can be read."""
    max_attempts: NotRequired[int | None]
    """Most attempts (default 3)."""
    max_missed: NotRequired[int | None]
    """With `missed: all`, how many of the latest missed occurrences make jobs (default 100; 1 to
    1000).
    """
    missed: NotRequired[Missed | None]
    """What follows for occurrences that are over a minute late (default `one`)."""
    paused: NotRequired[bool | None]
    """Whether nothing occurs. Occurrences during the pause make no jobs later. A PUT without it
    leaves a schedule paused or not, as it is; the default of a new one is false.
    """
    priority: NotRequired[int | None]
    """Lower goes first (default 100)."""
    retry: NotRequired[Retry | None]
    """What follows a failed attempt."""
    starts_at: NotRequired[Timestamp | None]
    """No occurrence before this."""
    timeout_seconds: NotRequired[Seconds | None]
    """From claim to result (default 86400)."""
    type: TypeName
    """The type of its jobs."""
    tz: NotRequired[str | None]
    """The IANA name of the time zone of `cron` (default UTC)."""
    unique: NotRequired[Unique | None]
    """A key that refuses duplicates: no second job of the type while one has it."""
    weight: NotRequired[int | None]
    """Capacity units that it takes while it runs; 0 takes none (default 1)."""
    windows: NotRequired[list[Window] | None]
    """When it may start; an empty list clears the type's windows."""


class NewSchedulePatch(TypedDict):
    """A schedule's configuration, and the data of its jobs."""
    anchor: NotRequired[Timestamp | None]
    """An instant from which every occurrence is a multiple of `every_seconds` away (default
    `starts_at`, else the epoch).
    """
    attributes: NotRequired[dict[str, Any] | None]
    """What limits, partitions and searches compare, at most 16; those extracted from the data win.
    """
    callback_url: NotRequired[str | None]
    """The URL that is notified when the job ends."""
    critical: NotRequired[bool | None]
    """Not held by limits, and takes no capacity. An enqueue needs scope `enqueue:critical`.
    Default: `false`.
    """
    cron: NotRequired[str | None]
    """A cron pattern: minute, hour, day of the month, month, day of the week; or those after a
    second. At most 256 bytes. Either this or `every_seconds` must be given.
    """
    data: NotRequired[AnyValue]
    """The data of its jobs: any value of at most 64 KiB, kept byte for byte (default null)."""
    deadline_seconds: NotRequired[Seconds | None]
    """From creation to end."""
    ends_at: NotRequired[Timestamp | None]
    """No occurrence after this."""
    every_seconds: NotRequired[Seconds | None]
    """The span from one occurrence to the next (1 to 31536000)."""
    expires_after_seconds: NotRequired[Seconds | None]
    """Most time between an occurrence and the start of its job (0.001 to 315360000)."""
    headers: NotRequired[dict[str, str] | None]
    """Passed on to the worker."""
    keep_result: NotRequired[dict[str, Any] | str | None]
    """How long the result can be read."""
    max_attempts: NotRequired[int | None]
    """Most attempts (default 3)."""
    max_missed: NotRequired[int | None]
    """With `missed: all`, how many of the latest missed occurrences make jobs (default 100; 1 to
    1000).
    """
    missed: NotRequired[Missed | None]
    """What follows for occurrences that are over a minute late (default `one`)."""
    paused: NotRequired[bool | None]
    """Whether nothing occurs. Occurrences during the pause make no jobs later. A PUT without it
    leaves a schedule paused or not, as it is; the default of a new one is false.
    """
    priority: NotRequired[int | None]
    """Lower goes first (default 100)."""
    retry: NotRequired[dict[str, Any] | None]
    """What follows a failed attempt."""
    starts_at: NotRequired[Timestamp | None]
    """No occurrence before this."""
    timeout_seconds: NotRequired[Seconds | None]
    """From claim to result (default 86400)."""
    type: NotRequired[TypeName]
    """The type of its jobs."""
    tz: NotRequired[str | None]
    """The IANA name of the time zone of `cron` (default UTC)."""
    unique: NotRequired[dict[str, Any] | None]
    """A key that refuses duplicates: no second job of the type while one has it."""
    weight: NotRequired[int | None]
    """Capacity units that it takes while it runs; 0 takes none (default 1)."""
    windows: NotRequired[list[Window] | None]
    """When it may start; an empty list clears the type's windows."""


class NewToken(TypedDict):
    """A token to create."""
    expires_at: NotRequired[Timestamp | None]
    """From when on it is no longer accepted (default: never)."""
    name: str
    """Its owner's name for it, 1 to 128 bytes."""
    queues: NotRequired[list[str] | None]
    """Only jobs in these queues, 1 to 100 (default: all). Not with `admin`."""
    scopes: list[str]
    """What it allows: `enqueue`, `enqueue:critical`, `work`, `read`, `admin`."""
    types: NotRequired[list[str] | None]
    """Only jobs of these types, 1 to 100 (default: all). Not with `admin`."""


class Occurrence(TypedDict):
    """An occurrence of a schedule."""
    at: Timestamp
    """When."""
    job: str
    """The id of its job."""


class Operation(TypedDict):
    """A bulk operation, running or finished."""
    created_at: Timestamp
    """When it was requested."""
    done: int
    """Jobs that it changed."""
    dry_run: NotRequired[bool]
    """Whether it is a dry run: `done`, `refused` and `skipped` count what the operation would do.
    """
    ended_at: NotRequired[Timestamp | None]
    """When it ended."""
    error: NotRequired[str | None]
    """What stopped it, if something did."""
    id: str
    """Its id."""
    kind: BulkKind
    """What it does."""
    matched: int
    """Jobs that matched so far."""
    refused: int
    """Jobs that refused the change (they had ended, or were running)."""
    sample: NotRequired[list[str]]
    """The first jobs that a dry run would change, at most 20."""
    skipped: NotRequired[int]
    """Jobs that were not replayed: they were replayed before, or a live job has their correlation
    key.
    """
    skipped_jobs: NotRequired[list[SkippedJob]]
    """The first of these, at most 100."""
    state: str
    """`running`, `done` or `failed`."""
    unreadable: NotRequired[list[str]]
    """The ids of jobs that may match and cannot be read, at most 100. They are left out."""


class OperationAnswer(TypedDict):
    """A background operation."""
    operation: Operation
    """Its current state."""


class OriginalJob(TypedDict):
    """A job as it came, before a retry strategy changed it."""
    attributes: dict[str, AttributeValue]
    """Its attributes."""
    data: NotRequired[AnyValue]
    """Its data. Absent if they were not changed, are no JSON, or have more than 4096 bytes."""
    max_attempts: NotRequired[int | None]
    """Its most attempts."""
    priority: int
    """Its priority."""
    timeout_seconds: NotRequired[Seconds | None]
    """Its timeout."""
    weight: NotRequired[int | None]
    """Its weight."""


class OtherServer(TypedDict):
    """The console of another server."""
    name: str
    """Its name."""
    url: str
    """Its address."""


class OverviewMinute(TypedDict):
    """A minute of a queue."""
    at: Timestamp
    """When it began."""
    enqueued: NotRequired[int | None]
    """Jobs that were accepted. Absent on AWS."""
    failed: int
    """Jobs that ended `failed`."""
    finished: int
    """Jobs that ended, in whatever way."""
    ready: int
    """Jobs in phase `ready` at the end of the last recorded step of the minute."""
    running: int
    """Jobs in phase `running` at that time."""


class OverviewPage(TypedDict):
    """A page of queues with their state and their last hour."""
    at: Timestamp
    """When the page was made."""
    next_cursor: NotRequired[str | None]
    """Where the next page starts; absent on the last."""
    queues: list[QueueOverview]
    """The queues, by name."""


class Plugin(TypedDict):
    """A plugin."""
    health: PluginHealth
    """Statistics of the live version's calls."""
    live: int
    """The number of the live version, which decides."""
    name: str
    """Its name."""
    pushed: NotRequired[int | None]
    """The number of the version that has the pushed bytes; only the answer to a push has it.
    """
    recording: NotRequired[PluginRecording | None]
    """Which of its calls are stored for a time, in addition to those that fail; absent if none
    are.
    """
    retry: NotRequired[Description | None]
    """The description of its live version as a retry strategy, if it is one."""
    roles: list[Role]
    """The roles of its live version."""
    runnable: bool
    """Whether there is code of that version for this release and machine: without it every call
    fails.
    """
    shadow: NotRequired[int | None]
    """The number of the shadow version, which is called for comparison alone; null if there is
    none.
    """
    shadow_health: NotRequired[PluginHealth | None]
    """Statistics of the shadow version's calls; absent if there is none."""
    throttler: NotRequired[Description | None]
    """The description of its live version as a throttler, if it is one."""
    used_by: list[PluginUser]
    """The queues and job types that use it."""
    version: int
    """Raised by every change; the `ETag` contains it."""


class PluginCallFault(TypedDict):
    """Why a call failed."""
    kind: str
    """The kind: `rejected`, `timeout`, `resource_exhausted`, `trapped`, `invalid_answer` or
    `unavailable`.
    """
    message: str
    """What went wrong, for the plugin's author."""


class PluginCallFilter(TypedDict):
    """Which calls of a plugin are stored. A call matches if one of its jobs meets all conditions;
    without conditions every call does.
    """
    action: NotRequired[DecidedAction | None]
    """The decision about the job."""
    attributes: NotRequired[dict[str, str] | None]
    """Values of attributes of the job: at most 16, of at most 256 bytes."""
    job: NotRequired[str | None]
    """The id of the job."""
    queue: NotRequired[str | None]
    """The queue."""
    reason: NotRequired[str | None]
    """A part of the reason of the decision: at most 256 bytes."""
    type: NotRequired[str | None]
    """The type of the job."""


class PluginCallLogLine(TypedDict):
    """A line that a plugin logged in a call."""
    level: str
    """The level: `debug`, `info`, `warn` or `error`."""
    message: str
    """The text."""


class PluginCalls(TypedDict):
    """How the calls of plugins about a queue's jobs are recorded."""
    redact: NotRequired[list[str] | None]
    """What recorded calls lack (default: nothing): `data` of jobs; the plugin's `state`, in either
    role; messages and details of `failures`; the `texts` of the plugin, which are its log, its
    reasons and the messages of its faults; all `attributes`, or one as `attributes.NAME`. At
    most 32.
    """
    store: NotRequired[bool | None]
    """Whether calls are stored: those that fail, those that a filter matches, and on AWS and
    Postgres one a minute (default true). Without it, recorded calls are in the memory of the
    server alone.
    """


class PluginCode(TypedDict):
    """Machine code of a version."""
    engine: str
    """For which engine and settings."""
    target: str
    """For which machine, as a target triple."""


class PluginDifferences(TypedDict):
    """How the shadow version compares with the live one."""
    compared: int
    """Decisions that were compared."""
    differences: list[Difference]
    """The latest differences, latest first."""
    different: int
    """Those that differed."""
    failed: int
    """Calls of the shadow version that failed."""
    missed: int
    """Calls that were not compared for lack of time."""
    version: NotRequired[int | None]
    """The shadow version; null if there is none."""


class PluginFault(TypedDict):
    """A call that failed."""
    at: Timestamp
    """When."""
    kind: str
    """The kind: `rejected`, `timeout`, `resource_exhausted`, `trapped`, `invalid_answer` or
    `unavailable`.
    """
    message: str
    """What went wrong, for the plugin's author."""
    role: Role
    """The role in which it was called."""
    shadow: bool
    """Whether it was the shadow version, which decides nothing."""
    version: int
    """The number of the plugin's version."""


class PluginFaults(TypedDict):
    """The latest faults."""
    faults: list[RecordedPluginFault]
    """The faults, latest first."""


class PluginHealth(TypedDict):
    """Statistics of a plugin's calls since the server started."""
    calls: int
    """How often it was called."""
    failing: bool
    """Whether the latest call failed."""
    faults: int
    """How many calls failed."""
    faults_by_kind: dict[str, int]
    """Failed calls by the kind of fault: `rejected`, `timeout`, `resource_exhausted`, `trapped`,
    `invalid_answer`, `unavailable`.
    """
    last_fault: NotRequired[PluginFault | None]
    """The latest fault, if there was one."""
    last_usage: NotRequired[PluginUsage | None]
    """What the latest call used."""


class PluginLogLine(TypedDict):
    """A line of a plugin's log."""
    at: Timestamp
    """When the call was that logged it."""
    level: str
    """The level: `debug`, `info`, `warn` or `error`."""
    message: str
    """The text."""
    number: int
    """Counted up from 1 since the server started: the parameter `after` refers to it."""
    role: Role
    """The role in which it was called."""
    version: int
    """The number of the plugin's version."""


class PluginLogs(TypedDict):
    """The latest lines of a plugin's log."""
    logs: list[PluginLogLine]
    """The lines, oldest first."""


class PluginPage(TypedDict):
    """A page of plugins."""
    next_cursor: NotRequired[str | None]
    """Where the next page starts; absent on the last."""
    plugins: list[Plugin]
    """The plugins, by name."""


class PluginPrune(TypedDict):
    """How many versions a prune keeps."""
    keep: NotRequired[int | None]
    """The latest versions that are kept, 1 to 50 (default 5)."""


class PluginRecording(TypedDict):
    """The calls of a plugin that the server stores for a time."""
    filter: PluginCallFilter
    """Which calls."""
    until: Timestamp
    """Calls after this time are not stored."""


class PluginRecordingRequest(TypedDict):
    """Which calls are stored, and how long."""
    filter: NotRequired[PluginCallFilter | None]
    """Which calls (default: all)."""
    for_seconds: NotRequired[int | None]
    """How long from now, 1 to 86400 (default 3600)."""


class PluginRollback(TypedDict):
    """Which version becomes live."""
    version: NotRequired[int | None]
    """The version that becomes live; absent, the previously live one."""


class PluginShadow(TypedDict):
    """Which version becomes the shadow."""
    version: int
    """The version that is called for comparison with the live one."""


class PluginUsage(TypedDict):
    """What a call used."""
    fuel: NotRequired[int | None]
    """Fuel, of 500 million; unknown after a timeout."""
    host_calls: int
    """Calls of imported functions, of 100,000."""
    memory_bytes: int
    """Memory, of 64 MiB."""
    took_seconds: float
    """Time, of 0.25 s."""


class PluginUser(TypedDict):
    """A queue or a job type that uses a plugin."""
    kind: str
    """`queue` or `job_type`."""
    name: str
    """Its name."""


class PluginVersion(TypedDict):
    """A version of a plugin."""
    bytes: int
    """The component's bytes."""
    compiled: list[PluginCode]
    """Its machine code: a target triple and an engine each."""
    live: bool
    """Whether it decides."""
    number: int
    """Counted up from 1."""
    pushed_at: Timestamp
    """When it was pushed."""
    retry: NotRequired[Description | None]
    """Its description as a retry strategy, if it is one."""
    roles: list[Role]
    """Its roles."""
    sha256: str
    """The SHA-256 of the component, in hexadecimal."""
    shadow: bool
    """Whether it is called for comparison with the live version."""
    throttler: NotRequired[Description | None]
    """Its description as a throttler, if it is one."""


class PluginVersionPage(TypedDict):
    """A page of versions."""
    next_cursor: NotRequired[str | None]
    """Where the next page starts; absent on the last."""
    versions: list[PluginVersion]
    """The versions, oldest first."""


class Problem(TypedDict):
    """Why a request was not done (RFC 9457)."""
    code: str
    """A stable word for programs to act on."""
    detail: str
    """What is wrong in this case."""
    error: NotRequired[JobError | None]
    """The error of the job that ended so, if it has one."""
    field: NotRequired[str | None]
    """The field, parameter or header that caused the problem, with its path:
    `constraints[2].rate.count`.
    """
    holder: NotRequired[str | None]
    """The job that the request conflicts with."""
    instance: NotRequired[str | None]
    """The path of the request."""
    reasons: NotRequired[list[str] | None]
    """Everything that is wrong, where one sentence cannot list it."""
    state: NotRequired[str | None]
    """How the job ended, with `job_failed`: `failed`, `expired`, `cancelled` or `dropped`."""
    status: int
    """The HTTP status. Default: `0`."""
    title: str
    """The kind in words."""
    type: str
    """A name for this kind of problem: `urn:tidegate:problem:` and the code."""


class Progress(TypedDict):
    """The progress of an attempt, as its worker reports it."""
    note: NotRequired[str | None]
    """A note for people."""
    percent: float
    """0 to 100."""


class PrunedPlugin(TypedDict):
    """What a prune removed."""
    kept: list[int]
    """The numbers of the versions that are left, in order."""
    removed: list[int]
    """The numbers of the removed versions, or of those that a dry run would remove, in order.
    """


class Pull(TypedDict):
    """`{"pull": true}`."""
    pull: bool
    """Always true."""


class Push(TypedDict):
    """A URL that jobs are posted to."""
    basic_auth: NotRequired[BasicAuth | None]
    """HTTP Basic credentials."""
    complete: NotRequired[Complete | None]
    """When a job ends."""
    encoding: NotRequired[PushEncoding | None]
    """How the request's body is written."""
    headers: NotRequired[dict[str, str] | None]
    """Headers of every request, with the bounds of a job's headers. `authorization` must not be
    given together with `basic_auth`.
    """
    signing_secret: NotRequired[Secrets | None]
    """The secret that signs every request, or two during a rotation; write-only. Each is `whsec_`
    and the base64 of 24 to 64 bytes, or 1 to 256 bytes of text, which is the key itself.
    """
    url: str
    """The URL, http or https, without credentials, at most 2048 bytes; `{type}` and `{id}` in its
    path and query are replaced.
    """


class PushCallback(TypedDict):
    """Where a later result goes."""
    token: str
    """The attempt's token, for `Authorization: Bearer`."""
    url: str
    """Where to report: as `POST /v1/jobs/{type}/{id}`."""


class PushFailure(TypedDict):
    """The body of a failed response that gives message and details apart, with the fields of a
    report. A body with another member, or without a message, is not of this form.
    """
    error: NotRequired[AnyValue]
    """Details of the error, such as a stack trace: any value. One over 16 KiB is left out."""
    message: str
    """What went wrong, for people; what exceeds 4 KiB is cut off."""


class PushRequest(TypedDict):
    """The body of a request to a push target."""
    attempt: int
    """The attempt, from 1."""
    attributes: dict[str, AttributeValue]
    """What limits match on."""
    callback: PushCallback
    """Where the result goes if it comes later than the response."""
    checkpoint: NotRequired[AnyValue]
    """What an earlier attempt has stored for this one."""
    correlation_key: NotRequired[str | None]
    """The key by which a reply finds the job, if it has one."""
    data: AnyValue
    """What it carries."""
    headers: NotRequired[dict[str, str] | None]
    """The job's headers, where the request has none of its own: to a service of AWS."""
    id: JobId
    """The job."""
    max_attempts: int
    """Most attempts."""
    type: TypeName
    """Its type."""


class Quantiles(TypedDict):
    """Quantiles, within 5 %. Those of a day are estimates from the quantiles of shorter steps.
    """
    p50: float
    """Half of the values are at most this."""
    p95: float
    """95 % of the values are at most this."""
    p99: float
    """99 % of the values are at most this."""


class Queue(TypedDict):
    """A queue."""
    ageing_seconds: NotRequired[Seconds | None]
    """With `order: priority`, this long a wait counts as one step of priority (0.001 to 31536000).
    """
    concurrency: NotRequired[int | None]
    """Most weight that runs at once; absent means unlimited, 0 admits nothing."""
    constraints: NotRequired[list[Constraint]]
    """Limits on jobs that match a condition: at most 32, with distinct names."""
    name: str
    """Its name."""
    order: NotRequired[OrderKind]
    """Which candidate goes first (default `time`)."""
    order_step_seconds: NotRequired[Seconds]
    """The step to which `order: time` rounds due times (default 60; 0 to 300, 0 means exact).
    """
    partition_by: NotRequired[str | None]
    """The attribute whose values take turns: a name of 1 to 64 bytes. The value at the enqueue
    counts. A change applies to jobs that are enqueued, or whose data is changed, afterwards.
    """
    partition_then_by: NotRequired[str | None]
    """A second attribute, so that the combinations of both values take turns. It needs
    `partition_by`, names another attribute than that, and excludes `strict_order`.
    """
    paused: bool
    """Whether it holds every job."""
    plugin_calls: NotRequired[PluginCalls | None]
    """What is recorded of the calls of plugins about the queue's jobs: by its throttler, and by
    the retry strategies of its types. Absent: every call whole.
    """
    status: NotRequired[QueueStatus | None]
    """Its current state; answers to reads have it."""
    strict_order: NotRequired[bool | None]
    """Whether the jobs of a partition start one after another, in the order of their first due
    times: the oldest holds back the rest until it has ended, also while it waits for another
    attempt. It needs `partition_by`, and excludes `partition_then_by`, a throttler and `order:
    priority`. Critical jobs, and jobs without the attribute, have no such order (default
    false).
    """
    throttler: NotRequired[Throttler | None]
    """The plugin that decides on candidates within the limits."""
    version: int
    """Raised by every change; the `ETag` contains it."""


class QueueChange(TypedDict):
    """Event `queue`: the configuration of a queue has changed, a pause included."""
    queue: str
    """The queue."""
    version: NotRequired[int | None]
    """Its new version; absent if it was removed."""


class QueueConfig(TypedDict):
    """How a queue admits jobs."""
    ageing_seconds: NotRequired[Seconds | None]
    """With `order: priority`, this long a wait counts as one step of priority (0.001 to 31536000).
    """
    concurrency: NotRequired[int | None]
    """Most weight that runs at once; absent means unlimited, 0 admits nothing."""
    constraints: NotRequired[list[Constraint] | None]
    """Limits on jobs that match a condition: at most 32, with distinct names."""
    order: NotRequired[OrderKind | None]
    """Which candidate goes first (default `time`)."""
    order_step_seconds: NotRequired[Seconds | None]
    """The step to which `order: time` rounds due times (default 60; 0 to 300, 0 means exact).
    """
    partition_by: NotRequired[str | None]
    """The attribute whose values take turns: a name of 1 to 64 bytes. The value at the enqueue
    counts. A change applies to jobs that are enqueued, or whose data is changed, afterwards.
    """
    partition_then_by: NotRequired[str | None]
    """A second attribute, so that the combinations of both values take turns. It needs
    `partition_by`, names another attribute than that, and excludes `strict_order`.
    """
    plugin_calls: NotRequired[PluginCalls | None]
    """What is recorded of the calls of plugins about the queue's jobs: by its throttler, and by
    the retry strategies of its types. Absent: every call whole.
    """
    strict_order: NotRequired[bool | None]
    """Whether the jobs of a partition start one after another, in the order of their first due
    times: the oldest holds back the rest until it has ended, also while it waits for another
    attempt. It needs `partition_by`, and excludes `partition_then_by`, a throttler and `order:
    priority`. Critical jobs, and jobs without the attribute, have no such order (default
    false).
    """
    throttler: NotRequired[Throttler | None]
    """The plugin that decides on candidates within the limits."""


class QueueConfigPatch(TypedDict):
    """How a queue admits jobs."""
    ageing_seconds: NotRequired[Seconds | None]
    """With `order: priority`, this long a wait counts as one step of priority (0.001 to 31536000).
    """
    concurrency: NotRequired[int | None]
    """Most weight that runs at once; absent means unlimited, 0 admits nothing."""
    constraints: NotRequired[list[Constraint] | None]
    """Limits on jobs that match a condition: at most 32, with distinct names."""
    order: NotRequired[OrderKind | None]
    """Which candidate goes first (default `time`)."""
    order_step_seconds: NotRequired[Seconds | None]
    """The step to which `order: time` rounds due times (default 60; 0 to 300, 0 means exact).
    """
    partition_by: NotRequired[str | None]
    """The attribute whose values take turns: a name of 1 to 64 bytes. The value at the enqueue
    counts. A change applies to jobs that are enqueued, or whose data is changed, afterwards.
    """
    partition_then_by: NotRequired[str | None]
    """A second attribute, so that the combinations of both values take turns. It needs
    `partition_by`, names another attribute than that, and excludes `strict_order`.
    """
    plugin_calls: NotRequired[dict[str, Any] | None]
    """What is recorded of the calls of plugins about the queue's jobs: by its throttler, and by
    the retry strategies of its types. Absent: every call whole.
    """
    strict_order: NotRequired[bool | None]
    """Whether the jobs of a partition start one after another, in the order of their first due
    times: the oldest holds back the rest until it has ended, also while it waits for another
    attempt. It needs `partition_by`, and excludes `partition_then_by`, a throttler and `order:
    priority`. Critical jobs, and jobs without the attribute, have no such order (default
    false).
    """
    throttler: NotRequired[dict[str, Any] | None]
    """The plugin that decides on candidates within the limits."""


class QueueExplanation(TypedDict):
    """Why a queue is idle or slow."""
    constraints: list[ConstraintUse]
    """The weight that runs under each constraint's concurrency, the heaviest first, at most 100
    values.
    """
    examined: int
    """How many due jobs were examined, at most 1000: the first in the order of the queue."""
    held: list[HeldJobs]
    """What holds them, in the order of the first job of each. A job that nothing holds is in none.
    """
    more: bool
    """Whether there are more due jobs."""
    next_due_at: NotRequired[Timestamp | None]
    """When the next job is due, if none is due now."""
    reason: str
    """For people: what holds the first due job, or why there is none."""
    running: list[TypeUse]
    """What runs under the limits of the queue, the heaviest first, at most 100 types; empty if it
    has no limits.
    """
    workers: list[TypeWorkers]
    """The workers of each type of the queue."""


class QueueOverview(TypedDict):
    """The state of a queue and its last hour, from what the server counts regularly."""
    concurrency: NotRequired[int | None]
    """The most weight that may run at once; null: no limit."""
    counted_at: NotRequired[Timestamp | None]
    """When the jobs were counted: about two seconds ago at most, on AWS about a minute. Null if
    the queue has no live job on AWS.
    """
    depth_at_least: bool
    """Whether there may have been more jobs, on AWS."""
    desired_workers: int
    """How many workers would drain the due jobs in a minute, as in the status of a queue."""
    explained_at: NotRequired[Timestamp | None]
    """When `held` and `desired_workers` were determined. Absent without due jobs, and while they
    are not known: then they are empty and 0.
    """
    held: list[HeldJobs]
    """What holds the first due jobs, as in the status of a queue, and as it was some seconds ago:
    an answer explains at most 16 queues again. Empty if nothing does.
    """
    minutes: list[OverviewMinute]
    """The minutes of the last hour, oldest first, at most 61. Those in which nothing happened are
    left out.
    """
    name: str
    """Its name."""
    oldest_due_at: NotRequired[Timestamp | None]
    """The due time of the job that has been due longest. Null without any, and on AWS."""
    paused: bool
    """Whether it holds every job."""
    phases: dict[str, int]
    """How many jobs are in each phase, by the name of the phase, as in the status of a queue.
    """
    running_weight: int
    """The weight of the running jobs, without critical ones."""
    start_delay_seconds: NotRequired[Quantiles | None]
    """How long after their due time attempts started in the last five minutes. Null without any,
    and on AWS.
    """
    throughput: Throughput
    """The rates of the last five minutes, or since the first start."""
    time_to_empty_seconds: NotRequired[float | None]
    """In how many seconds no job is due or runs any more, as in the history of a queue. Absent if
    their number does not fall.
    """
    workers: int
    """Pull workers that share the queue, as in the status of a queue."""


class QueuePage(TypedDict):
    """A page of queues."""
    next_cursor: NotRequired[str | None]
    """Where the next page starts; absent on the last."""
    queues: list[Queue]
    """The queues, by name."""


class QueueStatus(TypedDict):
    """The current state of a queue."""
    constraints: list[ConstraintUse]
    """The weight that runs under each constraint's concurrency, the heaviest first, at most 100
    values.
    """
    counted_at: NotRequired[Timestamp | None]
    """When `depth`, `phases`, and the `running_weight` of a queue without limits, were counted, on
    AWS; absent if they are those of the answer. The maintenance sweep counts each minute.
    """
    depth: dict[str, int]
    """How many jobs are in each state, by the name of the state. Ended jobs count for as long as
    they are stored; on AWS until the last of their hour is deleted.
    """
    depth_at_least: NotRequired[bool]
    """Whether there may have been more jobs than `depth` has: on AWS, at most 2000 that are due,
    and 1000 that are due in each later hour, are counted.
    """
    desired_workers: int
    """How many workers would drain the due jobs, as counted in `ready`, in a minute, within the
    limits and rates of the queue; 0 if it is paused. Throttlers are not considered. A type
    whose jobs have not run is assumed to take its `lease_seconds`.
    """
    held: list[HeldJobs]
    """What holds the first 100 due jobs, of a queue with constraints the first 1000, in their
    order; empty if nothing does.
    """
    lateness_seconds: float
    """How long after their due time attempts start, a moving mean since the server started."""
    oldest_due_at: NotRequired[Timestamp | None]
    """The due time of the job that has been due longest."""
    phases: NotRequired[dict[str, int]]
    """How many of them are in each phase, by the name of the phase. Of the jobs that are due
    later, the soonest 1000 are looked at, in a list of queues 100; further ones count as
    `scheduled`, and so do ready ones beyond 100000 then. On AWS the phases are those of
    `counted_at`.
    """
    ready: int
    """How many jobs are due and wait for admission or a worker, counted up to 100000; on AWS up to
    1000.
    """
    running_weight: int
    """The weight of the running jobs, without critical ones. In a queue without limits, at most
    10000 jobs count.
    """
    workers: NotRequired[int]
    """Pull workers that share the queue: those that wait for its jobs, run jobs, or called within
    a minute, without drained ones. The serverless deployment mode counts those that registered
    for the queue or one of its types within a minute.
    """


class Rate(TypedDict):
    """How many attempts may start in a period, whatever their weight. Without `burst`, at most
    `count` start in any window of `per_seconds`, wherever it begins. With `burst`, it is a
    token bucket of that capacity, refilled by `count` per `per_seconds`: at most `burst` start
    at once, and up to `burst + count` in one period.
    """
    burst: NotRequired[int | None]
    """The capacity of a token bucket (1 to 1000000). Absent: a window."""
    count: int
    """Most starts in a window, or the tokens that are added in a period (1 to 1000000). A count
    over 32 is kept in 32 parts of the window: never exceeded, and at most 1/32 less.
    """
    per_seconds: Seconds
    """The period (0.001 to 2592000)."""


class RecordedPluginCall(TypedDict):
    """A recorded call."""
    answer: NotRequired[AnyValue]
    """The answer, as the field `expect` of a case has it. A list of calls does not have it."""
    at: Timestamp
    """When it was made."""
    call: NotRequired[AnyValue]
    """The call, as `tidegate plugin replay` repeats it; absent if it was too large. A list of
    calls does not have it.
    """
    decided: dict[str, int]
    """The number of jobs by what was decided about them: `run`, `hold`, `reschedule`, `drop`,
    `retry` or `give_up`.
    """
    fault: NotRequired[PluginCallFault | None]
    """The fault, if it failed."""
    id: str
    """Its id."""
    log: list[PluginCallLogLine]
    """What the plugin logged in this call."""
    queue: str
    """The queue that it is about."""
    reason: str
    """Why it was recorded: `latest` (in memory), `fault`, `filter` or `sample`."""
    redacted: list[str]
    """What it lacks, as the setting `plugin_calls` of its queue defines."""
    role: Role
    """The role in which it was called."""
    shadow: bool
    """Whether it was the shadow version, which decides nothing."""
    usage: PluginUsage
    """What it used."""
    version: int
    """The number of the plugin's version."""


class RecordedPluginCalls(TypedDict):
    """Recorded calls."""
    calls: list[RecordedPluginCall]
    """The calls, latest first."""


class RecordedPluginFault(TypedDict):
    """A call that failed, with its input."""
    at: Timestamp
    """When."""
    call: AnyValue
    """The call, as `tidegate plugin test` repeats it."""
    kind: str
    """The kind: `rejected`, `timeout`, `resource_exhausted`, `trapped`, `invalid_answer` or
    `unavailable`.
    """
    message: str
    """What went wrong, for the plugin's author."""
    role: Role
    """The role in which it was called."""
    shadow: bool
    """Whether it was the shadow version, which decides nothing."""
    version: int
    """The number of the plugin's version."""


class Registration(TypedDict):
    """A worker's registration."""
    capacity: NotRequired[int | None]
    """How many jobs it runs at once: a lease call gets no more than the rest of that. Absent: as
    many as it requests. An embedded server keeps the capacity over a restart, until a week
    after the worker's latest call. The serverless deployment mode only lists it.
    """
    queue: NotRequired[str | None]
    """The queue that it takes jobs of, as in its lease requests."""
    types: NotRequired[list[str] | None]
    """The types that it takes, as in its lease requests, at most 100. With `queue` or `types` it
    counts among the `workers` of its queues for a minute. The serverless deployment mode counts
    no others.
    """


class RemovedJob(TypedDict):
    """Event `removed`: the record of a job was removed, because its retention is over."""
    id: str
    """The job."""


class ReplayDeadLetters(TypedDict):
    """Which dead letters."""
    cursor: NotRequired[str | None]
    """`next_cursor` of the previous call."""
    trigger: NotRequired[TriggerName | None]
    """Only this trigger's."""


class ReplayWith(TypedDict):
    """What a replay changes in the new job. Absent fields are those of the old job; null is what
    an enqueue without the field has.
    """
    again: NotRequired[bool | None]
    """Make another job if the old one was replayed before."""
    attributes: NotRequired[dict[str, AttributeValue] | None]
    """Other attributes; null means only those extracted from the data."""
    data: NotRequired[AnyValue]
    """Other data; null is a value."""
    expires_at: NotRequired[Timestamp | None]
    """Another instant after which it never starts; null means none."""
    priority: NotRequired[int | None]
    """Another priority; null means that of the type."""
    weight: NotRequired[int | None]
    """Another weight; null means that of the type."""
    windows: NotRequired[list[Window] | None]
    """Other windows; null means those of the type."""


class ReplayedAction(TypedDict):
    """The trigger no longer matches it: the letter is deleted."""
    action: str
    """`unmatched`."""


class ReplayedDeadLetters(TypedDict):
    """What became of some dead letters."""
    next_cursor: NotRequired[str | None]
    """Where the next call starts; absent after the last letter."""
    remaining: int
    """How many remain dead letters."""
    replayed: int
    """How many are deleted: their triggers handled them, or no longer match them."""


class Report(TypedDict):
    """A worker's report of one attempt."""
    attempt: int
    """The attempt, as the delivery or the lease named it."""
    checkpoint: NotRequired[AnyValue]
    """Not with `succeeded`: what the next attempt needs to go on, any value of at most 64 KiB. It
    replaces an earlier one; null leaves that.
    """
    delay_seconds: NotRequired[Seconds | None]
    """With `snoozed`, instead of `run_at`: in how many seconds it may start again (0 to
    315360000).
    """
    error: NotRequired[AnyValue]
    """With `failed`: details of the error, any value of at most 16 KiB."""
    finished_at: NotRequired[Timestamp | None]
    """When the worker finished. It is read and not kept: the server's own clock counts."""
    id: NotRequired[str | None]
    """The job; required among the reports of a lease call, elsewhere the path names it."""
    log: NotRequired[list[NewLogLine] | None]
    """Log lines of the attempt since its latest heartbeat, oldest first. At most 64 KiB of an
    attempt and 256 KiB of a job are kept, the latest.
    """
    message: NotRequired[str | None]
    """What went wrong, or why it is handed back, for people, at most 4 KiB. Not with `succeeded`.
    """
    reason: NotRequired[Reason | None]
    """With `failed`: the reason (default `failed`)."""
    result: NotRequired[AnyValue]
    """With `succeeded`: the result, any value, kept byte for byte."""
    retryable: NotRequired[bool | None]
    """With `failed`: whether another attempt makes sense (default true)."""
    run_at: NotRequired[Timestamp | None]
    """With `snoozed`: when the job may start again; in the past means now."""
    status: Status
    """The outcome."""
    token: NotRequired[str | None]
    """The attempt's token. It is optional with scope `work`; if present, it must be the attempt's.
    """
    type: NotRequired[str | None]
    """Its type, if it is to be checked."""


class Reported(TypedDict):
    """The answer to a report."""
    error: NotRequired[Problem | None]
    """Why the report was refused."""
    id: str
    """The job."""
    state: NotRequired[str | None]
    """The job's state after the report."""
    status: int
    """The status with which the report alone would have been answered."""


class RetryExponential(TypedDict):
    """An object."""
    config: NotRequired[Backoff | None]
    strategy: Literal["exponential"]


class RetryPlugin(TypedDict):
    """An object."""
    config: NotRequired[dict[str, Any] | None]
    plugin: str
    """A plugin's name."""


class Running(TypedDict):
    """The running attempt."""
    cancel: bool
    """Whether a cancel was requested."""
    lease_expires_at: Timestamp
    """Without a heartbeat the lease expires then."""
    progress: NotRequired[Progress | None]
    """The worker's latest report of progress."""
    timeout_at: Timestamp
    """After that the attempt fails with reason `timeout`."""
    waited_ms: NotRequired[int | None]
    """How many milliseconds it had waited when it started, as in `history`."""
    worker: NotRequired[str | None]
    """The worker's name."""


class Schedule(TypedDict):
    """A schedule."""
    anchor: NotRequired[Timestamp | None]
    """An instant from which every occurrence is a multiple of `every_seconds` away (default
    `starts_at`, else the epoch).
    """
    attributes: NotRequired[dict[str, Any] | None]
    """What limits, partitions and searches compare, at most 16; those extracted from the data win.
    """
    callback_url: NotRequired[str | None]
    """The URL that is notified when the job ends."""
    critical: NotRequired[bool | None]
    """Not held by limits, and takes no capacity. An enqueue needs scope `enqueue:critical`.
    Default: `false`.
    """
    cron: NotRequired[str | None]
    """A cron pattern: minute, hour, day of the month, month, day of the week; or those after a
    second. At most 256 bytes. Either this or `every_seconds` must be given.
    """
    data: AnyValue
    """The data of its jobs."""
    deadline_seconds: NotRequired[Seconds | None]
    """From creation to end."""
    ends_at: NotRequired[Timestamp | None]
    """No occurrence after this."""
    every_seconds: NotRequired[Seconds | None]
    """The span from one occurrence to the next (1 to 31536000)."""
    expires_after_seconds: NotRequired[Seconds | None]
    """Most time between an occurrence and the start of its job (0.001 to 315360000)."""
    headers: NotRequired[dict[str, str] | None]
    """Passed on to the worker."""
    keep_result: NotRequired[KeepResult | None]
    """How long the result can be read."""
    last_error: NotRequired[ScheduleError | None]
    """Why the next occurrence has not created its job yet; it is retried."""
    last_job: NotRequired[str | None]
    """That job: its id is the schedule's name and the occurrence."""
    last_occurrence: NotRequired[Timestamp | None]
    """The latest occurrence that created a job."""
    max_attempts: NotRequired[int | None]
    """Most attempts (default 3)."""
    max_missed: NotRequired[int]
    """With `missed: all`, how many of the latest missed occurrences make jobs (default 100; 1 to
    1000).
    """
    missed: NotRequired[Missed]
    """What follows for occurrences that are over a minute late (default `one`)."""
    missed_count: int
    """How many occurrences were missed without a job; of one stretch at most 1000 are counted.
    """
    name: str
    """Its name."""
    next: list[Timestamp]
    """The next ten occurrences that have not created a job yet; none while it is paused."""
    paused: NotRequired[bool]
    """Whether nothing occurs. Occurrences during the pause make no jobs later. A PUT without it
    leaves a schedule paused or not, as it is; the default of a new one is false.
    """
    previous: NotRequired[list[Occurrence]]
    """The latest ten occurrences since the schedule was created, resumed or got another rule, the
    newest first. One that was missed may have created no job.
    """
    priority: NotRequired[int | None]
    """Lower goes first (default 100)."""
    retry: NotRequired[Retry | None]
    """What follows a failed attempt."""
    starts_at: NotRequired[Timestamp | None]
    """No occurrence before this."""
    timeout_seconds: NotRequired[Seconds | None]
    """From claim to result (default 86400)."""
    type: TypeName
    """The type of its jobs."""
    tz: NotRequired[str | None]
    """The IANA name of the time zone of `cron` (default UTC)."""
    unique: NotRequired[Unique | None]
    """A key that refuses duplicates: no second job of the type while one has it."""
    version: int
    """Raised by every change; the `ETag` contains it."""
    weight: NotRequired[int | None]
    """Capacity units that it takes while it runs; 0 takes none (default 1)."""
    windows: NotRequired[list[Window] | None]
    """When it may start; an empty list clears the type's windows."""


class ScheduleConfig(TypedDict):
    """When a schedule occurs, and the job that each occurrence makes."""
    anchor: NotRequired[Timestamp | None]
    """An instant from which every occurrence is a multiple of `every_seconds` away (default
    `starts_at`, else the epoch).
    """
    attributes: NotRequired[dict[str, Any] | None]
    """What limits, partitions and searches compare, at most 16; those extracted from the data win.
    """
    callback_url: NotRequired[str | None]
    """The URL that is notified when the job ends."""
    critical: NotRequired[bool | None]
    """Not held by limits, and takes no capacity. An enqueue needs scope `enqueue:critical`.
    Default: `false`.
    """
    cron: NotRequired[str | None]
    """A cron pattern: minute, hour, day of the month, month, day of the week; or those after a
    second. At most 256 bytes. Either this or `every_seconds` must be given.
    """
    deadline_seconds: NotRequired[Seconds | None]
    """From creation to end."""
    ends_at: NotRequired[Timestamp | None]
    """No occurrence after this."""
    every_seconds: NotRequired[Seconds | None]
    """The span from one occurrence to the next (1 to 31536000)."""
    expires_after_seconds: NotRequired[Seconds | None]
    """Most time between an occurrence and the start of its job (0.001 to 315360000)."""
    headers: NotRequired[dict[str, str] | None]
    """Passed on to the worker."""
    keep_result: NotRequired[KeepResult | None]
    """How long the result can be read."""
    max_attempts: NotRequired[int | None]
    """Most attempts (default 3)."""
    max_missed: NotRequired[int]
    """With `missed: all`, how many of the latest missed occurrences make jobs (default 100; 1 to
    1000).
    """
    missed: NotRequired[Missed]
    """What follows for occurrences that are over a minute late (default `one`)."""
    paused: NotRequired[bool]
    """Whether nothing occurs. Occurrences during the pause make no jobs later. A PUT without it
    leaves a schedule paused or not, as it is; the default of a new one is false.
    """
    priority: NotRequired[int | None]
    """Lower goes first (default 100)."""
    retry: NotRequired[Retry | None]
    """What follows a failed attempt."""
    starts_at: NotRequired[Timestamp | None]
    """No occurrence before this."""
    timeout_seconds: NotRequired[Seconds | None]
    """From claim to result (default 86400)."""
    type: TypeName
    """The type of its jobs."""
    tz: NotRequired[str | None]
    """The IANA name of the time zone of `cron` (default UTC)."""
    unique: NotRequired[Unique | None]
    """A key that refuses duplicates: no second job of the type while one has it."""
    weight: NotRequired[int | None]
    """Capacity units that it takes while it runs; 0 takes none (default 1)."""
    windows: NotRequired[list[Window] | None]
    """When it may start; an empty list clears the type's windows."""


class ScheduleError(TypedDict):
    """Why an occurrence makes no job."""
    at: Timestamp
    """When it first failed with this error."""
    message: str
    """The reason, for people."""
    occurrence: Timestamp
    """The occurrence."""


class SchedulePage(TypedDict):
    """A page of schedules."""
    next_cursor: NotRequired[str | None]
    """Where the next page starts; absent on the last."""
    schedules: list[Schedule]
    """The schedules, by name."""


class ServerView(TypedDict):
    """What a server is and offers."""
    deployment_mode: str
    """`embedded`, or `serverless` on AWS."""
    simulate: bool
    """Whether `POST /v1/queues/{queue}/simulate` simulates queues."""
    stream: bool
    """Whether `GET /v1/stream` sends changes."""
    version: str
    """Its version."""


class Session(TypedDict):
    """The caller, the options of the console, and the server."""
    authenticated: bool
    """Whether the caller is known. If not, `name`, `signed_in_by` and `server` are absent, and
    there are no scopes.
    """
    console: ConsoleView
    """The options of the console."""
    name: NotRequired[str | None]
    """The name of the caller: of its token, or the `sub` of an identity provider."""
    queues: NotRequired[list[str] | None]
    """The only queues that the token allows; null: all."""
    scopes: list[str]
    """What the caller may do: `enqueue`, `enqueue:critical`, `work`, `read`, `admin`."""
    server: NotRequired[ServerView | None]
    """The server."""
    sign_in: list[str]
    """How a user can sign in: with a `token`, and by an identity provider (`oidc`)."""
    signed_in_by: NotRequired[str | None]
    """How the caller signed in: with a `token`, by an identity provider (`oidc`), or `open`: the
    server accepts every caller of its machine.
    """
    types: NotRequired[list[str] | None]
    """The only types that the token allows; null: all."""


Setting = TypedDict(
    "Setting",
    {
        "about": "str",
        "from": "str",
        "name": "str",
        "value": "AnyValue",
    },
)
"""A setting of a server."""

class SettingsView(TypedDict):
    """All settings of a server."""
    settings: list[Setting]
    """The settings, in the order of their documentation."""


class ShadowDecision(TypedDict):
    """The decision of a plugin about one job."""
    action: str
    """`run`, `hold`, `reschedule` or `drop`; of a failed attempt `retry` or `give_up`."""
    reason: NotRequired[str | None]
    """Why; or what else changes before the next attempt."""
    until: NotRequired[Timestamp | None]
    """Until when it holds the job, or when the job is due."""


Simulated = TypedDict(
    "Simulated",
    {
        "changed": "SimulatedRun",
        "current": "SimulatedRun",
        "differences": "list[SimulatedDifference]",
        "different_jobs": "int",
        "from": "Timestamp",
        "jobs": "int",
        "left_out": "list[LeftOut]",
        "recorded": "NotRequired[SimulatedRun | None]",
        "stopped_early": "bool",
        "workers": "int",
    },
)
"""A queue as it was recorded, and as it would have been."""

class SimulatedDifference(TypedDict):
    """A job about which the plugins decided differently."""
    at_seconds: float
    """When, in seconds from the start."""
    changed: str
    """The decision with the change."""
    current: str
    """The decision with the current configuration."""
    job: str
    """The job."""
    value: str
    """The value by which it is grouped."""


class SimulatedGroup(TypedDict):
    """The jobs with a value."""
    jobs: int
    """How many jobs."""
    share: float
    """Their part of the weight that ran over time, 0 to 1."""
    start_delay_seconds: Quantiles
    """As for the whole run."""
    value: str
    """The value."""


class SimulatedPoint(TypedDict):
    """A step of a run."""
    at: float
    """When the step began, in seconds from the start."""
    limit: NotRequired[int | None]
    """The limit of the queue."""
    running: int
    """The most weight that ran in it."""
    waiting: int
    """The most jobs in it that were due and had not started yet."""


class SimulatedRun(TypedDict):
    """A run of the queue."""
    drained_after_seconds: NotRequired[float | None]
    """When the last job ended, in seconds from the start; null if some had not."""
    expired: int
    """Jobs that ended `expired`."""
    failed: int
    """Jobs that ended `failed`."""
    finished: int
    """Jobs that ended, in whatever way."""
    groups: list[SimulatedGroup]
    """The jobs by value, the most frequent values first, at most 101."""
    run_seconds: Quantiles
    """How long the attempts took."""
    series: SimulatedSeries
    """The run over time."""
    start_delay_seconds: Quantiles
    """From the due time to the first attempt. For jobs that still wait, the wait so far."""
    throughput_per_second: float
    """Jobs that ended, per second of the run."""
    utilization: NotRequired[float | None]
    """The mean weight that ran, as a fraction of the limit; null without a limit."""


class SimulatedSeries(TypedDict):
    """A run over time."""
    points: list[SimulatedPoint]
    """The steps, 120."""
    step_seconds: float
    """How long a step is."""


class Simulation(TypedDict):
    """What to simulate. Every field is optional."""
    by: NotRequired[str | None]
    """How the jobs are grouped: by `type`, or by `attribute.NAME` (default `type`)."""
    over_seconds: NotRequired[float | None]
    """How far back the recorded jobs go, 60 to 86400 seconds (default 3600)."""
    queue: NotRequired[QueueConfig | None]
    """A change of the queue, as for `PATCH /v1/queues/{queue}`."""
    throttler_version: NotRequired[int | None]
    """The version of the throttler's plugin with the change (default: the live one)."""
    types: NotRequired[dict[str, TypeConfig] | None]
    """Changes of types of the queue by name, as for `PATCH /v1/job-types/{type}`."""
    workers: NotRequired[int | None]
    """How many jobs the workers run at the same time, 1 to 100000. Default: as many as they ran at
    most in the recorded time, or more if the limit of the queue held them.
    """


class SkippedChanges(TypedDict):
    """Event `skipped`: changes before this event were not sent. Read again what you show."""
    changes: NotRequired[int | None]
    """How many changes, also of what the filter leaves out; null if that is not known, for example
    after a restart of the server.
    """


class SkippedJob(TypedDict):
    """A job that was not replayed."""
    holder: str
    """Its replay, or the live job that has its correlation key."""
    id: str
    """The job."""
    reason: str
    """`already_replayed` or `correlation_key_taken`."""


class SnsTarget(TypedDict):
    """A topic of SNS. A FIFO topic is used like a FIFO queue."""
    topic_arn: str
    """Its ARN, at most 2048 bytes."""


class SortedJobs(TypedDict):
    """The jobs that were compared for a page of a sorted list."""
    compared: int
    """How many matching jobs were compared, at most 10,000: the first ones of the list without
    `sort`.
    """
    complete: bool
    """Whether these are all that match. If not, further conditions make the list whole."""


class SqsTarget(TypedDict):
    """A queue of SQS. In a FIFO queue the job's id is the message group, and repeats of one
    attempt are one message.
    """
    queue_url: str
    """Its URL, at most 2048 bytes."""


class StreamReady(TypedDict):
    """Event `ready`: the first one."""
    resumed: bool
    """Whether the events go on after the one that the request named. If not, read your state now.
    """


Test = TypedDict(
    "Test",
    {
        "eq": "NotRequired[str | float | bool]",
        "exists": "NotRequired[bool | None]",
        "gt": "NotRequired[str | float | bool]",
        "gte": "NotRequired[str | float | bool]",
        "in": "NotRequired[list[str | float | bool] | None]",
        "lt": "NotRequired[str | float | bool]",
        "lte": "NotRequired[str | float | bool]",
        "prefix": "NotRequired[str | None]",
    },
)
"""Comparisons on one value; all that are given hold. An absent value passes only `exists: false`.
"""

class Throttler(TypedDict):
    """A queue's throttler."""
    config: NotRequired[dict[str, Any] | None]
    """Its configuration: an object of at most 64 KiB that the plugin itself checks (default `{}`).
    """
    on_failure: NotRequired[OnFailure | None]
    """What happens to candidates when a call fails (default `hold`)."""
    plugin: PluginName
    """The plugin, whose live version decides."""


class Throughput(TypedDict):
    """Rates of jobs."""
    enqueued_per_second: NotRequired[float | None]
    """Jobs that were accepted. Absent on AWS."""
    failed_per_second: float
    """Jobs that ended `failed`."""
    finished_per_second: float
    """Jobs that ended."""
    over_seconds: float
    """Over how many seconds."""


class Token(TypedDict):
    """A token."""
    created_at: Timestamp
    """When it was created."""
    expires_at: NotRequired[Timestamp | None]
    """From when on it is no longer accepted; absent: never."""
    id: str
    """Its id."""
    last_used_at: NotRequired[Timestamp | None]
    """When it was used last, to about a minute; absent: never."""
    name: str
    """Its owner's name for it."""
    queues: NotRequired[list[str] | None]
    """The only queues that it allows; absent: all."""
    scopes: list[str]
    """What it allows."""
    token: NotRequired[str | None]
    """The token itself; only the answer to its creation has it."""
    types: NotRequired[list[str] | None]
    """The only types that it allows; absent: all."""


class TokenPage(TypedDict):
    """A page of tokens."""
    next_cursor: NotRequired[str | None]
    """Where the next page starts; absent on the last."""
    tokens: list[Token]
    """The tokens, by id."""


class Trigger(TypedDict):
    """A trigger."""
    complete: NotRequired[dict[str, Template]]
    """The job to complete: its `type` and `correlation_key`, and its result: `attempt`, `status`
    (`succeeded`, `failed`, true or false), `result`, `message`, `error`, `retryable`. Each
    value may hold expressions, as in `enqueue`.
    """
    enqueue: NotRequired[dict[str, Template]]
    """The job to enqueue: `type` and any other field of `POST /v1/jobs` except `id`. In each
    value, `{"$expr": "..."}` is replaced by the result of a JMESPath expression over the event.
    Without `data` the job carries the event's data, byte for byte.
    """
    filter: NotRequired[EventFilter]
    """Which events; an empty filter matches all."""
    job_types: NotRequired[list[str]]
    """The job types whose ends it handles, at most 100: `job.succeeded`, `job.failed`,
    `job.expired`, `job.cancelled` and `job.dropped`. With these it handles no other event, and
    without them no end of a job.
    """
    name: str
    """Its name."""
    status: NotRequired[TriggerStatus | None]
    """What it did, over restarts. Null on AWS, and in answers to changes."""
    version: int
    """Raised by every change; the `ETag` contains it."""


class TriggerActionAlreadyEnqueued(TypedDict):
    """The job was enqueued before, by the same event."""
    action: Literal["already_enqueued"]
    job: JobId
    """The job."""


class TriggerActionAlreadyProcessed(TypedDict):
    """The job processed the same event before."""
    action: Literal["already_processed"]
    job: JobId
    """The job."""


class TriggerActionCompleted(TypedDict):
    """The attempt of a job ended with the event's result."""
    action: Literal["completed"]
    job: JobId
    """The job."""


class TriggerActionDeadLettered(TypedDict):
    """The trigger could not handle the event: it is a dead letter, to be replayed when the trigger
    is fixed.
    """
    action: Literal["dead_lettered"]
    letter: str
    """The dead letter."""
    reason: str
    """Why."""


class TriggerActionDropped(TypedDict):
    """The event passed through too many triggers: they would form an endless loop."""
    action: Literal["dropped"]
    reason: str
    """Why."""


class TriggerActionEnqueued(TypedDict):
    """A job was enqueued."""
    action: Literal["enqueued"]
    job: JobId
    """The job."""
    type: TypeName
    """Its type."""


class TriggerActionLate(TypedDict):
    """The job, or the attempt that the event names, had ended. Nothing was changed."""
    action: Literal["late"]
    job: JobId
    """The job."""


class TriggerActionPending(TypedDict):
    """There is no such job yet, or its attempt has not started: the reply is kept."""
    action: Literal["pending"]
    until: Timestamp
    """Until when it is kept."""


class TriggerActionRecorded(TypedDict):
    """The job waits for a retry; the failure was recorded, and changes nothing."""
    action: Literal["recorded"]
    job: JobId
    """The job."""


class TriggerConfig(TypedDict):
    """What happens with each event that the filter matches: either `enqueue` or `complete`."""
    complete: NotRequired[dict[str, Template] | None]
    """The job to complete: its `type` and `correlation_key`, and its result: `attempt`, `status`
    (`succeeded`, `failed`, true or false), `result`, `message`, `error`, `retryable`. Each
    value may hold expressions, as in `enqueue`.
    """
    enqueue: NotRequired[dict[str, Template] | None]
    """The job to enqueue: `type` and any other field of `POST /v1/jobs` except `id`. In each
    value, `{"$expr": "..."}` is replaced by the result of a JMESPath expression over the event.
    Without `data` the job carries the event's data, byte for byte.
    """
    filter: NotRequired[EventFilter | None]
    """Which events; an empty filter matches all."""
    job_types: NotRequired[list[str] | None]
    """The job types whose ends it handles, at most 100: `job.succeeded`, `job.failed`,
    `job.expired`, `job.cancelled` and `job.dropped`. With these it handles no other event, and
    without them no end of a job.
    """


class TriggerPage(TypedDict):
    """A page of triggers."""
    next_cursor: NotRequired[str | None]
    """Where the next page starts; absent on the last."""
    triggers: list[Trigger]
    """The triggers, by name."""


class TriggerStatus(TypedDict):
    """What a trigger did. It is kept for 30 days after the latest event, over restarts."""
    dead_letters: int
    """How many became dead letters."""
    enqueued: int
    """How many of them enqueued a job."""
    last_at: NotRequired[Timestamp | None]
    """When the latest event matched; null: none did."""
    matched: int
    """How many events matched the trigger since then."""
    recent: list[HandledEvent]
    """The latest events that matched, the newest first: at most 20, or as many as were requested.
    Those of the last seconds before a crash are missing.
    """
    since: Timestamp
    """Since when it is recorded: a start of the server."""


class TriggerTrial(TypedDict):
    """What a trigger would do about an event."""
    action: str
    """`enqueued`, `completed`, `unmatched` (the filter does not match the event) or
    `dead_lettered` (the trigger cannot map it).
    """
    job: NotRequired[AnyValue]
    """The job, as the body of `POST /v1/jobs`; for `completed` the report of a worker."""
    reason: NotRequired[str | None]
    """Why the event would become a dead letter."""


class TypeConfig(TypedDict):
    """How jobs of one kind are run."""
    attributes: NotRequired[dict[str, str] | None]
    """Attributes extracted from the data, at most 16: a name of 1 to 64 bytes, and a JSON pointer
    of at most 1024 bytes.
    """
    callback_signing_secret: NotRequired[Secrets | None]
    """The secret that signs the notifications to `callback_url`, or two during a rotation; write-
    only. It has the form of a target's `signing_secret`, and should differ from it.
    """
    callback_url: NotRequired[str | None]
    """The URL that is notified when a job ends: http or https, without credentials, at most 2048
    bytes.
    """
    concurrency: NotRequired[int | None]
    """Most weight of this type that runs at once."""
    deadline_seconds: NotRequired[Seconds | None]
    """From a job's creation to its end, at most (0.001 to 315360000)."""
    delivery: NotRequired[Delivery | None]
    """Whether a job may be started twice (default `at_least_once`)."""
    headers: NotRequired[dict[str, str] | None]
    """Passed on to the worker: at most 32, names of 1 to 128 bytes, values of at most 4096 bytes
    of visible ASCII. Headers that frame the request are refused, and so are credentials
    (`authorization`, `proxy-authorization`, `cookie`), `webhook-` and `tidegate-` ones. A
    header of the target has precedence.
    """
    hold_slot_until: NotRequired[HoldSlotUntil | None]
    """What frees a job's slot (default `lease_end`)."""
    keep_result: NotRequired[KeepResult | None]
    """How long a result can be read (default 86400 s; 0 to 315360000)."""
    lease_seconds: NotRequired[Seconds | None]
    """How long a lease of a pull worker lasts without a heartbeat (default 30; 0.001 to 31536000).
    """
    max_attempts: NotRequired[int | None]
    """Most attempts (default 3, with `at_most_once` 1; 1 to 65535)."""
    max_releases: NotRequired[int | None]
    """Most attempts in a row that workers hand back (`released`, `snoozed`) without progress. A
    further one fails as `not_delivered` and counts against `max_attempts` (default 100; 0 to
    65535).
    """
    on_response_timeout: NotRequired[OnResponseTimeout | None]
    """What follows when no response comes in time (default `fail`)."""
    priority: NotRequired[int | None]
    """Its jobs' priority (default 100)."""
    queue: NotRequired[QueueName | None]
    """The queue of its jobs (default `default`)."""
    response_timeout_seconds: NotRequired[Seconds | None]
    """How long a push target may take to answer (default 30; 0.001 to 31536000)."""
    retention_seconds: NotRequired[Seconds | None]
    """How long an ended job is kept (default 30 days; 0 to 315360000, 0 deletes it at its end).
    One with a correlation key is kept for `reply_wait_seconds` at least, so that a second
    delivery of its reply is recognised.
    """
    retry: NotRequired[Retry | None]
    """What follows a failed attempt. Default:
    `{"config":{"base_seconds":2,"jitter":"full","max_seconds":3600},"strategy":"exponential"}`.
    """
    retry_after_restart: NotRequired[bool | None]
    """Whether a push that was under way when the server stopped is retried at its next start
    (default false: it keeps its slot until its response timeout, because its worker may still
    work or call back). True needs a push target, `at_least_once`, `hold_slot_until: lease_end`
    and `on_response_timeout: fail`. Without effect on AWS.
    """
    retry_targets: NotRequired[dict[str, str] | None]
    """Other URLs that a retry strategy may choose for the next attempt, by name: at most 16, of
    the form of `target.url`. Headers, credentials and signature are those of `target`, which
    must have a `url`.
    """
    start: NotRequired[Start | None]
    """Whether a push is claimed before it is sent (default `claim`). `plain` needs a push target,
    `at_least_once`, `on_response_timeout: fail` and no `concurrency`.
    """
    target: NotRequired[TargetConfig | None]
    """Where its jobs go (default: the server's default target, or pull workers)."""
    timeout_seconds: NotRequired[Seconds | None]
    """From claim to result (default 86400; 0.001 to 31536000)."""
    weight: NotRequired[int | None]
    """Its jobs' weight (default 1)."""
    windows: NotRequired[list[Window] | None]
    """When its jobs may start: at most 32."""


class TypeConfigPatch(TypedDict):
    """How jobs of one kind are run."""
    attributes: NotRequired[dict[str, str] | None]
    """Attributes extracted from the data, at most 16: a name of 1 to 64 bytes, and a JSON pointer
    of at most 1024 bytes.
    """
    callback_signing_secret: NotRequired[Secrets | None]
    """The secret that signs the notifications to `callback_url`, or two during a rotation; write-
    only. It has the form of a target's `signing_secret`, and should differ from it.
    """
    callback_url: NotRequired[str | None]
    """The URL that is notified when a job ends: http or https, without credentials, at most 2048
    bytes.
    """
    concurrency: NotRequired[int | None]
    """Most weight of this type that runs at once."""
    deadline_seconds: NotRequired[Seconds | None]
    """From a job's creation to its end, at most (0.001 to 315360000)."""
    delivery: NotRequired[Delivery | None]
    """Whether a job may be started twice (default `at_least_once`)."""
    headers: NotRequired[dict[str, str] | None]
    """Passed on to the worker: at most 32, names of 1 to 128 bytes, values of at most 4096 bytes
    of visible ASCII. Headers that frame the request are refused, and so are credentials
    (`authorization`, `proxy-authorization`, `cookie`), `webhook-` and `tidegate-` ones. A
    header of the target has precedence.
    """
    hold_slot_until: NotRequired[HoldSlotUntil | None]
    """What frees a job's slot (default `lease_end`)."""
    keep_result: NotRequired[dict[str, Any] | str | None]
    """How long a result can be read (default 86400 s; 0 to 315360000)."""
    lease_seconds: NotRequired[Seconds | None]
    """How long a lease of a pull worker lasts without a heartbeat (default 30; 0.001 to 31536000).
    """
    max_attempts: NotRequired[int | None]
    """Most attempts (default 3, with `at_most_once` 1; 1 to 65535)."""
    max_releases: NotRequired[int | None]
    """Most attempts in a row that workers hand back (`released`, `snoozed`) without progress. A
    further one fails as `not_delivered` and counts against `max_attempts` (default 100; 0 to
    65535).
    """
    on_response_timeout: NotRequired[OnResponseTimeout | None]
    """What follows when no response comes in time (default `fail`)."""
    priority: NotRequired[int | None]
    """Its jobs' priority (default 100)."""
    queue: NotRequired[QueueName | None]
    """The queue of its jobs (default `default`)."""
    response_timeout_seconds: NotRequired[Seconds | None]
    """How long a push target may take to answer (default 30; 0.001 to 31536000)."""
    retention_seconds: NotRequired[Seconds | None]
    """How long an ended job is kept (default 30 days; 0 to 315360000, 0 deletes it at its end).
    One with a correlation key is kept for `reply_wait_seconds` at least, so that a second
    delivery of its reply is recognised.
    """
    retry: NotRequired[dict[str, Any] | None]
    """What follows a failed attempt. Default:
    `{"config":{"base_seconds":2,"jitter":"full","max_seconds":3600},"strategy":"exponential"}`.
    """
    retry_after_restart: NotRequired[bool | None]
    """Whether a push that was under way when the server stopped is retried at its next start
    (default false: it keeps its slot until its response timeout, because its worker may still
    work or call back). True needs a push target, `at_least_once`, `hold_slot_until: lease_end`
    and `on_response_timeout: fail`. Without effect on AWS.
    """
    retry_targets: NotRequired[dict[str, str] | None]
    """Other URLs that a retry strategy may choose for the next attempt, by name: at most 16, of
    the form of `target.url`. Headers, credentials and signature are those of `target`, which
    must have a `url`.
    """
    start: NotRequired[Start | None]
    """Whether a push is claimed before it is sent (default `claim`). `plain` needs a push target,
    `at_least_once`, `on_response_timeout: fail` and no `concurrency`.
    """
    target: NotRequired[dict[str, Any] | None]
    """Where its jobs go (default: the server's default target, or pull workers)."""
    timeout_seconds: NotRequired[Seconds | None]
    """From claim to result (default 86400; 0.001 to 31536000)."""
    weight: NotRequired[int | None]
    """Its jobs' weight (default 1)."""
    windows: NotRequired[list[Window] | None]
    """When its jobs may start: at most 32."""


class TypeUse(TypedDict):
    """What the jobs of a type take of the limits of their queue."""
    jobs: int
    """How many of its jobs run."""
    limit: NotRequired[int | None]
    """The limit of the type."""
    type: str
    """The type."""
    weight: int
    """Their weight."""


class TypeWorkers(TypedDict):
    """The workers that take the jobs of a type."""
    type: str
    """The type."""
    workers: WorkerStatus
    """Their status."""


Unique = TypedDict(
    "Unique",
    {
        "debounce": "NotRequired[Debounce | None]",
        "key": "str",
        "on_conflict": "NotRequired[OnConflict | None]",
        "period_seconds": "NotRequired[Seconds | None]",
        "while": "UniqueWhile",
    },
)
"""The demand that no two jobs of a type with the same key are scheduled (or live) at the same
time.
"""

Window = TypedDict(
    "Window",
    {
        "days": "NotRequired[list[Literal[\"mon\", \"tue\", \"wed\", \"thu\", \"fri\", \"sat\", \"sun\"]] | None]",
        "from": "str",
        "to": "str",
        "tz": "NotRequired[str | None]",
    },
)
"""A part of the local day in which a job may start."""

class Worker(TypedDict):
    """A worker that called lately, runs something, or is drained."""
    capacity: NotRequired[int | None]
    """How many jobs it runs at once, if it is registered with a capacity: it is leased no more.
    """
    draining: bool
    """Whether it gets no more jobs."""
    name: str
    """Its name."""
    queue: NotRequired[str | None]
    """The queue whose jobs its latest lease request or registration was for, if it named one.
    """
    running: int
    """How many it runs now."""
    seen_at: Timestamp
    """When it called last."""
    stopping: NotRequired[bool]
    """Whether it is to end after its running jobs: its next lease request is answered with `stop`.
    """
    types: NotRequired[list[str]]
    """The types that it named. Empty for all, and for more than 100."""


class WorkerChange(TypedDict):
    """Event `worker`: a worker has registered or left, or its drain began or ended."""
    change: str
    """`registered`, `draining`, `stopping`, `undrained` or `removed`."""
    worker: str
    """The worker."""


WorkerHistory = TypedDict(
    "WorkerHistory",
    {
        "from": "NotRequired[Timestamp | None]",
        "points": "list[WorkerHistoryPoint]",
        "step_seconds": "int",
    },
)
"""The last hour or the last day of a worker, in steps. It counts attempts: a job that fails at one
worker and succeeds at another counts at both.
"""

class WorkerHistoryPoint(TypedDict):
    """One step of a worker's history."""
    at: Timestamp
    """When the step began."""
    failed: int
    """Attempts that failed, also by a timeout or by the end of their lease."""
    finished: int
    """Attempts that ended, in whatever way."""
    running: int
    """Jobs that ran there at the end of the step."""


class WorkerPage(TypedDict):
    """A page of workers."""
    next_cursor: NotRequired[str | None]
    """Where the next page starts; absent on the last."""
    workers: list[Worker]
    """The workers, by name."""


class WorkerStatus(TypedDict):
    """The workers that take the jobs of a type: pull workers, or the slots of the server for
    pushes. Null is what the server does not know: it does not count slots as workers, and a
    serverless server knows only what runs.
    """
    busy: NotRequired[int | None]
    """Those that run as many jobs as they can, or run some and do not wait for more."""
    capacity: NotRequired[int | None]
    """How many jobs they can run at once. Null unless each of them has registered its capacity.
    """
    draining: NotRequired[int | None]
    """Those that are drained."""
    in_use: int
    """How many jobs run at these workers, or in the slots."""
    known: NotRequired[int | None]
    """Pull workers that called within ten minutes, wait for jobs, or run some."""
    last_seen_at: NotRequired[Timestamp | None]
    """When the latest request of one of them arrived."""
    polling: NotRequired[int | None]
    """Those that wait for jobs in a lease request."""


if TYPE_CHECKING:
    AnyValue = Any
    """Any JSON or MessagePack value, kept byte for byte. A value that only MessagePack has is
    shown in JSON as an object of one key, such as {"$binary": "base64"}.
    """
    Applied = Union[AppliedEnqueued, AppliedAlreadyEnqueued, AppliedCompleted, AppliedRecorded, AppliedAlreadyProcessed, AppliedLate, AppliedPending, AppliedDeadLettered, AppliedDropped]
    """What a trigger did about an event."""
    AttributeValue = Union[str, float]
    """The value of an attribute."""
    AwsService = Union[AwsServiceSqs, AwsServiceSns, AwsServiceEventBridge, AwsServiceLambda]
    """An AWS service, and its queue, topic, bus or function. A message is the JSON of a push to a
    URL, with the URL and the token of the callback and the job's `headers`. SQS and SNS also
    get message attributes: the job's `id`, `type`, `attempt` and `correlation_key`, and of its
    headers `ce-tidegatehops`, `traceparent` and `tracestate`.
    """
    BulkKind = Literal["cancel", "replay", "purge", "patch"]
    """What a bulk operation does to each job."""
    Complete = Literal["on_delivery", "on_result"]
    """When a pushed job ends."""
    Condition = str | float | bool | list[str | float | bool] | Test
    """A condition on one value."""
    DecidedAction = Literal["run", "hold", "reschedule", "drop", "retry", "give_up"]
    """What a plugin decided about a job."""
    Delivery = Literal["at_least_once", "at_most_once"]
    """Whether a job may be started twice."""
    EndedAs = Literal["succeeded", "failed", "cancelled", "released", "snoozed"]
    """How an attempt ended, as the API shows it."""
    EventAnswer = Union[Ingested, EventBatch]
    """The answer to one event, or to a batch."""
    ExternalTarget = Union[ExternalTargetSqs, ExternalTargetSns, ExternalTargetEventBridge, ExternalTargetLambda]
    """A service that jobs are sent to."""
    HandledEvent = Union[HandledEventEnqueued, HandledEventAlreadyEnqueued, HandledEventCompleted, HandledEventRecorded, HandledEventAlreadyProcessed, HandledEventLate, HandledEventPending, HandledEventDeadLettered, HandledEventDropped]
    """An event that a trigger handled."""
    HistoryRange = Literal["hour", "day"]
    """How far back a history goes."""
    HoldSlotUntil = Literal["lease_end", "report"]
    """What frees the slot of a worker without a heartbeat."""
    Invocation = Literal["wait", "event"]
    """How a Lambda function is called."""
    Jitter = Literal["full", "none"]
    """The random part of a wait."""
    JobId = str
    """A job's id."""
    KeepResult = Literal["none", "once"] | KeepResultSeconds
    """How long a result can be read: not at all, once, or for some time after the job's end.
    """
    LogLevel = Literal["trace", "debug", "info", "warn", "error"]
    """How important a log line is."""
    MergePolicy = Literal["last", "first"]
    """Which request of a debounced job counts."""
    Merged = Literal["replaced", "debounced"]
    """What an enqueue did with the waiting job that held its unique key."""
    Missed = Literal["skip", "one", "all"]
    """What follows for occurrences that are over a minute late, because the server was down or the
    type did not exist.
    """
    OnConflict = Literal["keep", "replace"]
    """What an enqueue does if another job holds its unique key."""
    OnFailure = Literal["hold", "run"]
    """What happens to candidates when their throttler's call fails."""
    OnResponseTimeout = Literal["fail", "wait"]
    """What follows when no response comes in time."""
    OrderKind = Literal["time", "priority"]
    """Which candidate goes first."""
    PluginName = str
    """The name of a plugin."""
    PushEncoding = Literal["json", "msgpack"]
    """How a push request's body is written."""
    QueueName = str
    """The name of a queue."""
    Reason = Literal["failed", "timeout", "lease_expired", "connection_lost", "not_delivered", "outcome_unknown", "deadline"]
    """Why an attempt failed. Serialised in lower case with underscores."""
    TriggerAction = Union[TriggerActionEnqueued, TriggerActionAlreadyEnqueued, TriggerActionCompleted, TriggerActionRecorded, TriggerActionAlreadyProcessed, TriggerActionLate, TriggerActionPending, TriggerActionDeadLettered, TriggerActionDropped]
    """What was done."""
    Retry = Union[RetryExponential, RetryPlugin]
    """What follows a failed attempt: the built-in strategy, or a plugin."""
    Role = Literal["throttler", "retry"]
    """The roles of a plugin."""
    Seconds = float
    """A span in seconds; fractions down to a millisecond."""
    Secrets = str | list[str]
    """One secret, or two during a rotation. Never shown."""
    Start = Literal["claim", "plain"]
    """Whether a push is claimed before it is sent."""
    Status = Literal["succeeded", "failed", "released", "snoozed"]
    """The outcome of an attempt."""
    StreamEvent = Union[JobChange, RemovedJob, QueueChange, JobTypeChange, WorkerChange, StreamReady, SkippedChanges]
    """The `data` of an event."""
    Template = Any
    """Any JSON value. Each object {"$expr": "..."} in it is replaced by the result of that
    JMESPath expression over the event: its attributes and extensions by name, and its `data`.
    """
    Timestamp = str
    """An instant, RFC 3339, to the millisecond; in MessagePack too."""
    TriggerName = str
    """The name of a trigger."""
    TypeName = str
    """The name of a job type."""
    UniqueWhile = Literal["scheduled", "live"]
    """The states in which a job holds its unique key."""
    Words = str | list[str]
    """A word or a list of words."""
    TargetConfig = Union[Pull, Push, ExternalTarget]
    """Where a type's jobs go."""
    Replayed = Union[TriggerAction, ReplayedAction]
    """What became of a dead letter that was replayed."""
