// Code generated from /openapi.json by clients/conformance/generate.py. DO NOT EDIT.

// Package api has the types of the HTTP API.
package api

import "encoding/json"

// AppliedAlreadyEnqueued: an object.
type AppliedAlreadyEnqueued struct {
	Action string `json:"action"`
	// The job.
	Job string `json:"job"`
	// The trigger.
	Trigger string `json:"trigger"`
}

// AppliedAlreadyProcessed: an object.
type AppliedAlreadyProcessed struct {
	Action string `json:"action"`
	// The job.
	Job string `json:"job"`
	// The trigger.
	Trigger string `json:"trigger"`
}

// AppliedCompleted: an object.
type AppliedCompleted struct {
	Action string `json:"action"`
	// The job.
	Job string `json:"job"`
	// The trigger.
	Trigger string `json:"trigger"`
}

// AppliedDeadLettered: an object.
type AppliedDeadLettered struct {
	Action string `json:"action"`
	// The dead letter.
	Letter string `json:"letter"`
	// Why.
	Reason string `json:"reason"`
	// The trigger.
	Trigger string `json:"trigger"`
}

// AppliedDropped: an object.
type AppliedDropped struct {
	Action string `json:"action"`
	// Why.
	Reason string `json:"reason"`
	// The trigger.
	Trigger string `json:"trigger"`
}

// AppliedEnqueued: an object.
type AppliedEnqueued struct {
	Action string `json:"action"`
	// The job.
	Job string `json:"job"`
	// The trigger.
	Trigger string `json:"trigger"`
	// Its type.
	Type string `json:"type"`
}

// AppliedLate: an object.
type AppliedLate struct {
	Action string `json:"action"`
	// The job.
	Job string `json:"job"`
	// The trigger.
	Trigger string `json:"trigger"`
}

// AppliedPending: an object.
type AppliedPending struct {
	Action string `json:"action"`
	// The trigger.
	Trigger string `json:"trigger"`
	// Until when it is kept.
	Until string `json:"until"`
}

// AppliedRecorded: an object.
type AppliedRecorded struct {
	Action string `json:"action"`
	// The job.
	Job string `json:"job"`
	// The trigger.
	Trigger string `json:"trigger"`
}

// AuditEntry: A change that a caller made.
type AuditEntry struct {
	// The operation, by its id in this document: `pause_queue`.
	Action string `json:"action"`
	// When.
	At string `json:"at"`
	// The name of the token; `anonymous` on a server that is open.
	Caller string `json:"caller"`
	// The path of the request, which names what was changed: `/v1/queues/mail/pause`.
	Path string `json:"path"`
	// The query of the request.
	Query *string `json:"query,omitempty"`
	// The id of the request, as in the log.
	RequestID string `json:"request_id"`
	// The status of the answer.
	Status int64 `json:"status"`
	// The body of the request without secrets and data, or `{"bytes": n}` if it is no JSON or has more
	// than 8 KiB.
	With json.RawMessage `json:"with,omitempty"`
}

// AuditPage: A page of the audit log.
type AuditPage struct {
	// The entries, newest first.
	Entries []AuditEntry `json:"entries"`
	// Where the next page starts; absent on the last. A page may be short and still have one.
	NextCursor *string `json:"next_cursor,omitempty"`
}

// AwsServiceEventBridge: A bus of `EventBridge`.
type AwsServiceEventBridge struct {
	// A bus of `EventBridge`.
	EventBridge EventBridgeTarget `json:"event_bridge"`
}

// AwsServiceLambda: A Lambda function.
type AwsServiceLambda struct {
	// A Lambda function.
	Lambda LambdaTarget `json:"lambda"`
}

// AwsServiceSns: A topic of SNS.
type AwsServiceSns struct {
	// A topic of SNS.
	Sns SnsTarget `json:"sns"`
}

// AwsServiceSqs: A queue of SQS.
type AwsServiceSqs struct {
	// A queue of SQS.
	Sqs SqsTarget `json:"sqs"`
}

// Backoff: A wait that doubles: min(`max_seconds`, `base_seconds` x 2^(n-1)) after attempt n.
type Backoff struct {
	// The wait after the first attempt (default 2; 0 to 86400).
	BaseSeconds *float64 `json:"base_seconds,omitempty"`
	// Whether a random part of the wait is taken (default `full`).
	Jitter *Jitter `json:"jitter,omitempty"`
	// No wait is longer (default 3600; 0 to 2592000).
	MaxSeconds *float64 `json:"max_seconds,omitempty"`
}

// BasicAuth: HTTP Basic credentials; the password is write-only.
type BasicAuth struct {
	// The password: at most 1024 bytes.
	Password *string `json:"password,omitempty"`
	// The user: at most 256 bytes, no `:`.
	Username string `json:"username"`
}

// BatchResult: The outcome of one job of a batch.
type BatchResult struct {
	// Why the job was refused.
	Error *Problem `json:"error,omitempty"`
	// The job.
	Job *Job `json:"job,omitempty"`
	// 201 if it is new, 200 if it existed, else the status of the problem.
	Status int64 `json:"status"`
}

// BatchView: The outcome of each job of a batch, in order.
type BatchView struct {
	// One answer per job.
	Results []BatchResult `json:"results"`
}

// Beat: The answer to a heartbeat.
type Beat struct {
	// Whether a cancel was requested: stop, and report.
	Cancel bool `json:"cancel"`
	// When the lease expires now.
	ExpiresAt string `json:"expires_at"`
}

// Bulk: Which jobs.
type Bulk struct {
	// Every job. Without it, a request that names no condition is refused.
	All *bool `json:"all,omitempty"`
	// Count what it would do, and change nothing.
	DryRun *bool `json:"dry_run,omitempty"`
	// What the jobs have in common: at least one condition, unless `all` is true.
	Filter *JobFilter `json:"filter,omitempty"`
}

// BulkChanges: What a bulk change sets. Absent fields stay; null is the value of the job's type.
type BulkChanges struct {
	// Their priority; null means that of the type.
	Priority *int64 `json:"priority,omitempty"`
	// Their due time; in the past and null mean now.
	RunAt *string `json:"run_at,omitempty"`
	// The windows in which they may start, at most 32; an empty list means always, null those of the
	// type.
	Windows []Window `json:"windows,omitempty"`
}

// BulkKind: What a bulk operation does to each job.
type BulkKind string

// The values of BulkKind.
const (
	BulkKindCancel BulkKind = "cancel"
	BulkKindReplay BulkKind = "replay"
	BulkKindPurge  BulkKind = "purge"
	BulkKindPatch  BulkKind = "patch"
)

// BulkPatch: A change of every scheduled job that a filter matches.
type BulkPatch struct {
	// Every job. Without it, a request that names no condition is refused.
	All *bool `json:"all,omitempty"`
	// Count what it would do, and change nothing.
	DryRun *bool `json:"dry_run,omitempty"`
	// What the jobs have in common: at least one condition, unless `all` is true.
	Filter *JobFilter `json:"filter,omitempty"`
	// What changes: at least one field.
	Patch BulkChanges `json:"patch"`
}

// BulkReplay: Which jobs are replayed.
type BulkReplay struct {
	// Replay jobs that were replayed before, too. Without it they are skipped.
	Again *bool `json:"again,omitempty"`
	// Every job. Without it, a request that names no condition is refused.
	All *bool `json:"all,omitempty"`
	// Count what it would do, and change nothing.
	DryRun *bool `json:"dry_run,omitempty"`
	// What the jobs have in common: at least one condition, unless `all` is true.
	Filter *JobFilter `json:"filter,omitempty"`
}

// Check: The result of one check.
type Check struct {
	// The subject of the check.
	About string `json:"about"`
	// What to do; absent if nothing is wrong.
	Advice *string `json:"advice,omitempty"`
	// What was found.
	Finding string `json:"finding"`
	// `error`, `warning`, `note` or `ok`.
	Level string `json:"level"`
}

// CloudEvent: An event, in the JSON format of CloudEvents 1.0. In addition it may have up to 32
// extensions: their names are small letters and digits, their values texts, whole numbers, true or
// false.
type CloudEvent struct {
	// Its data, kept byte for byte.
	Data json.RawMessage `json:"data,omitempty"`
	// Binary data, in place of `data`.
	DataBase64 *string `json:"data_base64,omitempty"`
	// The media type of its data.
	Datacontenttype *string `json:"datacontenttype,omitempty"`
	// The schema of its data.
	Dataschema *string `json:"dataschema,omitempty"`
	// Its id, unique within its source; at most 1024 bytes, as every text here.
	ID string `json:"id"`
	// Where it happened: a URI reference.
	Source string `json:"source"`
	// `1.0`.
	Specversion string `json:"specversion"`
	// The subject of the event.
	Subject *string `json:"subject,omitempty"`
	// When it happened.
	Time *string `json:"time,omitempty"`
	// What kind of thing happened.
	Type string `json:"type"`
}

// Complete: When a pushed job ends.
type Complete string

// The values of Complete.
const (
	CompleteOnDelivery Complete = "on_delivery"
	CompleteOnResult   Complete = "on_result"
)

// ConsoleView: The options of the console, from the settings of the server.
type ConsoleView struct {
	// A page that it embeds.
	Embed *string `json:"embed,omitempty"`
	// Whether it offers no changes.
	ReadOnly bool `json:"read_only"`
	// The consoles of other servers, by name.
	Servers []OtherServer `json:"servers"`
	// Its title.
	Title string `json:"title"`
	// The URL of a trace, with `{trace_id}` in place of its id.
	TraceURL *string `json:"trace_url,omitempty"`
}

// Constraint: A limit on the jobs that match a condition. With `per`, each value of an attribute
// has its own limit.
type Constraint struct {
	// Most weight that runs at once. At least one of this and `rate` must be given.
	Concurrency *int64 `json:"concurrency,omitempty"`
	// Which jobs it counts (default: every job). At most 8 levels and 64 conditions.
	Match *Matcher `json:"match,omitempty"`
	// Its name in explanations: unique in its queue, 1 to 64 bytes.
	Name string `json:"name"`
	// The attribute whose values each have their own limit: a name of 1 to 64 bytes. A job without it
	// is not counted.
	Per *string `json:"per,omitempty"`
	// Most attempts that start in a period. The rates of a queue count in at most 200,000 bytes: for
	// each value of `per` that has started lately its text, the constraint's name and 32 bytes, and 10
	// for each instant of a start (at most 33 for each value). A start beyond that waits.
	Rate *Rate `json:"rate,omitempty"`
}

// ConstraintUse: The weight that runs under a constraint, or under one value of its attribute.
type ConstraintUse struct {
	// The limit.
	Limit int64 `json:"limit"`
	// The constraint's name.
	Name string `json:"name"`
	// The attribute whose values each have a limit of their own, if it has one.
	Per *string `json:"per,omitempty"`
	// The weight that runs.
	RunningWeight int64 `json:"running_weight"`
	// The value.
	Value *string `json:"value,omitempty"`
}

// DeadLetter: An event that a trigger could not handle.
type DeadLetter struct {
	// The event.
	Event CloudEvent `json:"event"`
	// When.
	FailedAt string `json:"failed_at"`
	// Its id here, derived from the trigger and the event.
	ID string `json:"id"`
	// Why the trigger could not handle it.
	Reason string `json:"reason"`
	// The trigger; absent if no trigger could read it as an event.
	Trigger *string `json:"trigger,omitempty"`
}

// DeadLetterPage: A page of dead letters.
type DeadLetterPage struct {
	// The dead letters, in no particular order.
	DeadLetters []DeadLetter `json:"dead_letters"`
	// Where the next page starts; absent on the last. A page may be short, even empty, and still have
	// a next one.
	NextCursor *string `json:"next_cursor,omitempty"`
}

// Debounce: A debounce: each request with the key, before the job starts, moves its due time.
type Debounce struct {
	// But at most this long after the first request; at least `seconds`, at most a year.
	MaxSeconds float64 `json:"max_seconds"`
	// Which request counts (default `last`).
	Merge *MergePolicy `json:"merge,omitempty"`
	// The due time is this long after the latest request.
	Seconds float64 `json:"seconds"`
}

// DecidedAction: What a plugin decided about a job.
type DecidedAction string

// The values of DecidedAction.
const (
	DecidedActionRun        DecidedAction = "run"
	DecidedActionHold       DecidedAction = "hold"
	DecidedActionReschedule DecidedAction = "reschedule"
	DecidedActionDrop       DecidedAction = "drop"
	DecidedActionRetry      DecidedAction = "retry"
	DecidedActionGiveUp     DecidedAction = "give_up"
)

// Delivery: Whether a job may be started twice.
type Delivery string

// The values of Delivery.
const (
	DeliveryAtLeastOnce Delivery = "at_least_once"
	DeliveryAtMostOnce  Delivery = "at_most_once"
)

// Description: The description that a plugin gives of itself in one role: `description` in
// `plugins/wit`.
type Description struct {
	// A sentence for operators.
	About string `json:"about"`
	// JSON Schema of its configuration.
	ConfigSchema *string `json:"config_schema,omitempty"`
	// Attributes by which it groups the running jobs.
	GroupBy []string `json:"group_by"`
	// Whether it reads jobs' data.
	NeedsData bool `json:"needs_data"`
	// Whether it reads the earlier attempts of candidates.
	NeedsEarlier *bool `json:"needs_earlier,omitempty"`
	// Whether it reads the attempts that ended.
	NeedsEnded bool `json:"needs_ended"`
	// Whether it reads the running jobs one by one.
	NeedsRunningJobs bool `json:"needs_running_jobs"`
	// The format of its state; a version with another number starts with an empty state.
	StateVersion int64 `json:"state_version"`
	// Attributes by which it groups the waiting jobs.
	WaitingBy []string `json:"waiting_by,omitempty"`
}

// DevClock: The clock of a server that `tidegate dev` started.
type DevClock struct {
	// Whether it is stopped.
	Frozen bool `json:"frozen"`
	// What it shows.
	Now string `json:"now"`
}

// DevClockChange: A change of that clock: exactly one field.
type DevClockChange struct {
	// By how much it moves forward, 0 to 3155760000 (100 years).
	AdvanceSeconds *float64 `json:"advance_seconds,omitempty"`
	// Whether it is stopped from now on, or runs on from what it shows.
	Freeze *bool `json:"freeze,omitempty"`
	// What it shows from now on; not before what it shows now.
	Set *string `json:"set,omitempty"`
}

// Difference: A job about which the live version and its shadow decided differently.
type Difference struct {
	// The time of the decision.
	At string `json:"at"`
	// The job.
	Job string `json:"job"`
	// What was done.
	Live ShadowDecision `json:"live"`
	// Its queue.
	Queue string `json:"queue"`
	// What the shadow would have done.
	Shadow ShadowDecision `json:"shadow"`
}

// Doctor: The results of the server's checks.
type Doctor struct {
	// Every check.
	Checks []Check `json:"checks"`
	// Whether no check is an error.
	Ok bool `json:"ok"`
	// The server's version.
	Version string `json:"version"`
}

// EndError: Why an ended job failed.
type EndError struct {
	// For people.
	Message *string `json:"message,omitempty"`
	// The reason.
	Reason Reason `json:"reason"`
}

// Ended: What a `callback_url` receives, and the data of the event about the end of a job.
type Ended struct {
	// Its latest attempt.
	Attempt int64 `json:"attempt"`
	// The key by which a later reply finds the job.
	CorrelationKey *string `json:"correlation_key,omitempty"`
	// When it ended.
	EndedAt string `json:"ended_at"`
	// The latest failure.
	Error *EndError `json:"error,omitempty"`
	// The job.
	ID string `json:"id"`
	// Always `completion`: it tells the notice from a pushed job, which has no such field.
	Kind string `json:"kind"`
	// Its result, unless that is too large to be stored in the notice.
	Result json.RawMessage `json:"result"`
	// Its final state: `succeeded`, `failed`, `expired`, `cancelled` or `dropped`.
	State string `json:"state"`
	// Its type.
	Type string `json:"type"`
}

// EndedAs: How an attempt ended, as the API shows it.
type EndedAs string

// The values of EndedAs.
const (
	EndedAsSucceeded EndedAs = "succeeded"
	EndedAsFailed    EndedAs = "failed"
	EndedAsCancelled EndedAs = "cancelled"
	EndedAsReleased  EndedAs = "released"
	EndedAsSnoozed   EndedAs = "snoozed"
)

// ErrorGroup: Jobs whose latest errors have one type, reason and pattern.
type ErrorGroup struct {
	// Some of the jobs, at most three.
	Examples []string `json:"examples"`
	// When the first of these errors came.
	FirstAt string `json:"first_at"`
	// How many jobs.
	Jobs int64 `json:"jobs"`
	// When the latest of these errors came.
	LastAt string `json:"last_at"`
	// The latest message.
	Message *string `json:"message,omitempty"`
	// The message with `*` in place of each word that has a digit; empty without a message. It is the
	// value of the filter `error_pattern`.
	Pattern string `json:"pattern"`
	// The reason.
	Reason Reason `json:"reason"`
	// The type of the jobs.
	Type string `json:"type"`
}

// Errors: Groups of errors.
type Errors struct {
	// The groups, those with most jobs first; at most 500.
	Errors []ErrorGroup `json:"errors"`
	// Where the next page starts; none on the last one. A group may be on several pages: its counts
	// add up.
	NextCursor *string `json:"next_cursor,omitempty"`
	// How many jobs with errors are in no group, because there are more than 500.
	Ungrouped int64 `json:"ungrouped"`
}

// EventBatch: The outcome of each event of a batch, in order.
type EventBatch struct {
	// One answer per event.
	Results []EventResult `json:"results"`
}

