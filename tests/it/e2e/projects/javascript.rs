//! Projects in JavaScript.

use super::{governs_as_the_readme_says, in_trouble, retries};

#[tokio::test]
#[ignore = "needs Node.js, and fetches its tool; cargo xtask check --full runs it"]
async fn a_javascript_throttler_by_the_readme_acts_as_simulated() {
    governs_as_the_readme_says("js", &[]).await;
}

#[test]
#[ignore = "needs Node.js, and fetches its tool; cargo xtask check --full runs it"]
fn a_new_javascript_retry_strategy_builds_and_its_cases_hold() {
    retries("js");
}

#[test]
#[ignore = "needs Node.js, and fetches its tool; cargo xtask check --full runs it"]
fn a_javascript_exception_is_logged_and_logs_break_no_call() {
    let trouble = "console.log({ big: 1n }); throw new Error('no idea'); return candidates.map";
    let said = in_trouble("js", "throttler", "plugin.js", "return candidates.map", trouble);
    for part in [
        "log: info: [object Object]\n",
        "it failed (rejected): no idea\n",
        "log: error: Error: no idea\n    at decide (/plugin.js:",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
#[ignore = "needs Node.js, and fetches its tool; cargo xtask check --full runs it"]
fn a_javascript_strategy_gets_errors_and_a_past_time_means_now() {
    let trouble =
        "for (const wrong of [{ priority: 1.5 }, { priority: 2 ** 31 }, { priority: 'high' }]) {
      try { after(1, wrong); } catch (error) { console.log(error.message); }
    }
    console.log(after(-1e12).val.at, giveUp(404).val);
    throw new Error('no idea'); return after(";
    let said = in_trouble("js", "retry", "plugin.js", "return after(", trouble);
    for part in [
        "log: info: priority must be a whole number of 32 bits, not 1.5\n",
        "log: info: priority must be a whole number of 32 bits, not 2147483648\n",
        "log: info: priority must be a whole number of 32 bits, not \"high\"\n",
        "log: info: 0 404\n",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}
