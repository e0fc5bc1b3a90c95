//! Gives up if the target is gone, and waits longer each time otherwise. Change it into your own
//! rule.

const std = @import("std");
const tidegate = @import("sdk/tidegate.zig");

pub const panic = tidegate.panic;

const Retry = struct {
    pub const about = "Gives up what is gone, and waits longer each time for the rest.";

    /// The configuration of a job type.
    pub const Config = struct { base_seconds: f64 };

    /// The longest wait, in seconds.
    const a_day: f64 = 86400;

    pub fn check(config: Config, problems: *tidegate.Problems) void {
        if (config.base_seconds <= 0) problems.add("/base_seconds", "must be over 0", .{});
    }

    pub fn onFailure(
        config: Config,
        call: tidegate.Call,
        job: tidegate.Job,
        last: tidegate.Failure,
    ) !tidegate.Verdict {
        if (last.status) |status| {
            if (status == 404 or status == 410) return .giveUp("what it was for is gone", .{});
        }
        const doublings: f64 = @floatFromInt(job.attempt - 1);
        const wait = @min(config.base_seconds * std.math.exp2(doublings), a_day);
        return .after(call, @intFromFloat(wait * 1000));
    }
};

comptime {
    tidegate.exportRetry(Retry);
}