// EventBridgeTarget: A bus of `EventBridge`: the JSON is the event's `detail`.
type EventBridgeTarget struct {
	// Its name or ARN (default `default`; 1 to 1600 bytes).
	Bus *string `json:"bus,omitempty"`
	// The event's `detail-type` (default: the job's type; 1 to 128 bytes).
	DetailType *string `json:"detail_type,omitempty"`
	// The event's `source` (default `tidegate`; 1 to 256 bytes).
	Source *string `json:"source,omitempty"`
}

// EventFilter: Conditions that all hold for an event that matches; an empty one matches every
// event.
type EventFilter struct {
	// Every one of these matches.
	All []EventFilter `json:"all,omitempty"`
	// At least one of these matches, unless the list is empty.
	Any []EventFilter `json:"any,omitempty"`
	// Any other attribute or extension of it, by name.
	Attribute map[string]any `json:"attribute,omitempty"`
	// Texts, numbers and booleans in its data, by JSON pointer: `{"/order/total": {"gt": 100}}`.
	Data map[string]any `json:"data,omitempty"`
	// This does not match.
	Not *EventFilter `json:"not,omitempty"`
	// Its source.
	Source any `json:"source,omitempty"`
	// Its subject.
	Subject any `json:"subject,omitempty"`
	// The event's type: a text, a list of them, or comparisons.
	Type any `json:"type,omitempty"`
}

// EventReference: The attributes that identify an event, and its type.
type EventReference struct {
	// Its id.
	ID string `json:"id"`
	// Its source.
	Source string `json:"source"`
	// What kind of thing happened.
	Type string `json:"type"`
}

// EventResult: The outcome of one event of a batch.
type EventResult struct {
	// Why it was refused.
	Error *Problem `json:"error,omitempty"`
	// What each trigger did about it.
	Event *Ingested `json:"event,omitempty"`
	// 200, or the status of the problem.
	Status int64 `json:"status"`
}

// Explanation: Why a job waits.
type Explanation struct {
	// The earliest start, where that is known.
	EarliestAt *string `json:"earliest_at,omitempty"`
	// What holds it; absent if nothing does. Of several, the one that it meets first.
	HeldBy *HeldBy `json:"held_by,omitempty"`
	// The name of its phase, as a job shows it.
	Phase string `json:"phase"`
	// For people.
	Reason string `json:"reason"`
	// Since when.
	Since *string `json:"since,omitempty"`
	// The name of its state.
	State string `json:"state"`
	// The workers that take jobs of its type; null if it does not wait.
	Workers *WorkerStatus `json:"workers,omitempty"`
}

// ExternalTargetEventBridge: an object.
type ExternalTargetEventBridge struct {
	// When a job ends (default `on_result`); `on_delivery` means when the service has accepted it.
	Complete *Complete `json:"complete,omitempty"`
	// A bus of `EventBridge`.
	EventBridge EventBridgeTarget `json:"event_bridge"`
}

// ExternalTargetLambda: an object.
type ExternalTargetLambda struct {
	// When a job ends (default `on_result`); `on_delivery` means when the service has accepted it.
	Complete *Complete `json:"complete,omitempty"`
	// A Lambda function.
	Lambda LambdaTarget `json:"lambda"`
}

// ExternalTargetSns: an object.
type ExternalTargetSns struct {
	// When a job ends (default `on_result`); `on_delivery` means when the service has accepted it.
	Complete *Complete `json:"complete,omitempty"`
	// A topic of SNS.
	Sns SnsTarget `json:"sns"`
}

// ExternalTargetSqs: an object.
type ExternalTargetSqs struct {
	// When a job ends (default `on_result`); `on_delivery` means when the service has accepted it.
	Complete *Complete `json:"complete,omitempty"`
	// A queue of SQS.
	Sqs SqsTarget `json:"sqs"`
}

// Failure: What went wrong.
type Failure struct {
	// Details from the worker.
	Details json.RawMessage `json:"details"`
	// For people.
	Message *string `json:"message,omitempty"`
	// The reason.
	Reason Reason `json:"reason"`
	// The shortest wait before the next attempt that the target asked for, as with `Retry-After`.
	RetryAfterSeconds *float64 `json:"retry_after_seconds,omitempty"`
	// The HTTP status of the target's response, if there was one.
	Status *int64 `json:"status,omitempty"`
}

// HandledEventAlreadyEnqueued: an object.
type HandledEventAlreadyEnqueued struct {
	Action string `json:"action"`
	// When.
	At string `json:"at"`
	// The event.
	Event EventReference `json:"event"`
	// The job.
	Job string `json:"job"`
}

// HandledEventAlreadyProcessed: an object.
type HandledEventAlreadyProcessed struct {
	Action string `json:"action"`
	// When.
	At string `json:"at"`
	// The event.
	Event EventReference `json:"event"`
	// The job.
	Job string `json:"job"`
}

// HandledEventCompleted: an object.
type HandledEventCompleted struct {
	Action string `json:"action"`
	// When.
	At string `json:"at"`
	// The event.
	Event EventReference `json:"event"`
	// The job.
	Job string `json:"job"`
}

// HandledEventDeadLettered: an object.
type HandledEventDeadLettered struct {
	Action string `json:"action"`
	// When.
	At string `json:"at"`
	// The event.
	Event EventReference `json:"event"`
	// The dead letter.
	Letter string `json:"letter"`
	// Why.
	Reason string `json:"reason"`
}

// HandledEventDropped: an object.
type HandledEventDropped struct {
	Action string `json:"action"`
	// When.
	At string `json:"at"`
	// The event.
	Event EventReference `json:"event"`
	// Why.
	Reason string `json:"reason"`
}

// HandledEventEnqueued: an object.
type HandledEventEnqueued struct {
	Action string `json:"action"`
	// When.
	At string `json:"at"`
	// The event.
	Event EventReference `json:"event"`
	// The job.
	Job string `json:"job"`
	// Its type.
	Type string `json:"type"`
}

// HandledEventLate: an object.
type HandledEventLate struct {
	Action string `json:"action"`
	// When.
	At string `json:"at"`
	// The event.
	Event EventReference `json:"event"`
	// The job.
	Job string `json:"job"`
}

// HandledEventPending: an object.
type HandledEventPending struct {
	Action string `json:"action"`
	// When.
	At string `json:"at"`
	// The event.
	Event EventReference `json:"event"`
	// Until when it is kept.
	Until string `json:"until"`
}

// HandledEventRecorded: an object.
type HandledEventRecorded struct {
	Action string `json:"action"`
	// When.
	At string `json:"at"`
	// The event.
	Event EventReference `json:"event"`
	// The job.
	Job string `json:"job"`
}

// Health: The state of the server.
type Health struct {
	// `ok`.
	Status string `json:"status"`
	// The server's version.
	Version string `json:"version"`
}

// Heartbeat: A heartbeat of an attempt.
type Heartbeat struct {
	// The attempt.
	Attempt int64 `json:"attempt"`
	// What the next attempt needs to go on, any value of at most 64 KiB. It replaces an earlier one;
	// null leaves that.
	Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
	// How long the lease lasts from now (default: the type's setting).
	LeaseSeconds *float64 `json:"lease_seconds,omitempty"`
	// Log lines of the attempt since its heartbeat before, oldest first. At most 64 KiB of an attempt
	// and 256 KiB of a job are kept, the latest.
	Log []NewLogLine `json:"log,omitempty"`
	// A note on the progress, at most 4 KiB.
	Note *string `json:"note,omitempty"`
	// The attempt's progress, 0 to 100.
	Progress *float64 `json:"progress,omitempty"`
}

// HeldBy: What holds a job.
type HeldBy struct {
	// `due_time`, `snoozed`, `window`, `paused`, `concurrency`, `type_concurrency`, `constraint`,
	// `throttler`, `order`, `worker` or `retry`.
	Kind string `json:"kind"`
	// Its name, where there are several. Of `order` in a queue with strict order: the job of the same
	// partition that goes first.
	Name *string `json:"name,omitempty"`
	// The value of the attribute, for a constraint with a limit per value.
	Value *string `json:"value,omitempty"`
}

// HeldJobs: The examined due jobs of a queue that one thing holds.
type HeldJobs struct {
	// The earliest start of the first of them, where that is known.
	EarliestAt *string `json:"earliest_at,omitempty"`
	// How many.
	Jobs int64 `json:"jobs"`
	// As `kind` of [`HeldBy`].
	Kind string `json:"kind"`
	// Its name, where there are several.
	Name *string `json:"name,omitempty"`
	// Why the first of them waits, for people.
	Reason string `json:"reason"`
	// Since when.
	Since *string `json:"since,omitempty"`
	// How many of each type.
	Types map[string]int64 `json:"types"`
	// The value of the attribute, for a constraint with a limit per value.
	Value *string `json:"value,omitempty"`
}

// History: The last hour or the last day of a queue or a type, in steps.
type History struct {
	// When the oldest recorded step of any queue began. The history is shorter than its range after
	// the first start, and while very many queues and types are active.
	From *string `json:"from,omitempty"`
	// The steps, oldest first. One in which nothing happened, and that ended with the jobs of the step
	// before it, is left out.
	Points []HistoryPoint `json:"points"`
	// How long a step is: of the hour 10, or 60 on AWS; of the day 300.
	StepSeconds int64 `json:"step_seconds"`
	// The rates of the last five minutes, or since the first start.
	Throughput Throughput `json:"throughput"`
	// In how many seconds no job is due or runs any more, if their number goes on to fall as over the
	// time of `throughput`. Absent if it does not fall.
	TimeToEmptySeconds *float64 `json:"time_to_empty_seconds,omitempty"`
}

// HistoryEntry: One finished attempt.
type HistoryEntry struct {
	// The attempt, from 1.
	Attempt int64 `json:"attempt"`
	// How many milliseconds it took, from `started_at` to `ended_at`.
	DurationMs int64 `json:"duration_ms"`
	// When its result arrived or its lease expired.
	EndedAt string `json:"ended_at"`
	// What went wrong.
	Error *Failure `json:"error,omitempty"`
	// Why it was handed back, for people.
	Message *string `json:"message,omitempty"`
	// `succeeded`, `failed` or `cancelled`; `released` or `snoozed` if it was handed back.
	Outcome EndedAs `json:"outcome"`
	// When the next attempt was due, if there was one.
	RetryAt *string `json:"retry_at,omitempty"`
	// When it was claimed.
	StartedAt string `json:"started_at"`
	// How many milliseconds it had waited when it started: the first attempt since the job's `due_at`,
	// a later one since the end of the attempt before it. Absent if that attempt is no longer in the
	// history.
	WaitedMs *int64 `json:"waited_ms,omitempty"`
	// The worker's name.
	Worker *string `json:"worker,omitempty"`
}

// HistoryPoint: One step of a history.
type HistoryPoint struct {
	// When the step began.
	At string `json:"at"`
	// Jobs that were accepted. Absent on AWS.
	Enqueued *int64 `json:"enqueued,omitempty"`
	// Jobs that ended `failed`.
	Failed int64 `json:"failed"`
	// Jobs that ended, in whatever way.
	Finished int64 `json:"finished"`
	// The `concurrency` of the queue, or of the type, at the end of the step, if it had jobs.
	Limit *int64 `json:"limit,omitempty"`
	// Jobs in phase `ready` at the end of the step.
	Ready int64 `json:"ready"`
	// Jobs in phase `retrying` at the end of the step.
	Retrying int64 `json:"retrying"`
	// From the start to the end of the attempts that ended. Absent without any, and on AWS.
	RunSeconds *Quantiles `json:"run_seconds,omitempty"`
	// Jobs in phase `running` at the end of the step.
	Running int64 `json:"running"`
	// Jobs in phase `scheduled` at the end of the step.
	Scheduled int64 `json:"scheduled"`
	// From the due time to the start of the attempts that were claimed. Absent without any, and on
	// AWS.
	StartDelaySeconds *Quantiles `json:"start_delay_seconds,omitempty"`
	// Attempts that were claimed. Absent on AWS.
	Started *int64 `json:"started,omitempty"`
	// The weight of the running jobs of the queue at the end of the step, if it had jobs.
	Weight *int64 `json:"weight,omitempty"`
}

// HistoryRange: How far back a history goes.
type HistoryRange string

// The values of HistoryRange.
const (
	HistoryRangeHour HistoryRange = "hour"
	HistoryRangeDay  HistoryRange = "day"
)

// HoldSlotUntil: What frees the slot of a worker without a heartbeat.
type HoldSlotUntil string

// The values of HoldSlotUntil.
const (
	HoldSlotUntilLeaseEnd HoldSlotUntil = "lease_end"
	HoldSlotUntilReport   HoldSlotUntil = "report"
)

// Ingested: The outcome of an event: one entry per trigger that matched it.
type Ingested struct {
	// The event's id.
	ID string `json:"id"`
	// What each trigger did, by name; empty if none matched.
	Outcomes []any `json:"outcomes"`
	// Its source.
	Source string `json:"source"`
}

// Invocation: How a Lambda function is called.
type Invocation string

// The values of Invocation.
const (
	InvocationWait  Invocation = "wait"
	InvocationEvent Invocation = "event"
)

// Jitter: The random part of a wait.
type Jitter string

// The values of Jitter.
const (
	JitterFull Jitter = "full"
	JitterNone Jitter = "none"
)

// Job: A job.
type Job struct {
	// Attempts started so far.
	Attempt int64 `json:"attempt"`
	// What limits, partitions and searches match on.
	Attributes map[string]any `json:"attributes"`
	// The URL that is notified of its end. A query of it is shown as `***`.
	CallbackURL *string `json:"callback_url,omitempty"`
	// What an attempt has stored for the next one; a success clears it.
	Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
	// How many bytes `checkpoint` has, where it is not shown.
	CheckpointBytes *int64 `json:"checkpoint_bytes,omitempty"`
	// The key by which a later reply finds the job.
	CorrelationKey *string `json:"correlation_key,omitempty"`
	// When it was accepted.
	CreatedAt string `json:"created_at"`
	// Whether it is exempt from limits.
	Critical bool `json:"critical"`
	// What it carries. Absent in lists when it is over 1 KiB.
	Data json.RawMessage `json:"data,omitempty"`
	// How many bytes `data` has, where it is not shown.
	DataBytes *int64 `json:"data_bytes,omitempty"`
	// When it ends `failed` if it has not ended by then.
	DeadlineAt *string `json:"deadline_at,omitempty"`
	// When it was first due. A retry, a closed window and a deferral by a throttler do not change it.
	DueAt string `json:"due_at"`
	// When it ended.
	EndedAt *string `json:"ended_at,omitempty"`
	// The name of the token that enqueued it; of a replay, of the token that enqueued the first job.
	// Absent if there was no token, or if an event or a schedule made it.
	EnqueuedBy *string `json:"enqueued_by,omitempty"`
	// The latest failure.
	Error *Failure `json:"error,omitempty"`
	// It never starts after this instant.
	ExpiresAt *string `json:"expires_at,omitempty"`
	// How many attempts were handed back (`released`, `snoozed`).
	HandedBack *int64 `json:"handed_back,omitempty"`
	// Passed on to the worker.
	Headers map[string]string `json:"headers,omitempty"`
	// One entry per finished attempt.
	History []HistoryEntry `json:"history"`
	// Its id.
	ID string `json:"id"`
	// How long its result is kept.
	KeepResult any `json:"keep_result"`
	// Most attempts, without those that were handed back.
	MaxAttempts int64 `json:"max_attempts"`
	// In the answer to an enqueue: what the request changed in this job, which waited and held its
	// unique key. Absent if the job is new, or stayed as it was.
	Merged *Merged `json:"merged,omitempty"`
	// The schedule or the trigger that made it; of a replay, what made the first job. Absent if a
	// caller enqueued it, or replaced its data.
	Origin *JobOrigin `json:"origin,omitempty"`
	// The job as it came, if a retry strategy has changed it.
	Original *OriginalJob `json:"original,omitempty"`
	// The state when it was read, with `scheduled` divided: `scheduled` is due later, `ready` is due
	// now, `retrying` waits for its next attempt.
	Phase string `json:"phase"`
	// Jobs with a lower priority start first.
	Priority int64 `json:"priority"`
	// The queue that it entered when it was accepted.
	Queue string `json:"queue"`
	// The job that it replays.
	ReplayOf *string `json:"replay_of,omitempty"`
	// The latest job that replays it.
	ReplayedBy *string `json:"replayed_by,omitempty"`
	// Its result, while it is kept; a result that is kept `once` is shown by `GET …/result` alone.
	Result json.RawMessage `json:"result"`
	// How many bytes `result` has, where it is not shown.
	ResultBytes *int64 `json:"result_bytes,omitempty"`
	// What follows a failed attempt.
	Retry any `json:"retry"`
	// The name of the target that a retry strategy chose for its next attempt, of those in
	// `retry_targets` of its type. Absent for the type's own target.
	RetryTarget *string `json:"retry_target,omitempty"`
	// The earliest start: of the next attempt while it is scheduled, and of the latest one later.
	// `started_at` shows how late that attempt started. A job that ended before any attempt keeps the
	// one that it had.
	RunAt string `json:"run_at"`
	// The running attempt.
	Running *Running `json:"running,omitempty"`
	// When its latest attempt was claimed.
	StartedAt *string `json:"started_at,omitempty"`
	// `scheduled`, `running`, `succeeded`, `failed`, `expired`, `cancelled` or `dropped`.
	State string `json:"state"`
	// From claim to result.
	TimeoutSeconds float64 `json:"timeout_seconds"`
	// Its type.
	Type string `json:"type"`
	// The rule against duplicates.
	Unique *Unique `json:"unique,omitempty"`
	// Capacity units that it uses while it runs.
	Weight int64 `json:"weight"`
	// The windows in which it may start.
	Windows []Window `json:"windows,omitempty"`
}

