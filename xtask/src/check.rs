//! `check --full [NAME]`: `./test`, then the stages that are too slow for it or need more tools. With
//! NAME, only the stages that have this text in their names.
//!
//! Every stage runs, even after a failed one. A stage fails if its command fails or cannot start.
//! It also fails if its output has a line with `NOT RUN`, because the full check allows no gaps.
//! The outcome and the last lines of each stage are written to `docs/FULL-CHECK.md`. There, a stage
//! that does not run now keeps the outcome of its last run.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use crate::{package, scale};

/// The file of the report.
const REPORT: &str = "docs/FULL-CHECK.md";
/// Last lines of each stage in the report.
const REPORTED_LINES: usize = 30;
/// How `./test` marks a check that it left out.
const NOT_RUN: &str = "NOT RUN";

/// A stage: its name, its environment variables, and its command.
type Stage = (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str]);

/// The load of the test with kills: five rounds of 200 jobs, where `./test` runs one.
const ROUNDS: (&str, &str) = ("TIDEGATE_LOCAL_STACK_ROUNDS", "5");

const STAGES: [Stage; 27] = [
    ("tests", &[], &["./test"]),
    ("dependencies, doc comments", &[], &["./test", "static"]),
    ("each crate alone", &[], &["bash", "-c", EACH_CRATE_ALONE]),
    (
        "simulation: two hundred seeds",
        &[("TIDEGATE_SEEDS", "200")],
        &seeds("test(simulation::) - test(_on_the_emulator_)"),
    ),
    (
        "simulation on dynoxide: eight seeds",
        &[("TIDEGATE_SEEDS", "8")],
        &seeds("test(simulation::) & test(_on_the_emulator_)"),
    ),
    (
        "simulation of the replicated log: 500 seeds, and its planted bugs",
        &[("TIDEGATE_SEEDS", "500")],
        &[
            "cargo",
            "nextest",
            "run",
            "--package",
            "tidegate-backends",
            "--features",
            "bucket",
            "--profile=seeds",
            "-E",
            "test(bucket_log::simulation::) | test(bucket_log::metered::a_standby) \
             | test(bucket_log::metered::stop::)",
        ],
    ),
    (
        "Postgres and the store in memory: ten seeds of 1,200 commits",
        &[("TIDEGATE_SEEDS", "10")],
        &seeds("test(due_jobs_are_those_of_the_store_in_memory)"),
    ),
    (
        "fuzz targets: a minute each",
        &[("TIDEGATE_FUZZ_SECONDS", "60")],
        &["cargo", "nextest", "run", "--workspace", "--features", "aws", "fuzz::"],
    ),
    (
        "sixty kills and outages, two hundred lost machines, a full disk",
        &[],
        &[
            "cargo",
            "nextest",
            "run",
            "--workspace",
            "--features",
            "aws",
            "--run-ignored",
            "only",
            "-E",
            "test(sixty_times) + test(twenty_times) + test(for_twelve_seconds) \
             + test(for_a_minute) + test(over_a_truncation) + test(lost_two_hundred_times) \
             + test(on_a_full_disk)",
        ],
    ),
    (
        "Postgres, and a log: minutes of restarts, of an open transaction, of held PUTs",
        &[],
        &[
            "cargo",
            "nextest",
            "run",
            "--workspace",
            "--features",
            "aws",
            "--run-ignored",
            "only",
            "--test-threads",
            "1",
            "-E",
            "test(restarted_for_minutes) + test(for_ten_minutes)",
        ],
    ),
    (
        "Postgres: ten thousand groups in opposite orders, plans for a million rows",
        &[("TIDEGATE_POSTGRES_GROUPS", "10000"), ("TIDEGATE_POSTGRES_ROWS", "1000000")],
        &[
            "cargo",
            "nextest",
            "run",
            "--workspace",
            "--features",
            "aws",
            "-E",
            "test(opposite_orders_of_many_servers) + test(no_statement_reads_a_whole_table)",
        ],
    ),
    (
        "the benchmark of a log in a bucket",
        &[],
        &[
            "cargo",
            "nextest",
            "run",
            "--features",
            "aws",
            "--run-ignored",
            "only",
            "-E",
            "test(a_server_with_a_log_is_measured)",
        ],
    ),
    ("scale: every scenario in full", &[], &scale::RUN),
    ("local stack: MiniStack", &[("LOCAL_AWS", "ministack"), ROUNDS], &["localstack/test"]),
    (
        "local stack: Amazon's DynamoDB Local",
        &[("DYNAMODB", "amazon"), ROUNDS],
        &["localstack/test"],
    ),
    ("Postgres 13 and 18", &[], &["tests/postgres/check"]),
    ("Postgres behind PgBouncer", &[], &["tests/postgres/pooler"]),
    ("a log in Azure Blob Storage: Azurite", &[], &["tests/azurite/check"]),
    ("infrastructure: checkov, Terraform", &[], &["infra/check", "--full"]),
    ("packages: arm64 and x86_64, their sizes", &[], &["cargo", "xtask", "package"]),
    ("the files of a release", &[], &["cargo", "xtask", "release"]),
    ("the files of a release, as users get them", &[], &["cargo", "xtask", "release", "--check"]),
    ("local stack: the packages", &[("PROFILE", "packaged"), ROUNDS], &["localstack/test"]),
    (
        "the OpenAPI document: validators, a fuzzer, generated clients",
        &[("TIDEGATE_FUZZ_SECONDS", "300")],
        &["tests/clients/check", "target/debug/tidegate"],
    ),
    (
        "console: 100,000 jobs, the memory of a page",
        &[],
        &["tests/console/check", "--full", "target/debug/tidegate"],
    ),
    ("starts of the functions", &[], &["cargo", "xtask", "start"]),
    (
        "plugins in every language, and the compiler's worst cases",
        &[],
        &[
            "cargo",
            "nextest",
            "run",
            "--workspace",
            "--features",
            "aws",
            "--run-ignored",
            "all",
            "-E",
            "test(e2e::projects::) + test(e2e::policies::) + test(worst_cases_of_the_compiler)",
        ],
    ),
];

