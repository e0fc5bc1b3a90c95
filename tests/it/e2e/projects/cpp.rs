//! Projects in C++.

use super::{changed, governs_as_the_readme_says, retries};

#[tokio::test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
async fn a_cpp_throttler_by_the_readme_acts_as_simulated() {
    governs_as_the_readme_says("cpp", &[]).await;
}

#[test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
fn a_new_cpp_retry_strategy_builds_and_its_cases_hold() {
    retries("cpp");
}

/// One plugin does it all: a constructor that runs before the first call, JSON in the state, a time
/// zone, errors.
#[test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
fn a_cpp_plugin_reads_json_and_logs_errors() {
    let start = r#"static const std::vector<std::string> made(3, "made at the start");

static Answer decide("#;
    let trouble = r#"round.state.set("kept", "{\"a\": [7, " + Json::quote("\xc3\xbc\n") + "]}");
    Json list = Json::parse(*round.state.get("kept"))["a"];
    std::string text = Json::quote(*list.item(1).string());
    log::info(made[2] + " " + std::to_string(*list.item(0).whole()) + text);
    auto berlin = clock::local("Europe/Berlin", round.now);
    log::warn(std::to_string(berlin.shown.time.hour) + " " + std::to_string(bool(list.item(2))));
    log::debug(std::string("\u00fc").substr(0, 1));
    if (candidates.size() == 5) return *round.state.set(std::string(200, 'k'), "v");
    // The running jobs"#;
    let changes = [("static Answer decide(", start), ("// The running jobs", trouble)];
    let said = changed("cpp", "throttler", "plugin.cpp", &changes);
    for part in [
        "log: info: made at the start 7\"ü\\u000a\"\n",
        "log: warn: 1 0\n",
        "log: debug: ?\n",
        "it failed (rejected): the key is empty, or has more than 128 bytes\n",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}
