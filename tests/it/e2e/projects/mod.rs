//! `tidegate plugin new` and `build`: the projects that authors get, built by the tools of their
//! language.

mod conformance;

use std::{
    path::Path,
    process::{Output, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use super::{
    serve::{Tidegate, program, text},
    wait::{eventually, until},
};

pub fn tidegate(dir: &Path, args: &[&str]) -> Output {
    program([&["plugin"], args].concat()).current_dir(dir).output().unwrap()
}

#[track_caller]
pub fn done(output: Output) -> String {
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// A new retry strategy: it builds, is a plugin, and its cases hold.
fn retries(lang: &str) {
    let dir = tempfile::tempdir().unwrap();
    let made = done(tidegate(dir.path(), &["new", "--lang", lang, "--role", "retry", "mine"]));
    assert!(made.contains("tidegate plugin build"), "{made}");
    let project = dir.path().join("mine");
    assert!(done(tidegate(&project, &["build"])).contains("mine.wasm"));
    let checked = done(tidegate(&project, &["check", "mine.wasm"]));
    assert!(checked.contains("imports tidegate:plugin/"), "{checked}");
    let tested = done(tidegate(&project, &["test", "mine.wasm"]));
    assert!(tested.ends_with(" cases, 0 failed\n"), "{tested}");
}

/// The sessions of the plugins' README, each command by itself.
fn sessions() -> Vec<Vec<String>> {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/README.md")).unwrap();
    let blocks = text.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks
        .map(|block| {
            block.lines().map(|line| line.strip_prefix("$ ").unwrap().to_owned()).collect()
        })
        .collect()
}

/// A line of a session, as a reader types it.
fn typed(line: &str, dir: &Path, url: &str) -> tokio::process::Command {
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let mut command = tokio::process::Command::new("bash");
    let line = format!("PATH={}:$PATH; {line}", program.display());
    command
        .args(["-c", &line])
        .current_dir(dir)
        .env("TIDEGATE_URL", url)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

async fn said(line: &str, dir: &Path, url: &str) -> String {
    done(typed(line, dir, url).output().await.unwrap())
}

/// What the issue of plugins is done when: a throttler that is made as the README says, word for
/// word, governs a live queue, and its simulation agrees with what then ran. Commands that a
/// language takes too long for are left out.
async fn governs_as_the_readme_says(lang: &str, left_out: &[&str]) {
    let [make, serve, follow, again] = <[Vec<String>; 4]>::try_from(sessions()).unwrap();
    let (tide, dir) = (Tidegate::start().await, tempfile::tempdir().unwrap());
    let mut place = dir.path().to_owned();
    for line in make.iter().filter(|line| !left_out.iter().any(|part| line.contains(part))) {
        match line.strip_prefix("cd ") {
            Some(folder) => place.push(folder),
            None => drop(
                said(&line.replace("--lang rust", &format!("--lang {lang}")), &place, &tide.base)
                    .await,
            ),
        }
    }
    let (work, serve) = serve.split_last().unwrap();
    for line in serve {
        said(line, &place, &tide.base).await;
    }
    // Shorter than printed, to save time.
    let _worker =
        typed(&format!("exec {}", work.replace("sleep 2", "sleep 0.5")), &place, &tide.base)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
    eventually("the worker asks for jobs", || async {
        let workers = tide.get("/v1/workers").await.is(200);
        (!workers["workers"].as_array().unwrap().is_empty()).then_some(())
    })
    .await;
    for line in &follow {
        if !line.contains("ID-OF-THAT-JOB") {
            said(line, &place, &tide.base).await;
            continue;
        }
        eventually("a job says what holds it", || async {
            let waiting = tide.get("/v1/jobs?queue=mail&state=scheduled&limit=1000").await.is(200);
            let waiting = waiting["jobs"].as_array().unwrap();
            // One that does not start just now.
            let id = waiting[waiting.len() / 2]["id"].as_str().unwrap();
            let why = said(&line.replace("ID-OF-THAT-JOB", id), &place, &tide.base).await;
            (why.contains("held by throttler my-throttler") && why.contains("jobs is reached"))
                .then_some(())
        })
        .await;
    }
    until(|| async {
        let ended =
            tide.get("/v1/jobs?queue=mail&state=succeeded&limit=1000").await.is(200)["jobs"]
                .as_array()
                .unwrap()
                .len();
        (ended == 200, ended)
    })
    .await;
    assert_eq!(tide.get("/v1/plugins/my-throttler").await.is(200)["health"]["faults"], 0);

    let mut output = String::new();
    for line in &again {
        output = said(
            &line.replace("--picture trace.svg", "--picture trace.svg --json"),
            &place,
            &tide.base,
        )
        .await;
    }
    let out: Value = serde_json::from_str(&output).unwrap();
    for side in ["real", "simulated"] {
        assert_eq!(out[side]["all"]["succeeded"], 200, "{out:#}");
        for group in out[side]["groups"].as_array().unwrap() {
            assert_eq!(group["most_running"], 5, "{side}: {group:#}");
        }
    }
    let agreement = &out["agreement"];
    assert_eq!(agreement["jobs"], 200);
    for name in ["letter", "report"] {
        // What is between them is what the live queue needs from a result to the next start.
        assert!(agreement["overlap"][name].as_f64().unwrap() > 0.5, "{agreement:#}");
    }
    assert!(
        std::fs::read_to_string(place.join("trace.svg"))
            .unwrap()
            .contains("what the queue really did")
    );
}

#[tokio::test]
#[ignore = "needs the target wasm32-unknown-unknown, and fetches crates; ./test runs it unless the target cannot be installed"]
async fn a_rust_throttler_by_the_readme_acts_as_simulated() {
    governs_as_the_readme_says("rust", &[]).await;
}

#[test]
#[ignore = "needs the target wasm32-unknown-unknown, and fetches crates; ./test runs it unless the target cannot be installed"]
fn a_new_rust_retry_strategy_builds_and_its_cases_hold() {
    retries("rust");
}

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

#[tokio::test]
#[ignore = "needs Node.js, and fetches its tools; cargo xtask check --full runs it"]
async fn a_typescript_throttler_by_the_readme_acts_as_simulated() {
    governs_as_the_readme_says("ts", &[]).await;
}

#[test]
#[ignore = "needs Node.js, and fetches its tools; cargo xtask check --full runs it"]
fn a_new_typescript_retry_strategy_builds_and_its_cases_hold() {
    retries("ts");
}

/// The types of the SDK are those of the contract: the compiler finds a name that it does not have.
#[test]
#[ignore = "needs Node.js, and fetches its tools; cargo xtask check --full runs it"]
fn a_typescript_project_with_a_wrong_type_is_not_built() {
    let dir = tempfile::tempdir().unwrap();
    done(tidegate(dir.path(), &["new", "--lang", "ts", "mine"]));
    let file = dir.path().join("mine/plugin.ts");
    let source = std::fs::read_to_string(&file).unwrap();
    for (right, wrong, error) in [
        ("job.jobType", "job.type", "Property 'type' does not exist on type 'Job'"),
        ("return run();", "return 'run';", "is not assignable to type"),
        ("limit: number;", "limit: string;", "'number' and 'string'"),
    ] {
        assert!(source.contains(right), "{source}");
        std::fs::write(&file, source.replace(right, wrong)).unwrap();
        let failed = tidegate(&dir.path().join("mine"), &["build"]);
        assert_eq!(failed.status.code(), Some(1), "{failed:?}");
        let shown = String::from_utf8_lossy(&failed.stderr);
        assert!(shown.contains(error) && shown.contains("plugin.ts"), "{error} in {shown}");
        assert!(!dir.path().join("mine/mine.wasm").exists());
    }
}

/// A new project whose rule begins with `trouble`, in place of `rule`: what `tidegate plugin test`
/// says of it.
fn in_trouble(lang: &str, role: &str, source: &str, rule: &str, trouble: &str) -> String {
    changed(lang, role, source, &[(rule, trouble)])
}

/// A new project with changes to its source, each a text and its replacement: what `tidegate plugin
/// test` says of it.
fn changed(lang: &str, role: &str, source: &str, changes: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    done(tidegate(dir.path(), &["new", "--lang", lang, "--role", role, "mine"]));
    let project = dir.path().join("mine");
    let mut text = std::fs::read_to_string(project.join(source)).unwrap();
    for (old, new) in changes {
        assert!(text.contains(old), "{old} in {text}");
        text = text.replace(old, new);
    }
    std::fs::write(project.join(source), text).unwrap();
    done(tidegate(&project, &["build"]));
    let tested = tidegate(&project, &["test", "mine.wasm"]);
    assert_eq!(tested.status.code(), Some(1));
    String::from_utf8(tested.stdout).unwrap()
}

#[test]
#[ignore = "needs the target wasm32-unknown-unknown, and fetches crates; ./test runs it unless the target cannot be installed"]
fn a_rust_plugin_says_why_its_state_cannot_be_saved() {
    let trouble = "let long = round.state.save(&\"k\".repeat(200), &1).unwrap_err();
        let long = long.trim_start_matches(|letter| letter != ':');
        let full = round.state.save(\"k\", &\"x\".repeat(20_000)).unwrap_err();
        if !full.is_empty() { return Err(format!(\"{full} And{long}\")); }
        // The running jobs";
    let said = in_trouble("rust", "throttler", "src/lib.rs", "// The running jobs", trouble);
    let words = "it failed (rejected): state k: its value has more than 16 KiB And: a key must have 1 \
                 to 128 bytes";
    assert!(said.contains(words), "{said}");
}

#[tokio::test]
#[ignore = "needs the target wasm32-unknown-unknown, and fetches crates; ./test runs it unless the target cannot be installed"]
async fn a_change_of_a_rust_project_becomes_a_shadow_version() {
    let (tide, dir) = (Tidegate::start().await, tempfile::tempdir().unwrap());
    done(tidegate(dir.path(), &["new", "--lang", "rust", "mine"]));
    let project = dir.path().join("mine");
    done(tidegate(&project, &["build"]));
    let mut watching = typed("exec tidegate plugin dev --push mine", &project, &tide.base)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let versions = async || {
        let plugin = tide.get("/v1/plugins/mine").await;
        (plugin.status == 200)
            .then(|| plugin.is(200))
            .map(|plugin| (plugin["live"].as_u64(), plugin["shadow"].as_u64()))
    };
    let live = eventually("the first version is live", &versions).await;
    assert_eq!(live, (Some(1), None));
    let file = project.join("src/lib.rs");
    let source = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, source.replace("At most `limit`", "No more than `limit`")).unwrap();
    eventually("the second is the shadow", || async {
        versions().await.filter(|both| *both == (Some(1), Some(2)))
    })
    .await;
    // Its cases hold no more: the command reports it, and pushes nothing.
    std::fs::write(&file, source.replace("> config.limit", "> config.limit + 1")).unwrap();
    let failed = tidegate(&project, &["dev", "--once", "--push", "mine"]);
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(versions().await, Some((Some(1), Some(2))));
    // Ctrl-C ends it, and the plugin has no shadow version as before.
    kill(Pid::from_raw(watching.id().unwrap().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(watching.wait().await.unwrap().code(), Some(0));
    assert_eq!(versions().await, Some((Some(1), None)));
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
	log.Info(\"%d %v\", sum, errors.Is(long, throttler.ErrInvalidKey))
	_, err := clock.Local(\"Nowhere/City\", round.Now)
	log.Info(\"%v %v\", err != nil, clock.Now().Equal(round.Now))
	candidates[len(candidates)].Type = \"no idea\"
	var decisions";
    let import = "import \"example.com/mine/sdk/throttler\"";
    let imports = "import (
	\"errors\"
	\"example.com/mine/sdk/clock\"
	\"example.com/mine/sdk/log\"
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

#[test]
fn a_folder_that_is_there_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("mine")).unwrap();
    let refused = tidegate(dir.path(), &["new", "--lang", "js", "mine"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("mine exists already"));
    assert_eq!(std::fs::read_dir(dir.path().join("mine")).unwrap().count(), 0);
}

#[test]
fn a_failed_build_of_a_project_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let nothing = tidegate(dir.path(), &["build"]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("tidegate plugin new"));
    done(tidegate(dir.path(), &["new", "--lang", "js", "mine"]));
    let mut command = program(["plugin", "build", text(&dir.path().join("mine"))]);
    let missing = command.env("PATH", dir.path()).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&missing.stderr)
            .contains("npx is not installed: it comes with Node.js"),
        "{missing:?}"
    );
}
