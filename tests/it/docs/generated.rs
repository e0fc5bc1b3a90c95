//! Tables and code blocks in documents match the code that they come from.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
};

use serde_json::Value;
use tidegate_server::{settings, telemetry::catalog as metrics};

use super::{documents, one_spaced, root, run};

/// The text of every source file below `src/` that is no test.
fn product_sources() -> Vec<String> {
    let (mut folders, mut texts) = (vec![root().join("src")], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
            if path.is_dir() && !is_test {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
                texts.push(fs::read_to_string(path).unwrap());
            }
        }
    }
    texts
}

/// Checks the part of a document between `<!-- NAME ... -->` and the next `<!-- end`, in whichever
/// document it is; `UPDATE_EXPECT=1` writes it.
#[track_caller]
fn check_generated(name: &str, wanted: &str) {
    let begin = format!("<!-- {name}");
    let documents = documents();
    let (path, text) = documents
        .iter()
        .find(|(_, text)| text.contains(&begin))
        .expect("a document has the marker");
    let (before, rest) = text.split_once(&begin).unwrap();
    let (mark, rest) = rest.split_once("-->\n").unwrap();
    let (there, after) = rest.split_once("<!-- end").unwrap();
    if there != wanted && std::env::var_os("UPDATE_EXPECT").is_some() {
        let text = format!("{before}{begin}{mark}-->\n{wanted}<!-- end{after}");
        fs::write(root().join(path), text).unwrap();
        return;
    }
    assert_eq!(there, wanted, "{path}: run this test with UPDATE_EXPECT=1 to write the table");
}

#[test]
fn the_settings_table_matches_the_code() {
    check_generated("settings", &settings::reference_table());
}

#[test]
fn the_metrics_table_matches_the_code() {
    check_generated("metrics", &metrics::reference_table());
}

#[test]
fn every_recorded_metric_is_in_the_metrics_table() {
    let mut recorded = BTreeSet::new();
    for text in product_sources() {
        // The parts between quotes are at the odd places.
        let literals = text.split('"').skip(1).step_by(2);
        let is_metric = |name: &&str| {
            name.starts_with("tidegate_")
                && (name.ends_with("_total") || name.ends_with("_seconds"))
        };
        recorded.extend(literals.filter(is_metric).map(str::to_owned));
    }
    assert!(recorded.len() > 20);
    for name in recorded {
        assert!(metrics::METRICS.iter().any(|metric| metric.name == name), "{name}");
    }
}

#[test]
fn the_routes_table_matches_the_openapi_document() {
    let script = "tidegate serve & server=$!\n\
        until curl --silent --fail --output openapi.json http://127.0.0.1:8080/openapi.json; do sleep 0.1; done\n\
        kill $server; wait\n";
    let ran = run(script, &[]);
    assert!(ran.good, "{ran}");
    let document = fs::read(ran.dir.path().join("openapi.json")).unwrap();
    check_generated("routes", &routes_table(&serde_json::from_slice(&document).unwrap()));
}

/// A table of the routes for each tag: what each does, and the scope that it needs.
fn routes_table(document: &Value) -> String {
    let mut by_tag: BTreeMap<&str, String> = BTreeMap::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let tag = operation["tags"][0].as_str().unwrap();
            // The first sentence: more is in the document itself.
            let summary = one_spaced(operation["summary"].as_str().unwrap_or_default());
            let summary = summary.split(". ").next().unwrap_or_default().trim_end_matches('.');
            let rows = by_tag.entry(tag).or_default();
            let _ = writeln!(
                rows,
                "| `{} {path}` | {summary} | {} |",
                method.to_uppercase(),
                scope_of(operation)
            );
        }
    }
    let mut text = String::new();
    for tag in document["tags"].as_array().unwrap() {
        let (name, about) =
            (tag["name"].as_str().unwrap(), tag["description"].as_str().unwrap_or_default());
        let Some(rows) = by_tag.remove(name) else {
            continue;
        };
        let title: String = name[..1].to_uppercase() + &name[1..];
        let _ = writeln!(
            text,
            "\n### {title}\n\n{about}.\n\n| route | does | scope |\n|---|---|---|\n{}",
            rows.trim_end()
        );
    }
    assert!(by_tag.is_empty(), "a tag is not described: {:?}", by_tag.keys());
    text + "\n"
}

