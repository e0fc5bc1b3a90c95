//! Plugins for tidegate in Zig. `wit/plugin.wit` is the contract and has every bound.
//!
//!     const tidegate = @import("sdk/tidegate.zig");
//!
//!     pub const panic = tidegate.panic;
//!
//!     const Everything = struct {
//!         pub const about = "Runs every job.";
//!         pub const Config = struct {};
//!
//!         pub fn decide(
//!             _: Config,
//!             _: tidegate.Round,
//!             candidates: []const tidegate.Job,
//!         ) !tidegate.Answer {
//!             const decisions = tidegate.list(tidegate.Decision, candidates.len);
//!             @memset(decisions, .run);
//!             return .{ .decisions = decisions };
//!         }
//!     };
//!
//!     comptime {
//!         tidegate.exportThrottler(Everything);
//!     }
//!
//! Every call is made in a new instance of the plugin, and its memory is dropped after the call.
//! So nothing must be freed, and a global variable is not kept between calls: use the state. Times
//! are milliseconds since 1970.

const std = @import("std");
const abi = @import("abi.zig");
const config = @import("config.zig");

/// An error in a configuration, and a list of them.
pub const Problem = config.Problem;
pub const Problems = config.Problems;

/// Allocates memory of this call.
pub const allocator = abi.allocator;
/// A list of `len` items, which are undefined.
pub const list = abi.slice;
/// A text, from a format of `std.fmt`.
pub const print = config.print;

// Errors
// ------

var why_failed: ?[]const u8 = null;

/// The error of a call, with a message. The queue's `on_failure` or the built-in backoff decides.
pub fn fail(comptime format: []const u8, args: anytype) error{Failed} {
    why_failed = print(format, args);
    return error.Failed;
}

fn messageOf(failure: anyerror) []const u8 {
    if (failure == error.Failed) {
        if (why_failed) |message| return message;
    }
    return @errorName(failure);
}

/// The panics of a plugin: `pub const panic = tidegate.panic;` in its file writes them to the log.
pub const panic = std.debug.FullPanic(struct {
    fn panicked(message: []const u8, _: ?usize) noreturn {
        @branchHint(.cold);
        host.write(@backingInt(Level.err), message.ptr, message.len);
        @trap();
    }
}.panicked);

// Jobs
// ----

/// One attribute of a job. A number has its shortest decimal form (`2`, `0.5`).
pub const Attribute = struct {
    name: []const u8,
    value: []const u8,
};

fn attributeOf(attributes: []const Attribute, name: []const u8) ?[]const u8 {
    for (attributes) |attribute| {
        if (std.mem.eql(u8, attribute.name, name)) return attribute.value;
    }
    return null;
}

/// An attempt that failed.
pub const Failure = struct {
    /// The number of the attempt, from 1.
    attempt: u32,
    /// `failed`, `timeout`, `lease_expired`, `connection_lost` or `not_delivered`.
    reason: []const u8,
    message: ?[]const u8,
    /// The HTTP status of the target's response, if there was one.
    status: ?u16,
    /// The details that the worker reported, as JSON text.
    details: ?[]const u8,
    started_at: u64,
    ended_at: u64,
    /// The earliest next attempt that the worker or the target requested (`Retry-After`).
    not_before: ?u64,
};