/// Checks each crate alone with the shipped features: a feature that another crate enables is
/// missing.
const EACH_CRATE_ALONE: &str = "\
    for crate in core engine api backends; do \
        cargo check --locked --package tidegate-$crate || exit; done
    cargo check --locked --package tidegate-server --features serverless &&
        cargo check --locked --package tidegate";

/// Runs simulation tests in the profile whose timeout allows for many seeds.
const fn seeds(tests: &str) -> [&str; 10] {
    [
        "cargo",
        "nextest",
        "run",
        "--workspace",
        "--features",
        "aws",
        "--profile=seeds",
        "--run-ignored=all",
        "-E",
        tests,
    ]
}

/// Runs the stages, prints their outcomes, and writes the report after each.
///
/// # Errors
///
/// No stage has the name, the report cannot be written, or a stage failed or left something out.
#[allow(clippy::disallowed_methods, reason = "measures the duration of a stage")]
pub fn run(mut args: impl Iterator<Item = String>) -> Result<(), String> {
    if args.next().as_deref() != Some("--full") {
        return Err("check needs --full; the shorter check is ./test".into());
    }
    let only = args.next().unwrap_or_default();
    if let Some(more) = args.next() {
        return Err(format!(
            "check --full takes one text of the stages' names, and not also {more:?}"
        ));
    }
    let stages: Vec<_> = STAGES.iter().filter(|(name, ..)| name.contains(&only)).collect();
    if stages.is_empty() {
        return Err(format!("no stage has {only:?} in its name"));
    }
    let root = package::root()?;
    let file = root.join(REPORT);
    let mut report = Report::parse(&fs::read_to_string(&file).unwrap_or_default());
    let mut failed = Vec::new();
    for (name, env, command) in stages {
        println!("\n=== {name}: {}", command.join(" "));
        let began = Instant::now();
        let (result, lines) = stage(&root, env, command);
        if result.is_err() {
            failed.push(*name);
        }
        let outcome = result.map_or_else(|why| format!("FAILED ({why})"), |()| "ok".into());
        let outcome =
            format!("{outcome}, {} s, on {}", began.elapsed().as_secs(), provenance(&root));
        println!("\n=== {name}: {outcome}");
        report.runs.insert((*name).to_owned(), format!("{outcome}\n\n{}", block(lines)));
        fs::write(&file, report.document()).map_err(|error| format!("{REPORT}: {error}"))?;
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// The last run of each stage: by its name, a line with the outcome, and a block of the last lines.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    runs: BTreeMap<String, String>,
}

impl Report {
    /// Reads what [`Report::document`] has written. Stages that there are no more are left out, and what
    /// has another form.
    fn parse(document: &str) -> Self {
        let runs = document.split("\n## ").skip(1).filter_map(|section| {
            let (name, run) = section.split_once("\n\n")?;
            let is_stage = STAGES.iter().any(|stage| stage.0 == name);
            let is_run = run.starts_with("ok, ") || run.starts_with("FAILED ");
            (is_stage && is_run).then(|| (name.into(), run.into()))
        });
        Self { runs: runs.collect() }
    }

    /// Returns the report as a page, in the order of the stages.
    fn document(&self) -> String {
        let mut page = "# The full check\n\n\
             `cargo xtask check --full` writes this page: the last run of each of its stages. Later \
             commits may\nhave renamed what it shows.\n\n\
             | stage | last run |\n|---|---|\n"
            .to_owned();
        let mut sections = String::new();
        for (name, ..) in STAGES {
            let run = self.runs.get(name);
            let outcome = run.and_then(|run| run.lines().next()).unwrap_or("not run");
            let _ = writeln!(page, "| {name} | {} |", outcome.replace('|', "\\|"));
            if let Some(run) = run {
                let _ = write!(sections, "\n## {name}\n\n{}\n", run.trim_end());
            }
        }
        page + "\nThe last lines of each stage follow.\n" + &sections
    }
}

/// Runs `command`, prints its output, and returns its result and its last lines.
fn stage(
    root: &Path,
    env: &[(&str, &str)],
    command: &[&str],
) -> (Result<(), String>, VecDeque<String>) {
    let (mut lines, mut not_run) = (VecDeque::new(), Vec::new());
    let mut process = Command::new("bash");
    process
        .args(["-c", "exec \"$@\" 2>&1", "stage"])
        .args(command)
        .current_dir(root)
        .envs(env.iter().copied());
    let mut process = match process.stdout(Stdio::piped()).spawn() {
        Ok(process) => process,
        Err(error) => return (Err(format!("bash: {error}")), lines),
    };
    for line in process
        .stdout
        .take()
        .map(BufReader::new)
        .into_iter()
        .flat_map(|output| output.split(b'\n'))
        .map_while(Result::ok)
    {
        let line = String::from_utf8_lossy(&line).into_owned();
        println!("{line}");
        if let Some((_, what)) = line.split_once(NOT_RUN) {
            not_run.push(what.trim().to_owned());
        }
        lines.push_back(line);
        if lines.len() > REPORTED_LINES {
            lines.pop_front();
        }
    }
    let result = match process.wait() {
        Ok(status) if !status.success() => Err(status.to_string()),
        Ok(_) if !not_run.is_empty() => Err(format!("not run: {}", not_run.join("; "))),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    (result, lines)
}

/// Returns `lines` as a code block of Markdown, without the path of the repository. No line of it looks
/// like the title of a section.
fn block(lines: impl IntoIterator<Item = String>) -> String {
    let root = package::root().map(|root| root.display().to_string()).unwrap_or_default();
    let lines = lines.into_iter().fold(String::new(), |mut block, line| {
        let line = line.replace(&format!("{root}/"), "").replace(&root, ".").replace('`', "'");
        let title = if line.starts_with('#') { " " } else { "" };
        let _ = writeln!(block, "{title}{}", line.trim_end());
        block
    });
    format!("```text\n{lines}```\n")
}

/// Returns the commit and the compiler.
fn provenance(root: &Path) -> String {
    let first_line = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).current_dir(root).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned())
    };
    let commit = first_line("git", &["log", "-1", "--format=%h of %cs"])
        .unwrap_or_else(|| "no commit".into());
    format!(
        "{commit}, by {}",
        first_line("rustc", &["--version"]).unwrap_or_else(|| "no compiler".into())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_that_leaves_a_check_out_fails() {
        let root = package::root().expect("the crate is below the repository");
        let run = |output| stage(&root, &[], &["echo", output]).0;
        assert_eq!(run("    1s  ok  tests"), Ok(()));
        assert_eq!(
            run("    -   NOT RUN advisories: no network"),
            Err("not run: advisories: no network".into())
        );
    }

    #[test]
    fn a_stage_keeps_its_last_run_until_the_next() {
        let [first, second] = [STAGES[0].0, STAGES[1].0];
        let run = |outcome: &str, lines: &[&str]| {
            format!("{outcome}\n\n{}", block(lines.iter().map(|line| (*line).to_owned())))
        };
        let mut report = Report::default();
        report.runs.insert(first.into(), run("ok, 3 s, on 1a2b", &["## no title", "a | b"]));
        report.runs.insert(second.into(), run("FAILED (a | b), 4 s, on 1a2b", &[]));
        report.runs.insert("a stage of old".into(), run("ok, 5 s, on 1a2b", &[]));
        let page = report.document();
        assert!(page.contains(&format!("| {first} | ok, 3 s, on 1a2b |\n")), "{page}");
        assert!(page.contains(r"| FAILED (a \| b), 4 s, on 1a2b |"), "{page}");
        assert!(page.contains("| not run |"), "{page}");

        let mut read = Report::parse(&page);
        assert_eq!(read.runs.keys().collect::<Vec<_>>().len(), 2);
        assert_eq!(read.document(), page);
        read.runs.insert(second.into(), run("ok, 6 s, on 3c4d", &[]));
        let page = read.document();
        assert!(page.contains("on 3c4d") && page.contains("ok, 3 s, on 1a2b"), "{page}");
        assert!(!page.contains("FAILED"), "{page}");
    }

    #[test]
    fn a_name_without_a_stage_is_refused() {
        let args = |list: &[&str]| list.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
        let refused = |list| run(args(list).into_iter()).unwrap_err();
        assert_eq!(refused(&["--full", "no such"]), "no stage has \"no such\" in its name");
        assert_eq!(refused(&[]), "check needs --full; the shorter check is ./test");
        assert!(refused(&["--full", "tests", "more"]).ends_with("not also \"more\""));
    }
}
