//! What is new of a shadow version on a server: log lines, calls that failed, and decisions that
//! differ from the live version's.
//!
//! The server keeps them in memory, a bounded number of each. A [`Feed`] knows which ones it has
//! returned.

use std::{borrow::Cow, collections::HashSet, io};

use serde::Serialize;
use tidegate_api::{
    Difference, FaultView, LogView, LogsView, PluginView, RecordedCallView, RecordedCalls,
    ShadowView,
};

use super::super::{differences, logs};
use crate::cli::{Context, client::Client, safe::indented};
use tidegate_core::{job::JobId, time::Timestamp};

/// Most log lines of one request.
const MAX_LINES: u32 = 1000;
/// Most differences that are printed at once.
const MAX_PRINTED_DIFFERENCES: usize = 20;

/// A job and what was decided about it: a held job differs in each tick, and is printed once.
type DifferenceKey = (JobId, Cow<'static, str>, Cow<'static, str>);

/// What a server has shown of one version.
#[derive(Debug)]
pub(super) struct Feed {
    version: u32,
    /// The number of the last line that was read.
    line: u64,
    /// How many of its calls had failed.
    fault_count: u64,
    /// The faults in the latest answer: when they were, and their messages.
    faults: HashSet<(Timestamp, String)>,
    /// The differences in the latest answer.
    differences: HashSet<DifferenceKey>,
    /// The numbers of compared decisions and of failed calls in the latest answer.
    counts: (u64, u64),
}

/// What a server answered.
struct Answers {
    lines: Vec<LogView>,
    /// The number of failed calls of the version, and the recorded calls if it has changed.
    faults: (u64, Option<Vec<RecordedCallView>>),
    comparison: ShadowView,
}

/// What a feed had not returned before, oldest first.
#[derive(Debug, Default)]
pub(super) struct News {
    lines: Vec<LogView>,
    faults: Vec<FaultView>,
    /// What was compared, with the new differences; none without a change that is worth a line.
    comparison: Option<ShadowView>,
}

impl Feed {
    /// Nothing of `version` yet.
    pub(super) fn new(version: u32) -> Self {
        Self {
            version,
            line: 0,
            fault_count: 0,
            faults: HashSet::new(),
            differences: HashSet::new(),
            counts: (0, 0),
        }
    }

    /// Requests what is new of the version, which is the shadow of `plugin`.
    ///
    /// # Errors
    ///
    /// The server is unreachable or does not know the plugin. Then a repeat returns what this call
    /// would have returned.
    pub(super) async fn next(
        &mut self,
        client: &Client,
        plugin: &PluginView,
    ) -> anyhow::Result<News> {
        let name = plugin.name.as_str();
        let fault_count = plugin.shadow_health.as_ref().map_or(0, |health| health.faults);
        let lines = lines_after(client, name, self.line).await?;
        let calls = if fault_count == self.fault_count {
            None
        } else {
            let answer = client.get(&["plugins", name, "calls"]).send().await?;
            Some(answer.read::<RecordedCalls>()?.calls)
        };
        let answer = client.get(&["plugins", name, "differences"]).send().await?;
        let comparison = answer.read()?;
        Ok(self.sorted_out(Answers { lines, faults: (fault_count, calls), comparison }))
    }

    /// What is new in `answers`.
    fn sorted_out(&mut self, answers: Answers) -> News {
        let Answers { mut lines, faults, comparison } = answers;
        self.line = lines.last().map_or(self.line, |line| line.number);
        lines.retain(|line| line.version == self.version);
        self.fault_count = faults.0;
        News {
            lines,
            faults: faults.1.map(|calls| self.new_faults(calls)).unwrap_or_default(),
            comparison: self.new_differences(comparison),
        }
    }

    fn new_faults(&mut self, calls: Vec<RecordedCallView>) -> Vec<FaultView> {
        let of_version = |call: &RecordedCallView| call.shadow && call.version == self.version;
        // The answer has the latest call first.
        let calls = calls.into_iter().rev().filter(of_version);
        let faults: Vec<FaultView> = calls.filter_map(fault_of).collect();
        let key = |fault: &FaultView| (fault.at, fault.message.clone());
        let known = std::mem::replace(&mut self.faults, faults.iter().map(key).collect());
        faults.into_iter().filter(|fault| !known.contains(&key(fault))).collect()
    }

