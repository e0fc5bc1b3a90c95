//! The command line: one file per command, each a thin client of the HTTP API.
//!
//! A command is a clap `Args` struct and `run(args, ctx)`. It repeats no decision of the server: it
//! sends its arguments and prints the response, as a table or, with `--json`, as the server wrote
//! it.

mod args;
mod audit;
#[cfg(feature = "aws")]
mod aws;
mod backup;
mod bench;
pub(crate) mod client;
mod completions;
pub(crate) mod context;
mod cost;
mod demo;
mod dev;
mod doctor;
mod enqueue;
mod events;
mod health;
mod history;
mod jobs;
mod log;
mod manual;
#[cfg(target_os = "linux")]
mod memory;
mod move_store;
mod operation;
pub(crate) mod output;
mod plugin;
mod preview;
mod profile;
mod queue_simulation;
mod queues;
mod repair;
mod safe;
mod schedule;
pub(crate) mod serve;
mod simulate;
#[cfg(test)]
mod testing;
mod token;
mod token_store;
mod top;
mod triggers;
mod types;
mod unique;
mod work;
mod workers;

use std::io;

use clap::{Parser, Subcommand};
use url::Url;

use profile::Profile;
use tidegate_api::pages;
use tidegate_backends::wasm::compile_process;

#[cfg(target_os = "linux")]
pub use self::memory::share_heaps;
pub use self::{
    client::{Client, Error, Problem},
    context::{Context, ExitCode, Output, UsageError},
    output::OutputStyle,
};

/// A durable job queue for work that must happen at the right time and at the right rate.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, after_help = context::EXIT_CODES)]
pub struct Cli {
    /// The options of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The options that every command has.
#[derive(Clone, Debug, clap::Args)]
pub struct Global {
    /// The URL of the server [default: the profile's `url`, or 127.0.0.1:8080].
    #[arg(
        long,
        global = true,
        env = "TIDEGATE_URL",
        value_parser = client::base_url,
        help_heading = "Common options",
    )]
    pub url: Option<Url>,
    /// The access token [default: the profile's].
    #[arg(
        long,
        global = true,
        env = "TIDEGATE_TOKEN",
        hide_env_values = true,
        help_heading = "Common options"
    )]
    pub token: Option<String>,
    /// A server by its name in the file of profiles, `TIDEGATE_PROFILES` or
    /// ~/.config/tidegate/profiles.toml: `[NAME]` with `url` and `token`.
    #[arg(
        long,
        global = true,
        env = "TIDEGATE_PROFILE",
        value_name = "NAME",
        help_heading = "Common options"
    )]
    pub profile: Option<String>,
    /// Print the server's JSON instead of tables.
    #[arg(long, global = true, help_heading = "Common options")]
    pub json: bool,
}

/// The server without `--url` and profile.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

impl Global {
    /// Returns the options with the server of the profile, unless `--url` names one.
    ///
    /// # Errors
    ///
    /// [`UsageError`] if there is no such profile.
    fn with_profile(mut self) -> anyhow::Result<Self> {
        // A profile's token is for its own server alone.
        if let (None, Some(name)) = (&self.url, &self.profile) {
            let (url, token) = Profile::named(name)?.server()?;
            (self.url, self.token) = (Some(url), self.token.or(token));
        }
        Ok(self)
    }

