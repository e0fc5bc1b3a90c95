//! `tidegate jobs errors`: the latest errors of jobs, counted in groups.

use std::{cmp::Reverse, collections::BTreeMap};

use super::filter::Filter;
use crate::cli::{
    Context, ExitCode,
    args::{self, When},
    output,
    safe::line,
};
use tidegate_api::{ErrorGroup, ErrorPage};
use tidegate_core::time::Timestamp;

/// The options of `tidegate jobs errors`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Errors at this instant or later: RFC 3339, or a span from now such as -1h.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    from: Option<When>,
    /// Errors before this instant: RFC 3339, or a span from now such as -1h.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    to: Option<When>,
    #[command(flatten)]
    filter: Filter,
}

/// Counts the errors of the matching jobs.
///
/// # Errors
///
/// The server is unreachable or rejects the request.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let (client, now) = (ctx.client()?, ctx.now());
    let mut all = ErrorPage::default();
    loop {
        let mut request = args.filter.query(client.get(&["errors"]), now);
        let at = |when: Option<When>| when.map(|when| when.at(now).to_string());
        let own =
            [("from", at(args.from)), ("to", at(args.to)), ("cursor", all.next_cursor.take())];
        for (name, value) in own {
            if let Some(value) = value {
                request = request.query(name, &value);
            }
        }
        all = merged(all, request.send().await?.read()?);
        if all.next_cursor.is_none() {
            break;
        }
    }
    if ctx.json() {
        ctx.print(serde_json::to_string(&all)?)?;
    } else if all.errors.is_empty() {
        ctx.note("no errors");
    } else {
        ctx.print_tables(render(ctx.look, &all.errors, now))?;
        if all.ungrouped > 0 {
            ctx.note(format_args!("{} jobs with other errors; give a filter", all.ungrouped));
        }
    }
    Ok(ExitCode::Ok)
}

/// Both pages as one, with the cursor of the second.
fn merged(first: ErrorPage, second: ErrorPage) -> ErrorPage {
    let mut groups: BTreeMap<(String, &'static str, String), ErrorGroup> = BTreeMap::new();
    for group in first.errors.into_iter().chain(second.errors) {
        let key = (group.r#type.to_string(), group.reason.as_str(), group.pattern.clone());
        match groups.get_mut(&key) {
            None => {
                groups.insert(key, group);
            }
            Some(all) => {
                if group.last_at > all.last_at {
                    all.message = group.message;
                }
                all.jobs += group.jobs;
                all.first_at = all.first_at.min(group.first_at);
                all.last_at = all.last_at.max(group.last_at);
            }
        }
    }
    let mut errors: Vec<ErrorGroup> = groups.into_values().collect();
    errors.sort_by_key(|group| Reverse((group.jobs, group.last_at)));
    let ungrouped = first.ungrouped + second.ungrouped;
    ErrorPage { errors, ungrouped, next_cursor: second.next_cursor }
}

pub fn render(look: output::OutputStyle, groups: &[ErrorGroup], now: Timestamp) -> String {
    let rows = groups.iter().map(|group| {
        [
            group.jobs.to_string(),
            group.r#type.to_string(),
            group.reason.as_str().to_owned(),
            output::when(group.first_at, now),
            output::when(group.last_at, now),
            line(&group.pattern),
        ]
    });
    output::table(look, ["jobs", "type", "reason", "first", "latest", "pattern"], rows)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::testing::FakeServer;

    fn group(kind: &str, jobs: u64, [first, last]: [&str; 2], message: &str) -> Value {
        json!({
            "type": kind, "reason": "failed", "pattern": "HTTP 503: *", "message": message,
            "jobs": jobs, "first_at": first, "last_at": last, "examples": ["j1"],
        })
    }

    #[tokio::test]
    async fn the_groups_of_all_pages_add_up() {
        let server = FakeServer::answering(|seen| {
            let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
            if seen.line().contains("cursor=") {
                return (200, json!({
                    "errors": [group("mail", 3, [early, early], "old"), group("sms", 1, [early; 2], "x")],
                    "ungrouped": 0, "next_cursor": null,
                }));
            }
            (200, json!({
                "errors": [group("mail", 2, [late, late], "new")], "ungrouped": 0,
                "next_cursor": "1_a",
            }))
        })
        .await;
        let command =
            ["jobs", "errors", "--from", "2025-12-31T00:00:00Z", "--type", "mail", "--json"];
        let (code, out) = server.run(&command).await;
        assert_eq!(code, ExitCode::Ok);
        let page: ErrorPage = serde_json::from_str(&out).unwrap();
        let shown: Vec<_> = page
            .errors
            .iter()
            .map(|group| (group.r#type.as_str(), group.jobs, group.message.as_deref()))
            .collect();
        assert_eq!(shown, [("mail", 5, Some("new")), ("sms", 1, Some("x"))]);
        assert_eq!(page.errors[0].first_at.to_string(), "2026-01-01T00:00:00.000Z");
        assert_eq!(
            server.seen()[0].line(),
            "GET /v1/errors?type=mail&from=2025-12-31T00%3A00%3A00.000Z"
        );
    }
}