fn scope_of(operation: &Value) -> String {
    let schemes = operation["security"].as_array().into_iter().flatten();
    let mut scopes = BTreeSet::new();
    for scheme in schemes {
        for scope in scheme["bearer"].as_array().into_iter().flatten() {
            scopes.insert(format!("`{}`", scope.as_str().unwrap()));
        }
        if scheme.get("attempt").is_some() {
            scopes.insert("the attempt's token".to_owned());
        }
    }
    scopes.into_iter().collect::<Vec<_>>().join(" or ")
}

#[test]
fn the_plugin_readme_shows_the_templates() {
    let text = fs::read_to_string(root().join("plugins/README.md")).unwrap();
    for (lang, source) in [
        ("rust", "rust-throttler/src/lib.rs"),
        ("js", "js-throttler/plugin.js"),
        ("python", "python-throttler/plugin.py"),
    ] {
        let template = fs::read_to_string(root().join("plugins/templates").join(source)).unwrap();
        let (_, shown) = text.split_once(&format!("```{lang}\n")).unwrap();
        let shown = shown.split_once("```").unwrap().0;
        let mut lines = template.lines();
        for line in shown.lines().filter(|line| !line.is_empty()) {
            assert!(lines.any(|there| there == line), "{source} lacks, or has elsewhere: {line}");
        }
    }
}

#[test]
fn the_cost_table_matches_the_estimate() {
    check_generated("metered", &costs());
}

/// The costs of a deployment, from the numbers that `tidegate cost` uses.
fn costs() -> String {
    use tidegate_backends::cost::{
        Deployment, Workload, case::CASES, idle, month, price::LIST, total,
    };
    let mut text =
        String::from("**Idle, a month**\n\n| service | what | how much | $ |\n|---|---|---|---|\n");
    let range = |least: f64, most: f64, digits: usize| {
        let (least, most) = (format!("{least:.digits$}"), format!("{most:.digits$}"));
        if least == most { least } else { format!("{least} to {most}") }
    };
    let [few, many] =
        [2.0, 5.0].map(|pollers| idle(&Deployment { pollers, ..Deployment::default() }, &LIST));
    for (few, many) in few.iter().zip(&many) {
        let digits = usize::from(few.amount < 1000.0 && few.amount.fract() > 0.0) * 2;
        let (amount, dollars) =
            (range(few.amount, many.amount, digits), range(few.dollars, many.dollars, 2));
        let _ = writeln!(text, "| {} | {} | {amount} | {dollars} |", few.service, few.what);
    }
    let _ = writeln!(text, "| | together | | {} |\n", range(total(&few), total(&many), 2));
    text += "**A million jobs** of at most 1 KB, each with what it takes\n\n";
    text += "| a job | writes | reads | SQS requests | invocations | $ a million | one by one |\n|---|---|---|---|---|---|---|\n";
    for case in CASES {
        let dollars = |batch: f64| {
            let workload = Workload { batch, ..Workload::default().of_case(&case) };
            total(&month(&workload, &Deployment::default(), &LIST))
        };
        let units = case.batched;
        let (sqs, calls) =
            (units.standard + units.fifo, units.enqueue + units.tick + units.deliver);
        let (writes, reads) = (units.writes, units.reads);
        let (batched, single) = (dollars(10.0), dollars(1.0));
        let _ = writeln!(
            text,
            "| {} | {writes:.2} | {reads:.2} | {sqs:.2} | {calls:.2} | {batched:.2} | {single:.2} |",
            case.name
        );
    }
    text
}
