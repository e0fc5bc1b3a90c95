//! `ci --full`: what takes too long, or asks for too much, to be part of `./test`, after `./test` itself. Every stage runs, whatever became of those
//! before it; what cannot start fails by its name.

use std::{fmt::Write as _, process::Command, time::Instant};

use crate::package;

/// A stage: its name, what it sets in the environment, and its command.
type Stage = (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str]);

const STAGES: [Stage; 8] = [
    ("tests", &[], &["./test"]),
    ("local stack: MiniStack", &[("LOCAL_AWS", "ministack")], &["localstack/try"]),
    ("local stack: Amazon's DynamoDB Local", &[("DYNAMODB", "amazon")], &["localstack/try"]),
    ("infrastructure: checkov, Terraform", &[], &["infra/check", "--full"]),
    ("packages: arm64 and x86_64, their sizes", &[], &["cargo", "xtask", "package"]),
    ("local stack: the packages", &[("PROFILE", "packaged")], &["localstack/try"]),
    ("starts of the functions", &[], &["cargo", "xtask", "start"]),
    (
        "plugins in three languages",
        &[],
        &["cargo", "nextest", "run", "--workspace", "--features", "aws", "--run-ignored", "all", "-E", "test(e2e::projects::)"],
    ),
];

/// Runs every stage, and prints how each ended.
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
    let (mut report, mut failed) = (String::new(), false);
    for (name, env, command) in STAGES {
        println!("\n=== {name}: {}", command.join(" "));
        let began = Instant::now();
        let mut process = Command::new(command[0]);
        process.current_dir(&root).args(&command[1..]).envs(env.iter().copied());
        let ended = package::call(&mut process);
        failed |= ended.is_err();
        let verdict = ended.map_or_else(|why| format!("FAILED  {name} ({why})"), |()| format!("ok      {name}"));
        let _ = writeln!(report, "{:>5} s  {verdict}", began.elapsed().as_secs());
    }
    println!("\n=== result\n{report}");
    if failed { Err("not every stage passed".into()) } else { Ok(()) }
}
