//! The examples of `README.md` and of every page of `docs/` run as printed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use rstest::rstest;
use serde_json::{Value, json};

use super::{STEP_MARK, one_spaced, root, run};

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

/// The quick start's session with a reply, as printed, and with a crash after any other of its
/// lines.
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
