//! The progress display of the demo: running weight and its limit, lateness, retries, ended jobs.

use std::fmt::Write as _;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{
    event_log::{Pages, Scope, percentile},
    plan::{LIMIT, SHOP, TENANT_LIMIT},
};
use crate::cli::Context;

/// The bars.
pub struct Live {
    bars: MultiProgress,
    done: ProgressBar,
    weight: ProgressBar,
    times: ProgressBar,
}

impl Live {
    /// Returns bars for `total` jobs, hidden without a terminal.
    pub fn new(ctx: &Context, total: usize) -> Self {
        let target =
            if ctx.json() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bars = MultiProgress::with_draw_target(target);
        let bar = |length: u64, template: &str| {
            let style = ProgressStyle::with_template(template)
                .expect("a good template")
                .progress_chars("━━╌");
            bars.add(ProgressBar::new(length).with_style(style))
        };
        Self {
            done: bar(total as u64, "  done     {bar:24.green} {pos:>4}/{len:<4} {elapsed:.dim}"),
            weight: bar(LIMIT, "  at work  {bar:24.cyan} {pos:>4}/{len:<4} {msg}"),
            times: bar(0, "  so far   {msg}"),
            bars,
        }
    }

    /// Shows the progress: `ended` jobs, the observations of the workers, and the weight that the
    /// server has `admitted` in the limited queue.
    pub fn show(&self, ended: usize, pages: &Pages, admitted: u64) {
        let at_work = |scope: &Scope| pages.running.get(scope).copied().unwrap_or_default();
        self.done.set_position(ended as u64);
        self.weight.set_position(at_work(&Scope::Queue(SHOP)));
        let mut tenants = format!("admitted {admitted}  ");
        for (scope, weight) in &pages.running {
            if let Scope::Tenant(name) = scope {
                let _ = write!(tenants, " {name} {weight}/{TENANT_LIMIT}");
            }
        }
        self.weight.set_message(tenants);
        let late = pages.lateness();
        let at = |percent| {
            percentile(&late, percent)
                .map_or_else(|| "-".to_owned(), |millis| format!("{millis} ms"))
        };
        let (later, called) = pages.callbacks;
        self.times.set_message(format!(
            "lateness p50 {}, p99 {}   retries {}   callbacks {called}/{later}   \
             most at once {}/{LIMIT}",
            at(50),
            at(99),
            pages.retries(),
            pages.most.get(&Scope::Queue(SHOP)).copied().unwrap_or_default(),
        ));
    }

    /// Prints a line above the bars, if there are any.
    pub fn say(&self, line: &str, ctx: &Context) {
        if self.bars.is_hidden() {
            ctx.note(line);
        } else {
            // A terminal that cannot be written to shows no bars either.
            let _ = self.bars.println(line);
        }
    }

    /// Removes the bars.
    pub fn clear(&self) {
        let _ = self.bars.clear();
    }
}
