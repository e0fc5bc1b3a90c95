//! The documents are true: their examples run, their links resolve, and their tables match the code.
//!
//! One convention holds for `README.md` and every page of `docs/`:
//!
//! ````text
//! ```sh                   runs; all `sh` blocks of a page are one bash script in an empty directory
//! ```text                 directly after an `sh` block: lines that its output contains
//! ```sh,no-run            does not run here: it installs or deploys
//! ```sh,typescript        runs where npm reaches its registry
//! ```python file=x.py     any language with `file=`: written to that file before the script starts
//! ````
//!
//! In expected lines `...` matches anything within the line, and any white space equals one space.
//! They may be on either stream. A line that reports an error must be expected. The binary is on the
//! `PATH`, and free ports replace 8080 and 9000 to 9009, so that pages run in parallel.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use rstest::rstest;
use serde_json::{Value, json};
use tidegate_server::{settings, telemetry::catalog as metrics};

/// Included, so that a new page, which must be listed here, has its test generated.
const SUMMARY: &str = include_str!("../../docs/SUMMARY.md");
/// Precedes the number of a step in the output of a page.
const STEP_MARK: char = '\u{1e}';

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every document: its path from the root, and its text.
fn documents() -> BTreeMap<String, String> {
    let mut paths = vec!["plugins/README.md".to_owned(), "infra/README.md".to_owned()];
    for dir in ["", "docs/", "docs/decisions/"] {
        let entries = fs::read_dir(root().join(dir)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        paths.extend(
            names
                .filter(|name| Path::new(name).extension().is_some_and(|end| end == "md"))
                .map(|name| format!("{dir}{name}")),
        );
    }
    paths
        .into_iter()
        .map(|path| (path.clone(), fs::read_to_string(root().join(path)).unwrap()))
        .collect()
}

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

// --- Examples ---

#[rstest]
fn a_page_runs_as_printed(
    #[files("README.md")]
    #[files("docs/*.md")]
    page: PathBuf,
) {
    Page::read(&page).check(false);
}

/// The name says which language it needs: `./test` leaves it out where that is missing.
#[test]
fn the_typescript_worker_runs_as_printed() {
    let page = Page::read(&root().join("docs/worker.md"));
    assert!(page.steps.iter().any(|step| step.typescript));
    page.check(true);
}

/// The quick start's session with a reply, as printed, and with a crash after any other of its lines.
#[test]
fn a_reply_completes_each_order_whenever_the_server_dies() {
    let page = Page::read(&root().join("docs/quick-start.md"));
    let step = page.steps.iter().find(|step| step.script.contains("\ncrash\n")).unwrap();
    let last = "\nkill $shop";
    let printed =
        step.script.replace(last, &format!("\ntidegate jobs list --type order --json{last}"));
    let calm = printed.replace("\ncrash\n", "\n");
    let (begin, end) =
        (calm.find("\nup\n").unwrap() + 4, calm.find("\ntidegate jobs list").unwrap() + 1);
    let line_ends = (begin..end).filter(|at| calm.as_bytes()[*at] == b'\n').map(|at| at + 1);
    let points = line_ends.filter(|at| is_whole(&calm[..*at]));
    let killed = points.map(|at| format!("{}crash\n{}", &calm[..at], &calm[at..]));
    let sessions: Vec<String> = std::iter::once(printed.clone()).chain(killed).collect();
    assert_eq!(sessions.len(), 7, "as printed, and after each of six commands: {sessions:#?}");
    thread::scope(|scope| {
        for session in &sessions {
            scope.spawn(|| completes_every_order_once(session, &page.files));
        }
    });
}

/// Runs a session with three orders, which prints their jobs as JSON at its end.
fn completes_every_order_once(session: &str, files: &[(String, String)]) {
    let ran = run(session, files);
    assert!(ran.good, "{session}\n{ran}");
    assert!(ran.out.contains("confirmed: completed o-1\n"), "{session}\n{ran}");
    let jobs = ran.out.lines().find(|line| line.starts_with("{\"jobs\"")).unwrap();
    let jobs: Value = serde_json::from_str(jobs).unwrap();
    let jobs = jobs["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 3, "{session}\n{ran}");
    for job in jobs {
        let result = json!({"number": job["correlation_key"], "price": 12.5});
        assert_eq!(
            (&job["state"], &job["result"]),
            (&json!("succeeded"), &result),
            "{session}\n{job:#}"
        );
        let history = job["history"].as_array().unwrap();
        let succeeded = history.iter().filter(|attempt| attempt["outcome"] == "succeeded").count();
        assert_eq!(succeeded, 1, "{session}\n{job:#}");
    }
}

/// Whether a text consists of whole commands of bash.
fn is_whole(script: &str) -> bool {
    Command::new("bash").args(["-n", "-c", script]).output().unwrap().status.success()
}

/// The examples of a page.
struct Page {
    path: PathBuf,
    /// Names and contents of the files that the examples need.
    files: Vec<(String, String)>,
    steps: Vec<Step>,
}

/// One `sh` block.
struct Step {
    script: String,
    /// Patterns of lines that its output contains.
    expected: Vec<String>,
    typescript: bool,
}

impl Page {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let mut page = Self { path: path.to_owned(), files: Vec::new(), steps: Vec::new() };
        let mut lines = text.lines();
        let mut after_step = false;
        while let Some(line) = lines.next() {
            let Some(info) = line.strip_prefix("```") else {
                after_step &= line.trim().is_empty();
                continue;
            };
            let body: Vec<&str> =
                lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            let text = body.join("\n") + "\n";
            let (tags, file) =
                info.split_once(" file=").map_or((info, None), |(tags, file)| (tags, Some(file)));
            if let Some(file) = file {
                page.files.push((file.to_owned(), text));
                after_step = false;
            } else if after_step && tags == "text" {
                let expected =
                    body.iter().filter(|line| !line.trim().is_empty()).map(|line| one_spaced(line));
                page.steps.last_mut().unwrap().expected = expected.collect();
                after_step = false;
            } else {
                after_step = matches!(tags, "sh" | "sh,typescript");
                if after_step {
                    page.steps.push(Step {
                        script: text,
                        expected: Vec::new(),
                        typescript: tags != "sh",
                    });
                }
                assert!(
                    after_step || !tags.starts_with("sh") || tags == "sh,no-run",
                    "unknown: ```{info}"
                );
            }
        }
        page
    }

    /// Runs the page, and checks what each step prints.
    fn check(&self, typescript: bool) {
        let steps: Vec<&Step> =
            self.steps.iter().filter(|step| typescript || !step.typescript).collect();
        let marked = steps.iter().enumerate().map(|(number, step)| {
            let mark = u32::from(STEP_MARK);
            format!("printf '\\{mark:03o}{number}\\n' | tee /dev/stderr\n{}", step.script)
        });
        let ran = run(&marked.collect::<String>(), &self.files);
        let path = self.path.display();
        assert!(ran.good, "{path} failed:\n{ran}");
        for (number, step) in steps.iter().enumerate() {
            let mark = format!("{STEP_MARK}{number}\n");
            let printed = [&ran.out, &ran.err].map(|stream| {
                let (_, rest) = stream.split_once(&mark).unwrap_or_default();
                rest.split(STEP_MARK).next().unwrap_or_default()
            });
            let lines: Vec<String> =
                printed.iter().flat_map(|printed| printed.lines()).map(one_spaced).collect();
            for pattern in &step.expected {
                let found = lines.iter().any(|line| matches(pattern, line));
                assert!(found, "{path}: step {number} does not print\n  {pattern}\n{ran}");
            }
            let errors = lines
                .iter()
                .filter(|line| line.starts_with("error: ") || line.contains("\"code\":\""));
            for line in errors {
                let expected = step.expected.iter().any(|pattern| matches(pattern, line));
                assert!(expected, "{path}: step {number} prints an error\n  {line}\n{ran}");
            }
        }
    }
}

/// A line without the white space that tables and indentation add.
fn one_spaced(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a pattern, in which `...` matches anything, matches the whole line.
fn matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split("...").map(str::trim);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else {
            return false;
        };
        rest = after;
    }
    rest.ends_with(last)
}