    /// Returns the URL of the server.
    pub fn server(&self) -> Url {
        self.url.clone().unwrap_or_else(|| Url::parse(DEFAULT_URL).expect("the default is a URL"))
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a demonstration: a server, workers, a mix of jobs, and a table of checked promises.
    Demo(demo::Args),
    /// Run the embedded server on a data directory.
    Serve(serve::Args),
    /// Run a server for development, whose clock tests move, or move it.
    Dev(dev::Args),
    /// Enqueue jobs.
    Enqueue(enqueue::Args),
    /// List, explain, change, cancel and replay jobs.
    #[command(subcommand)]
    Jobs(Box<jobs::Command>),
    /// Count the latest errors of jobs by type, reason and pattern, as `jobs errors` does.
    Errors(Box<jobs::ErrorsArgs>),
    /// Show the queues live: counts, rates, delays, and what holds their jobs.
    Top(top::Args),
    /// List, configure and operate queues.
    #[command(subcommand)]
    Queues(queues::Command),
    /// List and configure job types.
    #[command(subcommand)]
    Types(types::Command),
    /// List and configure schedules, which create recurring jobs.
    #[command(subcommand)]
    Schedule(schedule::Command),
    /// List, configure and test triggers, which turn events into jobs and replies.
    #[command(subcommand)]
    Trigger(triggers::Command),
    /// Publish events, and list and replay dead letters.
    #[command(subcommand)]
    Event(events::Command),
    /// Simulate queues under virtual time: a table, and a picture of what ran when; also two
    /// versions of a plugin side by side.
    Simulate(Box<simulate::Args>),
    /// Create, test, push and monitor plugins: throttlers and retry strategies.
    #[command(subcommand)]
    Plugin(plugin::Command),
    /// Create, list and revoke access tokens.
    #[command(subcommand)]
    Token(token::Command),
    /// List which token changed what, and when.
    Audit(audit::Args),
    /// Lease jobs and run a command for each.
    Work(work::Args),
    /// List, drain and stop pull workers.
    #[command(subcommand)]
    Workers(workers::Command),
    /// Measure the performance of the server on this machine.
    Bench(bench::Args),
    /// Back up the data of a server while it runs.
    Backup(backup::Args),
    /// Move the data of stopped servers to another store: SQLite to Postgres, or back.
    Move(move_store::Args),
    /// Read the replicated log of a server, check it, restore an earlier state, and begin a log.
    #[command(subcommand)]
    Log(log::Command),
    /// Check whether a server is ready, as the health check of a container or a script.
    Health(health::Args),
    /// Check a server or its data for problems.
    Doctor(doctor::Args),
    /// Repair the data of a stopped server.
    Repair(repair::Args),
    /// Deploy on AWS, upgrade, roll back and remove a deployment.
    #[cfg(feature = "aws")]
    #[command(subcommand)]
    Aws(aws::Command),
    /// Estimate the cost of a deployment on AWS.
    Cost(cost::Args),
    /// Print a shell completion script.
    Completions(completions::Args),
    /// Write the manual pages of all commands.
    #[command(hide = true)]
    Manual(manual::Args),
    /// Compile a plugin from standard input, in a process apart from the server.
    #[command(hide = true)]
    CompilePlugin {
        /// Memory limit in bytes.
        #[arg(long, default_value_t = compile_process::MEMORY)]
        memory_bytes: u64,
        /// CPU time limit in seconds.
        #[arg(
            long,
            default_value_t = compile_process::PROCESSOR_SECONDS,
            value_parser = clap::value_parser!(u64).range(1..=86_400),
        )]
        processor_seconds: u64,
    },
}

/// Runs the command line and returns the exit code of the program.
pub async fn run(cli: Cli) -> ExitCode {
    match cli.global.with_profile() {
        Ok(global) => run_in(cli.command, &Context::new(global)).await,
        Err(error) => {
            context::print_error(format_args!("error: {error:#}"));
            ExitCode::of(&error)
        }
    }
}

/// Gives the files that this process creates from now on to their owner alone: they have what jobs
/// carry.
pub(crate) fn make_files_private() {
    use nix::sys::stat::{Mode, umask};
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
}

/// Runs `command` in `ctx` and prints an error to standard error in one line.
pub async fn run_in(command: Command, ctx: &Context) -> ExitCode {
    let outcome = match command {
        Command::Demo(args) => Box::pin(demo::run(args, ctx)).await,
        Command::Serve(args) => Box::pin(serve::run(args, ctx)).await,
        Command::Dev(args) => Box::pin(dev::run(args, ctx)).await,
        Command::Enqueue(args) => enqueue::run(args, ctx).await,
        Command::Jobs(command) => jobs::run(*command, ctx).await,
        Command::Errors(args) => jobs::errors(*args, ctx).await,
        Command::Top(args) => Box::pin(top::run(args, ctx)).await,
        Command::Queues(command) => queues::run(command, ctx).await,
        Command::Types(command) => types::run(command, ctx).await,
        Command::Schedule(command) => schedule::run(command, ctx).await,
        Command::Trigger(command) => triggers::run(command, ctx).await,
        Command::Event(command) => Box::pin(events::run(command, ctx)).await,
        Command::Simulate(args) => Box::pin(simulate::run(*args, ctx)).await,
        Command::Plugin(command) => Box::pin(plugin::run(command, ctx)).await,
        Command::Token(command) => Box::pin(token::run(command, ctx)).await,
        Command::Audit(args) => audit::run(args, ctx).await,
        Command::Work(args) => work::run(args, ctx).await,
        Command::Workers(command) => workers::run(command, ctx).await,
        Command::Bench(args) => Box::pin(bench::run(args, ctx)).await,
        Command::Backup(args) => backup::run(args, ctx).await,
        Command::Move(args) => Box::pin(move_store::run(args, ctx)).await,
        Command::Log(command) => Box::pin(log::run(command, ctx)).await,
        Command::Health(args) => health::run(&args, ctx).await,
        Command::Doctor(args) => doctor::run(args, ctx).await,
        Command::Repair(args) => repair::run(args, ctx).await,
        #[cfg(feature = "aws")]
        Command::Aws(command) => Box::pin(aws::run(command, ctx)).await,
        Command::Cost(args) => cost::run(&args, ctx),
        Command::Completions(args) => completions::run(&args, ctx),
        Command::Manual(args) => manual::run(&args),
        Command::CompilePlugin { memory_bytes, processor_seconds } => {
            let done = compile_process::serve(
                memory_bytes,
                processor_seconds,
                io::stdin().lock(),
                io::stdout().lock(),
            );
            done.map(|()| ExitCode::Ok).map_err(Into::into)
        }
    };
    outcome.unwrap_or_else(|error| {
        // A closed pipe, as that of `head`, is no failure.
        if error
            .downcast_ref::<io::Error>()
            .is_some_and(|err| err.kind() == io::ErrorKind::BrokenPipe)
        {
            return ExitCode::Ok;
        }
        context::print_error(format_args!("error: {error:#}"));
        ExitCode::of(&error)
    })
}