    /// `found` with the new differences; none if it has none, no other call failed, and others were
    /// compared before.
    fn new_differences(&mut self, mut found: ShadowView) -> Option<ShadowView> {
        if found.version != Some(self.version) {
            return None;
        }
        let key = |one: &Difference| {
            (one.job.clone(), one.live.action.clone(), one.shadow.action.clone())
        };
        let now = found.differences.iter().map(key).collect();
        let known = std::mem::replace(&mut self.differences, now);
        found.differences.retain(|one| !known.contains(&key(one)));
        found.differences.reverse();
        let (compared, failed) =
            std::mem::replace(&mut self.counts, (found.compared, found.failed));
        let is_first = compared == 0 && found.compared > 0;
        (is_first || found.failed != failed || !found.differences.is_empty()).then_some(found)
    }
}

/// The lines of a plugin's log after line `after`; all of them if the server has started again, and
/// counts from 1.
async fn lines_after(client: &Client, name: &str, after: u64) -> anyhow::Result<Vec<LogView>> {
    let latest = logs::request(client, name, 1, None).await?.read::<LogsView>()?.logs;
    let last = latest.last().map_or(0, |line| line.number);
    if last == after {
        return Ok(Vec::new());
    }
    let after = if last < after { 0 } else { after };
    Ok(logs::request(client, name, MAX_LINES, Some(after)).await?.read::<LogsView>()?.logs)
}

/// The fault of a recorded call, if it failed.
fn fault_of(call: RecordedCallView) -> Option<FaultView> {
    let fault = call.fault?;
    let RecordedCallView { at, version, shadow, role, .. } = call;
    let (kind, message) = (fault.kind.into(), fault.message);
    Some(FaultView { at, version, shadow, role, kind, message })
}

/// A line of output.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Printed<'a> {
    Log(&'a LogView),
    Fault(&'a FaultView),
    Comparison(&'a ShadowView),
}

impl Printed<'_> {
    /// The line for a reader, about the plugin `name`.
    fn text(&self, name: &str) -> String {
        match self {
            Self::Log(line) => logs::text(line),
            Self::Fault(FaultView { at, version, kind, message, .. }) => {
                format!("{at} v{version} fault {kind}: {}", indented(message))
            }
            Self::Comparison(found) => comparison_text(name, found),
        }
    }
}

/// The first differences, each in a line, and what was compared.
fn comparison_text(name: &str, found: &ShadowView) -> String {
    let version = found.version.unwrap_or_default();
    let first = found.differences.iter().take(MAX_PRINTED_DIFFERENCES);
    let mut lines: Vec<String> = first
        .map(|Difference { queue, job, at, live, shadow }| {
            let (live, shadow) = (differences::line(live), differences::line(shadow));
            let decided = format!("{live} live, {shadow} in the shadow");
            format!("{at} v{version} job {job} of {queue}: {}", indented(&decided))
        })
        .collect();
    let more = found.differences.len().saturating_sub(MAX_PRINTED_DIFFERENCES);
    if more > 0 {
        lines.push(format!("{more} more: `tidegate plugin differences {name}`"));
    }
    lines.push(differences::summary(version, found));
    lines.join("\n")
}

impl News {
    /// Prints it: in JSON, an object in each line.
    ///
    /// # Errors
    ///
    /// The reader of the output is gone.
    pub(super) fn print(&self, name: &str, ctx: &Context) -> io::Result<()> {
        let logged = self.lines.iter().map(Printed::Log);
        let failed = self.faults.iter().map(Printed::Fault);
        let compared = self.comparison.iter().map(Printed::Comparison);
        for one in logged.chain(failed).chain(compared) {
            if ctx.json() {
                ctx.print(serde_json::to_string(&one)?)?;
            } else {
                ctx.print(one.text(name))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