// JobChange: Event `job`: a job was accepted or has changed.
type JobChange struct {
	// When it was committed.
	At string `json:"at"`
	// Attempts started so far.
	Attempt int64 `json:"attempt"`
	// The reason of the latest error.
	ErrorReason *Reason `json:"error_reason,omitempty"`
	// The job.
	ID string `json:"id"`
	// Its phase at the time of the change.
	Phase string `json:"phase"`
	// The latest progress of the running attempt, without a note of over 200 bytes.
	Progress *Progress `json:"progress,omitempty"`
	// Its queue.
	Queue string `json:"queue"`
	// The number of this change, as in the `ETag` of the job. Changes of a job may arrive in another
	// order; the one with the highest number is the latest.
	Revision int64 `json:"revision"`
	// The earliest start, of a job that waits.
	RunAt *string `json:"run_at,omitempty"`
	// Its state, as in the job.
	State string `json:"state"`
	// Its type.
	Type string `json:"type"`
	// The worker of the running attempt.
	Worker *string `json:"worker,omitempty"`
}

// JobError: The error of a job that did not succeed.
type JobError struct {
	// For people.
	Message *string `json:"message,omitempty"`
	// The reason.
	Reason Reason `json:"reason"`
	// The HTTP status of the target's response, if there was one.
	Status *int64 `json:"status,omitempty"`
}

// JobFilter: Conditions; a job matches if all of them hold.
type JobFilter struct {
	// Only with these attribute values.
	Attribute map[string]any `json:"attribute,omitempty"`
	// Only accepted at this instant or later.
	CreatedFrom *string `json:"created_from,omitempty"`
	// Only accepted before this instant.
	CreatedTo *string `json:"created_to,omitempty"`
	// Only with these values in the data: JSON pointers, each with a text or a number, at most 8. The
	// data of every other matching job is read.
	Data map[string]any `json:"data,omitempty"`
	// Only first due at this instant or later.
	DueFrom *string `json:"due_from,omitempty"`
	// Only first due before this instant.
	DueTo *string `json:"due_to,omitempty"`
	// Only ended at this instant or later.
	EndedFrom *string `json:"ended_from,omitempty"`
	// Only ended before this instant.
	EndedTo *string `json:"ended_to,omitempty"`
	// Only those whose latest error's message contains this text, in upper or lower case.
	ErrorContains *string `json:"error_contains,omitempty"`
	// Only those whose latest error's message has this pattern, as `GET /v1/errors` shows it, or is
	// like this message.
	ErrorPattern *string `json:"error_pattern,omitempty"`
	// Only those whose latest error has one of these reasons.
	ErrorReason any `json:"error_reason,omitempty"`
	// Only these jobs: an id or a list of at most 1000.
	ID any `json:"id,omitempty"`
	// Only with at most this many attempts.
	MaxAttempt *int64 `json:"max_attempt,omitempty"`
	// Only with at least this many attempts.
	MinAttempt *int64 `json:"min_attempt,omitempty"`
	// Only these phases: a word or a list of words.
	Phase any `json:"phase,omitempty"`
	// Only this queue.
	Queue *string `json:"queue,omitempty"`
	// Only those whose latest attempt started at this instant or later.
	StartedFrom *string `json:"started_from,omitempty"`
	// Only those whose latest attempt started before this instant.
	StartedTo *string `json:"started_to,omitempty"`
	// Only these states: a word or a list of words, `ended` among them.
	State any `json:"state,omitempty"`
	// Only this type.
	Type *string `json:"type,omitempty"`
	// Only those whose latest attempt runs or ran at the worker of this name.
	Worker *string `json:"worker,omitempty"`
}

// JobOrigin: What made a job that no caller enqueued: a schedule, or a trigger from an event.
type JobOrigin struct {
	// The id of the event; absent if it has over 256 bytes.
	Event *string `json:"event,omitempty"`
	// The occurrence of the schedule; absent if a request ran the schedule.
	Occurrence *string `json:"occurrence,omitempty"`
	// The schedule; absent if a trigger made the job.
	Schedule *string `json:"schedule,omitempty"`
	// The source of the event; absent if it has over 256 bytes.
	Source *string `json:"source,omitempty"`
	// The trigger; absent if a schedule made the job.
	Trigger *string `json:"trigger,omitempty"`
}

// JobPage: A page of jobs.
type JobPage struct {
	// The jobs, newest first by creation; on AWS by when they were first due, from the present back,
	// and then those due later. With `sort`, in that order.
	Jobs []Job `json:"jobs"`
	// Where the next page starts; absent on the last.
	NextCursor *string `json:"next_cursor,omitempty"`
	// With `sort`: which jobs were compared. Absent if the list has this order anyway.
	Sorted *SortedJobs `json:"sorted,omitempty"`
	// The ids of jobs that may belong to the list and cannot be read, at most 100: their records are
	// damaged, or a newer release wrote them. `GET` of one says why.
	Unreadable []string `json:"unreadable,omitempty"`
}

// JobPatch: Changes to a scheduled job. Absent fields stay; null is what an enqueue without the
// field has.
type JobPatch struct {
	// The new data; null is a value.
	Data json.RawMessage `json:"data,omitempty"`
	// The new instant after which it never starts; null means none.
	ExpiresAt *string `json:"expires_at,omitempty"`
	// The new priority; null means that of the type.
	Priority *int64 `json:"priority,omitempty"`
	// The new due time; in the past and null mean now. A job that is due stays due since then.
	RunAt *string `json:"run_at,omitempty"`
	// The new windows; an empty list means always, null those of the type.
	Windows []Window `json:"windows,omitempty"`
}

// JobType: A job type.
type JobType struct {
	// Attributes extracted from the data, at most 16: a name of 1 to 64 bytes, and a JSON pointer of
	// at most 1024 bytes.
	Attributes map[string]string `json:"attributes,omitempty"`
	// The secret that signs the notifications to `callback_url`, or two during a rotation; write-only.
	// It has the form of a target's `signing_secret`, and should differ from it.
	CallbackSigningSecret any `json:"callback_signing_secret,omitempty"`
	// The URL that is notified when a job ends: http or https, without credentials, at most 2048
	// bytes.
	CallbackURL *string `json:"callback_url,omitempty"`
	// In a dry run, the secrets that the change sets, replaces or removes, by their paths; absent
	// otherwise.
	ChangedSecrets []string `json:"changed_secrets,omitempty"`
	// Most weight of this type that runs at once.
	Concurrency *int64 `json:"concurrency,omitempty"`
	// From a job's creation to its end, at most (0.001 to 315360000).
	DeadlineSeconds *float64 `json:"deadline_seconds,omitempty"`
	// Whether a job may be started twice (default `at_least_once`).
	Delivery *Delivery `json:"delivery,omitempty"`
	// Passed on to the worker: at most 32, names of 1 to 128 bytes, values of at most 4096 bytes of
	// visible ASCII. Headers that frame the request are refused, and so are credentials
	// (`authorization`, `proxy-authorization`, `cookie`), `webhook-` and `tidegate-` ones. A header of
	// the target has precedence.
	Headers map[string]string `json:"headers,omitempty"`
	// What frees a job's slot (default `lease_end`).
	HoldSlotUntil *HoldSlotUntil `json:"hold_slot_until,omitempty"`
	// How long a result can be read (default 86400 s; 0 to 315360000).
	KeepResult any `json:"keep_result,omitempty"`
	// How long a lease of a pull worker lasts without a heartbeat (default 30; 0.001 to 31536000).
	LeaseSeconds *float64 `json:"lease_seconds,omitempty"`
	// Most attempts (default 3, with `at_most_once` 1; 1 to 65535).
	MaxAttempts *int64 `json:"max_attempts,omitempty"`
	// Most attempts in a row that workers hand back (`released`, `snoozed`) without progress. A
	// further one fails as `not_delivered` and counts against `max_attempts` (default 100; 0 to
	// 65535).
	MaxReleases *int64 `json:"max_releases,omitempty"`
	// Its name.
	Name string `json:"name"`
	// What follows when no response comes in time (default `fail`).
	OnResponseTimeout *OnResponseTimeout `json:"on_response_timeout,omitempty"`
	// Its jobs' priority (default 100).
	Priority *int64 `json:"priority,omitempty"`
	// The queue of its jobs (default `default`).
	Queue *string `json:"queue,omitempty"`
	// How long a push target may take to answer (default 30; 0.001 to 31536000).
	ResponseTimeoutSeconds *float64 `json:"response_timeout_seconds,omitempty"`
	// How long an ended job is kept (default 30 days; 0 to 315360000, 0 deletes it at its end). One
	// with a correlation key is kept for `reply_wait_seconds` at least, so that a second delivery of
	// its reply is recognised.
	RetentionSeconds *float64 `json:"retention_seconds,omitempty"`
	// What follows a failed attempt. Default:
	// `{"config":{"base_seconds":2,"jitter":"full","max_seconds":3600},"strategy":"exponential"}`.
	Retry any `json:"retry,omitempty"`
	// Whether a push that was under way when the server stopped is retried at its next start (default
	// false: it keeps its slot until its response timeout, because its worker may still work or call
	// back). True needs a push target, `at_least_once`, `hold_slot_until: lease_end` and
	// `on_response_timeout: fail`. Without effect on AWS.
	RetryAfterRestart *bool `json:"retry_after_restart,omitempty"`
	// Other URLs that a retry strategy may choose for the next attempt, by name: at most 16, of the
	// form of `target.url`. Headers, credentials and signature are those of `target`, which must have
	// a `url`.
	RetryTargets map[string]string `json:"retry_targets,omitempty"`
	// The secrets that it has, by the paths of their settings: `target.signing_secret`,
	// `target.basic_auth.password`, `target.headers.NAME`, `callback_signing_secret`. Absent if it has
	// none.
	Secrets []string `json:"secrets,omitempty"`
	// Whether a push is claimed before it is sent (default `claim`). `plain` needs a push target,
	// `at_least_once`, `on_response_timeout: fail` and no `concurrency`.
	Start *Start `json:"start,omitempty"`
	// Where its jobs go (default: the server's default target, or pull workers).
	Target any `json:"target,omitempty"`
	// From claim to result (default 86400; 0.001 to 31536000).
	TimeoutSeconds *float64 `json:"timeout_seconds,omitempty"`
	// Raised by every change; the `ETag` contains it.
	Version int64 `json:"version"`
	// Its jobs' weight (default 1).
	Weight *int64 `json:"weight,omitempty"`
	// When its jobs may start: at most 32.
	Windows []Window `json:"windows,omitempty"`
}

// JobTypeChange: Event `job_type`: the configuration of a type has changed.
type JobTypeChange struct {
	// The type.
	Type string `json:"type"`
	// Its new version; absent if it was removed.
	Version *int64 `json:"version,omitempty"`
}

// JobTypePage: A page of job types.
type JobTypePage struct {
	// The types, by name.
	JobTypes []JobType `json:"job_types"`
	// Where the next page starts; absent on the last.
	NextCursor *string `json:"next_cursor,omitempty"`
}

// KeepResultSeconds: an object.
type KeepResultSeconds struct {
	// A span in seconds; fractions down to a millisecond.
	Seconds float64 `json:"seconds"`
}

// LambdaTarget: A Lambda function.
type LambdaTarget struct {
	// Its name or ARN, optionally with a version or an alias (1 to 256 bytes).
	Function string `json:"function"`
	// How it is called (default `wait`).
	Invocation *Invocation `json:"invocation,omitempty"`
}

// Lease: One attempt at a job, and the right to report on it.
type Lease struct {
	// The attempt, from 1.
	Attempt int64 `json:"attempt"`
	// Without a heartbeat the lease expires then.
	ExpiresAt string `json:"expires_at"`
	// The job.
	Job Job `json:"job"`
	// The attempt's secret: enough, as a bearer token, to report and to send heartbeats.
	Token string `json:"token"`
}

// LeaseRequest: A request of a pull worker for jobs.
type LeaseRequest struct {
	// How long the leases last (default: the type's setting).
	LeaseSeconds *float64 `json:"lease_seconds,omitempty"`
	// At most this many, 0 to 1000 (default 1). With 0 the call only reports, and gets the leases of
	// the call that it repeats.
	Max *int64 `json:"max,omitempty"`
	// The longest pause that the worker makes before its next call if there is no job, 0 to 60
	// (default 0). A server that pays for held requests then answers at once, and names the pause in
	// `retry_after_seconds`. Any other server holds the request for `wait_seconds`.
	MaxPauseSeconds *float64 `json:"max_pause_seconds,omitempty"`
	// At least this many, 0 to `max` (default 1, and 0 is 1), unless the wait ends: then what is
	// there. No job is leased before. More than 1 needs a request to one queue: `queue`, or types of
	// one. A worker that registered a smaller capacity waits for no more than that.
	Min *int64 `json:"min,omitempty"`
	// Only from this queue.
	Queue *string `json:"queue,omitempty"`
	// The results of earlier leases, at most 1000.
	Reports []Report `json:"reports,omitempty"`
	// The name of the request: 16 to 128 bytes, such as a UUID. A worker that has no answer repeats
	// the request with it, and gets the same leases while they last; a repeat renews them. The next
	// request has another one.
	RequestID *string `json:"request_id,omitempty"`
	// Only of these types; absent or empty means every pull type.
	Types []string `json:"types,omitempty"`
	// How long to wait for the first, or for `min` of them, 0 to 60 (default 0).
	WaitSeconds *float64 `json:"wait_seconds,omitempty"`
	// The worker's name, at most 128 bytes.
	Worker *string `json:"worker,omitempty"`
}

// Leases: Leases, and the answers to the reports.
type Leases struct {
	// The leases; none if no job became available within the wait.
	Leases []Lease `json:"leases"`
	// One answer per report, in order.
	Reports []Reported `json:"reports"`
	// How long to pause before the next call; absent: not at all.
	RetryAfterSeconds *float64 `json:"retry_after_seconds,omitempty"`
	// Whether the worker is to end in order: it sends no more lease requests, finishes and reports
	// what it runs, and is deleted. Absent: no.
	Stop *bool `json:"stop,omitempty"`
}

// LeftOut: Jobs that a simulation leaves out.
type LeftOut struct {
	// How many; null: not known.
	Jobs *int64 `json:"jobs,omitempty"`
	// Why, for people.
	Reason string `json:"reason"`
}

// Limits: The bounds of requests and answers. A server of another version, deployment mode or
// setting may have others.
type Limits struct {
	// Most bytes of an answer; null: there is no bound.
	AnswerBytes *int64 `json:"answer_bytes,omitempty"`
	// Most events in a request.
	BatchEvents int64 `json:"batch_events"`
	// Most jobs in a batch.
	BatchJobs int64 `json:"batch_jobs"`
	// Most bytes of a request with many jobs, reports or events.
	BatchRequestBytes int64 `json:"batch_request_bytes"`
	// Most bytes of a checkpoint.
	CheckpointBytes int64 `json:"checkpoint_bytes"`
	// Most bytes of a job's data, and of a result.
	DataBytes int64 `json:"data_bytes"`
	// Most bytes of the `error` of a report.
	ErrorBytes int64 `json:"error_bytes"`
	// Most leases of a request.
	Leases int64 `json:"leases"`
	// Most log lines in a heartbeat, and in a report.
	LogLines int64 `json:"log_lines"`
	// Most bytes of the `message` of a report, and of the `note` of a heartbeat.
	MessageBytes int64 `json:"message_bytes"`
	// Most items of a page.
	PageItems int64 `json:"page_items"`
	// Most reports in a lease request.
	Reports int64 `json:"reports"`
	// Most bytes of a request about one job.
	RequestBytes int64 `json:"request_bytes"`
	// The longest wait of a request for leases, for a result or for log lines.
	WaitSeconds float64 `json:"wait_seconds"`
}

// LogLevel: How important a log line is.
type LogLevel string

// The values of LogLevel.
const (
	LogLevelTrace LogLevel = "trace"
	LogLevelDebug LogLevel = "debug"
	LogLevelInfo  LogLevel = "info"
	LogLevelWarn  LogLevel = "warn"
	LogLevelError LogLevel = "error"
)

// LogLine: A log line of an attempt.
type LogLine struct {
	// The attempt.
	Attempt int64 `json:"attempt"`
	// Whether a part of it was left out, because it had more than 4 KiB.
	Cut *bool `json:"cut,omitempty"`
	// Values that belong to it.
	Fields map[string]json.RawMessage `json:"fields,omitempty"`
	// Its level.
	Level LogLevel `json:"level"`
	// Its number among the lines of its job, from 0. Numbers that are missing are of lines that are no
	// longer kept.
	Number int64 `json:"number"`
	// The text.
	Text string `json:"text"`
	// When it was written.
	Time string `json:"time"`
}

// LogPage: A page of the log lines of a job.
type LogPage struct {
	// How many lines of this page's range are no longer kept.
	Dropped int64 `json:"dropped"`
	// The lines, oldest first.
	Lines []LogLine `json:"lines"`
	// Where the next page starts; absent if the job has ended and has no more lines.
	NextCursor *string `json:"next_cursor,omitempty"`
}

// Matcher: Conditions that all hold for a job that matches; an empty one matches every job.
type Matcher struct {
	// Every one of these matches.
	All []Matcher `json:"all,omitempty"`
	// At least one of these matches, unless the list is empty.
	Any []Matcher `json:"any,omitempty"`
	// The job's attributes, by name.
	Attribute map[string]any `json:"attribute,omitempty"`
	// This does not match.
	Not *Matcher `json:"not,omitempty"`
	// The job's priority.
	Priority any `json:"priority,omitempty"`
	// The job's type: a name or a list of names.
	Type any `json:"type,omitempty"`
}

