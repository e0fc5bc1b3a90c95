//! The gallery of models in `plugins/gallery`: each one passes its cases, meets the expectations of
//! its scenario, and has its picture and its page.
//!
//! A model is short enough to be read as a whole. `UPDATE_EXPECT=1` draws the pictures again.

use std::{env, fs, path::Path, path::PathBuf};

use rstest::rstest;
use serde_json::{Value, json};

use crate::e2e::serve::program;

/// A model has fewer lines of code, without blank lines and comments.
const MODEL_LINES: usize = 100;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether the model is the retry strategy of a type of the scenario. Otherwise it throttles the queue.
fn retries(scenario: &Value, name: &str) -> bool {
    let mut types = scenario["types"].as_object().into_iter().flat_map(|types| types.values());
    types.any(|config| config["retry"]["plugin"] == *name)
}

/// The attribute, or `type`, whose values have a line each in the picture.
fn shown_by(scenario: &Value) -> &str {
    let config = &scenario["queue"]["throttler"]["config"];
    let named = ["attribute", "tenant"].iter().find_map(|name| config[name].as_str());
    named.unwrap_or("type")
}

#[rstest]
fn a_model_passes_its_cases_and_meets_its_scenario(
    #[files("plugins/gallery/*/scenario.json")] file: PathBuf,
) {
    let folder = file.parent().unwrap();
    let name = folder.file_name().unwrap().to_str().unwrap();
    let scenario: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let is_retry = retries(&scenario, name);
    assert!(is_retry || scenario["queue"]["throttler"]["plugin"] == *name, "{name} is not used");
    let expected = scenario["expect"].as_object().is_some_and(|expect| !expect.is_empty());
    assert!(expected, "{name}: the scenario expects nothing");

    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&Path]| {
        let mut command = program(args);
        let output = command.env("XDG_CACHE_HOME", dir.path()).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        let problem = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {shown}{problem}");
        shown
    };
    let component = root().join("plugins/dist").join(format!("{name}.wasm"));
    let shown = run(&[Path::new("plugin"), Path::new("test"), &component, &folder.join("cases")]);
    assert!(shown.trim_end().ends_with(" cases, 0 failed"), "{shown}");

    let drawn = dir.path().join("drawn.svg");
    let by = Path::new(shown_by(&scenario));
    let option = if is_retry { "--retry-plugin" } else { "--plugin" };
    let [simulate, plugin, group, picture] =
        ["simulate", option, "--by", "--picture"].map(Path::new);
    run(&[simulate, &file, plugin, &component, group, by, picture, &drawn]);
    let drawn = fs::read_to_string(drawn).unwrap();
    let committed = root().join("docs/gallery").join(format!("{name}.svg"));
    if env::var_os("UPDATE_EXPECT").is_some() {
        fs::create_dir_all(committed.parent().unwrap()).unwrap();
        fs::write(&committed, &drawn).unwrap();
    }
    assert!(
        fs::read_to_string(&committed).is_ok_and(|text| text == drawn),
        "{} is not what the scenario draws: UPDATE_EXPECT=1 writes it",
        committed.display()
    );
}

#[rstest]
fn a_model_is_short_and_on_the_page_of_the_gallery(
    #[files("plugins/gallery/*/src/lib.rs")] file: PathBuf,
) {
    let source = fs::read_to_string(&file).unwrap();
    let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
    let lines = source.lines().map(str::trim).filter(is_code).count();
    assert!(lines < MODEL_LINES, "{}: {lines} lines of code", file.display());

    let folder = file.ancestors().nth(2).unwrap();
    let name = folder.file_name().unwrap().to_str().unwrap();
    let page = fs::read_to_string(root().join("docs/gallery.md")).unwrap();
    for part in [format!("gallery/{name}.svg"), format!("plugins/gallery/{name}/README.md")] {
        assert!(page.contains(&part), "docs/gallery.md has no {part}");
    }
    let readme = fs::read_to_string(folder.join("README.md")).unwrap();
    for part in ["**Use it**", "**Do not use it**"] {
        assert!(readme.contains(part), "{name}/README.md has no {part}");
    }
}

/// The tabs of `docs/plugins.md` show the files of new projects, which the tests of projects build.
#[test]
fn the_tabs_of_the_page_show_the_files_of_new_projects() {
    let page = fs::read_to_string(root().join("docs/plugins.md")).unwrap();
    for (lang, file) in [
        ("rust", "src/lib.rs"),
        ("js", "plugin.js"),
        ("ts", "plugin.ts"),
        ("python", "plugin.py"),
        ("go", "plugin.go"),
        ("assemblyscript", "plugin.ts"),
        ("c", "plugin.c"),
        ("cpp", "plugin.cpp"),
        ("zig", "plugin.zig"),
    ] {
        let path = format!("plugins/templates/{lang}-throttler/{file}");
        let source = fs::read_to_string(root().join(&path)).unwrap();
        // The tests of the Rust SDK are left out.
        let shown = source.split("\n#[cfg(test)]").next().unwrap();
        assert!(page.contains(shown.trim_end()), "docs/plugins.md does not show {path}");
        assert!(
            page.contains(&format!("tidegate plugin new --lang {lang} my-throttler")),
            "{lang}"
        );
    }
}

