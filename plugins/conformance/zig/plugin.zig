//! The conformance plugin: it writes what it receives into its state, and answers as its
//! configuration says. `cases` has the configurations and the expected texts.

const std = @import("std");
const tidegate = @import("sdk/tidegate.zig");
const print = tidegate.print;

pub const panic = tidegate.panic;

/// The configuration of both roles.
const TheConfig = struct {
    /// What it writes into its state.
    show: []const []const u8 = &.{},
    /// What it decides: an action for each candidate, or one for a failed job.
    decide: []const []const u8 = &.{},
    attribute: []const u8 = "region",
    value: []const u8 = "",
    reason: []const u8 = "",
    zone: []const u8 = "UTC",
    at: u64 = 0,
    more: bool = true,
    data: ?[]const u8 = null,
    priority: ?i32 = null,
    weight: ?u32 = null,
    attempts_left: ?u32 = null,
    timeout: ?u64 = null,
    target: ?[]const u8 = null,

    fn shows(self: TheConfig, what: []const u8) bool {
        for (self.show) |shown| {
            if (std.mem.eql(u8, shown, what)) return true;
        }
        return false;
    }

    fn decides(self: TheConfig, index: usize, action: []const u8) bool {
        return index < self.decide.len and std.mem.eql(u8, self.decide[index], action);
    }
};

fn checkConfig(config: TheConfig, problems: *tidegate.Problems) void {
    if (config.attribute.len == 0) problems.add("/attribute", "must not be empty", .{});
}

fn orText(value: ?[]const u8) []const u8 {
    return value orelse "-";
}

fn orNumber(value: anytype) []const u8 {
    return if (value) |number| print("{d}", .{number}) else "-";
}

/// A list of texts with `separator` between them.
const List = struct {
    separator: []const u8,
    text: []const u8 = "",

    fn add(self: *List, part: []const u8) void {
        const between = if (self.text.len == 0) "" else self.separator;
        self.text = print("{s}{s}{s}", .{ self.text, between, part });
    }
};

fn failureText(failure: tidegate.Failure) []const u8 {
    return print("{d},{s},{s},{s},{s},{d},{d},{s}", .{
        failure.attempt,          failure.reason,               orText(failure.message),
        orNumber(failure.status), orText(failure.details),      failure.started_at,
        failure.ended_at,         orNumber(failure.not_before),
    });
}

fn jobText(job: tidegate.Job) []const u8 {
    return print("{s}|{s}|{d}|{d}|{d}|{d}|{d}|{d}|{s}|{s}|{s}|{s}|{s}", .{
        job.id,                      job.job_type,            job.priority,
        job.weight,                  job.attempt,             job.attempts,
        job.created_at,              job.run_at,              orNumber(job.expires_at),
        orNumber(job.deadline_at),   orText(job.target_host), orText(job.replay_of),
        orText(job.correlation_key),
    });
}

