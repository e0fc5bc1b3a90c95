//! `tidegate plugin new`: creates a project that builds, with a sample decision and a case that
//! tests it.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::ValueEnum;
use serde_json::json;

use super::templates;
use crate::cli::{Context, ExitCode, UsageError};

/// The options of `tidegate plugin new`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    tidegate plugin new --lang rust fair-share && cd fair-share\n  \
    tidegate plugin build && tidegate plugin test fair-share.wasm\n  \
    tidegate plugin push fair-share fair-share.wasm")]
pub struct Args {
    /// The language of the plugin.
    #[arg(long, value_enum)]
    lang: Lang,
    /// The role of the plugin.
    #[arg(long, value_enum, default_value_t = Role::Throttler)]
    role: Role,
    /// The name of the plugin and of its new folder.
    #[arg(value_parser = name)]
    name: String,
}

/// A language for plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Lang {
    /// Rust: small and fast.
    Rust,
    /// JavaScript.
    Js,
    /// TypeScript.
    #[value(help = "TypeScript: JavaScript whose types the build checks")]
    Ts,
    /// Python.
    Python,
    /// Go.
    Go,
    /// `AssemblyScript`: small and fast.
    #[value(name = "assemblyscript", help = "AssemblyScript: small and fast, close to TypeScript")]
    AssemblyScript,
    /// C.
    C,
    /// C++.
    Cpp,
    /// Zig.
    Zig,
}

/// The role of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Which jobs may start now.
    Throttler,
    /// What follows a failed attempt.
    Retry,
}

/// Reads a name that is valid for a plugin, a folder, and a package of each language.
fn name(text: &str) -> Result<String, &'static str> {
    let starts = text.starts_with(|first: char| first.is_ascii_lowercase());
    let rest = text.chars().all(|letter| {
        letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-_".contains(letter)
    });
    let good = starts && rest && text.len() <= 64;
    if good {
        Ok(text.to_owned())
    } else {
        Err("a name of a-z, 0-9, - and _ that starts with a letter is expected, at most 64 of them")
    }
}

/// Creates the project.
///
/// # Errors
///
/// The folder exists already, or cannot be written.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let files = templates::project(args.lang, args.role, &args.name);
    let names: Vec<PathBuf> = files.iter().map(|(path, _)| path.into()).collect();
    let dir = PathBuf::from(&args.name);
    tokio::fs::create_dir(&dir).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            UsageError(format!("{} exists already; nothing was changed", dir.display())).into()
        }
        _ => anyhow::Error::from(error).context(format!("{} cannot be created", dir.display())),
    })?;
    for (path, text) in files {
        write(&dir.join(path), &text).await?;
    }
    if ctx.json() {
        ctx.print(json!({"dir": dir, "files": names}))?;
    } else {
        let name = &args.name;
        ctx.print(format_args!(
            "{name} is created. Next:\n  cd {name}\n  tidegate plugin build\n  \
             tidegate plugin test {name}.wasm"
        ))?;
    }
    Ok(ExitCode::Ok)
}

/// Writes a file and creates its folder.
async fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(dir) = file.parent() {
        tokio::fs::create_dir_all(dir)
            .await
            .with_context(|| format!("{} cannot be created", dir.display()))?;
    }
    tokio::fs::write(file, text)
        .await
        .with_context(|| format!("{} cannot be written", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_valid_for_a_plugin_a_folder_and_a_package() {
        for good in ["share", "fair-share2", "a_b"] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        for bad in ["", "Share", "2fast", "../share", "a/b", "a b", "-a", &"a".repeat(65)] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
