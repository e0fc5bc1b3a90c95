//! The command line: one file per command, each a thin client of the HTTP API.
//!
//! A command is a clap `Args` struct and `run(args, ctx)`. It decides nothing that the server decides: it
//! sends what it was told and shows what came back, as a table for people or, with `--json`, as the server
//! wrote it.

mod args;
mod backup;
mod bench;
mod client;
mod completions;
mod context;
mod cost;
mod demo;
mod doctor;
mod enqueue;
mod events;
mod jobs;
mod operation;
mod plugin;
mod profile;
mod queues;
mod schedule;
mod serve;
mod show;
#[cfg(test)]
mod testing;
mod token;
mod triggers;
mod types;
mod wire;
mod work;

use std::io;

use clap::{Parser, Subcommand};
use url::Url;

use profile::Profile;
use tidegate_api::pages;
use tidegate_backends::wasm::compile_process;

pub use self::{
    client::{Client, Error, Problem},
    context::{Context, ExitCode, Output, UsageError},
    show::OutputStyle,
};

/// A durable job queue for work that must happen at the right time and at the right rate.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, after_help = context::EXIT_CODES)]
pub struct Cli {
    /// What every command is told.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The options that every command has.
#[derive(Clone, Debug, clap::Args)]
pub struct Global {
    /// Where the server is [default: the profile's `url`, or 127.0.0.1:8080].
    #[arg(long, global = true, env = "TIDEGATE_URL", value_parser = client::base_url, help_heading = "Common options")]
    pub url: Option<Url>,
    /// The token to show to the server [default: the profile's].
    #[arg(
        long,
        global = true,
        env = "TIDEGATE_TOKEN",
        hide_env_values = true,
        help_heading = "Common options"
    )]
    pub token: Option<String>,
    /// A server by its name in the file of profiles, `TIDEGATE_PROFILES` or ~/.config/tidegate/profiles.toml: `[NAME]` with `url` and `token`.
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

/// Where the server is if nobody says otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

impl Global {
    /// The same with the server that the profile names, unless another is named.
    ///
    /// # Errors
    ///
    /// [`Misused`] if there is no such profile.
    fn with_profile(mut self) -> anyhow::Result<Self> {
        // A profile's token is for its own server alone.
        if let (None, Some(name)) = (&self.url, &self.profile) {
            let (url, token) = Profile::named(name)?.server()?;
            (self.url, self.token) = (Some(url), self.token.or(token));
        }
        Ok(self)
    }

    /// Where the server is.
    pub fn server(&self) -> Url {
        self.url.clone().unwrap_or_else(|| Url::parse(DEFAULT_URL).expect("it is one"))
    }
}

/// What tidegate can be told to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// See it work: a server, workers, a mix of jobs, and a table of what happened.
    Demo(demo::Args),
    /// Serve the jobs in a directory.
    Serve(serve::Args),
    /// Hand in jobs.
    Enqueue(enqueue::Args),
    /// Look at jobs and change them.
    #[command(subcommand)]
    Jobs(jobs::Command),
    /// Look at queues, configure and operate them.
    #[command(subcommand)]
    Queues(queues::Command),
    /// Look at job types and configure them.
    #[command(subcommand)]
    Types(types::Command),
    /// Look at schedules, which make jobs at their times, and configure them.
    #[command(subcommand)]
    Schedule(schedule::Command),
    /// Write rules that make jobs and results of events, and try them.
    #[command(subcommand)]
    Trigger(triggers::Command),
    /// Hand in events, and look after those of which nothing could be made.
    #[command(subcommand)]
    Event(events::Command),
    /// Write, test, push and watch plugins: throttlers and retry strategies.
    #[command(subcommand)]
    Plugin(plugin::Command),
    /// Create, list and revoke access tokens.
    #[command(subcommand)]
    Token(token::Command),
    /// Lease jobs and run a command for each.
    Work(work::Args),
    /// Measure what the server reaches on this machine.
    Bench(bench::Args),
    /// Copy the data of a server, while it runs.
    Backup(backup::Args),
    /// Find what is wrong with a server or its data, and what to do.
    Doctor(doctor::Args),
    /// Reckon what a deployment on AWS costs.
    Cost(cost::Args),
    /// Print completions for a shell.
    Completions(completions::Args),
    /// Compile a plugin: what the server runs apart from itself, the component on standard input.
    #[command(hide = true)]
    CompilePlugin {
        /// Bytes of memory that it may take.
        #[arg(long, default_value_t = compile_process::MEMORY)]
        memory_bytes: u64,
        /// Seconds of the processor that it may take.
        #[arg(long, default_value_t = compile_process::PROCESSOR_SECONDS, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        processor_seconds: u64,
    },
}

/// Runs the command line and says with what code the program ends.
pub async fn run(cli: Cli) -> ExitCode {
    match cli.global.with_profile() {
        Ok(global) => run_in(cli.command, &Context::new(global)).await,
        Err(error) => {
            context::print_error(format_args!("error: {error:#}"));
            ExitCode::of(&error)
        }
    }
}

/// Runs `command` in given surroundings; an error is told on standard error in one line.
pub async fn run_in(command: Command, ctx: &Context) -> ExitCode {
    let outcome = match command {
        Command::Demo(args) => Box::pin(demo::run(args, ctx)).await,
        Command::Serve(args) => Box::pin(serve::run(args, ctx)).await,
        Command::Enqueue(args) => enqueue::run(args, ctx).await,
        Command::Jobs(command) => jobs::run(command, ctx).await,
        Command::Queues(command) => queues::run(command, ctx).await,
        Command::Types(command) => types::run(command, ctx).await,
        Command::Schedule(command) => schedule::run(command, ctx).await,
        Command::Trigger(command) => triggers::run(command, ctx).await,
        Command::Event(command) => Box::pin(events::run(command, ctx)).await,
        Command::Plugin(command) => Box::pin(plugin::run(command, ctx)).await,
        Command::Token(command) => token::run(command, ctx).await,
        Command::Work(args) => work::run(args, ctx).await,
        Command::Bench(args) => Box::pin(bench::run(args, ctx)).await,
        Command::Backup(args) => backup::run(args, ctx).await,
        Command::Doctor(args) => doctor::run(args, ctx).await,
        Command::Cost(args) => cost::run(&args, ctx),
        Command::Completions(args) => completions::run(&args, ctx),
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
        // Whoever pipes into `head` has read enough.
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
    use clap::CommandFactory as _;

    use super::*;

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
        assert!(help.contains("3  the server is not reachable"), "{help}");
    }

    #[test]
    fn global_options_may_stand_after_the_command() {
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
            "the URL is named, so the profile is not asked"
        );
    }
}