#[cfg(test)]
mod tests {
    use std::{any::TypeId, collections::BTreeSet, path::PathBuf};

    use clap::CommandFactory as _;
    use serde_json::json;

    use super::{testing::FakeServer, *};

    /// Each path that a command reads, and a command whose path is missing (`NONE`).
    const READ: &[(&str, &str)] = &[
        ("serve config", "serve --config NONE"),
        ("backup data", "backup TO --data NONE"),
        ("backup config", "backup TO --config NONE"),
        ("move config", "move --from NONE --to TO --config NONE"),
        ("log verify config", "log verify --config NONE"),
        ("log verify encryption_key_file", "log verify --log s3://b/l --encryption-key-file NONE"),
        ("log show config", "log show --config NONE"),
        ("log show encryption_key_file", "log show --log s3://b/l --encryption-key-file NONE"),
        ("log restore config", "log restore TO --at now --config NONE"),
        (
            "log restore encryption_key_file",
            "log restore TO --at now --log s3://b/l --encryption-key-file NONE",
        ),
        ("log seed encryption_key_file", "log seed TO --log s3://b/l --encryption-key-file NONE"),
        ("bench peers", "bench --store postgres://h/d --peers NONE"),
        ("log seed from", "log seed NONE --log s3://bucket/new"),
        ("log seed config", "log seed TO --config NONE"),
        ("log clean config", "log clean --config NONE"),
        ("log clean encryption_key_file", "log clean --log s3://b/l --encryption-key-file NONE"),
        ("log close config", "log close --config NONE"),
        ("log close encryption_key_file", "log close --log s3://b/l --encryption-key-file NONE"),
        ("doctor data", "doctor --data NONE"),
        ("repair data", "repair --data NONE"),
        ("repair config", "repair --config NONE"),
        ("enqueue data_file", "enqueue --type t --data-file NONE"),
        ("jobs patch data_file", "jobs patch j --data-file NONE"),
        ("queues put file", "queues put q --file NONE"),
        ("queues patch file", "queues patch q --file NONE"),
        ("queues simulate file", "queues simulate q --file NONE"),
        ("types put file", "types put t --file NONE"),
        ("types patch file", "types patch t --file NONE"),
        ("trigger put file", "trigger put t --file NONE"),
        ("trigger test rule", "trigger test NONE FILE"),
        ("trigger test events", "trigger test FILE NONE"),
        ("trigger test file", "trigger test t --file NONE"),
        ("schedule put file", "schedule put s --type t --every 1h --file NONE"),
        ("schedule patch file", "schedule patch s --file NONE"),
        ("event send file", "event send --file NONE"),
        ("plugin build project", "plugin build NONE"),
        ("plugin check file", "plugin check NONE"),
        ("plugin test file", "plugin test NONE"),
        ("plugin test cases", "plugin test FILE NONE"),
        ("simulate scenarios", "simulate NONE"),
        ("simulate plugin", "simulate SCENARIO --plugin NONE"),
        ("simulate retry_plugin", "simulate SCENARIO --retry-plugin NONE"),
        ("simulate against", "simulate SCENARIO --retry-plugin WASM --against NONE"),
        ("plugin bench file", "plugin bench NONE"),
        ("plugin replay component", "plugin replay NONE FILE"),
        ("plugin replay saved", "plugin replay WASM NONE"),
        ("plugin dev project", "plugin dev NONE"),
        ("plugin push file", "plugin push p NONE"),
        ("cost metered", "cost --metered NONE"),
        ("token create config", "token create --name a --scope admin --store --config NONE"),
        ("token list config", "token list --store --config NONE"),
        ("token revoke config", "token revoke t --store --config NONE"),
    ];
    /// The paths that a command makes.
    const WRITTEN: [&str; 12] = [
        "demo data",
        "serve data",
        "dev dir",
        "backup to",
        "log restore to",
        "plugin build output",
        "simulate picture",
        "plugin faults save",
        "plugin record save",
        "bench dir",
        "manual dir",
        "token create data",
    ];

