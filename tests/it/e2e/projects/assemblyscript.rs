//! Projects in `AssemblyScript`.

use super::{changed, governs_as_the_readme_says, retries};

#[tokio::test]
#[ignore = "needs Node.js, and fetches its tool; cargo xtask check --full runs it"]
async fn an_assemblyscript_throttler_by_the_readme_acts_as_simulated() {
    governs_as_the_readme_says("assemblyscript", &[]).await;
}

#[test]
#[ignore = "needs Node.js, and fetches its tool; cargo xtask check --full runs it"]
fn a_new_assemblyscript_retry_strategy_passes_its_cases() {
    retries("assemblyscript");
}

/// One plugin does it all: texts beyond ASCII, JSON in the state, a time zone, an error.
#[test]
#[ignore = "needs Node.js, and fetches its tool; cargo xtask check --full runs it"]
fn an_assemblyscript_error_is_logged_with_its_place() {
    let trouble = "round.state.save(\"kept\", Json.parse('{\"a\": [1.50, \"\\\\u00fc😀\"]}'));
    log.info(round.state.load(\"kept\").toString());
    const long = round.state.set(\"k\".repeat(200), \"v\");
    log.info(long === null ? \"set\" : long.substring(128));
    log.info(Json.parse(\"[1,]\").error);
    const known = clock.problem(\"Europe/Berlin\") === null;
    log.info(`${known} ${clock.now() == round.now}`);
    const mail = round.running.inGroup(Dimension.jobType, \"mail\");
    if (mail.weight == 1) throw new Error(\"no idea\");
    const answer =";
    let changes =
        [("Round, Throttler,", "Round, Throttler, clock, log,"), ("const answer =", trouble)];
    let said = changed("assemblyscript", "throttler", "plugin.ts", &changes);
    for part in [
        "log: info: {\"a\":[1.50,\"ü😀\"]}\n",
        "the key is empty, or has more than 128 bytes\n",
        "log: info: a value is expected (at character 4)\n",
        "log: info: true true\n",
        "log: error: no idea at plugin.ts:",
        "it failed (trapped)",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}
