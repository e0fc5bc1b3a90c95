//! `--dry-run` of settings: what a change would make of the stored ones.

use serde_json::Value;

use super::{
    Context,
    client::{ApiResponse, Client, Error, Request},
    output::{self, Fields, OutputStyle},
};
use tidegate_core::time::Timestamp;

/// The fields of an answer that are no settings.
const OTHER_FIELDS: [&str; 6] =
    ["name", "version", "status", "previous", "secrets", "changed_secrets"];

/// The settings of a command, and whether they are only shown.
#[derive(Debug, clap::Args)]
pub struct Previewed<A: clap::Args> {
    /// The settings.
    #[command(flatten)]
    pub settings: A,
    #[command(flatten)]
    pub mode: DryRun,
}

/// Whether a change is only shown.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct DryRun {
    /// Check the settings, show what they would change, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

impl DryRun {
    /// The answer to `change` of the item at `path`. None if that is a dry run, which is
    /// [shown](show).
    ///
    /// # Errors
    ///
    /// As [`show`].
    pub async fn send(
        self,
        change: Request<'_>,
        path: &[&str],
        client: &Client,
        ctx: &Context,
    ) -> anyhow::Result<Option<ApiResponse>> {
        if self.dry_run {
            return show(change, path, client, ctx).await.map(|()| None);
        }
        Ok(Some(change.send().await?))
    }
}

/// Sends `change` to the item at `path` as a dry run, and shows each setting that it changes.
///
/// # Errors
///
/// The item changes at the same time; the server is unreachable or rejects the change.
async fn show(
    change: Request<'_>,
    path: &[&str],
    client: &Client,
    ctx: &Context,
) -> anyhow::Result<()> {
    let stored = match client.get(path).send().await {
        Ok(answer) => Some(answer.read::<Fields>()?),
        Err(Error::Problem(problem)) if problem.status == 404 => None,
        Err(error) => return Err(error.into()),
    };
    let answer = change.query("dry_run", "true").send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
        return Ok(());
    }
    let (name, changed) = (path.last().copied().unwrap_or_default(), answer.read::<Fields>()?);
    let was =
        stored.as_ref().map_or(Some(&Value::from(0)), |stored| stored.get("version")).cloned();
    anyhow::ensure!(was.as_ref() == changed.get("version"), "{name} has just changed: repeat");
    ctx.print_tables(render(ctx.look, name, stored.as_ref(), &changed, ctx.now()))?;
    Ok(())
}

/// The settings that differ, or all of a new item.
fn render(
    look: OutputStyle,
    name: &str,
    stored: Option<&Fields>,
    changed: &Fields,
    now: Timestamp,
) -> String {
    let Some(stored) = stored else {
        let settings = output::fields(look, changed, &OTHER_FIELDS, now);
        return format!("{name} would be created:\n\n{settings}");
    };
    let is_setting = |(name, _): &&(String, Value)| !OTHER_FIELDS.contains(&name.as_str());
    let removed = stored.0.iter().filter(|(name, _)| changed.get(name).is_none());
    let names = changed.0.iter().chain(removed).filter(is_setting).map(|(name, _)| name.as_str());
    let rows = names.filter_map(|name| {
        let (before, after) = (stored.get(name), changed.get(name));
        let shown = |value| shown(name, value, now);
        (before.unwrap_or(&Value::Null) != after.unwrap_or(&Value::Null))
            .then(|| [name.to_owned(), shown(before), shown(after)])
    });
    let rows: Vec<_> = rows.chain(changed_secrets(stored, changed)).collect();
    if rows.is_empty() {
        return format!("{name} would stay as it is");
    }
    let table = output::table(look, ["setting", "now", "then"], rows);
    format!("{name} would change:\n\n{table}")
}