    #[tokio::test]
    async fn a_missing_file_is_wrong_usage_in_every_command() {
        fn paths(command: &clap::Command, above: &str, found: &mut BTreeSet<String>) {
            let name = |part: &str| format!("{above} {part}").trim().to_owned();
            for arg in command.get_arguments() {
                if arg.get_value_parser().type_id() == TypeId::of::<PathBuf>() {
                    found.insert(name(arg.get_id().as_str()));
                }
            }
            for inner in command.get_subcommands() {
                paths(inner, &name(inner.get_name()), found);
            }
        }
        let mut found = BTreeSet::new();
        paths(&Cli::command(), "", &mut found);
        let named = READ.iter().map(|(path, _)| *path).chain(WRITTEN).map(str::to_owned);
        assert_eq!(found, named.collect::<BTreeSet<_>>(), "every path is read or written");

        let server = FakeServer::answering(|_| (200, json!({}))).await;
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let rule = json!({"enqueue": {"type": "t"}}).to_string();
        std::fs::write(path("FILE"), rule).unwrap();
        std::fs::write(path("SCENARIO"), json!({"arrivals": []}).to_string()).unwrap();
        for (name, line) in READ {
            let words = line.split(' ').map(|word| match word {
                "WASM" => {
                    concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/dist/exponential.wasm").into()
                }
                "NONE" | "FILE" | "SCENARIO" | "TO" => path(word),
                word => word.to_owned(),
            });
            let words: Vec<String> = words.collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let (code, output) = server.run(&words).await;
            assert_eq!((code, output.as_str()), (ExitCode::Usage, ""), "{name}");
        }
        assert!(server.seen().is_empty(), "no command called the server");
    }

    #[tokio::test]
    async fn settings_that_are_not_given_name_both_options() {
        let server = FakeServer::answering(|_| (200, json!({}))).await;
        for kind in ["queues", "types"] {
            let cli = server.parsed(&[kind, "put", "q"]);
            let ctx = server.context(cli.global);
            let error = match cli.command {
                Command::Queues(command) => queues::run(command, &ctx).await,
                Command::Types(command) => types::run(command, &ctx).await,
                other => panic!("{other:?}"),
            };
            let error = error.unwrap_err();
            assert_eq!(ExitCode::of(&error), ExitCode::Usage);
            assert_eq!(error.to_string(), "give the settings with --config or --file");
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_has_help() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{} has no help", command.get_name());
            for arg in command.get_arguments() {
                assert!(
                    arg.get_help().is_some(),
                    "{} {} has no help",
                    command.get_name(),
                    arg.get_id()
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn the_help_names_the_exit_codes() {
        let help = Cli::command().render_help().to_string();
        assert!(help.contains("3  the server, or the store of a log, is not reachable"), "{help}");
    }

    #[test]
    fn global_options_may_follow_the_command() {
        let cli =
            Cli::try_parse_from(["tidegate", "queues", "list", "--json", "--url", "localhost:9"])
                .unwrap();
        assert!(cli.global.json);
        assert_eq!(cli.global.server().as_str(), "http://localhost:9/");
        let cli = Cli::try_parse_from([
            "tidegate",
            "queues",
            "list",
            "--profile",
            "p",
            "--url",
            "localhost:9",
        ])
        .unwrap();
        let global = cli.global.with_profile().unwrap();
        assert_eq!(
            (global.server().as_str(), global.token),
            ("http://localhost:9/", None),
            "--url wins over the profile"
        );
    }
}
