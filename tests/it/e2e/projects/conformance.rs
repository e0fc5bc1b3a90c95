//! The conformance suite of the plugin contract: `plugins/conformance`.
//!
//! The cases are data in the format of `tidegate plugin test`. A plugin of each language writes what
//! it receives into its state, and answers as the configuration of the case says. So one file of
//! cases requires the same of every SDK. Each plugin has both roles.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{done, tidegate};
use crate::e2e::serve::{Tidegate, text};

/// The name in the templates, and therefore in the imports of a plugin in Go.
const NAME: &str = "my-plugin";

/// The case whose log is compared, and the text of its lines.
const LOGGED: (&str, &str) = ("every level of the log has its line", "Zürich 🚲: 100 %d {} ${x}");

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/conformance")
}

/// Copies the files below `from` over those below `to`.
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let place = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &place);
        } else {
            fs::copy(&path, place).unwrap();
        }
    }
}

/// A new project in `dir` with the conformance plugin of a language: its component.
fn built(lang: &str, dir: &Path) -> PathBuf {
    done(tidegate(dir, &["new", "--lang", lang, NAME]));
    let project = dir.join(NAME);
    copy(&folder().join(lang), &project);
    done(tidegate(&project, &["build"]));
    project.join(format!("{NAME}.wasm"))
}

/// The outcomes of the cases at `cases`, all as expected.
fn outcomes(component: &Path, cases: &Path, dir: &Path) -> Vec<Value> {
    let tested = tidegate(dir, &["test", text(component), text(cases), "--json"]);
    let report: Value = serde_json::from_slice(&tested.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&tested.stderr)));
    let outcomes = report["cases"].as_array().unwrap().clone();
    let wrong: Vec<&Value> = outcomes.iter().filter(|outcome| outcome["ok"] != true).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    outcomes
}

/// Requires the expected answers of all cases.
fn answers(component: &Path, dir: &Path) {
    let outcomes = outcomes(component, &folder().join("cases"), dir);
    assert_eq!(outcomes.len(), names().len());

    let (name, line) = LOGGED;
    let logged = outcomes.iter().find(|outcome| outcome["name"] == name).unwrap();
    let levels = ["debug", "info", "warn", "error"];
    assert_eq!(logged["log"], json!(levels.map(|level| format!("{level}: {line}"))));
}

/// Requires the same of a plugin in the project at `dir` that needs no earlier attempts: its SDK then
/// reads the candidates by column.
fn answers_by_column(source: &str, component: &Path, dir: &Path) {
    let project = dir.join(NAME);
    let file = project.join(source);
    let written = fs::read_to_string(&file).unwrap();
    let changed = written
        .replace("needsEarlier: true", "needsEarlier: false")
        .replace("needs_earlier = True", "needs_earlier = False");
    assert_ne!(changed, written);
    fs::write(&file, changed).unwrap();
    done(tidegate(&project, &["build"]));

    let mut cases = cases();
    let shows_earlier = |case: &Value| {
        let shown = case["config"]["show"].as_array();
        shown.is_some_and(|shown| shown.contains(&json!("earlier")))
    };
    cases.retain(|case| case["role"] == "throttler" && !shows_earlier(case));
    assert!(cases.len() > 10, "{cases:#?}");
    let kept = dir.join("by-column.json");
    fs::write(&kept, serde_json::to_vec(&cases).unwrap()).unwrap();
    assert_eq!(outcomes(component, &kept, dir).len(), cases.len());
}