// MergePolicy: Which request of a debounced job counts.
type MergePolicy string

// The values of MergePolicy.
const (
	MergePolicyLast  MergePolicy = "last"
	MergePolicyFirst MergePolicy = "first"
)

// Merged: What an enqueue did with the waiting job that held its unique key.
type Merged string

// The values of Merged.
const (
	MergedReplaced  Merged = "replaced"
	MergedDebounced Merged = "debounced"
)

// Missed: What follows for occurrences that are over a minute late, because the server was down or
// the type did not exist.
type Missed string

// The values of Missed.
const (
	MissedSkip Missed = "skip"
	MissedOne  Missed = "one"
	MissedAll  Missed = "all"
)

// NewJob: A job to enqueue. Absent fields are taken from its type, then from the server's
// defaults.
type NewJob struct {
	// What limits, partitions and searches compare, at most 16; those extracted from the data win.
	Attributes map[string]any `json:"attributes,omitempty"`
	// The URL that is notified when the job ends.
	CallbackURL *string `json:"callback_url,omitempty"`
	// The key by which a later reply finds the job; unique among the live jobs of the type.
	CorrelationKey *string `json:"correlation_key,omitempty"`
	// Not held by limits, and takes no capacity. An enqueue needs scope `enqueue:critical`. Default:
	// `false`.
	Critical *bool `json:"critical,omitempty"`
	// What it carries: any value, kept byte for byte.
	Data json.RawMessage `json:"data"`
	// From creation to end.
	DeadlineSeconds *float64 `json:"deadline_seconds,omitempty"`
	// The same as a span from now; not together with `run_at`.
	DelaySeconds *float64 `json:"delay_seconds,omitempty"`
	// It never starts after this instant.
	ExpiresAt *string `json:"expires_at,omitempty"`
	// Passed on to the worker.
	Headers map[string]string `json:"headers,omitempty"`
	// The id that makes the enqueue idempotent: 1 to 64 of `A-Z a-z 0-9 _ . : -`. Absent, the server
	// generates one.
	ID *string `json:"id,omitempty"`
	// How long the result can be read.
	KeepResult any `json:"keep_result,omitempty"`
	// Most attempts (default 3).
	MaxAttempts *int64 `json:"max_attempts,omitempty"`
	// Lower goes first (default 100).
	Priority *int64 `json:"priority,omitempty"`
	// What follows a failed attempt.
	Retry any `json:"retry,omitempty"`
	// The earliest start; in the past means now.
	RunAt *string `json:"run_at,omitempty"`
	// From claim to result (default 86400).
	TimeoutSeconds *float64 `json:"timeout_seconds,omitempty"`
	// Its type: 1 to 64 of `A-Z a-z 0-9 _ . -`. With PUT it may be left to the path.
	Type *string `json:"type,omitempty"`
	// A key that refuses duplicates: no second job of the type while one has it.
	Unique *Unique `json:"unique,omitempty"`
	// Capacity units that it takes while it runs; 0 takes none (default 1).
	Weight *int64 `json:"weight,omitempty"`
	// When it may start; an empty list clears the type's windows.
	Windows []Window `json:"windows,omitempty"`
}

// NewJobs: Many jobs.
type NewJobs struct {
	// The jobs, at most 1000.
	Jobs []NewJob `json:"jobs"`
}

// NewLogLine: A log line that a worker sends about its attempt.
type NewLogLine struct {
	// Values that belong to it.
	Fields map[string]json.RawMessage `json:"fields,omitempty"`
	// Its level (default `info`).
	Level *LogLevel `json:"level,omitempty"`
	// The text. Of a line with more than 4 KiB, fields and text are cut.
	Text string `json:"text"`
	// When it was written (default: when the server receives it). Lines that all have a time are kept
	// once, although their request is repeated.
	Time *string `json:"time,omitempty"`
}

// NewSchedule: A schedule's configuration, and the data of its jobs.
type NewSchedule struct {
	// An instant from which every occurrence is a multiple of `every_seconds` away (default
	// `starts_at`, else the epoch).
	Anchor *string `json:"anchor,omitempty"`
	// What limits, partitions and searches compare, at most 16; those extracted from the data win.
	Attributes map[string]any `json:"attributes,omitempty"`
	// The URL that is notified when the job ends.
	CallbackURL *string `json:"callback_url,omitempty"`
	// Not held by limits, and takes no capacity. An enqueue needs scope `enqueue:critical`. Default:
	// `false`.
	Critical *bool `json:"critical,omitempty"`
	// A cron pattern: minute, hour, day of the month, month, day of the week; or those after a second.
	// At most 256 bytes. Either this or `every_seconds` must be given.
	Cron *string `json:"cron,omitempty"`
	// The data of its jobs: any value of at most 64 KiB, kept byte for byte (default null).
	Data json.RawMessage `json:"data,omitempty"`
	// From creation to end.
	DeadlineSeconds *float64 `json:"deadline_seconds,omitempty"`
	// No occurrence after this.
	EndsAt *string `json:"ends_at,omitempty"`
	// The span from one occurrence to the next (1 to 31536000).
	EverySeconds *float64 `json:"every_seconds,omitempty"`
	// Most time between an occurrence and the start of its job (0.001 to 315360000).
	ExpiresAfterSeconds *float64 `json:"expires_after_seconds,omitempty"`
	// Passed on to the worker.
	Headers map[string]string `json:"headers,omitempty"`
	// How long the result can be read.
	KeepResult any `json:"keep_result,omitempty"`
	// Most attempts (default 3).
	MaxAttempts *int64 `json:"max_attempts,omitempty"`
	// With `missed: all`, how many of the latest missed occurrences make jobs (default 100; 1 to
	// 1000).
	MaxMissed *int64 `json:"max_missed,omitempty"`
	// What follows for occurrences that are over a minute late (default `one`).
	Missed *Missed `json:"missed,omitempty"`
	// Whether nothing occurs. Occurrences during the pause make no jobs later. A PUT without it leaves
	// a schedule paused or not, as it is; the default of a new one is false.
	Paused *bool `json:"paused,omitempty"`
	// Lower goes first (default 100).
	Priority *int64 `json:"priority,omitempty"`
	// What follows a failed attempt.
	Retry any `json:"retry,omitempty"`
	// No occurrence before this.
	StartsAt *string `json:"starts_at,omitempty"`
	// From claim to result (default 86400).
	TimeoutSeconds *float64 `json:"timeout_seconds,omitempty"`
	// The type of its jobs.
	Type string `json:"type"`
	// The IANA name of the time zone of `cron` (default UTC).
	Tz *string `json:"tz,omitempty"`
	// A key that refuses duplicates: no second job of the type while one has it.
	Unique *Unique `json:"unique,omitempty"`
	// Capacity units that it takes while it runs; 0 takes none (default 1).
	Weight *int64 `json:"weight,omitempty"`
	// When it may start; an empty list clears the type's windows.
	Windows []Window `json:"windows,omitempty"`
}

// NewSchedulePatch: A schedule's configuration, and the data of its jobs.
type NewSchedulePatch struct {
	// An instant from which every occurrence is a multiple of `every_seconds` away (default
	// `starts_at`, else the epoch).
	Anchor *string `json:"anchor,omitempty"`
	// What limits, partitions and searches compare, at most 16; those extracted from the data win.
	Attributes map[string]any `json:"attributes,omitempty"`
	// The URL that is notified when the job ends.
	CallbackURL *string `json:"callback_url,omitempty"`
	// Not held by limits, and takes no capacity. An enqueue needs scope `enqueue:critical`. Default:
	// `false`.
	Critical *bool `json:"critical,omitempty"`
	// A cron pattern: minute, hour, day of the month, month, day of the week; or those after a second.
	// At most 256 bytes. Either this or `every_seconds` must be given.
	Cron *string `json:"cron,omitempty"`
	// The data of its jobs: any value of at most 64 KiB, kept byte for byte (default null).
	Data json.RawMessage `json:"data,omitempty"`
	// From creation to end.
	DeadlineSeconds *float64 `json:"deadline_seconds,omitempty"`
	// No occurrence after this.
	EndsAt *string `json:"ends_at,omitempty"`
	// The span from one occurrence to the next (1 to 31536000).
	EverySeconds *float64 `json:"every_seconds,omitempty"`
	// Most time between an occurrence and the start of its job (0.001 to 315360000).
	ExpiresAfterSeconds *float64 `json:"expires_after_seconds,omitempty"`
	// Passed on to the worker.
	Headers map[string]string `json:"headers,omitempty"`
	// How long the result can be read.
	KeepResult any `json:"keep_result,omitempty"`
	// Most attempts (default 3).
	MaxAttempts *int64 `json:"max_attempts,omitempty"`
	// With `missed: all`, how many of the latest missed occurrences make jobs (default 100; 1 to
	// 1000).
	MaxMissed *int64 `json:"max_missed,omitempty"`
	// What follows for occurrences that are over a minute late (default `one`).
	Missed *Missed `json:"missed,omitempty"`
	// Whether nothing occurs. Occurrences during the pause make no jobs later. A PUT without it leaves
	// a schedule paused or not, as it is; the default of a new one is false.
	Paused *bool `json:"paused,omitempty"`
	// Lower goes first (default 100).
	Priority *int64 `json:"priority,omitempty"`
	// What follows a failed attempt.
	Retry map[string]any `json:"retry,omitempty"`
	// No occurrence before this.
	StartsAt *string `json:"starts_at,omitempty"`
	// From claim to result (default 86400).
	TimeoutSeconds *float64 `json:"timeout_seconds,omitempty"`
	// The type of its jobs.
	Type *string `json:"type,omitempty"`
	// The IANA name of the time zone of `cron` (default UTC).
	Tz *string `json:"tz,omitempty"`
	// A key that refuses duplicates: no second job of the type while one has it.
	Unique map[string]any `json:"unique,omitempty"`
	// Capacity units that it takes while it runs; 0 takes none (default 1).
	Weight *int64 `json:"weight,omitempty"`
	// When it may start; an empty list clears the type's windows.
	Windows []Window `json:"windows,omitempty"`
}

// NewToken: A token to create.
type NewToken struct {
	// From when on it is no longer accepted (default: never).
	ExpiresAt *string `json:"expires_at,omitempty"`
	// Its owner's name for it, 1 to 128 bytes.
	Name string `json:"name"`
	// Only jobs in these queues, 1 to 100 (default: all). Not with `admin`.
	Queues []string `json:"queues,omitempty"`
	// What it allows: `enqueue`, `enqueue:critical`, `work`, `read`, `admin`.
	Scopes []string `json:"scopes"`
	// Only jobs of these types, 1 to 100 (default: all). Not with `admin`.
	Types []string `json:"types,omitempty"`
}

// Occurrence: An occurrence of a schedule.
type Occurrence struct {
	// When.
	At string `json:"at"`
	// The id of its job.
	Job string `json:"job"`
}

// OnConflict: What an enqueue does if another job holds its unique key.
type OnConflict string

// The values of OnConflict.
const (
	OnConflictKeep    OnConflict = "keep"
	OnConflictReplace OnConflict = "replace"
)

// OnFailure: What happens to candidates when their throttler's call fails.
type OnFailure string

// The values of OnFailure.
const (
	OnFailureHold OnFailure = "hold"
	OnFailureRun  OnFailure = "run"
)

// OnResponseTimeout: What follows when no response comes in time.
type OnResponseTimeout string

// The values of OnResponseTimeout.
const (
	OnResponseTimeoutFail OnResponseTimeout = "fail"
	OnResponseTimeoutWait OnResponseTimeout = "wait"
)

// Operation: A bulk operation, running or finished.
type Operation struct {
	// When it was requested.
	CreatedAt string `json:"created_at"`
	// Jobs that it changed.
	Done int64 `json:"done"`
	// Whether it is a dry run: `done`, `refused` and `skipped` count what the operation would do.
	DryRun *bool `json:"dry_run,omitempty"`
	// When it ended.
	EndedAt *string `json:"ended_at,omitempty"`
	// What stopped it, if something did.
	Error *string `json:"error,omitempty"`
	// Its id.
	ID string `json:"id"`
	// What it does.
	Kind BulkKind `json:"kind"`
	// Jobs that matched so far.
	Matched int64 `json:"matched"`
	// Jobs that refused the change (they had ended, or were running).
	Refused int64 `json:"refused"`
	// The first jobs that a dry run would change, at most 20.
	Sample []string `json:"sample,omitempty"`
	// Jobs that were not replayed: they were replayed before, or a live job has their correlation key.
	Skipped *int64 `json:"skipped,omitempty"`
	// The first of these, at most 100.
	SkippedJobs []SkippedJob `json:"skipped_jobs,omitempty"`
	// `running`, `done` or `failed`.
	State string `json:"state"`
	// The ids of jobs that may match and cannot be read, at most 100. They are left out.
	Unreadable []string `json:"unreadable,omitempty"`
}

// OperationAnswer: A background operation.
type OperationAnswer struct {
	// Its current state.
	Operation Operation `json:"operation"`
}

// OrderKind: Which candidate goes first.
type OrderKind string

// The values of OrderKind.
const (
	OrderKindTime     OrderKind = "time"
	OrderKindPriority OrderKind = "priority"
)

// OriginalJob: A job as it came, before a retry strategy changed it.
type OriginalJob struct {
	// Its attributes.
	Attributes map[string]any `json:"attributes"`
	// Its data. Absent if they were not changed, are no JSON, or have more than 4096 bytes.
	Data json.RawMessage `json:"data,omitempty"`
	// Its most attempts.
	MaxAttempts *int64 `json:"max_attempts,omitempty"`
	// Its priority.
	Priority int64 `json:"priority"`
	// Its timeout.
	TimeoutSeconds *float64 `json:"timeout_seconds,omitempty"`
	// Its weight.
	Weight *int64 `json:"weight,omitempty"`
}

// OtherServer: The console of another server.
type OtherServer struct {
	// Its name.
	Name string `json:"name"`
	// Its address.
	URL string `json:"url"`
}

// OverviewMinute: A minute of a queue.
type OverviewMinute struct {
	// When it began.
	At string `json:"at"`
	// Jobs that were accepted. Absent on AWS.
	Enqueued *int64 `json:"enqueued,omitempty"`
	// Jobs that ended `failed`.
	Failed int64 `json:"failed"`
	// Jobs that ended, in whatever way.
	Finished int64 `json:"finished"`
	// Jobs in phase `ready` at the end of the last recorded step of the minute.
	Ready int64 `json:"ready"`
	// Jobs in phase `running` at that time.
	Running int64 `json:"running"`
}

// OverviewPage: A page of queues with their state and their last hour.
type OverviewPage struct {
	// When the page was made.
	At string `json:"at"`
	// Where the next page starts; absent on the last.
	NextCursor *string `json:"next_cursor,omitempty"`
	// The queues, by name.
	Queues []QueueOverview `json:"queues"`
}

// Plugin: A plugin.
type Plugin struct {
	// Statistics of the live version's calls.
	Health PluginHealth `json:"health"`
	// The number of the live version, which decides.
	Live int64 `json:"live"`
	// Its name.
	Name string `json:"name"`
	// The number of the version that has the pushed bytes; only the answer to a push has it.
	Pushed *int64 `json:"pushed,omitempty"`
	// Which of its calls are stored for a time, in addition to those that fail; absent if none are.
	Recording *PluginRecording `json:"recording,omitempty"`
	// The description of its live version as a retry strategy, if it is one.
	Retry *Description `json:"retry,omitempty"`
	// The roles of its live version.
	Roles []Role `json:"roles"`
	// Whether there is code of that version for this release and machine: without it every call fails.
	Runnable bool `json:"runnable"`
	// The number of the shadow version, which is called for comparison alone; null if there is none.
	Shadow *int64 `json:"shadow,omitempty"`
	// Statistics of the shadow version's calls; absent if there is none.
	ShadowHealth *PluginHealth `json:"shadow_health,omitempty"`
	// The description of its live version as a throttler, if it is one.
	Throttler *Description `json:"throttler,omitempty"`
	// The queues and job types that use it.
	UsedBy []PluginUser `json:"used_by"`
	// Raised by every change; the `ETag` contains it.
	Version int64 `json:"version"`
}

// PluginCallFault: Why a call failed.
type PluginCallFault struct {
	// The kind: `rejected`, `timeout`, `resource_exhausted`, `trapped`, `invalid_answer` or
	// `unavailable`.
	Kind string `json:"kind"`
	// What went wrong, for the plugin's author.
	Message string `json:"message"`
}

// PluginCallFilter: Which calls of a plugin are stored. A call matches if one of its jobs meets
// all conditions; without conditions every call does.
type PluginCallFilter struct {
	// The decision about the job.
	Action *DecidedAction `json:"action,omitempty"`
	// Values of attributes of the job: at most 16, of at most 256 bytes.
	Attributes map[string]string `json:"attributes,omitempty"`
	// The id of the job.
	Job *string `json:"job,omitempty"`
	// The queue.
	Queue *string `json:"queue,omitempty"`
	// A part of the reason of the decision: at most 256 bytes.
	Reason *string `json:"reason,omitempty"`
	// The type of the job.
	Type *string `json:"type,omitempty"`
}

// PluginCallLogLine: A line that a plugin logged in a call.
type PluginCallLogLine struct {
	// The level: `debug`, `info`, `warn` or `error`.
	Level string `json:"level"`
	// The text.
	Message string `json:"message"`
}

