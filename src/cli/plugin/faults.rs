//! `tidegate plugin faults`: lists failed calls, and saves them as cases that `plugin test`
//! repeats.

use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tidegate_api::{FaultView, RecordedFault, RecordedFaults, Role};

use super::Named;
use crate::cli::{Context, ExitCode, output};
use anyhow::Context as _;

/// The options of `tidegate plugin faults`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Shown are the latest 8 faults of the live version and of the shadow version, also \
    from before the start of the server. `tidegate plugin record` has all recorded calls.\n\n\
    Example:\n  \
    tidegate plugin faults region-share --save faults\n  \
    tidegate plugin test region-share.wasm faults"
)]
pub struct Args {
    #[command(flatten)]
    name: Named,
    /// Write each recorded call to this folder, as a case for `tidegate plugin test`.
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
}

/// Lists the faults, and saves their calls.
///
/// # Errors
///
/// The server is unreachable or does not know the plugin, or the folder cannot be written.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let name = &args.name.name;
    let answer = ctx.client()?.get(&["plugins", name, "faults"]).send().await?;
    let RecordedFaults { faults } = answer.read()?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        let now = ctx.now();
        let rows = faults.iter().map(|RecordedFault { fault, .. }| {
            let version = if fault.shadow {
                format!("{} (shadow)", fault.version)
            } else {
                fault.version.to_string()
            };
            [
                output::when(fault.at, now),
                version,
                word(fault.role).to_owned(),
                fault.kind.to_string(),
                fault.message.clone(),
            ]
        });
        ctx.print_tables(output::table(
            ctx.look,
            ["when", "version", "role", "kind", "message"],
            rows,
        ))?;
    }
    if let Some(dir) = &args.save {
        let saved = save(dir, name, &faults).await?;
        ctx.note(match saved {
            0 => format!("{name} has no recorded call to save"),
            _ => format!(
                "calls saved: {saved}; repeat them with `tidegate plugin test {name}.wasm {}`",
                dir.display()
            ),
        });
    }
    Ok(ExitCode::Ok)
}

/// Writes a case for each fault with a recorded call, and returns their number.
async fn save(dir: &Path, name: &str, faults: &[RecordedFault]) -> anyhow::Result<usize> {
    tokio::fs::create_dir_all(dir)
        .await
        .with_context(|| format!("{} cannot be created", dir.display()))?;
    let mut saved = 0;
    for RecordedFault { fault, call } in faults {
        let call: Value = serde_json::from_str(call.json().unwrap_or("null"))?;
        if call.is_null() {
            continue;
        }
        let FaultView { at, version, kind, message, .. } = fault;
        let title = format!("{at}, version {version} of {name}: {kind}: {message}");
        let case = crate::plugin_testing::recorded(&title, &call).map_err(anyhow::Error::msg)?;
        let file = dir.join(file_name(fault, &call));
        tokio::fs::write(&file, format!("{case:#}\n"))
            .await
            .with_context(|| format!("{} cannot be written", file.display()))?;
        saved += 1;
    }
    Ok(saved)
}

/// Returns the name of the file for a fault. It ends in a hash of the call, so that a fault saved
/// twice has one file, and two faults of one millisecond have two.
fn file_name(FaultView { at, version, role, kind, .. }: &FaultView, call: &Value) -> String {
    let at: String = at.to_string().chars().filter(char::is_ascii_alphanumeric).collect();
    let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(call.to_string()));
    let role = word(*role);
    format!("{at}-v{version}-{role}-{kind}-{:08x}.json", u32::from_be_bytes([a, b, c, d]))
}

/// Returns the word for a role, as it is serialised.
pub(super) fn word(role: Role) -> &'static str {
    match role {
        Role::Throttler => "throttler",
        Role::Retry => "retry",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{cli::testing::FakeServer, plugin_testing::Case};

    /// A call of the shape that servers record.
    fn a_call() -> Value {
        let context = json!({
            "queue": "mail", "now": "2026-01-01T00:00:00Z", "seed": 7, "config": {"limit": 1},
        });
        json!({"throttle": {
            "context": context, "round": {"concurrency": null, "room": 5, "ended": []},
            "running": [], "candidates": [{"id": "a", "job-type": "t"}], "state": {}, "data": {},
        }})
    }

    #[tokio::test]
    async fn faults_are_listed_and_saved_as_cases() {
        let fault = |kind: &str, call: Value| {
            json!({
                "at": "2026-01-01T00:00:00.125Z", "version": 3, "shadow": false,
                "role": "throttler", "kind": kind, "message": "why", "call": call,
            })
        };
        let mut shadowed = fault("rejected", Value::Null);
        shadowed["shadow"] = true.into();
        let mut other = a_call();
        other["throttle"]["context"]["seed"] = 8.into();
        // Two faults of one millisecond, one of them twice.
        let faults = [
            fault("trapped", a_call()),
            fault("trapped", other),
            fault("trapped", a_call()),
            shadowed,
        ];
        let server = FakeServer::answering(move |_| (200, json!({"faults": faults}))).await;
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("new");
        let (code, out) =
            server.run(&["plugin", "faults", "share", "--save", to.to_str().unwrap()]).await;
        assert_eq!(code, ExitCode::Ok);
        assert!(
            out.contains("trapped") && out.contains("rejected") && out.contains("3 (shadow)"),
            "{out}"
        );
        let files: Vec<_> = std::fs::read_dir(&to)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(files.len(), 2, "{files:?}");
        assert!(
            files.iter().all(|file| file.starts_with("20260101T000000125Z-v3-throttler-trapped-")),
            "{files:?}"
        );
        let case =
            Case::read(&std::fs::read_to_string(to.join(&files[0])).unwrap()).unwrap().remove(0);
        assert!(
            case.name.contains("version 3 of share: trapped: why") && case.call().is_ok(),
            "{}",
            case.name
        );
    }
}