/// A candidate of a throttler, or the failed job of a retry strategy.
pub const Job = struct {
    id: []const u8,
    job_type: []const u8,
    /// Jobs with a lower number start first.
    priority: i32,
    /// The capacity units that the job takes.
    weight: u32,
    /// Sorted by name.
    attributes: []const Attribute,
    /// The attempt that would start (throttler) or that failed (retry strategy), from 1.
    attempt: u32,
    /// The job's `max_attempts`.
    attempts: u32,
    created_at: u64,
    /// When the job is, or was, due. For a retry strategy the earliest time of the next attempt.
    run_at: u64,
    /// No attempt starts after this time.
    expires_at: ?u64,
    /// The job ends `failed` at this time if it has not ended before.
    deadline_at: ?u64,
    /// The host of the URL of its type's target. None if the type has no such target.
    target_host: ?[]const u8,
    /// The id of the job that this one runs again.
    replay_of: ?[]const u8,
    correlation_key: ?[]const u8,
    /// The failed attempts before `attempt`, oldest first: the latest 50. A throttler gets them if
    /// it declares `needs_earlier`.
    earlier: []const Failure,

    /// The value of its attribute `name`.
    pub fn attribute(self: Job, name: []const u8) ?[]const u8 {
        return attributeOf(self.attributes, name);
    }

    /// Its data as JSON text, if it has any. Needs `needs_data`.
    pub fn data(self: Job) ?[]const u8 {
        var place: abi.Place(?[]const u8) = .{};
        host.data(self.id.ptr, self.id.len, &place.memory);
        return place.value();
    }
};

/// A granted job, whether started or not.
pub const RunningJob = struct {
    id: []const u8,
    job_type: []const u8,
    priority: i32,
    /// 0 for a critical job, which takes no capacity.
    weight: u32,
    critical: bool,
    attributes: []const Attribute,
    granted_at: u64,

    /// The value of its attribute `name`.
    pub fn attribute(self: RunningJob, name: []const u8) ?[]const u8 {
        return attributeOf(self.attributes, name);
    }
};

/// An attempt of the queue that ended.
pub const Ended = struct {
    id: []const u8,
    job_type: []const u8,
    priority: i32,
    weight: u32,
    attributes: []const Attribute,
    target_host: ?[]const u8,
    attempt: u32,
    started_at: u64,
    ended_at: u64,
    /// False for an attempt that failed or was cancelled.
    succeeded: bool,
    /// Why it failed, or `released` or `snoozed`. None if it was cancelled.
    reason: ?[]const u8,
    message: ?[]const u8,
    status: ?u16,
    details: ?[]const u8,
    not_before: ?u64,

    /// The value of its job's attribute `name`.
    pub fn attribute(self: Ended, name: []const u8) ?[]const u8 {
        return attributeOf(self.attributes, name);
    }
};

// What a call can use
// -------------------

const Level = enum { debug, info, warn, err };

/// The log of the plugin, which `tidegate plugin logs` shows.
pub const log = struct {
    pub fn debug(comptime format: []const u8, args: anytype) void {
        write(.debug, print(format, args));
    }
    pub fn info(comptime format: []const u8, args: anytype) void {
        write(.info, print(format, args));
    }
    pub fn warn(comptime format: []const u8, args: anytype) void {
        write(.warn, print(format, args));
    }
    pub fn err(comptime format: []const u8, args: anytype) void {
        write(.err, print(format, args));
    }
    fn write(level: Level, text: []const u8) void {
        host.write(@backingInt(level), text.ptr, text.len);
    }
};

/// The clock, which does not move during a call.
pub const clock = struct {
    /// A date and a time of day.
    pub const LocalTime = struct {
        year: i32,
        /// 1 to 12.
        month: u8,
        /// 1 to 31.
        day: u8,
        hour: u8,
        minute: u8,
        second: u8,
        millisecond: u16 = 0,
    };

    /// What a time zone shows at an instant.
    pub const Shown = struct {
        time: LocalTime,
        /// 1 is Monday, 7 is Sunday.
        weekday: u8,
        /// How far local time is ahead of UTC, in seconds.
        offset: i32,
    };

    /// The time of the decision.
    pub fn now() u64 {
        return host.now();
    }

    /// Local time in a zone of the IANA database, such as `Europe/Berlin`.
    pub fn local(zone: []const u8, at: u64) error{Failed}!Shown {
        var place: abi.Place(abi.Result(Shown, []const u8)) = .{};
        host.local(zone.ptr, zone.len, at, &place.memory);
        return switch (place.value()) {
            .ok => |shown| shown,
            .err => |message| fail("{s}", .{message}),
        };
    }

    /// The instant at which a zone shows a time: the first of two, or the change that skips it.
    pub fn instant(zone: []const u8, time: LocalTime) error{Failed}!u64 {
        var place: abi.Place(abi.Result(u64, []const u8)) = .{};
        host.instant(
            zone.ptr,
            zone.len,
            time.year,
            time.month,
            time.day,
            time.hour,
            time.minute,
            time.second,
            time.millisecond,
            &place.memory,
        );
        return switch (place.value()) {
            .ok => |at| at,
            .err => |message| fail("{s}", .{message}),
        };
    }
};