// PluginCalls: How the calls of plugins about a queue's jobs are recorded.
type PluginCalls struct {
	// What recorded calls lack (default: nothing): `data` of jobs; the plugin's `state`, in either
	// role; messages and details of `failures`; the `texts` of the plugin, which are its log, its
	// reasons and the messages of its faults; all `attributes`, or one as `attributes.NAME`. At most
	// 32.
	Redact []string `json:"redact,omitempty"`
	// Whether calls are stored: those that fail, those that a filter matches, and on AWS and Postgres
	// one a minute (default true). Without it, recorded calls are in the memory of the server alone.
	Store *bool `json:"store,omitempty"`
}

// PluginCode: Machine code of a version.
type PluginCode struct {
	// For which engine and settings.
	Engine string `json:"engine"`
	// For which machine, as a target triple.
	Target string `json:"target"`
}

// PluginDifferences: How the shadow version compares with the live one.
type PluginDifferences struct {
	// Decisions that were compared.
	Compared int64 `json:"compared"`
	// The latest differences, latest first.
	Differences []Difference `json:"differences"`
	// Those that differed.
	Different int64 `json:"different"`
	// Calls of the shadow version that failed.
	Failed int64 `json:"failed"`
	// Calls that were not compared for lack of time.
	Missed int64 `json:"missed"`
	// The shadow version; null if there is none.
	Version *int64 `json:"version,omitempty"`
}

// PluginFault: A call that failed.
type PluginFault struct {
	// When.
	At string `json:"at"`
	// The kind: `rejected`, `timeout`, `resource_exhausted`, `trapped`, `invalid_answer` or
	// `unavailable`.
	Kind string `json:"kind"`
	// What went wrong, for the plugin's author.
	Message string `json:"message"`
	// The role in which it was called.
	Role Role `json:"role"`
	// Whether it was the shadow version, which decides nothing.
	Shadow bool `json:"shadow"`
	// The number of the plugin's version.
	Version int64 `json:"version"`
}

// PluginFaults: The latest faults.
type PluginFaults struct {
	// The faults, latest first.
	Faults []RecordedPluginFault `json:"faults"`
}

// PluginHealth: Statistics of a plugin's calls since the server started.
type PluginHealth struct {
	// How often it was called.
	Calls int64 `json:"calls"`
	// Whether the latest call failed.
	Failing bool `json:"failing"`
	// How many calls failed.
	Faults int64 `json:"faults"`
	// Failed calls by the kind of fault: `rejected`, `timeout`, `resource_exhausted`, `trapped`,
	// `invalid_answer`, `unavailable`.
	FaultsByKind map[string]int64 `json:"faults_by_kind"`
	// The latest fault, if there was one.
	LastFault *PluginFault `json:"last_fault,omitempty"`
	// What the latest call used.
	LastUsage *PluginUsage `json:"last_usage,omitempty"`
}

// PluginLogLine: A line of a plugin's log.
type PluginLogLine struct {
	// When the call was that logged it.
	At string `json:"at"`
	// The level: `debug`, `info`, `warn` or `error`.
	Level string `json:"level"`
	// The text.
	Message string `json:"message"`
	// Counted up from 1 since the server started: the parameter `after` refers to it.
	Number int64 `json:"number"`
	// The role in which it was called.
	Role Role `json:"role"`
	// The number of the plugin's version.
	Version int64 `json:"version"`
}

// PluginLogs: The latest lines of a plugin's log.
type PluginLogs struct {
	// The lines, oldest first.
	Logs []PluginLogLine `json:"logs"`
}

// PluginPage: A page of plugins.
type PluginPage struct {
	// Where the next page starts; absent on the last.
	NextCursor *string `json:"next_cursor,omitempty"`
	// The plugins, by name.
	Plugins []Plugin `json:"plugins"`
}

// PluginPrune: How many versions a prune keeps.
type PluginPrune struct {
	// The latest versions that are kept, 1 to 50 (default 5).
	Keep *int64 `json:"keep,omitempty"`
}

// PluginRecording: The calls of a plugin that the server stores for a time.
type PluginRecording struct {
	// Which calls.
	Filter PluginCallFilter `json:"filter"`
	// Calls after this time are not stored.
	Until string `json:"until"`
}

// PluginRecordingRequest: Which calls are stored, and how long.
type PluginRecordingRequest struct {
	// Which calls (default: all).
	Filter *PluginCallFilter `json:"filter,omitempty"`
	// How long from now, 1 to 86400 (default 3600).
	ForSeconds *int64 `json:"for_seconds,omitempty"`
}

// PluginRollback: Which version becomes live.
type PluginRollback struct {
	// The version that becomes live; absent, the previously live one.
	Version *int64 `json:"version,omitempty"`
}

// PluginShadow: Which version becomes the shadow.
type PluginShadow struct {
	// The version that is called for comparison with the live one.
	Version int64 `json:"version"`
}

// PluginUsage: What a call used.
type PluginUsage struct {
	// Fuel, of 500 million; unknown after a timeout.
	Fuel *int64 `json:"fuel,omitempty"`
	// Calls of imported functions, of 100,000.
	HostCalls int64 `json:"host_calls"`
	// Memory, of 64 MiB.
	MemoryBytes int64 `json:"memory_bytes"`
	// Time, of 0.25 s.
	TookSeconds float64 `json:"took_seconds"`
}

// PluginUser: A queue or a job type that uses a plugin.
type PluginUser struct {
	// `queue` or `job_type`.
	Kind string `json:"kind"`
	// Its name.
	Name string `json:"name"`
}

// PluginVersion: A version of a plugin.
type PluginVersion struct {
	// The component's bytes.
	Bytes int64 `json:"bytes"`
	// Its machine code: a target triple and an engine each.
	Compiled []PluginCode `json:"compiled"`
	// Whether it decides.
	Live bool `json:"live"`
	// Counted up from 1.
	Number int64 `json:"number"`
	// When it was pushed.
	PushedAt string `json:"pushed_at"`
	// Its description as a retry strategy, if it is one.
	Retry *Description `json:"retry,omitempty"`
	// Its roles.
	Roles []Role `json:"roles"`
	// The SHA-256 of the component, in hexadecimal.
	Sha256 string `json:"sha256"`
	// Whether it is called for comparison with the live version.
	Shadow bool `json:"shadow"`
	// Its description as a throttler, if it is one.
	Throttler *Description `json:"throttler,omitempty"`
}

// PluginVersionPage: A page of versions.
type PluginVersionPage struct {
	// Where the next page starts; absent on the last.
	NextCursor *string `json:"next_cursor,omitempty"`
	// The versions, oldest first.
	Versions []PluginVersion `json:"versions"`
}

// Problem: Why a request was not done (RFC 9457).
type Problem struct {
	// A stable word for programs to act on.
	Code string `json:"code"`
	// What is wrong in this case.
	Detail string `json:"detail"`
	// The error of the job that ended so, if it has one.
	Error *JobError `json:"error,omitempty"`
	// The field, parameter or header that caused the problem, with its path:
	// `constraints[2].rate.count`.
	Field *string `json:"field,omitempty"`
	// The job that the request conflicts with.
	Holder *string `json:"holder,omitempty"`
	// The path of the request.
	Instance *string `json:"instance,omitempty"`
	// Everything that is wrong, where one sentence cannot list it.
	Reasons []string `json:"reasons,omitempty"`
	// How the job ended, with `job_failed`: `failed`, `expired`, `cancelled` or `dropped`.
	State *string `json:"state,omitempty"`
	// The HTTP status. Default: `0`.
	Status int64 `json:"status"`
	// The kind in words.
	Title string `json:"title"`
	// A name for this kind of problem: `urn:tidegate:problem:` and the code.
	Type string `json:"type"`
}

// Progress: The progress of an attempt, as its worker reports it.
type Progress struct {
	// A note for people.
	Note *string `json:"note,omitempty"`
	// 0 to 100.
	Percent float64 `json:"percent"`
}

// PrunedPlugin: What a prune removed.
type PrunedPlugin struct {
	// The numbers of the versions that are left, in order.
	Kept []int64 `json:"kept"`
	// The numbers of the removed versions, or of those that a dry run would remove, in order.
	Removed []int64 `json:"removed"`
}

// Pull: `{"pull": true}`.
type Pull struct {
	// Always true.
	Pull bool `json:"pull"`
}

// Push: A URL that jobs are posted to.
type Push struct {
	// HTTP Basic credentials.
	BasicAuth *BasicAuth `json:"basic_auth,omitempty"`
	// When a job ends.
	Complete *Complete `json:"complete,omitempty"`
	// How the request's body is written.
	Encoding *PushEncoding `json:"encoding,omitempty"`
	// Headers of every request, with the bounds of a job's headers. `authorization` must not be given
	// together with `basic_auth`.
	Headers map[string]string `json:"headers,omitempty"`
	// The secret that signs every request, or two during a rotation; write-only. Each is `whsec_` and
	// the base64 of 24 to 64 bytes, or 1 to 256 bytes of text, which is the key itself.
	SigningSecret any `json:"signing_secret,omitempty"`
	// The URL, http or https, without credentials, at most 2048 bytes; `{type}` and `{id}` in its path
	// and query are replaced.
	URL string `json:"url"`
}

// PushCallback: Where a later result goes.
type PushCallback struct {
	// The attempt's token, for `Authorization: Bearer`.
	Token string `json:"token"`
	// Where to report: as `POST /v1/jobs/{type}/{id}`.
	URL string `json:"url"`
}

// PushEncoding: How a push request's body is written.
type PushEncoding string

// The values of PushEncoding.
const (
	PushEncodingJson    PushEncoding = "json"
	PushEncodingMsgpack PushEncoding = "msgpack"
)

// PushFailure: The body of a failed response that gives message and details apart, with the fields
// of a report. A body with another member, or without a message, is not of this form.
type PushFailure struct {
	// Details of the error, such as a stack trace: any value. One over 16 KiB is left out.
	Error json.RawMessage `json:"error,omitempty"`
	// What went wrong, for people; what exceeds 4 KiB is cut off.
	Message string `json:"message"`
}

// PushRequest: The body of a request to a push target.
type PushRequest struct {
	// The attempt, from 1.
	Attempt int64 `json:"attempt"`
	// What limits match on.
	Attributes map[string]any `json:"attributes"`
	// Where the result goes if it comes later than the response.
	Callback PushCallback `json:"callback"`
	// What an earlier attempt has stored for this one.
	Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
	// The key by which a reply finds the job, if it has one.
	CorrelationKey *string `json:"correlation_key,omitempty"`
	// What it carries.
	Data json.RawMessage `json:"data"`
	// The job's headers, where the request has none of its own: to a service of AWS.
	Headers map[string]string `json:"headers,omitempty"`
	// The job.
	ID string `json:"id"`
	// Most attempts.
	MaxAttempts int64 `json:"max_attempts"`
	// Its type.
	Type string `json:"type"`
}

// Quantiles: Quantiles, within 5 %. Those of a day are estimates from the quantiles of shorter
// steps.
type Quantiles struct {
	// Half of the values are at most this.
	P50 float64 `json:"p50"`
	// 95 % of the values are at most this.
	P95 float64 `json:"p95"`
	// 99 % of the values are at most this.
	P99 float64 `json:"p99"`
}

// Queue: A queue.
type Queue struct {
	// With `order: priority`, this long a wait counts as one step of priority (0.001 to 31536000).
	AgeingSeconds *float64 `json:"ageing_seconds,omitempty"`
	// Most weight that runs at once; absent means unlimited, 0 admits nothing.
	Concurrency *int64 `json:"concurrency,omitempty"`
	// Limits on jobs that match a condition: at most 32, with distinct names.
	Constraints []Constraint `json:"constraints,omitempty"`
	// Its name.
	Name string `json:"name"`
	// Which candidate goes first (default `time`).
	Order *OrderKind `json:"order,omitempty"`
	// The step to which `order: time` rounds due times (default 60; 0 to 300, 0 means exact).
	OrderStepSeconds *float64 `json:"order_step_seconds,omitempty"`
	// The attribute whose values take turns: a name of 1 to 64 bytes. The value at the enqueue counts.
	// A change applies to jobs that are enqueued, or whose data is changed, afterwards.
	PartitionBy *string `json:"partition_by,omitempty"`
	// A second attribute, so that the combinations of both values take turns. It needs `partition_by`,
	// names another attribute than that, and excludes `strict_order`.
	PartitionThenBy *string `json:"partition_then_by,omitempty"`
	// Whether it holds every job.
	Paused bool `json:"paused"`
	// What is recorded of the calls of plugins about the queue's jobs: by its throttler, and by the
	// retry strategies of its types. Absent: every call whole.
	PluginCalls *PluginCalls `json:"plugin_calls,omitempty"`
	// Its current state; answers to reads have it.
	Status *QueueStatus `json:"status,omitempty"`
	// Whether the jobs of a partition start one after another, in the order of their first due times:
	// the oldest holds back the rest until it has ended, also while it waits for another attempt. It
	// needs `partition_by`, and excludes `partition_then_by`, a throttler and `order: priority`.
	// Critical jobs, and jobs without the attribute, have no such order (default false).
	StrictOrder *bool `json:"strict_order,omitempty"`
	// The plugin that decides on candidates within the limits.
	Throttler *Throttler `json:"throttler,omitempty"`
	// Raised by every change; the `ETag` contains it.
	Version int64 `json:"version"`
}

// QueueChange: Event `queue`: the configuration of a queue has changed, a pause included.
type QueueChange struct {
	// The queue.
	Queue string `json:"queue"`
	// Its new version; absent if it was removed.
	Version *int64 `json:"version,omitempty"`
}

// QueueConfig: How a queue admits jobs.
type QueueConfig struct {
	// With `order: priority`, this long a wait counts as one step of priority (0.001 to 31536000).
	AgeingSeconds *float64 `json:"ageing_seconds,omitempty"`
	// Most weight that runs at once; absent means unlimited, 0 admits nothing.
	Concurrency *int64 `json:"concurrency,omitempty"`
	// Limits on jobs that match a condition: at most 32, with distinct names.
	Constraints []Constraint `json:"constraints,omitempty"`
	// Which candidate goes first (default `time`).
	Order *OrderKind `json:"order,omitempty"`
	// The step to which `order: time` rounds due times (default 60; 0 to 300, 0 means exact).
	OrderStepSeconds *float64 `json:"order_step_seconds,omitempty"`
	// The attribute whose values take turns: a name of 1 to 64 bytes. The value at the enqueue counts.
	// A change applies to jobs that are enqueued, or whose data is changed, afterwards.
	PartitionBy *string `json:"partition_by,omitempty"`
	// A second attribute, so that the combinations of both values take turns. It needs `partition_by`,
	// names another attribute than that, and excludes `strict_order`.
	PartitionThenBy *string `json:"partition_then_by,omitempty"`
	// What is recorded of the calls of plugins about the queue's jobs: by its throttler, and by the
	// retry strategies of its types. Absent: every call whole.
	PluginCalls *PluginCalls `json:"plugin_calls,omitempty"`
	// Whether the jobs of a partition start one after another, in the order of their first due times:
	// the oldest holds back the rest until it has ended, also while it waits for another attempt. It
	// needs `partition_by`, and excludes `partition_then_by`, a throttler and `order: priority`.
	// Critical jobs, and jobs without the attribute, have no such order (default false).
	StrictOrder *bool `json:"strict_order,omitempty"`
	// The plugin that decides on candidates within the limits.
	Throttler *Throttler `json:"throttler,omitempty"`
}

// QueueConfigPatch: How a queue admits jobs.
type QueueConfigPatch struct {
	// With `order: priority`, this long a wait counts as one step of priority (0.001 to 31536000).
	AgeingSeconds *float64 `json:"ageing_seconds,omitempty"`
	// Most weight that runs at once; absent means unlimited, 0 admits nothing.
	Concurrency *int64 `json:"concurrency,omitempty"`
	// Limits on jobs that match a condition: at most 32, with distinct names.
	Constraints []Constraint `json:"constraints,omitempty"`
	// Which candidate goes first (default `time`).
	Order *OrderKind `json:"order,omitempty"`
	// The step to which `order: time` rounds due times (default 60; 0 to 300, 0 means exact).
	OrderStepSeconds *float64 `json:"order_step_seconds,omitempty"`
	// The attribute whose values take turns: a name of 1 to 64 bytes. The value at the enqueue counts.
	// A change applies to jobs that are enqueued, or whose data is changed, afterwards.
	PartitionBy *string `json:"partition_by,omitempty"`
	// A second attribute, so that the combinations of both values take turns. It needs `partition_by`,
	// names another attribute than that, and excludes `strict_order`.
	PartitionThenBy *string `json:"partition_then_by,omitempty"`
	// What is recorded of the calls of plugins about the queue's jobs: by its throttler, and by the
	// retry strategies of its types. Absent: every call whole.
	PluginCalls map[string]any `json:"plugin_calls,omitempty"`
	// Whether the jobs of a partition start one after another, in the order of their first due times:
	// the oldest holds back the rest until it has ended, also while it waits for another attempt. It
	// needs `partition_by`, and excludes `partition_then_by`, a throttler and `order: priority`.
	// Critical jobs, and jobs without the attribute, have no such order (default false).
	StrictOrder *bool `json:"strict_order,omitempty"`
	// The plugin that decides on candidates within the limits.
	Throttler map[string]any `json:"throttler,omitempty"`
}

// QueueExplanation: Why a queue is idle or slow.
type QueueExplanation struct {
	// The weight that runs under each constraint's concurrency, the heaviest first, at most 100
	// values.
	Constraints []ConstraintUse `json:"constraints"`
	// How many due jobs were examined, at most 1000: the first in the order of the queue.
	Examined int64 `json:"examined"`
	// What holds them, in the order of the first job of each. A job that nothing holds is in none.
	Held []HeldJobs `json:"held"`
	// Whether there are more due jobs.
	More bool `json:"more"`
	// When the next job is due, if none is due now.
	NextDueAt *string `json:"next_due_at,omitempty"`
	// For people: what holds the first due job, or why there is none.
	Reason string `json:"reason"`
	// What runs under the limits of the queue, the heaviest first, at most 100 types; empty if it has
	// no limits.
	Running []TypeUse `json:"running"`
	// The workers of each type of the queue.
	Workers []TypeWorkers `json:"workers"`
}

