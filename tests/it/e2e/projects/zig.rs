//! Projects in Zig.

use super::{changed, governs_as_the_readme_says, retries};

#[tokio::test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
async fn a_zig_throttler_by_the_readme_acts_as_simulated() {
    governs_as_the_readme_says("zig", &[]).await;
}

#[test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
fn a_new_zig_retry_strategy_builds_and_its_cases_hold() {
    retries("zig");
}

/// One plugin does it all: a configuration with a map and defaults, the state, a time zone, a cut
/// letter, a panic.
#[test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
fn a_zig_panic_is_logged_and_a_configuration_is_read() {
    let config = "struct {
        limit: u64,
        shares: std.json.ArrayHashMap(f64) = .{},
        mode: enum { fast, slow } = .fast,
    }";
    let trouble = r#"try round.state.set("kept", "value", round.now + 1);
        if (round.state.set(tidegate.print("{d:0>200}", .{1}), "v", null)) |_| {} else |refused| {
            tidegate.log.info("{s} {?s}", .{ @errorName(refused), round.state.get("kept") });
        }
        const berlin = try tidegate.clock.local("Europe/Berlin", round.now);
        tidegate.log.warn("{d} {t} {s}", .{ berlin.time.hour, config.mode, "cut \xc3" });
        var sum: u8 = 251;
        sum += @intCast(candidates.len);
        tidegate.log.info("{d}", .{sum});
        // The running jobs"#;
    let changes = [
        ("pub const panic", "const std = @import(\"std\");\npub const panic"),
        ("struct { limit: u64 }", config),
        ("// The running jobs", trouble),
    ];
    let said = changed("zig", "throttler", "plugin.zig", &changes);
    for part in [
        "log: info: InvalidKey value\n",
        "log: warn: 1 fast cut \u{fffd}\n",
        "log: error: integer overflow\n",
        "it failed (trapped)",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}
