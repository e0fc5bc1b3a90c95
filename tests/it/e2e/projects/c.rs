//! Projects in C.

use super::{governs_as_the_readme_says, in_trouble, retries};

#[tokio::test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
async fn a_c_throttler_by_the_readme_acts_as_simulated() {
    governs_as_the_readme_says("c", &[]).await;
}

#[test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
fn a_new_c_retry_strategy_builds_and_its_cases_hold() {
    retries("c");
}

/// One plugin does it all: JSON in the state and malformed JSON, a time zone, texts that are not
/// UTF-8, errors.
#[test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
fn a_c_plugin_reads_json_and_logs_errors() {
    let trouble = r#"tg_string json = tg_str("{\"a\": [1.5, \"\\u00fc\\ud83d\\ude00\"]}");
    tg_state_set(tg_str("kept"), json, tg_no_u64());
    const tg_json *list = tg_json_get(tg_json_parse(tg_state_get(tg_str("kept")).value), "a");
    double number = 0;
    tg_string text = tg_str("");
    tg_json_number(tg_json_item(list, 0), &number);
    tg_json_string(tg_json_item(list, 1), &text);
    tg_log_info("%g %.*s", number, TG_ARG(tg_json_quote(text)));
    const char *malformed[] = {"", "01", "1.", "nul", "[1,]", "[1", "{\"a\"}", "1 2", "\"a",
                               "\"\\ud83d\"", "\"\\x\"", "\"\\"};
    int refused = 0;
    for (int i = 0; i < 12; i++) refused += tg_json_parse(tg_str(malformed[i])) == NULL;
    tg_string key = tg_format("%0200d", 1);
    tg_state_error error = tg_state_set(key, tg_str("v"), tg_some_u64(round->now + 1));
    tg_log_warn("%d refused; %s", refused, tg_state_error_message(error));
    tg_local berlin = tg_clock_local(tg_str("Europe/Berlin"), round->now);
    tg_local nowhere = tg_clock_local(tg_str("Nowhere/City"), round->now);
    tg_log_error("%d %d %d", berlin.shown.time.hour, berlin.shown.offset, nowhere.failed);
    const char *wrong = "\xed\xa0\x80 \xc0\xaf \xf0\x9f\x98\x80 \xf4\x90";
    tg_log_debug("%.4s %s", "\u00fc\u20ac", wrong);
    if (candidates.len == 5) return tg_answer_error(tg_str("no idea"));
    // The running jobs"#;
    let said = in_trouble("c", "throttler", "plugin.c", "// The running jobs", trouble);
    for part in [
        "log: info: 1.5 \"ü😀\"\n",
        "log: warn: 12 refused; the key is empty, or has more than 128 bytes\n",
        "log: error: 1 3600 1\n",
        "log: debug: ü?? ??? ?? 😀 ??\n",
        "it failed (rejected): no idea\n",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
fn a_c_plugin_that_reads_through_null_traps() {
    let trouble = r#"const tg_string *none = tg_job_attribute(&candidates.ptr[0], "none");
    tg_log_info("%zu", none->len);
    // The running jobs"#;
    let said = in_trouble("c", "throttler", "plugin.c", "// The running jobs", trouble);
    assert!(said.contains("it failed (trapped)") && !said.contains("log: info"), "{said}");
}
