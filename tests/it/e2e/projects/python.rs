//! Projects in Python.

use super::{governs_as_the_readme_says, in_trouble, retries};

/// One plugin does it all: a component from Python takes most of a minute to build and to compile.
#[test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
fn what_a_python_plugin_prints_and_raises_is_logged() {
    let trouble = "from sdk.throttler import hold_until
        print('one', 2)
        print(round.running.in_group('job-type', 'missing').count, round.running.in_group('job-type', 'mail').weight)
        for wrong in [
            lambda: round.state.save('k' * 200, 1),
            lambda: round.state.save('k', 'x' * 20000),
            lambda: hold_until(-1),
        ]:
            try:
                wrong()
            except ValueError as error:
                print(error)
        hold(5)
        from sdk.throttler import LocalTime, clock, metrics
        try:
            clock.instant('UTC', LocalTime(2026, 3, 1, hour=24))
        except ValueError as error:
            print(error)
        metrics.add('held', 'a')
        round.state.set('k', 'v', round.now + 1000)
        print(clock.local('Europe/Berlin', 0).time.hour, 'Europe/Berlin')
        raise KeyError('region')";
    let said = in_trouble("python", "throttler", "plugin.py", "decisions = []", trouble);
    for part in [
        "log: info: one 2\n",
        "log: info: 0 1\n",
        "log: info: state 'kkk",
        "log: info: state 'k': the value has more than 16 KiB\n",
        "log: info: hour must be a whole number of 0 to 23, not 24\n",
        "log: info: 1 Europe/Berlin\n",
        "log: info: until must be milliseconds since 1970, not -1\n",
        "it failed (rejected): KeyError: 'region'\n",
        "log: error: KeyError: 'region'\n    at ",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
fn a_new_python_retry_strategy_builds_and_its_cases_hold() {
    retries("python");
}

/// Each command that looks at a component from Python compiles it first, which takes most of a
/// minute here.
#[tokio::test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
async fn a_python_throttler_by_the_readme_acts_as_simulated() {
    governs_as_the_readme_says("python", &["plugin check", "tidegate simulate", "plugin bench"])
        .await;
}
