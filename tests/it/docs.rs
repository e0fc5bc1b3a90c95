//! The documents say what is so: their links lead somewhere, and what can be taken from the code is.

use std::{fmt::Write as _, fs, net::TcpListener, path::Path, process::Command, thread};

use serde_json::{Value, json};
use tidegate_server::settings;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every document, with its path from the root.
fn documents() -> Vec<(String, String)> {
    let mut paths = ["README.md", "CHANGELOG.md", "plugins/README.md"].map(str::to_owned).to_vec();
    for dir in ["docs", "docs/decisions"] {
        let entries = fs::read_dir(root().join(dir))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        paths.extend(
            entries
                .filter(|name| Path::new(name).extension().is_some_and(|end| end == "md"))
                .map(|name| format!("{dir}/{name}")),
        );
    }
    paths
        .into_iter()
        .map(|path| (fs::read_to_string(root().join(&path)).unwrap(), path))
        .map(|(text, path)| (path, text))
        .collect()
}

#[test]
fn every_link_and_every_path_leads_somewhere() {
    let mut dead = Vec::new();
    for (path, text) in documents() {
        let dir = root().join(&path);
        let dir = dir.parent().unwrap();
        for link in
            text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
        {
            let file = link.split('#').next().unwrap();
            if !link.contains("://") && !file.is_empty() && !dir.join(file).exists() {
                dead.push(format!("{path}: the link {link}"));
            }
        }
        for name in text.split('`').skip(1).step_by(2) {
            let file = ["src/", "tests/", "docs/", "examples/", "benches/"]
                .iter()
                .any(|start| name.starts_with(start));
            let plain =
                name.chars().all(|letter| letter.is_alphanumeric() || "/._-".contains(letter));
            if file && plain && !root().join(name).exists() {
                dead.push(format!("{path}: `{name}`"));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn every_decision_is_linked_from_the_architecture() {
    let architecture = fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    for (path, text) in documents() {
        let Some(name) = path.strip_prefix("docs/decisions/") else {
            continue;
        };
        assert!(architecture.contains(&format!("(decisions/{name})")), "{name}");
        for part in ["\n## Context\n", "\n## Choice\n", "\n## Consequences\n"] {
            assert!(text.contains(part), "{name} has no {}", part.trim());
        }
    }
}

#[test]
fn the_code_that_plugin_authors_read_is_the_code_that_they_get() {
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
            assert!(lines.any(|there| there == line), "{source} has not, or not there: {line}");
        }
    }
}

#[test]
fn the_table_of_settings_is_the_code_s() {
    let path = root().join("docs/OPERATIONS.md");
    let text = fs::read_to_string(&path).unwrap();
    let (start, end) = (
        "<!-- settings: written by the test `the_table_of_settings_is_the_code_s` -->\n",
        "<!-- end of settings -->",
    );
    let (before, rest) = text.split_once(start).unwrap();
    let (table, after) = rest.split_once(end).unwrap();
    let wanted = settings::reference_table();
    if table != wanted && std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, format!("{before}{start}{wanted}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(table, wanted, "run this test with UPDATE_EXPECT=1 to write the table anew");
}

/// The README's session, run as printed but for the port and for where the program is.
#[test]
fn the_session_in_the_readme_runs_as_printed() {
    let (out, err) = run_session("README.md", "\n## By hand\n");
    for part in [
        "\"held_by\":{\"kind\":\"worker\"",
        "\n\"DEAR READER\"\n",
        "\nstate            succeeded",
        "in 59 min",
        "\nmail ",
    ] {
        assert!(out.contains(part), "there is no {part:?} in what it says:\n{out}\n{err}");
    }
    assert!(!out.contains("\"code\":"), "{out}\n{err}");
}

/// The same for the session with events.
#[test]
fn the_session_with_events_runs_as_printed() {
    let (out, err) = run_session("docs/EVENTS.md", "\n## In a minute\n");
    for part in [
        "1: orders: enqueued ship ev-",
        "1: orders: enqueued before: ev-",
        "2: no trigger is about it",
        ": shipped: kept until ",
        "\"P-77\"",
    ] {
        assert!(out.contains(part), "there is no {part:?} in what it says:\n{out}\n{err}");
    }
}

/// The same for the session about schedules.
#[test]
fn the_session_about_schedules_runs_as_printed() {
    let (out, err) = run_session("docs/SCHEDULES.md", "# Schedules\n");
    for part in [
        "0 3 * * * Europe/Berlin",
        "every 1 s",
        "03:00:00 +0",
        "beat is paused",
        "beat is deleted",
        "2026-03-29T01:00:00.000Z  2026-03-29 03:00:00 +02:00",
    ] {
        assert!(out.contains(part), "there is no {part:?} in what it says:\n{out}\n{err}");
    }
    assert!(!out.contains("\"code\":"), "{out}\n{err}");
}

/// The session with a request whose answer comes back another way, as printed, and with the server killed after any other of its lines.
#[test]
fn the_session_with_a_request_and_its_answer_runs_whenever_the_server_is_killed() {
    let printed = session("README.md", "\n## A request out, its answer back another way\n");
    let (crash, last) =
        (printed.lines().find(|line| line.starts_with("crash ")).unwrap(), "\nkill $shop");
    let checked = printed.replace(last, &format!("\ntidegate jobs list --type order --json{last}"));
    let quiet = checked.replace(&format!("{crash}\n"), "");
    let begun = quiet.find("\nup\n").unwrap() + "\nup\n".len();
    let ends: Vec<usize> =
        quiet[begun..].match_indices('\n').map(|(at, _)| begun + at + 1).collect();
    let end = quiet.find("\ntidegate jobs list").unwrap();
    let killed = ends
        .into_iter()
        .filter(|at| *at <= end + 1)
        .map(|at| format!("{}crash\n{}", &quiet[..at], &quiet[at..]));
    let sessions: Vec<String> = [checked.clone()].into_iter().chain(killed).collect();
    assert_eq!(sessions.len(), 7, "as printed, and after each of six lines");
    let ports: [[u16; 2]; 7] = free_ports();
    thread::scope(|scope| {
        for (session, ports) in sessions.iter().zip(ports) {
            scope.spawn(move || every_order_is_completed_once(session, ports));
        }
    });
}

/// Runs a session about three orders, which ends with all that is known of their jobs.
fn every_order_is_completed_once(session: &str, ports: [u16; 2]) {
    let (out, err) = run(session, ports);
    assert!(
        out.contains("confirmed: completed o-1\n")
            && out.contains("confirmed: heard before by o-3\n"),
        "{session}\n{out}\n{err}"
    );
    let jobs: Value =
        serde_json::from_str(out.lines().find(|line| line.starts_with("{\"jobs\"")).unwrap())
            .unwrap();
    let jobs = jobs["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 3, "{session}\n{out}");
    for job in jobs {
        let (state, result) =
            (json!("succeeded"), json!({"number": job["correlation_key"], "price": 12.5}));
        assert_eq!((&job["state"], &job["result"]), (&state, &result), "{session}\n{job:#}");
        let succeeded = job["history"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["outcome"] == "succeeded")
            .count();
        assert_eq!(succeeded, 1, "{session}\n{job:#}");
    }
}

/// Runs the first session of shell that follows `heading` in a document: what it says, and its errors, of which there must be none.
fn run_session(document: &str, heading: &str) -> (String, String) {
    let [ports] = free_ports();
    run(&session(document, heading), ports)
}

/// The first session of shell that follows `heading` in a document.
fn session(document: &str, heading: &str) -> String {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let (_, session) = text.split_once(heading).unwrap();
    session.split_once("```sh\n").unwrap().1.split_once("```").unwrap().0.to_owned()
}

/// Ports on which nobody listens, no two of them the same.
fn free_ports<const N: usize>() -> [[u16; 2]; N] {
    let listeners =
        [[(); 2]; N].map(|pair| pair.map(|()| TcpListener::bind("127.0.0.1:0").unwrap()));
    listeners.map(|pair| pair.map(|listener| listener.local_addr().unwrap().port()))
}

/// Runs a session as printed, but for its ports, the server's and another's, and for where the program is.
fn run(session: &str, [port, other]: [u16; 2]) -> (String, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let session = session.replace("9000", &other.to_string()).replace(":8080", &format!(":{port}"));
    let session = session.replace("$PWD/target/release", program.to_str().unwrap());
    assert!(
        session.contains(program.to_str().unwrap()) && session.contains(&port.to_string()),
        "{session}"
    );

    let dir = tempfile::tempdir().unwrap();
    let ran = Command::new("bash")
        .args([
            "-c",
            &format!("set -eu; trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{session}"),
        ])
        .env("TIDEGATE_LISTEN", format!("127.0.0.1:{port}"))
        .env("TIDEGATE_URL", format!("http://127.0.0.1:{port}"))
        .current_dir(dir.path())
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout).into_owned(),
        String::from_utf8_lossy(&ran.stderr).into_owned(),
    );
    assert!(ran.status.success(), "{:?}\n{out}\n{err}", ran.status);
    assert!(!err.contains("error:"), "{out}\n{err}");
    (out, err)
}

/// What costs stand in the document about a deployment, from the same numbers as `tidegate cost` prints.
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
            total(&month(
                &Workload { batch, ..Workload::default().of_case(&case) },
                &Deployment::default(),
                &LIST,
            ))
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

#[test]
fn the_costs_of_a_deployment_are_those_that_are_metered() {
    let (path, begin, end) = (root().join("infra/README.md"), "<!-- metered -->\n", "<!-- end -->");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(begin).expect("there is a place for them");
    let (said, after) = rest.split_once(end).expect("it ends");
    let costs = costs();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, format!("{before}{begin}{costs}{end}{after}")).unwrap();
    } else {
        assert_eq!(
            said, costs,
            "UPDATE_EXPECT=1 cargo nextest run docs writes them anew, for you to read"
        );
    }
}