/// Random numbers that begin with the seed of the call. Not for secrets.
pub const random = struct {
    pub fn next() u64 {
        return host.next();
    }

    /// A number of 0 to `bound` - 1. 0 if the bound is 0.
    pub fn below(bound: u64) u64 {
        return @intCast((@as(u128, next()) * bound) >> 64);
    }
};

/// Metrics of the plugin, for operators.
pub const metrics = struct {
    /// Adds to a counter. A negative amount is left out.
    pub fn add(name: []const u8, label: []const u8, amount: f64) void {
        host.add(name.ptr, name.len, label.ptr, label.len, amount);
    }

    /// Sets a gauge.
    pub fn set(name: []const u8, label: []const u8, value: f64) void {
        host.gauge(name.ptr, name.len, label.ptr, label.len, value);
    }
};

// Throttlers
// ----------

/// The property that groups the running set.
pub const Dimension = union(enum) {
    job_type,
    priority,
    /// An attribute, which `group_by` must name.
    attribute: []const u8,

    fn name(self: Dimension) []const u8 {
        return switch (self) {
            .attribute => |attribute| attribute,
            else => "",
        };
    }
};

/// The jobs with one value of a dimension: their number and their total weight.
pub const Group = struct {
    value: []const u8,
    count: u32,
    weight: u64,
};

/// Weights by value.
pub const Weights = struct {
    map: std.StringHashMapUnmanaged(u64) = .empty,

    /// The weight of a value, to read and to change: 0 at first. Valid until the next call.
    pub fn of(self: *Weights, value: []const u8) *u64 {
        const entry = self.map.getOrPutValue(allocator, value, 0) catch @panic("no memory is left");
        return entry.value_ptr;
    }
};

/// The running set: the queue's granted jobs, whether started or not, without the candidates.
pub const Running = struct {
    pub fn count(_: Running) u32 {
        return host.count();
    }

    pub fn weight(_: Running) u64 {
        return host.weight();
    }

    /// The groups of all values of a dimension. Jobs without the attribute are in no group.
    pub fn groups(_: Running, by: Dimension) []const Group {
        var place: abi.Place([]const Group) = .{};
        const name = by.name();
        host.groups(@backingInt(by), name.ptr, name.len, &place.memory);
        return place.value();
    }

    /// The group of one value. Its count and weight are 0 if no job has the value.
    pub fn inGroup(_: Running, by: Dimension, value: []const u8) Group {
        var place: abi.Place(Group) = .{};
        const name = by.name();
        const memory = &place.memory;
        host.inGroup(@backingInt(by), name.ptr, name.len, value.ptr, value.len, memory);
        return place.value();
    }

    /// The running weight by the values of a dimension.
    pub fn weights(self: Running, by: Dimension) Weights {
        var sums: Weights = .{};
        for (self.groups(by)) |group| sums.of(group.value).* = group.weight;
        return sums;
    }

    /// The running jobs, the earliest granted first: at most 1000 a page. Needs
    /// `needs_running_jobs`.
    pub fn page(_: Running, offset: u32, limit: u32) []const RunningJob {
        var place: abi.Place([]const RunningJob) = .{};
        host.page(offset, limit, &place.memory);
        return place.value();
    }
};

/// The waiting jobs with one value of an attribute.
pub const WaitingGroup = struct {
    value: []const u8,
    count: u32,
    weight: u64,
    /// When the first of them was due.
    oldest_due_at: u64,
    /// Whether there may be more: counting stopped at a bound.
    at_least: bool,
};

