//! Checks of a running server over HTTP.

use std::time::Duration;

use url::{Host, Url};

use super::{CheckLevel, DoctorReport, Finding, config, finding};
use crate::cli::{
    Context,
    client::{Client, Error},
    pages,
};
use tidegate_api::TokenView;
use tidegate_core::time::Timestamp;

/// Above this difference of clocks, due times computed by a client are wrong.
const MAX_SKEW: Duration = Duration::from_secs(5);
/// Above this difference of clocks, signatures are rejected as replays.
const MAX_SIGNATURE_SKEW: Duration = tidegate_core::target::signature::TOLERANCE;

/// Checks the server of the options.
///
/// # Errors
///
/// The server is unreachable, or the token does not permit to read queues and types.
pub async fn look(ctx: &Context) -> anyhow::Result<DoctorReport> {
    let client = ctx.client()?;
    let mut report = DoctorReport::default();
    server_checks(&client, &mut report).await?;
    let before = ctx.now();
    let first = match client.get(&["queues"]).query("limit", "1").send().await {
        Ok(first) => first,
        // The finding has the reason.
        Err(Error::Problem(problem))
            if problem.status >= 500
                && report.findings.iter().any(|found| found.level == CheckLevel::Error) =>
        {
            return Ok(report);
        }
        Err(error) => return Err(error.into()),
    };
    report.check(first.date.and_then(|there| skew(there, before, ctx.now())));
    let queues = pages::collect(|client| client.get(&["queues"]), &client, usize::MAX)
        .await?
        .read(&client)?;
    let types = pages::collect(|client| client.get(&["job-types"]), &client, usize::MAX)
        .await?
        .read(&client)?;
    report.add(config::look(&queues, &types, ctx.now()));
    let plugins = pages::collect(|client| client.get(&["plugins"]), &client, usize::MAX)
        .await?
        .read(&client)?;
    report.add(config::look_at_plugins(&plugins, ctx.now()));

    let tokens = match pages::collect(|client| client.get(&["tokens"]), &client, usize::MAX).await {
        Ok(page) => Some(page.read::<TokenView>(&client)?.len()),
        // Tokens need a wider scope than the rest.
        Err(Error::Problem(problem)) if problem.status == 403 => None,
        Err(error) => return Err(error.into()),
    };
    report.check(access(client.base(), tokens, ctx.global.token.is_some()));
    Ok(report)
}

/// Returns the server's own health checks.
async fn server_checks(client: &Client, report: &mut DoctorReport) -> anyhow::Result<()> {
    match client.get(&["doctor"]).send().await {
        Ok(answer) => {
            let answer: ServerChecks = answer.read()?;
            report.add_checks(answer.checks);
            report.check(answer.version.and_then(|there| version(&there)));
            Ok(())
        }
        Err(Error::Problem(problem)) if problem.status == 403 => {
            let found = "the token does not permit the health checks of the server";
            report.check(Some(finding(
                CheckLevel::Note,
                "server",
                found,
                "use one with the scope admin",
            )));
            Ok(())
        }
        Err(Error::Problem(problem)) if problem.code == "route_not_found" => {
            let found = "its release has no health checks";
            report.check(Some(finding(
                CheckLevel::Warning,
                "server",
                found,
                "upgrade it to the release of this command",
            )));
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// The response of `GET /v1/doctor`.
#[derive(serde::Deserialize)]
struct ServerChecks {
    version: Option<String>,
    #[serde(default)]
    checks: Vec<Finding>,
}

/// Checks the server's version, `there`.
fn version(there: &str) -> Option<Finding> {
    let here = env!("CARGO_PKG_VERSION");
    let found = format!("the server is {there}, and this command {here}");
    (there != here).then(|| {
        finding(
            CheckLevel::Note,
            "version",
            found,
            "use the command of the server's release, or upgrade the server",
        )
    })
}

/// Checks the server's clock, which showed `there` between `before` and `after`.
fn skew(there: Timestamp, before: Timestamp, after: Timestamp) -> Option<Finding> {
    // HTTP dates have whole seconds.
    let (behind, ahead) = (before.since(there + Duration::from_secs(1)), there.since(after));
    let (off, word) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
    let found = format!("it is {} s {word} the clock here", off.as_secs());
    let level = if off > MAX_SIGNATURE_SKEW { CheckLevel::Error } else { CheckLevel::Warning };
    (off > MAX_SKEW).then(|| {
        finding(
            level,
            "server's clock",
            found,
            "set both by NTP: due times, leases and signatures go by them",
        )
    })
}

/// Checks authentication and encryption.
fn access(base: &Url, tokens: Option<usize>, shown: bool) -> Option<Finding> {
    let loopback = match base.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    if loopback {
        return None;
    }
    if !shown && tokens.is_some() {
        let found = "it needs no token: every client that reaches it may do everything";
        return Some(finding(
            CheckLevel::Error,
            "access",
            found,
            "`tidegate token create --name admin --scope admin`, now",
        ));
    }
    let clear = base.scheme() == "http" && shown;
    clear.then(|| {
        finding(
            CheckLevel::Warning,
            "access",
            "the token goes over the network unencrypted",
            "put TLS in front, and use an https:// --url",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_difference_is_reported_with_its_size() {
        let now = Timestamp::from_millis(1_000_000_000_000);
        let found = |there: Timestamp| {
            skew(there, now, now + Duration::from_millis(20))
                .map(|found| (found.level, found.found))
        };
        assert_eq!(found(now), None);
        assert_eq!(found(now - Duration::from_millis(999)), None);
        assert_eq!(
            found(now + Duration::from_secs(10)).unwrap(),
            (CheckLevel::Warning, "it is 9 s ahead of the clock here".to_owned())
        );
        assert_eq!(
            found(now - Duration::from_hours(1)).unwrap(),
            (CheckLevel::Error, "it is 3599 s behind the clock here".to_owned())
        );
    }

    #[test]
    fn a_public_server_needs_tokens_and_a_token_needs_tls() {
        let found = |url: &str, tokens, shown| {
            access(&url.parse().unwrap(), tokens, shown).map(|found| found.level)
        };
        assert_eq!(found("http://127.0.0.1:8080", Some(0), false), None);
        assert_eq!(found("http://[::1]:8080", Some(0), false), None);
        assert_eq!(found("http://queue.example", Some(0), false), Some(CheckLevel::Error));
        assert_eq!(found("http://queue.example", Some(2), true), Some(CheckLevel::Warning));
        assert_eq!(found("https://queue.example", None, true), None);
    }
}