#[test]
fn an_expected_line_matches_as_a_whole() {
    for (pattern, line, good) in [
        ("mail ... 2/2 ...", "mail 4 2 2/2 now", true),
        ("mail ... 2/2", "mail 4 2 2/2 now", false),
        ("state succeeded", "state succeeded", true),
        ("state", "state succeeded", false),
        ("{\"a\":...}", "{\"a\":1,\"b\":2}", true),
        ("... b", "a b", true),
        ("b ...", "a b", false),
    ] {
        assert_eq!(matches(pattern, line), good, "{pattern} | {line}");
    }
}

/// What a script of bash did.
struct Ran {
    good: bool,
    out: String,
    err: String,
    dir: tempfile::TempDir,
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |stream: &str| stream.replace(STEP_MARK, "=== step ");
        write!(f, "--- standard output\n{}\n", shown(&self.out))?;
        write!(f, "--- standard error\n{}", shown(&self.err))
    }
}

/// Runs a script of bash in an empty directory with `files`.
#[allow(clippy::disallowed_methods, reason = "the programs of the session are found by PATH")]
fn run(script: &str, files: &[(String, String)]) -> Ran {
    let places: Vec<String> =
        std::iter::once(8080).chain(9000..=9009).map(|port: u16| port.to_string()).collect();
    let used: Vec<&String> = places
        .iter()
        .filter(|port| {
            **port == "8080"
                || script.contains(*port)
                || files.iter().any(|(_, text)| text.contains(*port))
        })
        .collect();
    let free = free_ports(used.len());
    let moved = |text: &str| {
        let text = used
            .iter()
            .enumerate()
            .fold(text.to_owned(), |text, (n, port)| text.replace(*port, &format!("@port{n}@")));
        free.iter()
            .enumerate()
            .fold(text, |text, (n, port)| text.replace(&format!("@port{n}@"), port))
    };

    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), moved(text)).unwrap();
    }
    let programs = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let script = format!(
        "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{}",
        moved(script)
    );
    let mut command = Command::new("bash");
    let foreign = |name: &str| ["TIDEGATE_", "OTEL_"].iter().any(|start| name.starts_with(start));
    for (name, _) in std::env::vars_os().filter(|(name, _)| foreign(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    let output = command
        .args(["-c", &script])
        .env("PATH", path)
        .env("TIDEGATE_LISTEN", format!("127.0.0.1:{}", free[0]))
        .env("TIDEGATE_URL", format!("http://127.0.0.1:{}", free[0]))
        .current_dir(dir.path())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    Ran { good: output.status.success(), out, err, dir }
}

/// Ports that no process listens on, all different.
fn free_ports(count: usize) -> Vec<String> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|port| port.local_addr().unwrap().port().to_string()).collect()
}