// QueueOverview: The state of a queue and its last hour, from what the server counts regularly.
type QueueOverview struct {
	// The most weight that may run at once; null: no limit.
	Concurrency *int64 `json:"concurrency,omitempty"`
	// When the jobs were counted: about two seconds ago at most, on AWS about a minute. Null if the
	// queue has no live job on AWS.
	CountedAt *string `json:"counted_at,omitempty"`
	// Whether there may have been more jobs, on AWS.
	DepthAtLeast bool `json:"depth_at_least"`
	// How many workers would drain the due jobs in a minute, as in the status of a queue.
	DesiredWorkers int64 `json:"desired_workers"`
	// When `held` and `desired_workers` were determined. Absent without due jobs, and while they are
	// not known: then they are empty and 0.
	ExplainedAt *string `json:"explained_at,omitempty"`
	// What holds the first due jobs, as in the status of a queue, and as it was some seconds ago: an
	// answer explains at most 16 queues again. Empty if nothing does.
	Held []HeldJobs `json:"held"`
	// The minutes of the last hour, oldest first, at most 61. Those in which nothing happened are left
	// out.
	Minutes []OverviewMinute `json:"minutes"`
	// Its name.
	Name string `json:"name"`
	// The due time of the job that has been due longest. Null without any, and on AWS.
	OldestDueAt *string `json:"oldest_due_at,omitempty"`
	// Whether it holds every job.
	Paused bool `json:"paused"`
	// How many jobs are in each phase, by the name of the phase, as in the status of a queue.
	Phases map[string]int64 `json:"phases"`
	// The weight of the running jobs, without critical ones.
	RunningWeight int64 `json:"running_weight"`
	// How long after their due time attempts started in the last five minutes. Null without any, and
	// on AWS.
	StartDelaySeconds *Quantiles `json:"start_delay_seconds,omitempty"`
	// The rates of the last five minutes, or since the first start.
	Throughput Throughput `json:"throughput"`
	// In how many seconds no job is due or runs any more, as in the history of a queue. Absent if
	// their number does not fall.
	TimeToEmptySeconds *float64 `json:"time_to_empty_seconds,omitempty"`
	// Pull workers that share the queue, as in the status of a queue.
	Workers int64 `json:"workers"`
}

// QueuePage: A page of queues.
type QueuePage struct {
	// Where the next page starts; absent on the last.
	NextCursor *string `json:"next_cursor,omitempty"`
	// The queues, by name.
	Queues []Queue `json:"queues"`
}

// QueueStatus: The current state of a queue.
type QueueStatus struct {
	// The weight that runs under each constraint's concurrency, the heaviest first, at most 100
	// values.
	Constraints []ConstraintUse `json:"constraints"`
	// When `depth`, `phases`, and the `running_weight` of a queue without limits, were counted, on
	// AWS; absent if they are those of the answer. The maintenance sweep counts each minute.
	CountedAt *string `json:"counted_at,omitempty"`
	// How many jobs are in each state, by the name of the state. Ended jobs count for as long as they
	// are stored; on AWS until the last of their hour is deleted.
	Depth map[string]int64 `json:"depth"`
	// Whether there may have been more jobs than `depth` has: on AWS, at most 2000 that are due, and
	// 1000 that are due in each later hour, are counted.
	DepthAtLeast *bool `json:"depth_at_least,omitempty"`
	// How many workers would drain the due jobs, as counted in `ready`, in a minute, within the limits
	// and rates of the queue; 0 if it is paused. Throttlers are not considered. A type whose jobs have
	// not run is assumed to take its `lease_seconds`.
	DesiredWorkers int64 `json:"desired_workers"`
	// What holds the first 100 due jobs, of a queue with constraints the first 1000, in their order;
	// empty if nothing does.
	Held []HeldJobs `json:"held"`
	// How long after their due time attempts start, a moving mean since the server started.
	LatenessSeconds float64 `json:"lateness_seconds"`
	// The due time of the job that has been due longest.
	OldestDueAt *string `json:"oldest_due_at,omitempty"`
	// How many of them are in each phase, by the name of the phase. Of the jobs that are due later,
	// the soonest 1000 are looked at, in a list of queues 100; further ones count as `scheduled`, and
	// so do ready ones beyond 100000 then. On AWS the phases are those of `counted_at`.
	Phases map[string]int64 `json:"phases,omitempty"`
	// How many jobs are due and wait for admission or a worker, counted up to 100000; on AWS up to
	// 1000.
	Ready int64 `json:"ready"`
	// The weight of the running jobs, without critical ones. In a queue without limits, at most 10000
	// jobs count.
	RunningWeight int64 `json:"running_weight"`
	// Pull workers that share the queue: those that wait for its jobs, run jobs, or called within a
	// minute, without drained ones. The serverless deployment mode counts those that registered for
	// the queue or one of its types within a minute.
	Workers *int64 `json:"workers,omitempty"`
}

// Rate: How many attempts may start in a period, whatever their weight. Without `burst`, at most
// `count` start in any window of `per_seconds`, wherever it begins. With `burst`, it is a token
// bucket of that capacity, refilled by `count` per `per_seconds`: at most `burst` start at once,
// and up to `burst + count` in one period.
type Rate struct {
	// The capacity of a token bucket (1 to 1000000). Absent: a window.
	Burst *int64 `json:"burst,omitempty"`
	// Most starts in a window, or the tokens that are added in a period (1 to 1000000). A count over
	// 32 is kept in 32 parts of the window: never exceeded, and at most 1/32 less.
	Count int64 `json:"count"`
	// The period (0.001 to 2592000).
	PerSeconds float64 `json:"per_seconds"`
}

// Reason: Why an attempt failed. Serialised in lower case with underscores.
type Reason string

// The values of Reason.
const (
	ReasonFailed         Reason = "failed"
	ReasonTimeout        Reason = "timeout"
	ReasonLeaseExpired   Reason = "lease_expired"
	ReasonConnectionLost Reason = "connection_lost"
	ReasonNotDelivered   Reason = "not_delivered"
	ReasonOutcomeUnknown Reason = "outcome_unknown"
	ReasonDeadline       Reason = "deadline"
)

// RecordedPluginCall: A recorded call.
type RecordedPluginCall struct {
	// The answer, as the field `expect` of a case has it. A list of calls does not have it.
	Answer json.RawMessage `json:"answer,omitempty"`
	// When it was made.
	At string `json:"at"`
	// The call, as `tidegate plugin replay` repeats it; absent if it was too large. A list of calls
	// does not have it.
	Call json.RawMessage `json:"call,omitempty"`
	// The number of jobs by what was decided about them: `run`, `hold`, `reschedule`, `drop`, `retry`
	// or `give_up`.
	Decided map[string]int64 `json:"decided"`
	// The fault, if it failed.
	Fault *PluginCallFault `json:"fault,omitempty"`
	// Its id.
	ID string `json:"id"`
	// What the plugin logged in this call.
	Log []PluginCallLogLine `json:"log"`
	// The queue that it is about.
	Queue string `json:"queue"`
	// Why it was recorded: `latest` (in memory), `fault`, `filter` or `sample`.
	Reason string `json:"reason"`
	// What it lacks, as the setting `plugin_calls` of its queue defines.
	Redacted []string `json:"redacted"`
	// The role in which it was called.
	Role Role `json:"role"`
	// Whether it was the shadow version, which decides nothing.
	Shadow bool `json:"shadow"`
	// What it used.
	Usage PluginUsage `json:"usage"`
	// The number of the plugin's version.
	Version int64 `json:"version"`
}

// RecordedPluginCalls: Recorded calls.
type RecordedPluginCalls struct {
	// The calls, latest first.
	Calls []RecordedPluginCall `json:"calls"`
}

// RecordedPluginFault: A call that failed, with its input.
type RecordedPluginFault struct {
	// When.
	At string `json:"at"`
	// The call, as `tidegate plugin test` repeats it.
	Call json.RawMessage `json:"call"`
	// The kind: `rejected`, `timeout`, `resource_exhausted`, `trapped`, `invalid_answer` or
	// `unavailable`.
	Kind string `json:"kind"`
	// What went wrong, for the plugin's author.
	Message string `json:"message"`
	// The role in which it was called.
	Role Role `json:"role"`
	// Whether it was the shadow version, which decides nothing.
	Shadow bool `json:"shadow"`
	// The number of the plugin's version.
	Version int64 `json:"version"`
}

// Registration: A worker's registration.
type Registration struct {
	// How many jobs it runs at once: a lease call gets no more than the rest of that. Absent: as many
	// as it requests. An embedded server keeps the capacity over a restart, until a week after the
	// worker's latest call. The serverless deployment mode only lists it.
	Capacity *int64 `json:"capacity,omitempty"`
	// The queue that it takes jobs of, as in its lease requests.
	Queue *string `json:"queue,omitempty"`
	// The types that it takes, as in its lease requests, at most 100. With `queue` or `types` it
	// counts among the `workers` of its queues for a minute. The serverless deployment mode counts no
	// others.
	Types []string `json:"types,omitempty"`
}

// RemovedJob: Event `removed`: the record of a job was removed, because its retention is over.
type RemovedJob struct {
	// The job.
	ID string `json:"id"`
}

// ReplayDeadLetters: Which dead letters.
type ReplayDeadLetters struct {
	// `next_cursor` of the previous call.
	Cursor *string `json:"cursor,omitempty"`
	// Only this trigger's.
	Trigger *string `json:"trigger,omitempty"`
}

// ReplayWith: What a replay changes in the new job. Absent fields are those of the old job; null
// is what an enqueue without the field has.
type ReplayWith struct {
	// Make another job if the old one was replayed before.
	Again *bool `json:"again,omitempty"`
	// Other attributes; null means only those extracted from the data.
	Attributes map[string]any `json:"attributes,omitempty"`
	// Other data; null is a value.
	Data json.RawMessage `json:"data,omitempty"`
	// Another instant after which it never starts; null means none.
	ExpiresAt *string `json:"expires_at,omitempty"`
	// Another priority; null means that of the type.
	Priority *int64 `json:"priority,omitempty"`
	// Another weight; null means that of the type.
	Weight *int64 `json:"weight,omitempty"`
	// Other windows; null means those of the type.
	Windows []Window `json:"windows,omitempty"`
}

// ReplayedAction: The trigger no longer matches it: the letter is deleted.
type ReplayedAction struct {
	// `unmatched`.
	Action string `json:"action"`
}

// ReplayedDeadLetters: What became of some dead letters.
type ReplayedDeadLetters struct {
	// Where the next call starts; absent after the last letter.
	NextCursor *string `json:"next_cursor,omitempty"`
	// How many remain dead letters.
	Remaining int64 `json:"remaining"`
	// How many are deleted: their triggers handled them, or no longer match them.
	Replayed int64 `json:"replayed"`
}

// Report: A worker's report of one attempt.
type Report struct {
	// The attempt, as the delivery or the lease named it.
	Attempt int64 `json:"attempt"`
	// Not with `succeeded`: what the next attempt needs to go on, any value of at most 64 KiB. It
	// replaces an earlier one; null leaves that.
	Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
	// With `snoozed`, instead of `run_at`: in how many seconds it may start again (0 to 315360000).
	DelaySeconds *float64 `json:"delay_seconds,omitempty"`
	// With `failed`: details of the error, any value of at most 16 KiB.
	Error json.RawMessage `json:"error,omitempty"`
	// When the worker finished. It is read and not kept: the server's own clock counts.
	FinishedAt *string `json:"finished_at,omitempty"`
	// The job; required among the reports of a lease call, elsewhere the path names it.
	ID *string `json:"id,omitempty"`
	// Log lines of the attempt since its latest heartbeat, oldest first. At most 64 KiB of an attempt
	// and 256 KiB of a job are kept, the latest.
	Log []NewLogLine `json:"log,omitempty"`
	// What went wrong, or why it is handed back, for people, at most 4 KiB. Not with `succeeded`.
	Message *string `json:"message,omitempty"`
	// With `failed`: the reason (default `failed`).
	Reason *Reason `json:"reason,omitempty"`
	// With `succeeded`: the result, any value, kept byte for byte.
	Result json.RawMessage `json:"result,omitempty"`
	// With `failed`: whether another attempt makes sense (default true).
	Retryable *bool `json:"retryable,omitempty"`
	// With `snoozed`: when the job may start again; in the past means now.
	RunAt *string `json:"run_at,omitempty"`
	// The outcome.
	Status Status `json:"status"`
	// The attempt's token. It is optional with scope `work`; if present, it must be the attempt's.
	Token *string `json:"token,omitempty"`
	// Its type, if it is to be checked.
	Type *string `json:"type,omitempty"`
}

// Reported: The answer to a report.
type Reported struct {
	// Why the report was refused.
	Error *Problem `json:"error,omitempty"`
	// The job.
	ID string `json:"id"`
	// The job's state after the report.
	State *string `json:"state,omitempty"`
	// The status with which the report alone would have been answered.
	Status int64 `json:"status"`
}

// RetryExponential: an object.
type RetryExponential struct {
	Config   *Backoff `json:"config,omitempty"`
	Strategy string   `json:"strategy"`
}

// RetryPlugin: an object.
type RetryPlugin struct {
	Config map[string]any `json:"config,omitempty"`
	// A plugin's name.
	Plugin string `json:"plugin"`
}

// Role: The roles of a plugin.
type Role string

// The values of Role.
const (
	RoleThrottler Role = "throttler"
	RoleRetry     Role = "retry"
)

// Running: The running attempt.
type Running struct {
	// Whether a cancel was requested.
	Cancel bool `json:"cancel"`
	// Without a heartbeat the lease expires then.
	LeaseExpiresAt string `json:"lease_expires_at"`
	// The worker's latest report of progress.
	Progress *Progress `json:"progress,omitempty"`
	// After that the attempt fails with reason `timeout`.
	TimeoutAt string `json:"timeout_at"`
	// How many milliseconds it had waited when it started, as in `history`.
	WaitedMs *int64 `json:"waited_ms,omitempty"`
	// The worker's name.
	Worker *string `json:"worker,omitempty"`
}

// Schedule: A schedule.
type Schedule struct {
	// An instant from which every occurrence is a multiple of `every_seconds` away (default
	// `starts_at`, else the epoch).
	Anchor *string `json:"anchor,omitempty"`
	// What limits, partitions and searches compare, at most 16; those extracted from the data win.
	Attributes map[string]any `json:"attributes,omitempty"`
	// The URL that is notified when the job ends.
	CallbackURL *string `json:"callback_url,omitempty"`
	// Not held by limits, and takes no capacity. An enqueue needs scope `enqueue:critical`. Default:
	// `false`.
	Critical *bool `json:"critical,omitempty"`
	// A cron pattern: minute, hour, day of the month, month, day of the week; or those after a second.
	// At most 256 bytes. Either this or `every_seconds` must be given.
	Cron *string `json:"cron,omitempty"`
	// The data of its jobs.
	Data json.RawMessage `json:"data"`
	// From creation to end.
	DeadlineSeconds *float64 `json:"deadline_seconds,omitempty"`
	// No occurrence after this.
	EndsAt *string `json:"ends_at,omitempty"`
	// The span from one occurrence to the next (1 to 31536000).
	EverySeconds *float64 `json:"every_seconds,omitempty"`
	// Most time between an occurrence and the start of its job (0.001 to 315360000).
	ExpiresAfterSeconds *float64 `json:"expires_after_seconds,omitempty"`
	// Passed on to the worker.
	Headers map[string]string `json:"headers,omitempty"`
	// How long the result can be read.
	KeepResult any `json:"keep_result,omitempty"`
	// Why the next occurrence has not created its job yet; it is retried.
	LastError *ScheduleError `json:"last_error,omitempty"`
	// That job: its id is the schedule's name and the occurrence.
	LastJob *string `json:"last_job,omitempty"`
	// The latest occurrence that created a job.
	LastOccurrence *string `json:"last_occurrence,omitempty"`
	// Most attempts (default 3).
	MaxAttempts *int64 `json:"max_attempts,omitempty"`
	// With `missed: all`, how many of the latest missed occurrences make jobs (default 100; 1 to
	// 1000).
	MaxMissed *int64 `json:"max_missed,omitempty"`
	// What follows for occurrences that are over a minute late (default `one`).
	Missed *Missed `json:"missed,omitempty"`
	// How many occurrences were missed without a job; of one stretch at most 1000 are counted.
	MissedCount int64 `json:"missed_count"`
	// Its name.
	Name string `json:"name"`
	// The next ten occurrences that have not created a job yet; none while it is paused.
	Next []string `json:"next"`
	// Whether nothing occurs. Occurrences during the pause make no jobs later. A PUT without it leaves
	// a schedule paused or not, as it is; the default of a new one is false.
	Paused *bool `json:"paused,omitempty"`
	// The latest ten occurrences since the schedule was created, resumed or got another rule, the
	// newest first. One that was missed may have created no job.
	Previous []Occurrence `json:"previous,omitempty"`
	// Lower goes first (default 100).
	Priority *int64 `json:"priority,omitempty"`
	// What follows a failed attempt.
	Retry any `json:"retry,omitempty"`
	// No occurrence before this.
	StartsAt *string `json:"starts_at,omitempty"`
	// From claim to result (default 86400).
	TimeoutSeconds *float64 `json:"timeout_seconds,omitempty"`
	// The type of its jobs.
	Type string `json:"type"`
	// The IANA name of the time zone of `cron` (default UTC).
	Tz *string `json:"tz,omitempty"`
	// A key that refuses duplicates: no second job of the type while one has it.
	Unique *Unique `json:"unique,omitempty"`
	// Raised by every change; the `ETag` contains it.
	Version int64 `json:"version"`
	// Capacity units that it takes while it runs; 0 takes none (default 1).
	Weight *int64 `json:"weight,omitempty"`
	// When it may start; an empty list clears the type's windows.
	Windows []Window `json:"windows,omitempty"`
}

