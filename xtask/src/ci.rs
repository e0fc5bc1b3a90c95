//! `ci --full`: what takes too long, or asks for too much, to be part of `./test`, after `./test` itself. Every stage runs, whatever became of those
//! before it; what cannot start fails by its name. How each ended, and the last that it said, is kept in `docs/FULL-CHECK.md`.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use crate::package;

/// Where the result is kept.
const KEPT: &str = "docs/FULL-CHECK.md";
/// Lines of each stage that are kept.
const LINES: usize = 30;

/// A stage: its name, what it sets in the environment, and its command.
type Stage = (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str]);

const STAGES: [Stage; 10] = [
    ("tests", &[], &["./test"]),
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
    ("local stack: MiniStack", &[("LOCAL_AWS", "ministack")], &["localstack/try"]),
    ("local stack: Amazon's DynamoDB Local", &[("DYNAMODB", "amazon")], &["localstack/try"]),
    ("infrastructure: checkov, Terraform", &[], &["infra/check", "--full"]),
    ("packages: arm64 and x86_64, their sizes", &[], &["cargo", "xtask", "package"]),
    ("local stack: the packages", &[("PROFILE", "packaged")], &["localstack/try"]),
    ("starts of the functions", &[], &["cargo", "xtask", "start"]),
    (
        "plugins in three languages",
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
            "test(e2e::projects::)",
        ],
    ),
];

/// Runs tests whose seeds the environment multiplies: each may take as much longer.
const fn seeds(tests: &str) -> [&str; 9] {
    ["cargo", "nextest", "run", "--workspace", "--features", "aws", "--profile=seeds", "-E", tests]
}

/// Runs every stage, prints how each ended, and keeps that.
///
/// # Errors
///
/// Some stage failed.
#[allow(clippy::disallowed_methods, reason = "how long a stage takes is measured")]
pub fn run(mut args: impl Iterator<Item = String>) -> Result<(), String> {
    if args.next().as_deref() != Some("--full") || args.next().is_some() {
        return Err("ci needs --full; what is less is ./test".into());
    }
    let root = package::root()?;
    let (mut report, mut said, mut failed) = (String::new(), String::new(), false);
    for (name, env, command) in STAGES {
        println!("\n=== {name}: {}", command.join(" "));
        let began = Instant::now();
        let (ended, lines) = stage(&root, env, command);
        failed |= ended.is_err();
        let verdict = ended
            .map_or_else(|why| format!("FAILED  {name} ({why})"), |()| format!("ok      {name}"));
        let _ = writeln!(report, "{:>5} s  {verdict}", began.elapsed().as_secs());
        let _ = writeln!(said, "\n## {name}\n\n{}", block(lines));
    }
    println!("\n=== result\n{report}");
    let kept = format!(
        "# The full check\n\nWhat `cargo xtask ci --full` said when it last ran, on {}:\n\n{}\nThe last lines of each stage follow.\n{said}",
        of(&root),
        block(report.lines().map(str::to_owned))
    );
    fs::write(root.join(KEPT), kept).map_err(|error| format!("{KEPT}: {error}"))?;
    if failed { Err("not every stage passed".into()) } else { Ok(()) }
}

/// Runs `command`, shows what it says, and keeps the last lines of it.
fn stage(
    root: &Path,
    env: &[(&str, &str)],
    command: &[&str],
) -> (Result<(), String>, VecDeque<String>) {
    let mut lines = VecDeque::new();
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
        .flat_map(|said| said.split(b'\n'))
        .map_while(Result::ok)
    {
        let line = String::from_utf8_lossy(&line).into_owned();
        println!("{line}");
        lines.push_back(line);
        if lines.len() > LINES {
            lines.pop_front();
        }
    }
    let ended = match process.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(status.to_string()),
        Err(error) => Err(error.to_string()),
    };
    (ended, lines)
}

/// Lines as a block of Markdown that is shown as it is. Where the repository lies is of no interest to others.
fn block(lines: impl IntoIterator<Item = String>) -> String {
    let root = package::root().map(|root| root.display().to_string()).unwrap_or_default();
    lines.into_iter().fold(String::new(), |mut block, line| {
        let line = line.replace(&format!("{root}/"), "").replace(&root, ".").replace('`', "'");
        let _ = writeln!(block, "{}", format!("    {line}").trim_end());
        block
    })
}

/// Which sources, and what they were built with.
fn of(root: &Path) -> String {
    let says = |program: &str, args: &[&str]| {
        let said = Command::new(program).args(args).current_dir(root).output().ok()?;
        Some(String::from_utf8_lossy(&said.stdout).lines().next()?.to_owned())
    };
    let commit =
        says("git", &["log", "-1", "--format=%h of %cs"]).unwrap_or_else(|| "no commit".into());
    format!(
        "{commit}, by {}",
        says("rustc", &["--version"]).unwrap_or_else(|| "no compiler".into())
    )
}
