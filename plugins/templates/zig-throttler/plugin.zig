//! At most `limit` jobs of each type at a time. Change it into your own rule.

const tidegate = @import("sdk/tidegate.zig");

pub const panic = tidegate.panic;

const Throttler = struct {
    pub const about = "At most `limit` jobs of each type at a time.";

    /// The configuration of a queue.
    pub const Config = struct { limit: u64 };

    pub fn decide(
        config: Config,
        round: tidegate.Round,
        candidates: []const tidegate.Job,
    ) !tidegate.Answer {
        // The running jobs, and those that this call runs.
        var used = round.running.weights(.job_type);
        const decisions = tidegate.list(tidegate.Decision, candidates.len);
        for (candidates, decisions) |job, *decision| {
            const weight = used.of(job.job_type);
            if (weight.* + job.weight > config.limit) {
                decision.* = .hold("the limit for {s} jobs is reached", .{job.job_type});
            } else {
                weight.* += job.weight;
                decision.* = .run;
            }
        }
        return .{ .decisions = decisions };
    }
};

comptime {
    tidegate.exportThrottler(Throttler);
}