/// What waits in the queue: estimates by the attributes in `waiting_by`. A group of each candidate
/// is there.
pub const Waiting = struct {
    /// The groups of the values of an attribute, sorted by value.
    pub fn groups(_: Waiting, by: []const u8) []const WaitingGroup {
        var place: abi.Place([]const WaitingGroup) = .{};
        host.waitingGroups(by.ptr, by.len, &place.memory);
        return place.value();
    }

    /// The jobs of all partitions that are in no group, because there are too many.
    pub fn others(_: Waiting) ?WaitingGroup {
        var place: abi.Place(?WaitingGroup) = .{};
        host.waitingOthers(&place.memory);
        return place.value();
    }

    /// When the queue was counted. None if that has not happened yet.
    pub fn countedAt(_: Waiting) ?u64 {
        var place: abi.Place(?u64) = .{};
        host.waitingCountedAt(&place.memory);
        return place.value();
    }
};

/// The state, which is committed with the call's decisions if the call succeeds.
pub const State = struct {
    /// `InvalidKey`: the key is empty, or has more than 128 bytes. `ValueTooLong`: the value has
    /// more than 16 KiB. `StateFull`: the state would have more than 256 KiB.
    pub const Error = error{ InvalidKey, ValueTooLong, StateFull };
    const Refusal = enum { invalid_key, value_too_long, full };

    pub fn get(_: State, key: []const u8) ?[]const u8 {
        var place: abi.Place(?[]const u8) = .{};
        host.stateGet(key.ptr, key.len, &place.memory);
        return place.value();
    }

    /// Sets a value, which counts as deleted from `expires_at` on.
    pub fn set(_: State, key: []const u8, value: []const u8, expires_at: ?u64) Error!void {
        var place: abi.Place(abi.Result(void, Refusal)) = .{};
        host.stateSet(
            key.ptr,
            key.len,
            value.ptr,
            value.len,
            @intFromBool(expires_at != null),
            expires_at orelse 0,
            &place.memory,
        );
        switch (place.value()) {
            .ok => {},
            .err => |refusal| return switch (refusal) {
                .invalid_key => error.InvalidKey,
                .value_too_long => error.ValueTooLong,
                .full => error.StateFull,
            },
        }
    }

    pub fn delete(_: State, key: []const u8) void {
        host.stateDelete(key.ptr, key.len);
    }

    /// The keys that begin with `prefix`, sorted.
    pub fn keys(_: State, prefix: []const u8) []const []const u8 {
        var place: abi.Place([]const []const u8) = .{};
        host.stateKeys(prefix.ptr, prefix.len, &place.memory);
        return place.value();
    }
};

/// The inputs of a decision, in addition to the configuration and the candidates.
pub const Round = struct {
    /// The queue's name.
    queue: []const u8,
    /// The time of the decision. There is no other clock.
    now: u64,
    /// A seed for random numbers, different in every call.
    seed: u64,
    /// The queue's own concurrency, if it has one.
    concurrency: ?u32,
    /// How many jobs workers can take now.
    room: u32,
    /// The attempts that ended since the last answer that counted. Needs `needs_ended`.
    ended: []const Ended,
    running: Running = .{},
    waiting: Waiting = .{},
    state: State = .{},
};

/// What happens to a candidate.
pub const Action = union(enum) {
    run,
    hold: ?u64,
    reschedule: u64,
    drop,
};

/// An action and the explanation that users see for a waiting job.
pub const Decision = struct {
    action: Action,
    reason: ?[]const u8 = null,

    /// The job starts now.
    pub const run: Decision = .{ .action = .run };

    /// The job waits. The next tick of its queue offers it again.
    pub fn hold(comptime format: []const u8, args: anytype) Decision {
        return .{ .action = .{ .hold = null }, .reason = print(format, args) };
    }

    /// The job waits. The next tick of its queue offers it again, at the latest at `until`, which
    /// is after now and within 366 days.
    pub fn holdUntil(until: u64, comptime format: []const u8, args: anytype) Decision {
        return .{ .action = .{ .hold = until }, .reason = print(format, args) };
    }

    /// The job is due at `at`, which is after now and within 366 days.
    pub fn reschedule(at: u64, comptime format: []const u8, args: anytype) Decision {
        return .{ .action = .{ .reschedule = at }, .reason = print(format, args) };
    }

    /// The job ends `dropped`.
    pub fn drop(comptime format: []const u8, args: anytype) Decision {
        return .{ .action = .drop, .reason = print(format, args) };
    }
};