// ScheduleConfig: When a schedule occurs, and the job that each occurrence makes.
type ScheduleConfig struct {
	// An instant from which every occurrence is a multiple of `every_seconds` away (default
	// `starts_at`, else the epoch).
	Anchor *string `json:"anchor,omitempty"`
	// What limits, partitions and searches compare, at most 16; those extracted from the data win.
	Attributes map[string]any `json:"attributes,omitempty"`
	// The URL that is notified when the job ends.
	CallbackURL *string `json:"callback_url,omitempty"`
	// Not held by limits, and takes no capacity. An enqueue needs scope `enqueue:critical`. Default:
	// `false`.
	Critical *bool `json:"critical,omitempty"`
	// A cron pattern: minute, hour, day of the month, month, day of the week; or those after a second.
	// At most 256 bytes. Either this or `every_seconds` must be given.
	Cron *string `json:"cron,omitempty"`
	// From creation to end.
	DeadlineSeconds *float64 `json:"deadline_seconds,omitempty"`
	// No occurrence after this.
	EndsAt *string `json:"ends_at,omitempty"`
	// The span from one occurrence to the next (1 to 31536000).
	EverySeconds *float64 `json:"every_seconds,omitempty"`
	// Most time between an occurrence and the start of its job (0.001 to 315360000).
	ExpiresAfterSeconds *float64 `json:"expires_after_seconds,omitempty"`
	// Passed on to the worker.
	Headers map[string]string `json:"headers,omitempty"`
	// How long the result can be read.
	KeepResult any `json:"keep_result,omitempty"`
	// Most attempts (default 3).
	MaxAttempts *int64 `json:"max_attempts,omitempty"`
	// With `missed: all`, how many of the latest missed occurrences make jobs (default 100; 1 to
	// 1000).
	MaxMissed *int64 `json:"max_missed,omitempty"`
	// What follows for occurrences that are over a minute late (default `one`).
	Missed *Missed `json:"missed,omitempty"`
	// Whether nothing occurs. Occurrences during the pause make no jobs later. A PUT without it leaves
	// a schedule paused or not, as it is; the default of a new one is false.
	Paused *bool `json:"paused,omitempty"`
	// Lower goes first (default 100).
	Priority *int64 `json:"priority,omitempty"`
	// What follows a failed attempt.
	Retry any `json:"retry,omitempty"`
	// No occurrence before this.
	StartsAt *string `json:"starts_at,omitempty"`
	// From claim to result (default 86400).
	TimeoutSeconds *float64 `json:"timeout_seconds,omitempty"`
	// The type of its jobs.
	Type string `json:"type"`
	// The IANA name of the time zone of `cron` (default UTC).
	Tz *string `json:"tz,omitempty"`
	// A key that refuses duplicates: no second job of the type while one has it.
	Unique *Unique `json:"unique,omitempty"`
	// Capacity units that it takes while it runs; 0 takes none (default 1).
	Weight *int64 `json:"weight,omitempty"`
	// When it may start; an empty list clears the type's windows.
	Windows []Window `json:"windows,omitempty"`
}

// ScheduleError: Why an occurrence makes no job.
type ScheduleError struct {
	// When it first failed with this error.
	At string `json:"at"`
	// The reason, for people.
	Message string `json:"message"`
	// The occurrence.
	Occurrence string `json:"occurrence"`
}

// SchedulePage: A page of schedules.
type SchedulePage struct {
	// Where the next page starts; absent on the last.
	NextCursor *string `json:"next_cursor,omitempty"`
	// The schedules, by name.
	Schedules []Schedule `json:"schedules"`
}

// ServerView: What a server is and offers.
type ServerView struct {
	// `embedded`, or `serverless` on AWS.
	DeploymentMode string `json:"deployment_mode"`
	// Whether `POST /v1/queues/{queue}/simulate` simulates queues.
	Simulate bool `json:"simulate"`
	// Whether `GET /v1/stream` sends changes.
	Stream bool `json:"stream"`
	// Its version.
	Version string `json:"version"`
}

// Session: The caller, the options of the console, and the server.
type Session struct {
	// Whether the caller is known. If not, `name`, `signed_in_by` and `server` are absent, and there
	// are no scopes.
	Authenticated bool `json:"authenticated"`
	// The options of the console.
	Console ConsoleView `json:"console"`
	// The name of the caller: of its token, or the `sub` of an identity provider.
	Name *string `json:"name,omitempty"`
	// The only queues that the token allows; null: all.
	Queues []string `json:"queues,omitempty"`
	// What the caller may do: `enqueue`, `enqueue:critical`, `work`, `read`, `admin`.
	Scopes []string `json:"scopes"`
	// The server.
	Server *ServerView `json:"server,omitempty"`
	// How a user can sign in: with a `token`, and by an identity provider (`oidc`).
	SignIn []string `json:"sign_in"`
	// How the caller signed in: with a `token`, by an identity provider (`oidc`), or `open`: the
	// server accepts every caller of its machine.
	SignedInBy *string `json:"signed_in_by,omitempty"`
	// The only types that the token allows; null: all.
	Types []string `json:"types,omitempty"`
}

// Setting: A setting of a server.
type Setting struct {
	// What it means, in Markdown.
	About string `json:"about"`
	// The source of the value: `default`, `file`, `environment` or `argument`.
	From string `json:"from"`
	// Its name in the settings file, such as `console.title`; on AWS its environment variable.
	Name string `json:"name"`
	// Its value, null without one. A secret is `***`.
	Value json.RawMessage `json:"value"`
}

// SettingsView: All settings of a server.
type SettingsView struct {
	// The settings, in the order of their documentation.
	Settings []Setting `json:"settings"`
}

// ShadowDecision: The decision of a plugin about one job.
type ShadowDecision struct {
	// `run`, `hold`, `reschedule` or `drop`; of a failed attempt `retry` or `give_up`.
	Action string `json:"action"`
	// Why; or what else changes before the next attempt.
	Reason *string `json:"reason,omitempty"`
	// Until when it holds the job, or when the job is due.
	Until *string `json:"until,omitempty"`
}

// Simulated: A queue as it was recorded, and as it would have been.
type Simulated struct {
	// A simulation with the change.
	Changed SimulatedRun `json:"changed"`
	// A simulation with the current configuration. It shows how far to trust the other one.
	Current SimulatedRun `json:"current"`
	// The first jobs about which the plugins decided differently, at most 20.
	Differences []SimulatedDifference `json:"differences"`
	// How many jobs there are about which the plugins decided differently.
	DifferentJobs int64 `json:"different_jobs"`
	// When the first of them was enqueued: the start of all runs.
	From string `json:"from"`
	// How many recorded jobs were simulated.
	Jobs int64 `json:"jobs"`
	// What the simulation leaves out.
	LeftOut []LeftOut `json:"left_out"`
	// What was recorded. Null if no attempt was.
	Recorded *SimulatedRun `json:"recorded,omitempty"`
	// Whether a simulation was stopped after its time, so that its numbers end early.
	StoppedEarly bool `json:"stopped_early"`
	// How many jobs workers ran at the same time, at most, in the simulations.
	Workers int64 `json:"workers"`
}

// SimulatedDifference: A job about which the plugins decided differently.
type SimulatedDifference struct {
	// When, in seconds from the start.
	AtSeconds float64 `json:"at_seconds"`
	// The decision with the change.
	Changed string `json:"changed"`
	// The decision with the current configuration.
	Current string `json:"current"`
	// The job.
	Job string `json:"job"`
	// The value by which it is grouped.
	Value string `json:"value"`
}

// SimulatedGroup: The jobs with a value.
type SimulatedGroup struct {
	// How many jobs.
	Jobs int64 `json:"jobs"`
	// Their part of the weight that ran over time, 0 to 1.
	Share float64 `json:"share"`
	// As for the whole run.
	StartDelaySeconds Quantiles `json:"start_delay_seconds"`
	// The value.
	Value string `json:"value"`
}

// SimulatedPoint: A step of a run.
type SimulatedPoint struct {
	// When the step began, in seconds from the start.
	At float64 `json:"at"`
	// The limit of the queue.
	Limit *int64 `json:"limit,omitempty"`
	// The most weight that ran in it.
	Running int64 `json:"running"`
	// The most jobs in it that were due and had not started yet.
	Waiting int64 `json:"waiting"`
}

// SimulatedRun: A run of the queue.
type SimulatedRun struct {
	// When the last job ended, in seconds from the start; null if some had not.
	DrainedAfterSeconds *float64 `json:"drained_after_seconds,omitempty"`
	// Jobs that ended `expired`.
	Expired int64 `json:"expired"`
	// Jobs that ended `failed`.
	Failed int64 `json:"failed"`
	// Jobs that ended, in whatever way.
	Finished int64 `json:"finished"`
	// The jobs by value, the most frequent values first, at most 101.
	Groups []SimulatedGroup `json:"groups"`
	// How long the attempts took.
	RunSeconds Quantiles `json:"run_seconds"`
	// The run over time.
	Series SimulatedSeries `json:"series"`
	// From the due time to the first attempt. For jobs that still wait, the wait so far.
	StartDelaySeconds Quantiles `json:"start_delay_seconds"`
	// Jobs that ended, per second of the run.
	ThroughputPerSecond float64 `json:"throughput_per_second"`
	// The mean weight that ran, as a fraction of the limit; null without a limit.
	Utilization *float64 `json:"utilization,omitempty"`
}

// SimulatedSeries: A run over time.
type SimulatedSeries struct {
	// The steps, 120.
	Points []SimulatedPoint `json:"points"`
	// How long a step is.
	StepSeconds float64 `json:"step_seconds"`
}

// Simulation: What to simulate. Every field is optional.
type Simulation struct {
	// How the jobs are grouped: by `type`, or by `attribute.NAME` (default `type`).
	By *string `json:"by,omitempty"`
	// How far back the recorded jobs go, 60 to 86400 seconds (default 3600).
	OverSeconds *float64 `json:"over_seconds,omitempty"`
	// A change of the queue, as for `PATCH /v1/queues/{queue}`.
	Queue *QueueConfig `json:"queue,omitempty"`
	// The version of the throttler's plugin with the change (default: the live one).
	ThrottlerVersion *int64 `json:"throttler_version,omitempty"`
	// Changes of types of the queue by name, as for `PATCH /v1/job-types/{type}`.
	Types map[string]TypeConfig `json:"types,omitempty"`
	// How many jobs the workers run at the same time, 1 to 100000. Default: as many as they ran at
	// most in the recorded time, or more if the limit of the queue held them.
	Workers *int64 `json:"workers,omitempty"`
}

// SkippedChanges: Event `skipped`: changes before this event were not sent. Read again what you
// show.
type SkippedChanges struct {
	// How many changes, also of what the filter leaves out; null if that is not known, for example
	// after a restart of the server.
	Changes *int64 `json:"changes,omitempty"`
}

// SkippedJob: A job that was not replayed.
type SkippedJob struct {
	// Its replay, or the live job that has its correlation key.
	Holder string `json:"holder"`
	// The job.
	ID string `json:"id"`
	// `already_replayed` or `correlation_key_taken`.
	Reason string `json:"reason"`
}

// SnsTarget: A topic of SNS. A FIFO topic is used like a FIFO queue.
type SnsTarget struct {
	// Its ARN, at most 2048 bytes.
	TopicARN string `json:"topic_arn"`
}

// SortedJobs: The jobs that were compared for a page of a sorted list.
type SortedJobs struct {
	// How many matching jobs were compared, at most 10,000: the first ones of the list without `sort`.
	Compared int64 `json:"compared"`
	// Whether these are all that match. If not, further conditions make the list whole.
	Complete bool `json:"complete"`
}

// SqsTarget: A queue of SQS. In a FIFO queue the job's id is the message group, and repeats of one
// attempt are one message.
type SqsTarget struct {
	// Its URL, at most 2048 bytes.
	QueueURL string `json:"queue_url"`
}

// Start: Whether a push is claimed before it is sent.
type Start string

// The values of Start.
const (
	StartClaim Start = "claim"
	StartPlain Start = "plain"
)

// Status: The outcome of an attempt.
type Status string

// The values of Status.
const (
	StatusSucceeded Status = "succeeded"
	StatusFailed    Status = "failed"
	StatusReleased  Status = "released"
	StatusSnoozed   Status = "snoozed"
)

// StreamReady: Event `ready`: the first one.
type StreamReady struct {
	// Whether the events go on after the one that the request named. If not, read your state now.
	Resumed bool `json:"resumed"`
}

// Test: Comparisons on one value; all that are given hold. An absent value passes only `exists:
// false`.
type Test struct {
	// It equals this.
	Eq any `json:"eq,omitempty"`
	// Whether it is present.
	Exists *bool `json:"exists,omitempty"`
	// It is more than this.
	Gt any `json:"gt,omitempty"`
	// It is at least this.
	Gte any `json:"gte,omitempty"`
	// It is one of these.
	In []any `json:"in,omitempty"`
	// It is less than this.
	Lt any `json:"lt,omitempty"`
	// It is at most this.
	Lte any `json:"lte,omitempty"`
	// It is a text that starts with this.
	Prefix *string `json:"prefix,omitempty"`
}

// Throttler: A queue's throttler.
type Throttler struct {
	// Its configuration: an object of at most 64 KiB that the plugin itself checks (default `{}`).
	Config map[string]any `json:"config,omitempty"`
	// What happens to candidates when a call fails (default `hold`).
	OnFailure *OnFailure `json:"on_failure,omitempty"`
	// The plugin, whose live version decides.
	Plugin string `json:"plugin"`
}

// Throughput: Rates of jobs.
type Throughput struct {
	// Jobs that were accepted. Absent on AWS.
	EnqueuedPerSecond *float64 `json:"enqueued_per_second,omitempty"`
	// Jobs that ended `failed`.
	FailedPerSecond float64 `json:"failed_per_second"`
	// Jobs that ended.
	FinishedPerSecond float64 `json:"finished_per_second"`
	// Over how many seconds.
	OverSeconds float64 `json:"over_seconds"`
}

// Token: A token.
type Token struct {
	// When it was created.
	CreatedAt string `json:"created_at"`
	// From when on it is no longer accepted; absent: never.
	ExpiresAt *string `json:"expires_at,omitempty"`
	// Its id.
	ID string `json:"id"`
	// When it was used last, to about a minute; absent: never.
	LastUsedAt *string `json:"last_used_at,omitempty"`
	// Its owner's name for it.
	Name string `json:"name"`
	// The only queues that it allows; absent: all.
	Queues []string `json:"queues,omitempty"`
	// What it allows.
	Scopes []string `json:"scopes"`
	// The token itself; only the answer to its creation has it.
	Token *string `json:"token,omitempty"`
	// The only types that it allows; absent: all.
	Types []string `json:"types,omitempty"`
}

// TokenPage: A page of tokens.
type TokenPage struct {
	// Where the next page starts; absent on the last.
	NextCursor *string `json:"next_cursor,omitempty"`
	// The tokens, by id.
	Tokens []Token `json:"tokens"`
}

// Trigger: A trigger.
type Trigger struct {
	// The job to complete: its `type` and `correlation_key`, and its result: `attempt`, `status`
	// (`succeeded`, `failed`, true or false), `result`, `message`, `error`, `retryable`. Each value
	// may hold expressions, as in `enqueue`.
	Complete map[string]json.RawMessage `json:"complete,omitempty"`
	// The job to enqueue: `type` and any other field of `POST /v1/jobs` except `id`. In each value,
	// `{"$expr": "..."}` is replaced by the result of a JMESPath expression over the event. Without
	// `data` the job carries the event's data, byte for byte.
	Enqueue map[string]json.RawMessage `json:"enqueue,omitempty"`
	// Which events; an empty filter matches all.
	Filter *EventFilter `json:"filter,omitempty"`
	// The job types whose ends it handles, at most 100: `job.succeeded`, `job.failed`, `job.expired`,
	// `job.cancelled` and `job.dropped`. With these it handles no other event, and without them no end
	// of a job.
	JobTypes []string `json:"job_types,omitempty"`
	// Its name.
	Name string `json:"name"`
	// What it did, over restarts. Null on AWS, and in answers to changes.
	Status *TriggerStatus `json:"status,omitempty"`
	// Raised by every change; the `ETag` contains it.
	Version int64 `json:"version"`
}

// TriggerActionAlreadyEnqueued: The job was enqueued before, by the same event.
type TriggerActionAlreadyEnqueued struct {
	Action string `json:"action"`
	// The job.
	Job string `json:"job"`
}

// TriggerActionAlreadyProcessed: The job processed the same event before.
type TriggerActionAlreadyProcessed struct {
	Action string `json:"action"`
	// The job.
	Job string `json:"job"`
}

// TriggerActionCompleted: The attempt of a job ended with the event's result.
type TriggerActionCompleted struct {
	Action string `json:"action"`
	// The job.
	Job string `json:"job"`
}

// TriggerActionDeadLettered: The trigger could not handle the event: it is a dead letter, to be
// replayed when the trigger is fixed.
type TriggerActionDeadLettered struct {
	Action string `json:"action"`
	// The dead letter.
	Letter string `json:"letter"`
	// Why.
	Reason string `json:"reason"`
}