// --- Links and the table of contents ---

#[test]
fn every_link_and_anchor_resolves() {
    let documents = documents();
    let mut dead = Vec::new();
    for (path, text) in &documents {
        let dir = Path::new(path).parent().unwrap();
        let prose = without_code(text);
        for link in
            prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
        {
            let link = link.split_whitespace().next().unwrap_or_default();
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) =
                link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let target = if file.is_empty() { path.clone() } else { normal(&dir.join(file)) };
            let is_there = root().join(&target).exists();
            let has_anchor = anchor.is_none_or(|anchor| {
                documents.get(&target).is_none_or(|text| anchors(text).contains(anchor))
            });
            if !is_there || !has_anchor {
                dead.push(format!("{path}: {link}"));
            }
        }
        // The style guide names files of other projects.
        let names = text.split('`').skip(1).step_by(2).filter(|_| path != "docs/STYLE.md");
        for name in names {
            let is_path = ["src/", "tests/", "docs/", "examples/", "benches/"]
                .iter()
                .any(|start| name.starts_with(start));
            let is_plain =
                name.chars().all(|letter| letter.is_alphanumeric() || "/._-".contains(letter));
            if is_path && is_plain && !root().join(name).exists() {
                dead.push(format!("{path}: `{name}`"));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

/// A document without its code blocks and its code in lines.
fn without_code(text: &str) -> String {
    let mut prose = String::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            let parts = line.split('`').enumerate();
            prose.extend(parts.map(|(at, part)| if at % 2 == 0 { part } else { "code" }));
            prose.push('\n');
        }
    }
    prose
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.to_str().unwrap().split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of a document's headings, as mdBook and the usual forges form them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut in_block = false;
    for line in text.lines() {
        in_block ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        if in_block || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let lower = heading.trim().to_lowercase();
        let letters = lower.chars().filter_map(|letter| match letter {
            letter if letter.is_alphanumeric() || letter == '_' || letter == '-' => Some(letter),
            letter if letter.is_whitespace() => Some('-'),
            _ => None,
        });
        let anchor: String = letters.collect();
        let repeated = (1..).map(|n| format!("{anchor}-{n}"));
        let free = std::iter::once(anchor.clone())
            .chain(repeated)
            .find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}

#[test]
fn the_summary_lists_every_page_once() {
    let links = SUMMARY.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    // A heading of a group has no page.
    let listed: Vec<&str> = links.filter(|link| !link.is_empty()).collect();
    let unique: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!(listed.len(), unique.len(), "a page is listed twice: {listed:#?}");
    let documents = documents();
    let pages = documents
        .keys()
        .filter_map(|path| path.strip_prefix("docs/"))
        .filter(|page| *page != "SUMMARY.md");
    assert_eq!(unique, pages.collect(), "left: listed; right: in docs/");
}

#[test]
fn every_decision_has_the_usual_parts() {
    let documents = documents();
    let decisions: Vec<_> =
        documents.iter().filter(|(path, _)| path.starts_with("docs/decisions/")).collect();
    for (number, (path, text)) in decisions.iter().enumerate() {
        let name = path.trim_start_matches("docs/decisions/");
        assert!(name.starts_with(&format!("{:04}-", number + 1)), "there is a gap before {path}");
        for part in ["Status:", "Date:", "\n## Context\n", "\n## Decision\n", "\n## Consequences\n"]
        {
            assert!(text.contains(part), "{path} has no {}", part.trim());
        }
    }
}

// --- Tables and code that come from elsewhere ---

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
            scopes.insert("or the attempt's token".to_owned());
        }
    }
    scopes.into_iter().collect::<Vec<_>>().join(" ")
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
        let (writes, reads, dense, lone) = (units.writes, units.reads, dollars(10.0), dollars(1.0));
        let _ = writeln!(
            text,
            "| {} | {writes:.2} | {reads:.2} | {sqs:.2} | {calls:.2} | {dense:.2} | {lone:.2} |",
            case.name
        );
    }
    text
}