/// The answer of a throttler.
pub const Answer = struct {
    /// One decision per candidate, in their order.
    decisions: []const Decision,
    /// Whether jobs further back in the queue may run too.
    more: bool = true,
};

// Retry strategies
// ----------------

/// The inputs of a decision, in addition to the configuration and the failed job.
pub const Call = struct {
    /// The job's queue.
    queue: []const u8,
    /// The time of the decision. There is no other clock.
    now: u64,
    /// A seed for random numbers, different in every call.
    seed: u64,
    /// The state of the strategy in the job's queue, if it declares a `state_version` of at least 1.
    /// If another decision changed it meanwhile, the call is repeated.
    state: State = .{},
};

/// The next attempt. What is null keeps the job's.
pub const Plan = struct {
    /// When it is due: within 366 days, and at least 50 ms after the call.
    at: u64,
    /// JSON text that replaces the job's data.
    data: ?[]const u8 = null,
    priority: ?i32 = null,
    weight: ?u32 = null,
    /// How many attempts the job still has, including the next one: at least 1.
    attempts_left: ?u32 = null,
    /// The timeout of the job's attempts, in milliseconds.
    timeout: ?u64 = null,
    /// A name in `retry_targets` of the job's type, or empty for the type's own target.
    target: ?[]const u8 = null,
};

/// The answer of a retry strategy.
pub const Verdict = union(enum) {
    /// Another attempt.
    retry: Plan,
    /// No more attempts: the job ends `failed`. The message replaces that of the failure.
    give_up: ?[]const u8,

    /// Another attempt, `millis` after the call. The server waits longer if the target requested
    /// it.
    pub fn after(call: Call, millis: u64) Verdict {
        return .{ .retry = .{ .at = call.now +| millis } };
    }

    /// No more attempts: the job ends `failed` with this message.
    pub fn giveUp(comptime format: []const u8, args: anytype) Verdict {
        return .{ .give_up = print(format, args) };
    }
};

// The exports of the contract
// ---------------------------

const Description = struct {
    about: []const u8,
    config_schema: ?[]const u8,
    state_version: u32,
    group_by: []const []const u8,
    needs_running_jobs: bool,
    needs_data: bool,
    needs_ended: bool,
    needs_earlier: bool,
    waiting_by: []const []const u8,
};

fn declared(comptime Plugin: type, comptime name: []const u8, default: anytype) @TypeOf(default) {
    return if (@hasDecl(Plugin, name)) @field(Plugin, name) else default;
}

fn describe(comptime Plugin: type) [*]const u8 {
    return abi.result(Description, .{
        .about = Plugin.about,
        .config_schema = declared(Plugin, "config_schema", @as(?[]const u8, null)),
        .state_version = declared(Plugin, "state_version", @as(u32, 0)),
        .group_by = declared(Plugin, "group_by", @as([]const []const u8, &.{})),
        .needs_running_jobs = declared(Plugin, "needs_running_jobs", false),
        .needs_data = declared(Plugin, "needs_data", false),
        .needs_ended = declared(Plugin, "needs_ended", false),
        .needs_earlier = declared(Plugin, "needs_earlier", false),
        .waiting_by = declared(Plugin, "waiting_by", @as([]const []const u8, &.{})),
    });
}

fn checkConfig(comptime Plugin: type, text: []const u8) [*]const u8 {
    var problems: Problems = .{};
    if (config.parse(text, &problems)) |value| {
        if (config.read(Plugin.Config, value, "", &problems)) |read| {
            if (@hasDecl(Plugin, "check")) Plugin.check(read, &problems);
        }
    }
    return abi.result([]const Problem, problems.list.items);
}

