//! `tidegate schedule`: recurring jobs. `next` with a rule needs no server.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    Context, ExitCode, UsageError,
    args::{self, Fields, When},
    client::Client,
    output::{self, OutputStyle},
    pages,
    preview::{DryRun, Previewed},
    types::{self, Configure, Force, Name},
};
use tidegate_api::{ScheduleView, ShortView};
use tidegate_core::{
    calendar::{
        Recurrence,
        recurrence::{Cron, RecurrenceRule},
        window::Zone,
    },
    time::{Seconds, Timestamp},
};

/// The commands about schedules.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a schedule, or replace all its settings.
    Put(Box<Put>),
    /// Change some of a schedule's settings.
    Patch(Previewed<Configure>),
    /// Show a schedule with its last and next occurrence.
    Get(Name),
    /// List schedules with their next occurrence.
    List,
    /// Delete a schedule; its jobs stay.
    Delete(Name),
    /// Pause a schedule until it is resumed.
    Pause(Name),
    /// Resume a schedule from now on.
    Resume(Name),
    /// Create a job of a schedule now.
    Run(Name),
    /// Show the next occurrences of a schedule, or of a rule without a server.
    Next(NextOccurrence),
}

/// The settings of a schedule.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidegate schedule put nightly --type report --cron '0 3 * * *' --tz Europe/Berlin\n  \
    tidegate schedule put beat --type ping --every 30s --data '{\"host\": \"a\"}'\n  \
    tidegate schedule put nightly --config \
    '{\"type\": \"report\", \"cron\": \"0 3 * * *\", \"max_attempts\": 5}'")]
pub struct Put {
    /// The name of the schedule.
    name: String,
    /// The type of the jobs.
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    #[command(flatten)]
    rule: RuleArgs,
    /// The data of the jobs, JSON; `-` reads standard input [default: null].
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// The jobs for occurrences that are over a minute late [default: one].
    #[arg(long)]
    missed: Option<Missed>,
    /// Other settings, JSON; `-` reads standard input. The options above win.
    #[arg(long, value_name = "JSON", conflicts_with = "file")]
    config: Option<String>,
    /// A file with other settings, JSON.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    mode: DryRun,
}

/// The rule of a schedule.
#[derive(Debug, Args)]
struct RuleArgs {
    /// A cron pattern: minute, hour, day of the month, month, day of the week; or six fields, the
    /// second first.
    #[arg(long, value_name = "PATTERN")]
    cron: Option<String>,
    /// The IANA name of the time zone of the pattern [default: UTC].
    #[arg(long, value_name = "ZONE", requires = "cron")]
    tz: Option<String>,
    /// The span from one occurrence to the next, for example 30s or 6h.
    #[arg(long, value_name = "SPAN", value_parser = args::span, conflicts_with = "cron")]
    every: Option<Seconds>,
    /// The instant of one occurrence; all others are whole spans away [default: the epoch].
    #[arg(long, value_name = "INSTANT", requires = "every")]
    anchor: Option<Timestamp>,
}

/// The jobs for occurrences that are over a minute late.
#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Missed {
    /// No job.
    Skip,
    /// One job for all.
    One,
    /// One job for each.
    All,
}

/// The options of `tidegate schedule next`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidegate schedule next nightly\n  \
    tidegate schedule next --cron '30 2 * * *' --tz Europe/Berlin --from 2026-03-28T00:00:00Z \
    --count 3")]
pub struct NextOccurrence {
    /// The schedule; or give a rule.
    #[arg(conflicts_with_all = ["cron", "every"], required_unless_present_any = ["cron", "every"])]
    name: Option<String>,
    #[command(flatten)]
    rule: RuleArgs,
    /// Show occurrences after this instant: RFC 3339, or a span from now such as +10m [default:
    /// now].
    #[arg(
        long,
        value_name = "INSTANT",
        value_parser = args::when,
        allow_hyphen_values = true,
        conflicts_with = "name",
    )]
    from: Option<When>,
    /// The number of occurrences.
    #[arg(
        long,
        default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=1000),
        conflicts_with = "name",
    )]
    count: u32,
}

impl Put {
    /// The settings, as they are sent.
    async fn settings(&self) -> anyhow::Result<Fields> {
        let mut fields = Fields::default();
        if let Some(settings) =
            args::json_from(self.config.as_deref(), self.file.as_deref()).await?
        {
            let said: Vec<(String, Box<RawValue>)> =
                serde_json::from_str::<std::collections::BTreeMap<_, _>>(settings.0.get())
                    .map_err(|_| UsageError("the settings must be a JSON object".to_owned()))?
                    .into_iter()
                    .collect();
            fields.extend(
                &said
                    .into_iter()
                    .map(|(name, value)| (name, args::Json(value)))
                    .collect::<Vec<_>>(),
            );
        }
        fields.maybe("type", self.job_type.as_ref());
        fields.maybe("cron", self.rule.cron.as_ref());
        fields.maybe("tz", self.rule.tz.as_ref());
        fields.maybe("every_seconds", self.rule.every);
        fields.maybe("anchor", self.rule.anchor);
        fields.maybe("missed", self.missed);
        fields.maybe("data", args::json_from(self.data.as_deref(), None).await?);
        Ok(fields)
    }
}

impl RuleArgs {
    /// Parses the rule as the server does.
    fn rule(&self) -> anyhow::Result<RecurrenceRule> {
        let misused =
            |option: &str, error: &dyn std::fmt::Display| UsageError(format!("--{option} {error}"));
        if let Some(cron) = &self.cron {
            let cron: Cron = cron.parse().map_err(|error| misused("cron", &error))?;
            let zone = self
                .tz
                .as_deref()
                .map(str::parse::<Zone>)
                .transpose()
                .map_err(|error| misused("tz", &error))?;
            return Ok(RecurrenceRule::Cron(cron, zone.unwrap_or_default()));
        }
        let span = self
            .every
            .filter(|span| *span >= Seconds::new(1))
            .ok_or_else(|| misused("every", &"must be at least 1s"))?;
        Ok(RecurrenceRule::Every { span, anchor: self.anchor.unwrap_or(Timestamp::EPOCH) })
    }
}