// TriggerActionDropped: The event passed through too many triggers: they would form an endless
// loop.
type TriggerActionDropped struct {
	Action string `json:"action"`
	// Why.
	Reason string `json:"reason"`
}

// TriggerActionEnqueued: A job was enqueued.
type TriggerActionEnqueued struct {
	Action string `json:"action"`
	// The job.
	Job string `json:"job"`
	// Its type.
	Type string `json:"type"`
}

// TriggerActionLate: The job, or the attempt that the event names, had ended. Nothing was changed.
type TriggerActionLate struct {
	Action string `json:"action"`
	// The job.
	Job string `json:"job"`
}

// TriggerActionPending: There is no such job yet, or its attempt has not started: the reply is
// kept.
type TriggerActionPending struct {
	Action string `json:"action"`
	// Until when it is kept.
	Until string `json:"until"`
}

// TriggerActionRecorded: The job waits for a retry; the failure was recorded, and changes nothing.
type TriggerActionRecorded struct {
	Action string `json:"action"`
	// The job.
	Job string `json:"job"`
}

// TriggerConfig: What happens with each event that the filter matches: either `enqueue` or
// `complete`.
type TriggerConfig struct {
	// The job to complete: its `type` and `correlation_key`, and its result: `attempt`, `status`
	// (`succeeded`, `failed`, true or false), `result`, `message`, `error`, `retryable`. Each value
	// may hold expressions, as in `enqueue`.
	Complete map[string]json.RawMessage `json:"complete,omitempty"`
	// The job to enqueue: `type` and any other field of `POST /v1/jobs` except `id`. In each value,
	// `{"$expr": "..."}` is replaced by the result of a JMESPath expression over the event. Without
	// `data` the job carries the event's data, byte for byte.
	Enqueue map[string]json.RawMessage `json:"enqueue,omitempty"`
	// Which events; an empty filter matches all.
	Filter *EventFilter `json:"filter,omitempty"`
	// The job types whose ends it handles, at most 100: `job.succeeded`, `job.failed`, `job.expired`,
	// `job.cancelled` and `job.dropped`. With these it handles no other event, and without them no end
	// of a job.
	JobTypes []string `json:"job_types,omitempty"`
}

// TriggerPage: A page of triggers.
type TriggerPage struct {
	// Where the next page starts; absent on the last.
	NextCursor *string `json:"next_cursor,omitempty"`
	// The triggers, by name.
	Triggers []Trigger `json:"triggers"`
}

// TriggerStatus: What a trigger did. It is kept for 30 days after the latest event, over restarts.
type TriggerStatus struct {
	// How many became dead letters.
	DeadLetters int64 `json:"dead_letters"`
	// How many of them enqueued a job.
	Enqueued int64 `json:"enqueued"`
	// When the latest event matched; null: none did.
	LastAt *string `json:"last_at,omitempty"`
	// How many events matched the trigger since then.
	Matched int64 `json:"matched"`
	// The latest events that matched, the newest first: at most 20, or as many as were requested.
	// Those of the last seconds before a crash are missing.
	Recent []any `json:"recent"`
	// Since when it is recorded: a start of the server.
	Since string `json:"since"`
}

// TriggerTrial: What a trigger would do about an event.
type TriggerTrial struct {
	// `enqueued`, `completed`, `unmatched` (the filter does not match the event) or `dead_lettered`
	// (the trigger cannot map it).
	Action string `json:"action"`
	// The job, as the body of `POST /v1/jobs`; for `completed` the report of a worker.
	Job json.RawMessage `json:"job,omitempty"`
	// Why the event would become a dead letter.
	Reason *string `json:"reason,omitempty"`
}

// TypeConfig: How jobs of one kind are run.
type TypeConfig struct {
	// Attributes extracted from the data, at most 16: a name of 1 to 64 bytes, and a JSON pointer of
	// at most 1024 bytes.
	Attributes map[string]string `json:"attributes,omitempty"`
	// The secret that signs the notifications to `callback_url`, or two during a rotation; write-only.
	// It has the form of a target's `signing_secret`, and should differ from it.
	CallbackSigningSecret any `json:"callback_signing_secret,omitempty"`
	// The URL that is notified when a job ends: http or https, without credentials, at most 2048
	// bytes.
	CallbackURL *string `json:"callback_url,omitempty"`
	// Most weight of this type that runs at once.
	Concurrency *int64 `json:"concurrency,omitempty"`
	// From a job's creation to its end, at most (0.001 to 315360000).
	DeadlineSeconds *float64 `json:"deadline_seconds,omitempty"`
	// Whether a job may be started twice (default `at_least_once`).
	Delivery *Delivery `json:"delivery,omitempty"`
	// Passed on to the worker: at most 32, names of 1 to 128 bytes, values of at most 4096 bytes of
	// visible ASCII. Headers that frame the request are refused, and so are credentials
	// (`authorization`, `proxy-authorization`, `cookie`), `webhook-` and `tidegate-` ones. A header of
	// the target has precedence.
	Headers map[string]string `json:"headers,omitempty"`
	// What frees a job's slot (default `lease_end`).
	HoldSlotUntil *HoldSlotUntil `json:"hold_slot_until,omitempty"`
	// How long a result can be read (default 86400 s; 0 to 315360000).
	KeepResult any `json:"keep_result,omitempty"`
	// How long a lease of a pull worker lasts without a heartbeat (default 30; 0.001 to 31536000).
	LeaseSeconds *float64 `json:"lease_seconds,omitempty"`
	// Most attempts (default 3, with `at_most_once` 1; 1 to 65535).
	MaxAttempts *int64 `json:"max_attempts,omitempty"`
	// Most attempts in a row that workers hand back (`released`, `snoozed`) without progress. A
	// further one fails as `not_delivered` and counts against `max_attempts` (default 100; 0 to
	// 65535).
	MaxReleases *int64 `json:"max_releases,omitempty"`
	// What follows when no response comes in time (default `fail`).
	OnResponseTimeout *OnResponseTimeout `json:"on_response_timeout,omitempty"`
	// Its jobs' priority (default 100).
	Priority *int64 `json:"priority,omitempty"`
	// The queue of its jobs (default `default`).
	Queue *string `json:"queue,omitempty"`
	// How long a push target may take to answer (default 30; 0.001 to 31536000).
	ResponseTimeoutSeconds *float64 `json:"response_timeout_seconds,omitempty"`
	// How long an ended job is kept (default 30 days; 0 to 315360000, 0 deletes it at its end). One
	// with a correlation key is kept for `reply_wait_seconds` at least, so that a second delivery of
	// its reply is recognised.
	RetentionSeconds *float64 `json:"retention_seconds,omitempty"`
	// What follows a failed attempt. Default:
	// `{"config":{"base_seconds":2,"jitter":"full","max_seconds":3600},"strategy":"exponential"}`.
	Retry any `json:"retry,omitempty"`
	// Whether a push that was under way when the server stopped is retried at its next start (default
	// false: it keeps its slot until its response timeout, because its worker may still work or call
	// back). True needs a push target, `at_least_once`, `hold_slot_until: lease_end` and
	// `on_response_timeout: fail`. Without effect on AWS.
	RetryAfterRestart *bool `json:"retry_after_restart,omitempty"`
	// Other URLs that a retry strategy may choose for the next attempt, by name: at most 16, of the
	// form of `target.url`. Headers, credentials and signature are those of `target`, which must have
	// a `url`.
	RetryTargets map[string]string `json:"retry_targets,omitempty"`
	// Whether a push is claimed before it is sent (default `claim`). `plain` needs a push target,
	// `at_least_once`, `on_response_timeout: fail` and no `concurrency`.
	Start *Start `json:"start,omitempty"`
	// Where its jobs go (default: the server's default target, or pull workers).
	Target any `json:"target,omitempty"`
	// From claim to result (default 86400; 0.001 to 31536000).
	TimeoutSeconds *float64 `json:"timeout_seconds,omitempty"`
	// Its jobs' weight (default 1).
	Weight *int64 `json:"weight,omitempty"`
	// When its jobs may start: at most 32.
	Windows []Window `json:"windows,omitempty"`
}

// TypeConfigPatch: How jobs of one kind are run.
type TypeConfigPatch struct {
	// Attributes extracted from the data, at most 16: a name of 1 to 64 bytes, and a JSON pointer of
	// at most 1024 bytes.
	Attributes map[string]string `json:"attributes,omitempty"`
	// The secret that signs the notifications to `callback_url`, or two during a rotation; write-only.
	// It has the form of a target's `signing_secret`, and should differ from it.
	CallbackSigningSecret any `json:"callback_signing_secret,omitempty"`
	// The URL that is notified when a job ends: http or https, without credentials, at most 2048
	// bytes.
	CallbackURL *string `json:"callback_url,omitempty"`
	// Most weight of this type that runs at once.
	Concurrency *int64 `json:"concurrency,omitempty"`
	// From a job's creation to its end, at most (0.001 to 315360000).
	DeadlineSeconds *float64 `json:"deadline_seconds,omitempty"`
	// Whether a job may be started twice (default `at_least_once`).
	Delivery *Delivery `json:"delivery,omitempty"`
	// Passed on to the worker: at most 32, names of 1 to 128 bytes, values of at most 4096 bytes of
	// visible ASCII. Headers that frame the request are refused, and so are credentials
	// (`authorization`, `proxy-authorization`, `cookie`), `webhook-` and `tidegate-` ones. A header of
	// the target has precedence.
	Headers map[string]string `json:"headers,omitempty"`
	// What frees a job's slot (default `lease_end`).
	HoldSlotUntil *HoldSlotUntil `json:"hold_slot_until,omitempty"`
	// How long a result can be read (default 86400 s; 0 to 315360000).
	KeepResult any `json:"keep_result,omitempty"`
	// How long a lease of a pull worker lasts without a heartbeat (default 30; 0.001 to 31536000).
	LeaseSeconds *float64 `json:"lease_seconds,omitempty"`
	// Most attempts (default 3, with `at_most_once` 1; 1 to 65535).
	MaxAttempts *int64 `json:"max_attempts,omitempty"`
	// Most attempts in a row that workers hand back (`released`, `snoozed`) without progress. A
	// further one fails as `not_delivered` and counts against `max_attempts` (default 100; 0 to
	// 65535).
	MaxReleases *int64 `json:"max_releases,omitempty"`
	// What follows when no response comes in time (default `fail`).
	OnResponseTimeout *OnResponseTimeout `json:"on_response_timeout,omitempty"`
	// Its jobs' priority (default 100).
	Priority *int64 `json:"priority,omitempty"`
	// The queue of its jobs (default `default`).
	Queue *string `json:"queue,omitempty"`
	// How long a push target may take to answer (default 30; 0.001 to 31536000).
	ResponseTimeoutSeconds *float64 `json:"response_timeout_seconds,omitempty"`
	// How long an ended job is kept (default 30 days; 0 to 315360000, 0 deletes it at its end). One
	// with a correlation key is kept for `reply_wait_seconds` at least, so that a second delivery of
	// its reply is recognised.
	RetentionSeconds *float64 `json:"retention_seconds,omitempty"`
	// What follows a failed attempt. Default:
	// `{"config":{"base_seconds":2,"jitter":"full","max_seconds":3600},"strategy":"exponential"}`.
	Retry map[string]any `json:"retry,omitempty"`
	// Whether a push that was under way when the server stopped is retried at its next start (default
	// false: it keeps its slot until its response timeout, because its worker may still work or call
	// back). True needs a push target, `at_least_once`, `hold_slot_until: lease_end` and
	// `on_response_timeout: fail`. Without effect on AWS.
	RetryAfterRestart *bool `json:"retry_after_restart,omitempty"`
	// Other URLs that a retry strategy may choose for the next attempt, by name: at most 16, of the
	// form of `target.url`. Headers, credentials and signature are those of `target`, which must have
	// a `url`.
	RetryTargets map[string]string `json:"retry_targets,omitempty"`
	// Whether a push is claimed before it is sent (default `claim`). `plain` needs a push target,
	// `at_least_once`, `on_response_timeout: fail` and no `concurrency`.
	Start *Start `json:"start,omitempty"`
	// Where its jobs go (default: the server's default target, or pull workers).
	Target map[string]any `json:"target,omitempty"`
	// From claim to result (default 86400; 0.001 to 31536000).
	TimeoutSeconds *float64 `json:"timeout_seconds,omitempty"`
	// Its jobs' weight (default 1).
	Weight *int64 `json:"weight,omitempty"`
	// When its jobs may start: at most 32.
	Windows []Window `json:"windows,omitempty"`
}

// TypeUse: What the jobs of a type take of the limits of their queue.
type TypeUse struct {
	// How many of its jobs run.
	Jobs int64 `json:"jobs"`
	// The limit of the type.
	Limit *int64 `json:"limit,omitempty"`
	// The type.
	Type string `json:"type"`
	// Their weight.
	Weight int64 `json:"weight"`
}

// TypeWorkers: The workers that take the jobs of a type.
type TypeWorkers struct {
	// The type.
	Type string `json:"type"`
	// Their status.
	Workers WorkerStatus `json:"workers"`
}

// Unique: The demand that no two jobs of a type with the same key are scheduled (or live) at the
// same time.
type Unique struct {
	// The job waits until no request with the key has come for a time; not together with
	// `on_conflict`, `run_at` or `delay_seconds`. Its job does not keep it.
	Debounce *Debounce `json:"debounce,omitempty"`
	// The key, 1 to 256 bytes, compared within the job's type.
	Key string `json:"key"`
	// What the enqueue does if another job holds the key (default `keep`). Its job does not keep it.
	OnConflict *OnConflict `json:"on_conflict,omitempty"`
	// The key is held at least this long after the job was accepted, whatever its state.
	PeriodSeconds *float64 `json:"period_seconds,omitempty"`
	// How long the key is held.
	While UniqueWhile `json:"while"`
}

// UniqueWhile: The states in which a job holds its unique key.
type UniqueWhile string

// The values of UniqueWhile.
const (
	UniqueWhileScheduled UniqueWhile = "scheduled"
	UniqueWhileLive      UniqueWhile = "live"
)

// Window: A part of the local day in which a job may start.
type Window struct {
	// The days it opens on (default every day).
	Days []string `json:"days,omitempty"`
	// The opening, local time.
	From string `json:"from"`
	// The closing, exclusive; at or before the opening it is the next day's.
	To string `json:"to"`
	// The IANA name of the time zone (default UTC).
	Tz *string `json:"tz,omitempty"`
}

// Worker: A worker that called lately, runs something, or is drained.
type Worker struct {
	// How many jobs it runs at once, if it is registered with a capacity: it is leased no more.
	Capacity *int64 `json:"capacity,omitempty"`
	// Whether it gets no more jobs.
	Draining bool `json:"draining"`
	// Its name.
	Name string `json:"name"`
	// The queue whose jobs its latest lease request or registration was for, if it named one.
	Queue *string `json:"queue,omitempty"`
	// How many it runs now.
	Running int64 `json:"running"`
	// When it called last.
	SeenAt string `json:"seen_at"`
	// Whether it is to end after its running jobs: its next lease request is answered with `stop`.
	Stopping *bool `json:"stopping,omitempty"`
	// The types that it named. Empty for all, and for more than 100.
	Types []string `json:"types,omitempty"`
}

// WorkerChange: Event `worker`: a worker has registered or left, or its drain began or ended.
type WorkerChange struct {
	// `registered`, `draining`, `stopping`, `undrained` or `removed`.
	Change string `json:"change"`
	// The worker.
	Worker string `json:"worker"`
}

// WorkerHistory: The last hour or the last day of a worker, in steps. It counts attempts: a job
// that fails at one worker and succeeds at another counts at both.
type WorkerHistory struct {
	// When the oldest recorded step of any worker began. The history is shorter than its range after
	// the first start, and while very many workers are active.
	From *string `json:"from,omitempty"`
	// The steps, oldest first. One in which nothing ended, and after which as many jobs ran as before
	// it, is left out.
	Points []WorkerHistoryPoint `json:"points"`
	// How long a step is: of the hour 10, of the day 300.
	StepSeconds int64 `json:"step_seconds"`
}

// WorkerHistoryPoint: One step of a worker's history.
type WorkerHistoryPoint struct {
	// When the step began.
	At string `json:"at"`
	// Attempts that failed, also by a timeout or by the end of their lease.
	Failed int64 `json:"failed"`
	// Attempts that ended, in whatever way.
	Finished int64 `json:"finished"`
	// Jobs that ran there at the end of the step.
	Running int64 `json:"running"`
}

// WorkerPage: A page of workers.
type WorkerPage struct {
	// Where the next page starts; absent on the last.
	NextCursor *string `json:"next_cursor,omitempty"`
	// The workers, by name.
	Workers []Worker `json:"workers"`
}

// WorkerStatus: The workers that take the jobs of a type: pull workers, or the slots of the server
// for pushes. Null is what the server does not know: it does not count slots as workers, and a
// serverless server knows only what runs.
type WorkerStatus struct {
	// Those that run as many jobs as they can, or run some and do not wait for more.
	Busy *int64 `json:"busy,omitempty"`
	// How many jobs they can run at once. Null unless each of them has registered its capacity.
	Capacity *int64 `json:"capacity,omitempty"`
	// Those that are drained.
	Draining *int64 `json:"draining,omitempty"`
	// How many jobs run at these workers, or in the slots.
	InUse int64 `json:"in_use"`
	// Pull workers that called within ten minutes, wait for jobs, or run some.
	Known *int64 `json:"known,omitempty"`
	// When the latest request of one of them arrived.
	LastSeenAt *string `json:"last_seen_at,omitempty"`
	// Those that wait for jobs in a lease request.
	Polling *int64 `json:"polling,omitempty"`
}
