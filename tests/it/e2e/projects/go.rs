//! Projects in Go.

use super::{changed, governs_as_the_readme_says, retries};

#[tokio::test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
async fn a_go_throttler_by_the_readme_acts_as_simulated() {
    governs_as_the_readme_says("go", &[]).await;
}

#[test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
fn a_new_go_retry_strategy_builds_and_its_cases_hold() {
    retries("go");
}

/// One plugin does it all: the host calls the allocator while it runs, and the collector runs.
#[test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
fn a_go_panic_is_logged_and_memory_is_collected() {
    let trouble = "sum, block := 0, []byte(nil)
	for range 200 {
		block = append([]byte(nil), make([]byte, 1<<20)...)
		sum += len(block) + len(round.Running.Groups(throttler.ByJobType))
	}
	long := round.State.Set(strings.Repeat(\"k\", 200), \"v\")
	log.Info(\"%d %v\", sum, errors.Is(long, state.ErrInvalidKey))
	_, err := clock.Local(\"Nowhere/City\", round.Now)
	log.Info(\"%v %v\", err != nil, clock.Now().Equal(round.Now))
	candidates[len(candidates)].Type = \"no idea\"
	var decisions";
    let import = "import \"example.com/mine/sdk/throttler\"";
    let imports = "import (
	\"errors\"
	\"example.com/mine/sdk/clock\"
	\"example.com/mine/sdk/log\"
	\"example.com/mine/sdk/state\"
	\"example.com/mine/sdk/throttler\"
	\"strings\"
)";
    let changes = [(import, imports), ("var decisions", trouble)];
    let said = changed("go", "throttler", "plugin.go", &changes);
    for part in [
        "log: info: 209715400 true\n",
        "log: info: true true\n",
        "it failed (rejected): panic: runtime error: index out of range [5] with length 5\n",
        "log: error: panic: runtime error: index out of range [5] with length 5\n",
        "plugin.go:",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}
