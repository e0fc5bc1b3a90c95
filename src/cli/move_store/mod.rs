//! `tidegate move`: everything of a stopped deployment into another store.

mod location;
#[cfg(feature = "aws")]
mod table;

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context as _, bail};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use self::location::Location;
use super::{Context, ExitCode, UsageError, output};
use tidegate_backends::{
    sealed::KeySource,
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::port::Entropy as _;
use tidegate_engine::moves::{Comparison, Move, Part, abort};
use tidegate_server::{
    runtime::{check_secrets, key_file},
    settings::Settings,
};

/// The options of `tidegate move`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Jobs with their histories, limits, keys, configuration, tokens, plugins and \
    large bodies are copied as they are: ids stay the same, and running attempts may still report. \
    Then all of both sides is compared. Stop every server first. No server starts on either store \
    until the target is complete. If the command is interrupted, repeat it: it goes on. A server \
    that starts on the source afterwards says where its data is.\n\n\
    A password is safer in `TIDEGATE_STORE`, which is used where --from or --to is not given. The \
    target needs the encryption key of the source.\n\n\
    `dynamodb://TABLE?bucket=BUCKET&prefix=PREFIX&region=REGION` is the data of a deployment on AWS, \
    with the outputs of its stack. It needs the credentials of an operator, as `tidegate aws` does. \
    Its functions refuse all calls meanwhile.\n\n\
    Example:\n  \
    export TIDEGATE_STORE=postgres://tidegate@db.example/tidegate\n  \
    export TIDEGATE_ENCRYPTION_KEY_FILE=/var/lib/tidegate/key\n  \
    tidegate move --from /var/lib/tidegate"
)]
pub struct Args {
    /// The source: a data directory, `postgres://HOST/DATABASE` or `dynamodb://TABLE?bucket=BUCKET`
    /// [default: the server's setting `store`].
    #[arg(long, value_name = "DIR|URL")]
    from: Option<String>,
    /// The target: a directory, a schema of a database or a table, without data [default: the server's
    /// setting `store`].
    #[arg(long, value_name = "DIR|URL", conflicts_with = "abort")]
    to: Option<String>,
    /// Compare the two, and change nothing.
    #[arg(long, conflicts_with = "abort")]
    check: bool,
    /// Let servers use the source again, whether the move was finished or not.
    #[arg(long)]
    abort: bool,
    /// A TOML file with the server's settings.
    #[arg(long, env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
}

/// Moves, compares, or gives a move up.
///
/// # Errors
///
/// A place is not named or cannot be used; a server uses one of them; the target is not empty, or does
/// not have the source's key; a record cannot be read or written.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(args.config.as_deref(), &())?;
    super::make_files_private();
    let from = Location::named(args.from.as_deref(), "--from", &settings)?;
    let from = existing(from).await?;
    if args.abort {
        return give_up(&from, ctx).await;
    }
    if args.from.is_none() && args.to.is_none() {
        bail!(UsageError("name the source with --from, or the target with --to".into()));
    }
    let to = Location::named(args.to.as_deref(), "--to", &settings)?;
    let to = if args.check { existing(to).await? } else { to };
    let keys = keys(&from, &to, &settings)?;
    let sides =
        Move { from: from.open().await?, to: to.open().await?, clock: Arc::new(SystemClock) };
    let has_secrets = check_secrets(&sides.from, keys).await.with_context(|| {
        format!("the keys of {to} do not decrypt what is encrypted in {from}: {}", key_remedy(&to))
    })?;
    if args.check {
        let bar = ctx.progress(0, "comparing");
        let comparison = sides.check(&|part, count| shown(&bar, part, count)).await;
        bar.finish_and_clear();
        let comparison = comparison?;
        print(&sides, &[], &comparison, ctx)?;
        return Ok(if comparison.is_equal() { ExitCode::Ok } else { ExitCode::Refused });
    }
    if from.is_table() || to.is_table() {
        ctx.note("calls of the table's functions that are under way may take half a minute to end");
    }
    moved(&sides, ctx).await?;
    ctx.note(format_args!("{from} was moved to {to}: {}", to.next_step()));
    if has_secrets {
        ctx.note("they need the encryption key of the source");
    }
    Ok(ExitCode::Ok)
}