/// What throttlers and retry strategies can use.
const Common = struct {
    config: TheConfig,
    state: tidegate.State,

    fn set(self: Common, key: []const u8, value: []const u8) !void {
        try self.state.set(key, value, null);
    }

    fn show(self: Common, jobs: []const tidegate.Job) !void {
        for (jobs) |job| try self.showJob(job);
        if (self.config.shows("state")) try self.showState();
        if (self.config.shows("full")) try self.showFull();
        if (self.config.shows("clock")) try self.showClock();
        if (self.config.shows("wrong")) try self.showWrong();
        if (self.config.shows("random")) {
            const first = tidegate.random.next();
            try self.set("random", print("{}", .{first != tidegate.random.next()}));
        }
        if (self.config.shows("metrics")) {
            tidegate.metrics.add("conformance_calls", self.config.value, 3);
            tidegate.metrics.set("conformance_level", self.config.value, -0.5);
        }
        if (self.config.shows("log")) {
            tidegate.log.debug("{s}", .{self.config.reason});
            tidegate.log.info("{s}", .{self.config.reason});
            tidegate.log.warn("{s}", .{self.config.reason});
            tidegate.log.err("{s}", .{self.config.reason});
        }
    }

    fn showJob(self: Common, job: tidegate.Job) !void {
        if (self.config.shows("jobs")) try self.set(print("job {s}", .{job.id}), jobText(job));
        if (self.config.shows("attributes")) {
            var all: List = .{ .separator = ";" };
            for (job.attributes) |own| all.add(print("{s}={s}", .{ own.name, own.value }));
            const one = orText(job.attribute(self.config.attribute));
            const absent = orText(job.attribute("absent"));
            const text = print("{s}|{s}|{s}", .{ all.text, one, absent });
            try self.set(print("attributes {s}", .{job.id}), text);
        }
        if (self.config.shows("earlier")) {
            var earlier: List = .{ .separator = ";" };
            for (job.earlier) |failure| earlier.add(failureText(failure));
            try self.set(print("earlier {s}", .{job.id}), earlier.text);
        }
        if (self.config.shows("data")) {
            try self.set(print("data {s}", .{job.id}), orText(job.data()));
        }
    }

    fn showState(self: Common) !void {
        var keys: List = .{ .separator = "," };
        for (self.state.keys("k")) |key| keys.add(key);
        const kept = orText(self.state.get("kept"));
        const missing = orText(self.state.get("missing"));
        const gone = orText(self.state.get("gone"));
        try self.set("state", print("{s}|{s}|{s}|{s}", .{ kept, missing, gone, keys.text }));
        self.state.delete("old");
        try self.set("new", "ä🚲");
        try self.state.set("soon", "1", self.config.at);
        const key = self.refuses(&@as([129]u8, @splat('k')), "v");
        const value = self.refuses("k", &@as([16385]u8, @splat('v')));
        try self.set("refused", print("{}|{}", .{ key, value }));
    }

    fn refuses(self: Common, key: []const u8, value: []const u8) bool {
        self.state.set(key, value, null) catch return true;
        return false;
    }

    fn fullKey(number: usize) []const u8 {
        return print("full {d}", .{number});
    }

    /// How many long values the state takes, and whether the next one is refused for its bound.
    fn showFull(self: Common) !void {
        const value = &@as([16000]u8, @splat('v'));
        var count: usize = 0;
        var refused: ?tidegate.State.Error = null;
        while (refused == null) {
            self.state.set(fullKey(count), value, null) catch |failure| {
                refused = failure;
                continue;
            };
            count += 1;
        }
        const is_full = refused.? == error.StateFull;
        const first = orText(self.state.get(fullKey(0))).len;
        const last = orText(self.state.get(fullKey(count)));
        for (0..count) |number| self.state.delete(fullKey(number));
        try self.set("full", print("{d}|{}|{d}|{s}", .{ count, is_full, first, last }));
    }

    fn showWrong(self: Common) !void {
        const zone = isFailure(tidegate.clock.local(self.config.zone, 0));
        const at = isFailure(tidegate.clock.local("UTC", self.config.at));
        const time = isFailure(tidegate.clock.instant("UTC", .{
            .year = 2026, .month = 1, .day = 1, .hour = 24, .minute = 0, .second = 0,
        }));
        try self.set("wrong", print("{}|{}|{}", .{ zone, at, time }));
    }

    fn isFailure(result: anytype) bool {
        _ = result catch return true;
        return false;
    }

    fn showClock(self: Common) !void {
        const shown = try tidegate.clock.local(self.config.zone, self.config.at);
        const time = shown.time;
        const instant = try tidegate.clock.instant(self.config.zone, time);
        const date = print("{d}-{d}-{d}", .{ time.year, time.month, time.day });
        const day = print("{d}:{d}:{d}.{d}", .{
            time.hour, time.minute, time.second, time.millisecond,
        });
        try self.set("clock", print("{d}|{s} {s}|{d}|{d}|{d}", .{
            tidegate.clock.now(), date, day, shown.weekday, shown.offset, instant,
        }));
    }

    fn showEnded(self: Common, ended: []const tidegate.Ended) !void {
        for (ended) |one| {
            const region = orText(one.attribute(self.config.attribute));
            const job = print("{s}|{s}|{d}|{d}|{s}|{s}", .{
                one.id, one.job_type, one.priority, one.weight, region, orText(one.target_host),
            });
            const times = print("{d}|{d}|{d}|{}", .{
                one.attempt, one.started_at, one.ended_at, one.succeeded,
            });
            const why = print("{s}|{s}|{s}|{s}|{s}", .{
                orText(one.reason),  orText(one.message),      orNumber(one.status),
                orText(one.details), orNumber(one.not_before),
            });
            try self.set(
                print("ended {s}", .{one.id}),
                print("{s}|{s}|{s}", .{ job, times, why }),
            );
        }
    }

    fn showRunning(self: Common, running: tidegate.Running) !void {
        try self.set("running", print("{d}|{d}", .{ running.count(), running.weight() }));
        for (running.page(0, 1000)) |job| {
            const region = orText(job.attribute(self.config.attribute));
            const text = print("{s}|{s}|{d}|{d}|{}|{s}|{d}", .{
                job.id,         job.job_type, job.priority, job.weight, job.critical, region,
                job.granted_at,
            });
            try self.set(print("running {s}", .{job.id}), text);
        }
        var page: List = .{ .separator = "," };
        for (running.page(1, 2)) |job| page.add(job.id);
        try self.set("page", page.text);
    }

    fn showGroups(self: Common, running: tidegate.Running) !void {
        const by: tidegate.Dimension = .{ .attribute = self.config.attribute };
        try self.set("by type", groupsText(running.groups(.job_type)));
        try self.set("by priority", groupsText(running.groups(.priority)));
        try self.set("by attribute", groupsText(running.groups(by)));
        const one = running.inGroup(by, self.config.value);
        const none = running.inGroup(.job_type, "none");
        try self.set("in group", print("{d},{d}|{d},{d}", .{
            one.count, one.weight, none.count, none.weight,
        }));
    }

    fn showWaiting(self: Common, waiting: tidegate.Waiting) !void {
        var groups: List = .{ .separator = ";" };
        for (waiting.groups(self.config.attribute)) |group| {
            groups.add(print("{s}={s}", .{ group.value, waitingText(group) }));
        }
        try self.set("waiting", groups.text);
        const others = waiting.others();
        try self.set("others", if (others) |group| waitingText(group) else "-");
        try self.set("counted at", orNumber(waiting.countedAt()));
    }
};