/// Runs the command.
///
/// # Errors
///
/// The server is unreachable or rejects the request; a rule is invalid.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    if let Command::Next(NextOccurrence { name: None, rule, from, count }) = &command {
        return next(rule, *from, *count as usize, ctx);
    }
    let client = ctx.client()?;
    let (answer, said) = match command {
        Command::List => return list(&client, ctx).await,
        Command::Put(args) => {
            let path = ["schedules", &args.name];
            let request = args.force.applied(client.put(&path)).json(&args.settings().await?);
            match args.mode.send(request, &path, &client, ctx).await? {
                Some(answer) => (answer, None),
                None => return Ok(ExitCode::Ok),
            }
        }
        Command::Patch(args) => match types::patch(&args, (&client, "schedules"), ctx).await? {
            Some(answer) => (answer, None),
            None => return Ok(ExitCode::Ok),
        },
        Command::Get(Name { name }) => (client.get(&["schedules", &name]).send().await?, None),
        Command::Delete(Name { name }) => {
            (client.delete(&["schedules", &name]).send().await?, Some(format!("{name} is deleted")))
        }
        Command::Pause(Name { name }) => (
            client.post(&["schedules", &name, "pause"]).send().await?,
            Some(format!("{name} is paused")),
        ),
        Command::Resume(Name { name }) => (
            client.post(&["schedules", &name, "resume"]).send().await?,
            Some(format!("{name} is resumed from now")),
        ),
        Command::Run(Name { name }) => {
            let answer = client.post(&["schedules", &name, "run"]).send().await?;
            let job = answer.read::<ShortView<'_>>()?.id.to_string();
            (answer, Some(job))
        }
        Command::Next(NextOccurrence { name, .. }) => {
            let answer = client.get(&["schedules", &name.unwrap_or_default()]).send().await?;
            let schedule: ScheduleView<'_> = answer.read()?;
            return show_occurrences(&schedule.next, schedule.config.tz.unwrap_or_default(), ctx);
        }
    };
    match said {
        _ if ctx.json() => ctx.print_body(&answer.body)?,
        Some(said) => ctx.print(said)?,
        None => {
            let row = render(ctx.look, &[answer.read()?], ctx.now());
            let shown = ["name", "paused", "next", "last_occurrence"];
            ctx.print_tables(format_args!(
                "{row}\n\n{}",
                output::fields(ctx.look, &answer.read()?, &shown, ctx.now())
            ))?;
        }
    }
    Ok(ExitCode::Ok)
}

/// Prints the occurrences of a rule.
fn next(
    rule: &RuleArgs,
    from: Option<When>,
    count: usize,
    ctx: &Context,
) -> anyhow::Result<ExitCode> {
    let recurrence = Recurrence { rule: rule.rule()?, starts_at: None, ends_at: None };
    let from = from.map_or(ctx.now(), |when| when.at(ctx.now()));
    let next: Vec<Timestamp> = recurrence.all_after(from).take(count).collect();
    let zone = rule.tz.as_deref().and_then(|name| name.parse().ok()).unwrap_or_default();
    show_occurrences(&next, zone, ctx)
}

/// Shows occurrences: in UTC, and by the clock of the zone.
fn show_occurrences(next: &[Timestamp], zone: Zone, ctx: &Context) -> anyhow::Result<ExitCode> {
    #[derive(Serialize)]
    struct Answer<'a> {
        next: &'a [Timestamp],
    }
    if ctx.json() {
        ctx.print(serde_json::to_string(&Answer { next })?)?;
        return Ok(ExitCode::Ok);
    }
    let now = ctx.now();
    let rows = next.iter().map(|at| [at.to_string(), zone.said(*at), output::when(*at, now)]);
    ctx.print_tables(output::table(ctx.look, ["occurs at", "local time", "from now"], rows))?;
    Ok(ExitCode::Ok)
}

async fn list(client: &Client, ctx: &Context) -> anyhow::Result<ExitCode> {
    let page = pages::collect(|client| client.get(&["schedules"]), client, usize::MAX).await?;
    if ctx.json() {
        ctx.print(serde_json::to_string(&page)?)?;
    } else {
        ctx.print_tables(render(ctx.look, &page.read(client)?, ctx.now()))?;
    }
    Ok(ExitCode::Ok)
}

fn render(look: OutputStyle, schedules: &[ScheduleView<'_>], now: Timestamp) -> String {
    let rows = schedules.iter().map(|schedule| {
        let config = &schedule.config;
        let rule = match (&config.cron, config.every_seconds) {
            (Some(cron), _) => format!("{cron} {}", config.tz.unwrap_or_default()),
            (None, Some(span)) => format!("every {} s", span.as_f64()),
            (None, None) => output::dash(),
        };
        [
            schedule.name.to_string(),
            config.job_type.to_string(),
            rule,
            if config.paused {
                "paused".to_owned()
            } else {
                output::when_known(schedule.next.first().copied(), now)
            },
            output::when_known(schedule.last_occurrence, now),
            schedule.missed_count.to_string(),
            schedule.last_error.as_ref().map_or_else(output::dash, |error| error.message.clone()),
        ]
    });
    output::table(look, ["name", "type", "rule", "next", "last", "missed", "error"], rows)
}

#[cfg(test)]
mod tests;
