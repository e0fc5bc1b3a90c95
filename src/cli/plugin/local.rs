//! The component of the commands that need no server, and the units of their output.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::component;
use crate::{cli::Context, plugin_testing::Component};
use tidegate_api::UsageView;
use tidegate_backends::wasm::{compile::Compiler, kept_code::KeptCode};
use tidegate_core::queue::plugin::Role;

/// Compiles the component in `file`.
///
/// # Errors
///
/// The file cannot be read or compiled, or the component is not a plugin.
pub async fn open(file: &Path, ctx: &Context) -> anyhow::Result<Component> {
    let wasm = component(file).await?;
    Component::compile(&file.display().to_string(), wasm.into(), &compiler(), ctx.now()).await
}

/// The compiler of this user's commands, which keeps its code between them.
pub fn compiler() -> Compiler {
    code_folder().map_or(Compiler::Here, |folder| Compiler::Kept(KeptCode::at(folder)))
}

/// `tidegate/code` in the user's directory of caches. A relative one is none: as the XDG base
/// directory specification says, and because the files of a project are not the user's own.
#[allow(
    clippy::disallowed_methods,
    reason = "the command line is the edge: it reads the environment"
)]
fn code_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    caches.is_absolute().then(|| caches.join("tidegate/code"))
}

/// Returns the usage of a call in one line.
pub fn used(usage: &UsageView) -> String {
    let fuel = usage.fuel.map_or_else(|| "unknown fuel".to_owned(), |fuel| format!("{fuel} fuel"));
    let took = Duration::try_from_secs_f64(usage.took_seconds).unwrap_or_default();
    format!(
        "{fuel}, {}, {} of memory, {} host calls",
        time(took),
        size(usage.memory_bytes),
        usage.host_calls
    )
}

/// Returns a short span with its unit.
pub fn time(span: Duration) -> String {
    match span.as_micros() {
        micros @ 0..1000 => format!("{micros} us"),
        micros => format!("{:.1} ms", micros as f64 / 1000.0),
    }
}

/// Returns a number of bytes with its unit.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// Returns a role in words.
pub fn word(role: Role) -> &'static str {
    match role {
        Role::Throttler => "throttler",
        Role::Retry => "retry strategy",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_their_units() {
        assert_eq!([size(12), size(2048), size(3 << 20)], ["12 B", "2.0 KiB", "3.0 MiB"]);
        assert_eq!(
            [time(Duration::from_micros(17)), time(Duration::from_micros(2500))],
            ["17 us", "2.5 ms"]
        );
    }
}