/// Requires the effects that an answer does not have: a live server with the plugin in both roles
/// shows its metrics.
async fn acts_live(component: &Path) {
    let tide = Tidegate::start().await;
    tide.cli(&["plugin", "push", "conformance", text(component)]).await.ok();
    let plugin = |config: Value| json!({"plugin": "conformance", "config": config});
    let throttler = plugin(json!({"show": ["metrics"], "value": "throttler"}));
    let queue = json!({"concurrency": 5, "partition_by": "region", "throttler": throttler});
    tide.queue("live", queue).await;
    let words = "nie wieder 🚲";
    let gives_up =
        json!({"show": ["metrics"], "value": "retry", "decide": ["give-up"], "reason": words});
    tide.job_type("work", json!({"queue": "live", "retry": plugin(gives_up)})).await;

    let job = json!({"type": "work", "data": null, "attributes": {"region": "east"}});
    let id = tide.enqueue(job).await;
    let lease = tide.lease_one("work").await;
    let report = json!({"attempt": lease.attempt, "status": "failed", "message": "503"});
    tide.post(&lease.path, report).await.is(200);
    let failed = tide.job_in(&id, "failed").await;
    assert_eq!(failed["error"]["message"], words, "{failed:#}");
    let plugin = tide.get("/v1/plugins/conformance").await.is(200);
    assert_eq!(plugin["health"]["faults"], 0, "{plugin:#}");

    let metrics = String::from_utf8(tide.get("/metrics").await.body).unwrap();
    for label in ["throttler", "retry"] {
        let value = |series: &str, name: &str| {
            let of_plugin = r#"plugin="conformance",version="1",queue="live""#;
            let start = format!(r#"{series}{{{of_plugin},name="{name}",label="{label}"}} "#);
            let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
            let value = value.unwrap_or_else(|| panic!("no {start}in {metrics}"));
            value.parse::<f64>().unwrap()
        };
        // Each call adds 3.
        let calls = value("tidegate_plugin_counter_total", "conformance_calls") / 3.0;
        assert!(calls >= 1.0 && calls.fract() == 0.0, "{label}: {calls}");
        let level = value("tidegate_plugin_gauge", "conformance_level");
        assert!((level + 0.5).abs() < f64::EPSILON, "{label}: {level}");
    }
}

async fn conforms(lang: &str) {
    let dir = tempfile::tempdir().unwrap();
    let component = built(lang, dir.path());
    answers(&component, dir.path());
    acts_live(&component).await;
    let by_column = match lang {
        "js" => Some("plugin.js"),
        "ts" => Some("plugin.ts"),
        "python" => Some("plugin.py"),
        _ => None,
    };
    if let Some(source) = by_column {
        answers_by_column(source, &component, dir.path());
    }
}

#[tokio::test]
#[ignore = "needs the target wasm32-unknown-unknown, and fetches crates; ./test runs it unless the target cannot be installed"]
async fn a_rust_plugin_conforms_to_the_contract() {
    conforms("rust").await;
}

#[tokio::test]
#[ignore = "needs Node.js, and fetches its tool; cargo xtask check --full runs it"]
async fn a_javascript_plugin_conforms_to_the_contract() {
    conforms("js").await;
}

/// A part of the test above, with one build: `./test` runs it.
#[test]
#[ignore = "needs Node.js, and fetches its tool; ./test runs it unless Node.js is not installed"]
fn a_js_plugin_answers_every_case() {
    let dir = tempfile::tempdir().unwrap();
    answers(&built("js", dir.path()), dir.path());
}

#[tokio::test]
#[ignore = "needs Node.js, and fetches its tools; cargo xtask check --full runs it"]
async fn a_typescript_plugin_conforms_to_the_contract() {
    conforms("ts").await;
}

#[tokio::test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
async fn a_python_plugin_conforms_to_the_contract() {
    conforms("python").await;
}

#[tokio::test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
async fn a_go_plugin_conforms_to_the_contract() {
    conforms("go").await;
}

#[tokio::test]
#[ignore = "needs Node.js, and fetches its tool; cargo xtask check --full runs it"]
async fn an_assemblyscript_plugin_conforms_to_the_contract() {
    conforms("assemblyscript").await;
}

#[tokio::test]
#[ignore = "needs Python, and fetches its tool; ./test runs it"]
async fn a_c_plugin_conforms_to_the_contract() {
    conforms("c").await;
}

#[tokio::test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
async fn a_cpp_plugin_conforms_to_the_contract() {
    conforms("cpp").await;
}

#[tokio::test]
#[ignore = "needs Python, and fetches its tool; cargo xtask check --full runs it"]
async fn a_zig_plugin_conforms_to_the_contract() {
    conforms("zig").await;
}

/// All cases, in the order of their files.
fn cases() -> Vec<Value> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder().join("cases")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |file: &PathBuf| -> Vec<Value> {
        serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
    };
    files.iter().flat_map(read).collect()
}