/// A row for each secret that changes, which says what happens to it.
fn changed_secrets(stored: &Fields, changed: &Fields) -> Vec<[String; 3]> {
    let paths = |fields: &Fields, name: &str| -> Vec<String> {
        let list = fields.get(name).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (before, after) = (paths(stored, "secrets"), paths(changed, "secrets"));
    let row = |path: String| {
        let [was_set, is_set] = [&before, &after].map(|paths| paths.contains(&path));
        let now = if was_set { "set".to_owned() } else { output::dash() };
        let then = match (was_set, is_set) {
            (_, false) => output::dash(),
            (false, true) => "set".to_owned(),
            (true, true) => "replaced".to_owned(),
        };
        [path, now, then]
    };
    paths(changed, "changed_secrets").into_iter().map(row).collect()
}

/// A value of a setting. Of a list of instants, the first.
fn shown(name: &str, value: Option<&Value>, now: Timestamp) -> String {
    match value {
        None | Some(Value::Null) => output::dash(),
        Some(Value::Array(instants)) if name == "next" => {
            instants.first().map_or_else(output::dash, |first| output::value("next_at", first, now))
        }
        Some(value) => output::value(name, value, now),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::{
        ExitCode,
        testing::{FakeServer, sample},
    };

    #[tokio::test]
    async fn a_dry_run_shows_each_setting_that_changes() {
        let queue = |limit| {
            let constraints = json!([{"name": "tenant", "match": {}, "concurrency": 2}]);
            let order = "time";
            let changes = json!({"concurrency": limit, "order": order, "constraints": constraints});
            sample::queue(changes)
        };
        let server = FakeServer::answering(move |seen| match seen.line().as_str() {
            "GET /v1/queues/q" => (200, queue(10)),
            "PATCH /v1/queues/q?dry_run=true" => (200, queue(20)),
            "PUT /v1/queues/q?dry_run=true" => {
                (200, sample::queue(json!({"order": "priority", "concurrency": 10})))
            }
            other => panic!("{other}"),
        })
        .await;
        let patch = ["queues", "patch", "q", "--dry-run", "--config", "{\"concurrency\": 20}"];
        let (code, out) = server.run(&patch).await;
        let expected = "q would change:\n\nsetting      now  then\nconcurrency  10   20\n";
        assert_eq!((code, out.as_str()), (ExitCode::Ok, expected));
        let put = ["queues", "put", "q", "--dry-run", "--config", "{\"order\": \"priority\"}"];
        let (_, out) = server.run(&put).await;
        assert!(out.contains("order        time") && out.contains("constraints"), "{out}");
        let (_, out) = server.run(&[&patch[..], &["--json"]].concat()).await;
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["concurrency"], 20);
    }

    #[tokio::test]
    async fn a_dry_run_shows_a_new_item_and_no_change() {
        let of_type = |changes| sample::job_type(changes);
        let server = FakeServer::answering(move |seen| match seen.line().as_str() {
            "GET /v1/job-types/old" => (200, of_type(json!({"name": "old", "version": 3}))),
            "PATCH /v1/job-types/old?dry_run=true" => {
                (200, of_type(json!({"name": "old", "version": 3})))
            }
            "GET /v1/job-types/new" => {
                (404, json!({"status": 404, "code": "job_type_not_found", "title": "Not found"}))
            }
            "PUT /v1/job-types/new?dry_run=true" => {
                (200, of_type(json!({"name": "new", "max_attempts": 7, "version": 0})))
            }
            other => panic!("{other}"),
        })
        .await;
        let run = async |command, name| {
            server.run(&["types", command, name, "--dry-run", "--config", "{}"]).await.1
        };
        assert_eq!(run("patch", "old").await, "old would stay as it is\n");
        let new = run("put", "new").await;
        assert!(
            new.starts_with("new would be created:\n") && new.contains("max_attempts"),
            "{new}"
        );
    }

    #[test]
    fn a_dry_run_shows_secrets_that_change_without_their_values() {
        let read = |value: Value| serde_json::from_str::<Fields>(&value.to_string()).unwrap();
        let stored = read(json!({"name": "t", "version": 1, "secrets": ["a", "b"]}));
        let changed = json!({
            "name": "t", "version": 1, "secrets": ["b", "c"], "changed_secrets": ["a", "b", "c"],
        });
        let now = Timestamp::from_millis(0);
        let text = render(OutputStyle::default(), "t", Some(&stored), &read(changed), now);
        let expected = "t would change:\n\n\
             setting  now  then\n\
             a        set  -\n\
             b        set  replaced\n\
             c        -    set";
        assert_eq!(text, expected);
        let same = json!({"name": "t", "version": 1, "secrets": ["a", "b"], "changed_secrets": []});
        let text = render(OutputStyle::default(), "t", Some(&stored), &read(same), now);
        assert_eq!(text, "t would stay as it is");
    }

    #[tokio::test]
    async fn a_dry_run_of_settings_that_just_changed_is_no_preview() {
        let server = FakeServer::answering(|seen| {
            let version = if seen.method == "GET" { 1 } else { 2 };
            (200, sample::queue(json!({ "version": version })))
        })
        .await;
        let patch = ["queues", "patch", "q", "--dry-run", "--config", "{}"];
        assert_eq!(server.run(&patch).await, (ExitCode::Refused, String::new()));
    }

    #[test]
    fn a_schedule_is_previewed_with_its_next_occurrence() {
        let read = |value: Value| serde_json::from_str::<Fields>(&value.to_string()).unwrap();
        let of = |hour: u32| {
            let at = |day: u32| format!("2001-09-{day:02}T{hour:02}:00:00Z");
            read(json!({
                "name": "s", "cron": format!("0 {hour} * * *"), "next": [at(10), at(11)],
                "version": 1, "previous": [],
            }))
        };
        let now = Timestamp::from_millis(1_000_000_000_000);
        let text = render(OutputStyle::default(), "s", Some(&of(3)), &of(4), now);
        let expected = "s would change:\n\n\
             setting  now                                then\n\
             cron     0 3 * * *                          0 4 * * *\n\
             next     2001-09-10T03:00:00.000Z (in 1 d)  2001-09-10T04:00:00.000Z (in 1 d)";
        assert_eq!(text, expected);
    }
}