fn groupsText(groups: []const tidegate.Group) []const u8 {
    var text: List = .{ .separator = ";" };
    for (groups) |group| {
        text.add(print("{s}={d},{d}", .{ group.value, group.count, group.weight }));
    }
    return text.text;
}

fn waitingText(group: tidegate.WaitingGroup) []const u8 {
    return print("{d},{d},{d},{}", .{
        group.count, group.weight, group.oldest_due_at, group.at_least,
    });
}

const Throttler = struct {
    pub const about = "Shows all that a throttler receives.";
    pub const Config = TheConfig;
    pub const state_version: u32 = 1;
    pub const group_by: []const []const u8 = &.{"*"};
    pub const needs_running_jobs = true;
    pub const needs_data = true;
    pub const needs_ended = true;
    pub const needs_earlier = true;
    pub const waiting_by: []const []const u8 = &.{"*"};
    pub const check = checkConfig;

    pub fn decide(
        config: TheConfig,
        round: tidegate.Round,
        candidates: []const tidegate.Job,
    ) !tidegate.Answer {
        const common: Common = .{ .config = config, .state = round.state };
        if (config.shows("round")) {
            try common.set("round", print("{s}|{d}|{s}|{d}|{d}", .{
                round.queue, round.now,      orNumber(round.concurrency),
                round.room,  candidates.len,
            }));
        }
        try common.show(candidates);
        if (config.shows("ended")) try common.showEnded(round.ended);
        if (config.shows("running")) try common.showRunning(round.running);
        if (config.shows("groups")) try common.showGroups(round.running);
        if (config.shows("waiting")) try common.showWaiting(round.waiting);
        if (config.decides(0, "error")) return tidegate.fail("{s}", .{config.reason});
        const decisions = tidegate.list(tidegate.Decision, candidates.len);
        for (decisions, 0..) |*decision, index| decision.* = decided(config, index);
        return .{ .decisions = decisions, .more = config.more };
    }

    fn decided(config: TheConfig, index: usize) tidegate.Decision {
        const reason = .{config.reason};
        if (config.decides(index, "hold")) return .hold("{s}", reason);
        if (config.decides(index, "hold-until")) return .holdUntil(config.at, "{s}", reason);
        if (config.decides(index, "reschedule")) return .reschedule(config.at, "{s}", reason);
        if (config.decides(index, "drop")) return .drop("{s}", reason);
        return .run;
    }
};

const Retry = struct {
    pub const about = "Shows all that a retry strategy receives.";
    pub const Config = TheConfig;
    pub const state_version: u32 = 1;
    pub const needs_data = true;
    pub const check = checkConfig;

    pub fn onFailure(
        config: TheConfig,
        call: tidegate.Call,
        job: tidegate.Job,
        last: tidegate.Failure,
    ) !tidegate.Verdict {
        const common: Common = .{ .config = config, .state = call.state };
        if (config.shows("call")) {
            try common.set("call", print("{s}|{d}", .{ call.queue, call.now }));
        }
        if (config.shows("last")) try common.set("last", failureText(last));
        try common.show(&.{job});
        if (config.decides(0, "error")) return tidegate.fail("{s}", .{config.reason});
        if (config.decides(0, "give-up")) return .giveUp("{s}", .{config.reason});
        if (config.decides(0, "give-up-silently")) return .{ .give_up = null };
        return .{ .retry = .{
            .at = config.at,
            .data = config.data,
            .priority = config.priority,
            .weight = config.weight,
            .attempts_left = config.attempts_left,
            .timeout = config.timeout,
            .target = config.target,
        } };
    }
};

comptime {
    tidegate.exportThrottler(Throttler);
    tidegate.exportRetry(Retry);
}