/// The names of the cases, which differ.
fn names() -> BTreeSet<String> {
    let cases = cases();
    let names: BTreeSet<String> =
        cases.iter().map(|case| case["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names.len(), cases.len());
    names
}

#[test]
fn every_language_has_a_conformance_plugin() {
    let dir = tempfile::tempdir().unwrap();
    let refused = tidegate(dir.path(), &["new", "--lang", "none", "mine"]);
    let listed = String::from_utf8(refused.stderr).unwrap();
    let (_, rest) = listed.split_once("[possible values: ").unwrap();
    let (languages, _) = rest.split_once(']').unwrap();
    let mut expected: BTreeSet<&str> = languages.split(", ").collect();
    assert!(expected.contains("rust") && expected.insert("cases"), "{listed}");
    let entries = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let found: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(found.iter().map(String::as_str).collect::<BTreeSet<_>>(), expected);
}

/// The fields of a record of the contract.
fn fields(record: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/wit/plugin.wit");
    let contract = fs::read_to_string(path).unwrap();
    let (_, rest) = contract.split_once(&format!("record {record} {{\n")).unwrap();
    let (body, _) = rest.split_once("\n    }\n").unwrap();
    let lines = body.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    lines.filter_map(|line| Some(line.split_once(": ")?.0.replace('-', "_"))).collect()
}

/// The names of the fields that the objects at `place` have in one case or another. The elements of
/// lists count.
fn given(place: &str) -> BTreeSet<String> {
    let mut given = BTreeSet::new();
    for case in cases() {
        let mut found = vec![case];
        for step in place.split('/') {
            found = found
                .iter_mut()
                .flat_map(|value| match value[step].take() {
                    Value::Array(list) => list,
                    Value::Null => Vec::new(),
                    one => vec![one],
                })
                .collect();
        }
        given.extend(found.iter().filter_map(Value::as_object).flat_map(|one| one.keys().cloned()));
    }
    // The names of cases for two fields of the contract.
    for (short, name) in [("type", "job_type"), ("timeout_seconds", "timeout")] {
        if given.remove(short) {
            given.insert(name.to_owned());
        }
    }
    given
}

#[test]
fn every_field_of_the_contract_has_a_case() {
    for (record, place) in [
        ("job", "candidates"),
        ("job", "job"),
        ("failure", "candidates/earlier"),
        ("failure", "failure"),
        ("running-job", "running"),
        ("ended", "ended"),
        ("plan", "expect/retry"),
    ] {
        let (fields, given) = (fields(record), given(place));
        let missing: Vec<&String> = fields.difference(&given).collect();
        assert!(fields.len() > 6, "{record}: {fields:?}");
        assert!(missing.is_empty(), "no case has {missing:?} of {record} in {place}");
    }
}

/// The names of the fields of an interface in the types of the SDK of JavaScript.
fn typed(file: &str, interface: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/sdk-js").join(file);
    let types = fs::read_to_string(path).unwrap();
    let (_, rest) = types.split_once(&format!("export interface {interface} ")).unwrap();
    let (body, _) = rest.split_once("\n}\n").unwrap();
    let name = |line: &str| {
        let name = line.trim().trim_start_matches("readonly ").split_once(": ")?.0;
        let name = name.trim_end_matches('?');
        name.chars().all(char::is_alphanumeric).then(|| name.to_owned())
    };
    let mut names: BTreeSet<String> = body.lines().filter_map(name).collect();
    if body.starts_with("extends Attributed {") {
        names.insert("attributes".to_owned());
    }
    names
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |all, word| all + &word[..1].to_uppercase() + &word[1..])
}

#[test]
fn the_types_of_the_js_sdk_have_the_fields_of_the_contract() {
    for (record, file, interface) in [
        ("job", "common.d.ts", "Job"),
        ("failure", "common.d.ts", "Failure"),
        ("local-time", "common.d.ts", "LocalTime"),
        ("shown", "common.d.ts", "Shown"),
        ("description", "common.d.ts", "About"),
        ("round", "throttler.d.ts", "Round"),
        ("running-job", "throttler.d.ts", "RunningJob"),
        // Of the two records with this name, that of what waits.
        ("group", "throttler.d.ts", "WaitingGroup"),
        ("ended", "throttler.d.ts", "Ended"),
        ("plan", "retry.d.ts", "Changes"),
    ] {
        let mut fields: BTreeSet<String> =
            fields(record).iter().map(|name| camel_case(name)).collect();
        // The time of a plan is an argument of its own.
        assert!(record != "plan" || fields.remove("at"));
        let typed = typed(file, interface);
        let missing: Vec<&String> = fields.difference(&typed).collect();
        assert!(fields.len() > 2, "{record}: {fields:?}");
        assert!(missing.is_empty(), "{interface} lacks {missing:?} of {record}: {typed:?}");
    }
}