/// A model that shares targets by their hosts shows that default.
#[test]
fn a_scenario_shows_targets_by_their_hosts() {
    for name in ["circuit-breaker", "retry-after", "retry-budget"] {
        let file = root().join("plugins/gallery").join(name).join("scenario.json");
        let scenario: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        let throttler = &scenario["queue"]["throttler"];
        assert_eq!(throttler["config"]["attribute"], Value::Null, "{name}");
        let mut types = scenario["types"].as_object().unwrap().values();
        assert!(types.all(|config| config["target"]["url"].is_string()), "{name}");
    }
}

/// A queue whose tenants have these numbers of waiting jobs, with a throttler of `plugins/dist`.
fn backlogs(plugin: &str, config: &Value, concurrency: usize, jobs: &[usize]) -> Value {
    let stream = |(index, count): (usize, &usize)| {
        let tenant = format!("t{:03}", index + 1);
        json!({"type": "work", "count": count, "attributes": {"tenant": tenant}})
    };
    json!({
        "tick_seconds": 0.5,
        "queue": {
            "concurrency": concurrency,
            "partition_by": "tenant",
            "throttler": {"plugin": plugin, "config": config},
        },
        "arrivals": jobs.iter().enumerate().map(stream).collect::<Vec<Value>>(),
        "service": [{"seconds": {"uniform": [1, 3]}}],
    })
}

/// Simulates a scenario, and asserts that its expectations hold.
fn meets_its_expectations(scenario: &Value) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("scenario.json");
    fs::write(&file, scenario.to_string()).unwrap();
    let plugin = scenario["queue"]["throttler"]["plugin"].as_str().unwrap();
    let component = root().join("plugins/dist").join(format!("{plugin}.wasm"));
    let mut command =
        program([Path::new("simulate"), &file, Path::new("--plugin"), component.as_path()]);
    let output = command.env("XDG_CACHE_HOME", dir.path()).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{plugin}: {shown}{problem}");
}

/// One tick visits the partitions of 64 tenants. The jobs of the 65th start one after the other, and
/// do not wait until the backlogs of the others are read.
#[test]
fn a_65th_tenant_gets_its_share_in_time() {
    let mut jobs = vec![50; 64];
    jobs.push(5);
    let shares: Value = (1..=65).map(|number| (format!("t{number:03}"), json!(1))).collect();
    for (plugin, config) in [
        ("fair-share", json!({"tenant": "tenant"})),
        ("region-share", json!({"attribute": "tenant", "shares": shares, "lend": true})),
    ] {
        let mut scenario = backlogs(plugin, &config, 100, &jobs);
        scenario["expect"] =
            json!({"max_running": {"": 100}, "longest_wait_seconds": {"tenant=t065": 20}});
        meets_its_expectations(&scenario);
    }
}

/// With fewer slots than tenants no share is a whole slot: each tenant has its turn.
#[test]
fn tenants_take_turns_where_slots_are_fewer_than_tenants() {
    let jobs = [[20; 64].as_slice(), &[1; 66]].concat();
    let mut scenario = backlogs("fair-share", &json!({"tenant": "tenant"}), 10, &jobs);
    // A lap over 130 tenants takes 13 times as long as a job: about 29 s of 158 s.
    let tenants = (65..=130).map(|number| (format!("tenant=t{number:03}"), json!(40)));
    scenario["expect"] = json!({"longest_wait_seconds": tenants.collect::<Value>()});
    meets_its_expectations(&scenario);
}

/// A slot is in use again after a few ticks, even if no visited tenant may use it. Thirty jobs, one
/// after the other, take a tenant about 75 s.
#[test]
fn the_slots_of_100_tenants_and_more_are_in_use() {
    let shares: Value = (1..=100).map(|number| (format!("t{number:03}"), json!(1))).collect();
    for (plugin, config, tenants) in [
        ("fair-share", json!({"tenant": "tenant"}), 130),
        ("one-at-a-time", json!({"attribute": "tenant"}), 130),
        ("region-share", json!({"attribute": "tenant", "shares": shares}), 100),
    ] {
        let mut scenario = backlogs(plugin, &config, tenants, &vec![30; tenants]);
        scenario["expect"] = json!({"done_by_seconds": 100});
        meets_its_expectations(&scenario);
    }
}
