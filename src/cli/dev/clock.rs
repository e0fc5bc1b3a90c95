//! `tidegate dev clock`: shows and moves the clock of a server for development.

use tidegate_api::{DevClockBody, DevClockView};
use tidegate_core::time::{Seconds, Timestamp};

use crate::cli::{Context, ExitCode, args};

/// The options of `tidegate dev clock`; without one, the clock is shown.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub struct Args {
    /// Stop the clock.
    #[arg(long)]
    freeze: bool,
    /// Let the clock run on from what it shows.
    #[arg(long)]
    unfreeze: bool,
    /// Move the clock forward, for example by 90s or 1h30m.
    #[arg(long, value_name = "SPAN", value_parser = args::span)]
    advance: Option<Seconds>,
    /// Move the clock forward to an instant, RFC 3339.
    #[arg(long, value_name = "INSTANT")]
    set: Option<Timestamp>,
}

/// Shows the clock, or changes it and shows it then.
///
/// # Errors
///
/// The server was not started by `tidegate dev`, is unreachable or rejects the request.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let Args { freeze, unfreeze, advance: advance_seconds, set } = args;
    let freeze = (freeze || unfreeze).then_some(freeze);
    let body = DevClockBody { freeze, advance_seconds, set };
    let path = ["dev", "clock"];
    let answer = if body == DevClockBody::default() {
        client.get(&path).send().await?
    } else {
        client.post(&path).json(&body).send().await?
    };
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        let DevClockView { now, frozen } = answer.read()?;
        ctx.print(format_args!("{now}{}", if frozen { " (frozen)" } else { "" }))?;
    }
    Ok(ExitCode::Ok)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::testing::FakeServer;

    #[tokio::test]
    async fn each_option_is_one_field_of_the_request() {
        for (options, line, body) in [
            (&[][..], "GET /v1/dev/clock", Value::Null),
            (&["--freeze"], "POST /v1/dev/clock", json!({"freeze": true})),
            (&["--unfreeze"], "POST /v1/dev/clock", json!({"freeze": false})),
            (&["--advance", "1h30m"], "POST /v1/dev/clock", json!({"advance_seconds": 5400})),
            (
                &["--set", "2030-01-01T00:00:00Z"],
                "POST /v1/dev/clock",
                json!({"set": "2030-01-01T00:00:00.000Z"}),
            ),
        ] {
            let clock = json!({"now": "2030-01-01T00:00:00Z", "frozen": true});
            let server = FakeServer::answering(move |_| (200, clock.clone())).await;
            let shown = "2030-01-01T00:00:00.000Z (frozen)\n".to_owned();
            let ran = server.run(&[&["dev", "clock"], options].concat()).await;
            assert_eq!(ran, (ExitCode::Ok, shown), "{options:?}");
            assert_eq!((server.seen()[0].line(), &server.seen()[0].body), (line.to_owned(), &body));
        }
    }
}