/// The configuration of a call, which was checked before.
fn configOf(comptime Plugin: type, text: []const u8) !Plugin.Config {
    var problems: Problems = .{};
    if (config.parse(text, &problems)) |value| {
        if (config.read(Plugin.Config, value, "", &problems)) |read| return read;
    }
    const problem = problems.list.items[0];
    const space = if (problem.path.len == 0) "" else " ";
    return fail("configuration{s}{s}: {s}", .{ space, problem.path, problem.message });
}

/// Exports a throttler: a type with `about`, `Config` and
/// `decide(Config, Round, []const Job) !Answer`.
///
/// It may have `check(Config, *Problems) void`, `config_schema` (JSON Schema as text),
/// `state_version` (a number; another one starts with an empty state), `group_by` (the attributes
/// that group the running set; `*` permits any), `waiting_by` (at most 2 attributes that group what
/// waits, which the queue's `partition_by` and `partition_then_by` name; `*` permits both), and
/// `needs_running_jobs`, `needs_data`, `needs_ended` and `needs_earlier`, which are true if it uses
/// them. The candidates are in the
/// queue's order, and each of them alone fits the queue's limits. The running set does not contain
/// those that this call runs, so count them.
pub fn exportThrottler(comptime Plugin: type) void {
    const Exports = struct {
        fn describePlugin() callconv(.c) [*]const u8 {
            return describe(Plugin);
        }

        fn check(text: u32, len: u32) callconv(.c) [*]const u8 {
            return checkConfig(Plugin, listAt(u8, text, len));
        }

        fn decide(
            queue: u32,
            queue_len: u32,
            now: u64,
            seed: u64,
            text: u32,
            text_len: u32,
            has_concurrency: u32,
            concurrency: u32,
            room: u32,
            ended: u32,
            ended_len: u32,
            candidates: u32,
            candidates_len: u32,
        ) callconv(.c) [*]const u8 {
            const round: Round = .{
                .queue = listAt(u8, queue, queue_len),
                .now = now,
                .seed = seed,
                .concurrency = if (has_concurrency != 0) concurrency else null,
                .room = room,
                .ended = listAt(Ended, ended, ended_len),
            };
            const jobs = listAt(Job, candidates, candidates_len);
            const Result = abi.Result(Answer, []const u8);
            if (answer(listAt(u8, text, text_len), round, jobs)) |made| {
                return abi.result(Result, .{ .ok = made });
            } else |failure| {
                return abi.result(Result, .{ .err = messageOf(failure) });
            }
        }

        fn answer(text: []const u8, round: Round, jobs: []const Job) anyerror!Answer {
            return try Plugin.decide(try configOf(Plugin, text), round, jobs);
        }
    };
    @export(&Exports.describePlugin, .{ .name = "tidegate:plugin/throttle@0.2.0#describe" });
    @export(&Exports.check, .{ .name = "tidegate:plugin/throttle@0.2.0#check-config" });
    @export(&Exports.decide, .{ .name = "tidegate:plugin/throttle@0.2.0#decide" });
}

fn listAt(comptime T: type, start: u32, len: u32) []const T {
    var place: [8]u8 = undefined;
    abi.store(u32, &place, start);
    abi.store(u32, place[4..], len);
    return abi.load([]const T, &place);
}

const FailureArguments = struct {
    call: struct { queue: []const u8, now: u64, seed: u64, config: []const u8 },
    job: Job,
    last: Failure,
};