async fn moved(sides: &Move, ctx: &Context) -> anyhow::Result<()> {
    let (from, to) = (&sides.from.place, &sides.to.place);
    let mut begun = sides.begin(format!("{:032x}", SystemEntropy.bits())).await?;
    let begins = if begun.goes_on { "the move goes on" } else { "the move begins" };
    ctx.note(format_args!("{begins}: {from} to {to}"));
    let bar = ctx.progress(0, "copying");
    let copied = sides.copy(&mut begun, &|part, count| shown(&bar, part, count)).await;
    bar.finish_and_clear();
    let copied = copied?;
    ctx.note("everything is copied, and is compared now");
    let bar = ctx.progress(0, "comparing");
    let comparison = sides.compare(&|part, count| shown(&bar, part, count)).await;
    bar.finish_and_clear();
    let comparison = comparison?;
    print(sides, &copied, &comparison, ctx)?;
    sides.finish(&begun, &comparison).await?;
    let damaged = comparison.damaged();
    if damaged > 0 {
        ctx.note(format_args!("damaged records of {from} that are not in {to}: {damaged}"));
    }
    Ok(())
}

/// Shows that `count` more records of `part` are done. How many there are is not known.
fn shown(bar: &ProgressBar, part: Part, count: u64) {
    bar.set_message(part.to_string());
    bar.inc_length(count);
    bar.inc(count);
}

async fn give_up(from: &Location, ctx: &Context) -> anyhow::Result<ExitCode> {
    let mark = abort(&from.open().await?).await?;
    if ctx.json() {
        let to = mark.as_ref().map(|mark| &mark.other);
        ctx.print(json!({"from": from.to_string(), "to": to, "aborted": mark.is_some()}))?;
        return Ok(ExitCode::Ok);
    }
    match mark {
        Some(mark) => ctx.print(format_args!(
            "servers may use {from} again; do not start one on {}, whose copy will be outdated",
            mark.other
        ))?,
        None => ctx.print(format_args!("{from} is no part of a move"))?,
    }
    Ok(ExitCode::Ok)
}

/// `place`, unless it has no data.
async fn existing(place: Location) -> anyhow::Result<Location> {
    if !place.has_store().await? {
        bail!(UsageError(format!("{place} has no data: name another one")));
    }
    Ok(place)
}

/// The keys of the target.
fn keys(from: &Location, to: &Location, settings: &Settings) -> anyhow::Result<KeySource> {
    let of_target = match to.directory() {
        Some(dir) => Settings { store: None, data: dir.to_owned(), ..settings.clone() },
        // The address has no part in it.
        None => Settings { store: Some("postgres://".into()), ..settings.clone() },
    };
    of_target.keys().map_err(|fault| {
        let hint = match from.directory() {
            Some(dir) if key_file(dir).exists() => {
                format!("; the key of the source is in {}", key_file(dir).display())
            }
            _ => String::new(),
        };
        UsageError(format!("the setting `{}` {}{hint}", fault.setting, fault.problem)).into()
    })
}

/// How the target gets the key of the source.
fn key_remedy(to: &Location) -> String {
    let settings = "set `encryption_key`, `encryption_key_file` or `encryption_key_command`";
    match to.directory() {
        Some(dir) => {
            format!("{settings}, or copy the source's key file to {}", key_file(dir).display())
        }
        None => format!("{settings}, so that it gives the key of the source"),
    }
}

/// Prints what was copied, and what the comparison found.
fn print(
    sides: &Move,
    copied: &[(Part, u64)],
    comparison: &Comparison,
    ctx: &Context,
) -> anyhow::Result<()> {
    let copied_of = |part: Part| {
        let of_part = copied.iter().find(|(other, _)| *other == part);
        of_part.map_or(0, |(_, count)| *count)
    };
    if ctx.json() {
        let parts = comparison.parts.iter().map(|part| {
            json!({
                "part": part.part.to_string(), "copied": copied_of(part.part), "source": part.from,
                "target": part.to, "differences": part.differences, "named": part.named,
                "damaged": part.damaged, "damaged_named": part.damaged_named,
            })
        });
        let parts: Vec<Value> = parts.collect();
        let (from, to) = (&sides.from.place, &sides.to.place);
        ctx.print(json!({
            "from": from, "to": to, "equal": comparison.is_equal(),
            "damaged": comparison.damaged(), "parts": parts,
        }))?;
        return Ok(());
    }
    let has_any = comparison.parts.iter().filter(|part| part.from + part.to + part.damaged > 0);
    let rows = has_any.map(|part| {
        [
            part.part.to_string(),
            copied_of(part.part).to_string(),
            part.from.to_string(),
            part.to.to_string(),
            part.differences.to_string(),
            part.damaged.to_string(),
        ]
    });
    let titles = ["PART", "COPIED", "SOURCE", "TARGET", "DIFFERENCES", "DAMAGED"];
    ctx.print_tables(output::table(ctx.look, titles, rows))?;
    for difference in comparison.parts.iter().flat_map(|part| &part.named) {
        ctx.print(difference)?;
    }
    for part in &comparison.parts {
        for name in &part.damaged_named {
            ctx.print(format_args!(
                "{}: {name} is damaged in the source, and left out",
                part.part
            ))?;
        }
    }
    Ok(())
}