/// Exports a retry strategy: a type with `about`, `Config` and
/// `onFailure(Config, Call, Job, last: Failure) !Verdict`. The failures before the last one are in
/// `job.earlier`.
///
/// It may have `check(Config, *Problems) void`, `config_schema` (JSON Schema as text),
/// `state_version` (a number from 1, if it uses `call.state`; another one starts with an empty state)
/// and `needs_data`, which is true if it uses `job.data()`.
pub fn exportRetry(comptime Plugin: type) void {
    const Exports = struct {
        fn describePlugin() callconv(.c) [*]const u8 {
            return describe(Plugin);
        }

        fn check(text: u32, len: u32) callconv(.c) [*]const u8 {
            return checkConfig(Plugin, listAt(u8, text, len));
        }

        fn onFailure(arguments: [*]const u8) callconv(.c) [*]const u8 {
            const Result = abi.Result(Verdict, []const u8);
            if (verdict(abi.load(FailureArguments, arguments))) |made| {
                return abi.result(Result, .{ .ok = made });
            } else |failure| {
                return abi.result(Result, .{ .err = messageOf(failure) });
            }
        }

        fn verdict(given: FailureArguments) anyerror!Verdict {
            const call: Call = .{
                .queue = given.call.queue,
                .now = given.call.now,
                .seed = given.call.seed,
            };
            const read = try configOf(Plugin, given.call.config);
            return try Plugin.onFailure(read, call, given.job, given.last);
        }
    };
    @export(&Exports.describePlugin, .{ .name = "tidegate:plugin/retry@0.2.0#describe" });
    @export(&Exports.check, .{ .name = "tidegate:plugin/retry@0.2.0#check-config" });
    @export(&Exports.onFailure, .{ .name = "tidegate:plugin/retry@0.2.0#on-failure" });
}

// The layout of the contract.
comptime {
    for (.{
        .{ Failure, 72 },
        .{ Job, 136 },
        .{ RunningJob, 48 },
        .{ Ended, 128 },
        .{ clock.Shown, 20 },
        .{ Group, 24 },
        .{ WaitingGroup, 40 },
        .{ Description, 44 },
        .{ Decision, 40 },
        .{ Plan, 80 },
        .{ abi.Result(Verdict, []const u8), 96 },
        .{ FailureArguments, 240 },
    }) |expected| std.debug.assert(abi.sizeOf(expected[0]) == expected[1]);
}

/// The functions of the host.
const host = struct {
    const Text = [*]const u8;

    fn import(
        comptime interface: []const u8,
        comptime name: []const u8,
        comptime Function: type,
    ) *const Function {
        return @extern(*const Function, .{
            .name = name,
            .library_name = "tidegate:plugin/" ++ interface ++ "@0.2.0",
        });
    }

    const write = import("log", "write", fn (u32, Text, usize) callconv(.c) void);
    const now = import("clock", "now", fn () callconv(.c) u64);
    const local = import("clock", "local", fn (Text, usize, u64, [*]u8) callconv(.c) void);
    const instant = import(
        "clock",
        "instant",
        fn (Text, usize, i32, u32, u32, u32, u32, u32, u32, [*]u8) callconv(.c) void,
    );
    const next = import("random", "next", fn () callconv(.c) u64);
    const add = import("metrics", "add", fn (Text, usize, Text, usize, f64) callconv(.c) void);
    const gauge = import("metrics", "set", fn (Text, usize, Text, usize, f64) callconv(.c) void);
    const data = import("jobs", "data", fn (Text, usize, [*]u8) callconv(.c) void);
    const count = import("running", "count", fn () callconv(.c) u32);
    const weight = import("running", "weight", fn () callconv(.c) u64);
    const groups = import("running", "groups", fn (u32, Text, usize, [*]u8) callconv(.c) void);
    const inGroup = import(
        "running",
        "in-group",
        fn (u32, Text, usize, Text, usize, [*]u8) callconv(.c) void,
    );
    const page = import("running", "page", fn (u32, u32, [*]u8) callconv(.c) void);
    const waitingGroups = import("waiting", "groups", fn (Text, usize, [*]u8) callconv(.c) void);
    const waitingOthers = import("waiting", "others", fn ([*]u8) callconv(.c) void);
    const waitingCountedAt = import("waiting", "counted-at", fn ([*]u8) callconv(.c) void);
    const stateGet = import("state", "get", fn (Text, usize, [*]u8) callconv(.c) void);
    const stateSet = import(
        "state",
        "set",
        fn (Text, usize, Text, usize, u32, u64, [*]u8) callconv(.c) void,
    );
    const stateDelete = import("state", "delete", fn (Text, usize) callconv(.c) void);
    const stateKeys = import("state", "keys", fn (Text, usize, [*]u8) callconv(.c) void);
};
