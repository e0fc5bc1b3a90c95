//! The shipped components: `dist/NAME.wasm`. The same compiler builds the same bytes on every
//! machine.

use std::{
    env,
    ffi::OsString,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::{Outcome, sources};

/// The shipped plugins and the models of the gallery, sorted by name.
pub const SHIPPED: [&str; 18] = [
    "adaptive",
    "business-hours",
    "by-error",
    "circuit-breaker",
    "cost-budget",
    "earliest-deadline",
    "error-details",
    "exponential",
    "fair-share",
    "fallback-target",
    "leaky-bucket",
    "one-at-a-time",
    "rate-limit",
    "region-share",
    "retry-after",
    "retry-budget",
    "rewrite",
    "time-of-day",
];

/// The largest size of a shipped component, in bytes.
const LARGEST: usize = 100_000;

const TARGET: &str = "wasm32-unknown-unknown";

/// Builds the plugins `names`, or all. Only a build of all writes or compares `dist/BUILT`, which
/// has the digests of their sources.
pub fn make(plugins: &Path, names: &[String], outcome: Outcome) -> Result<()> {
    let all = names.is_empty();
    let names: Vec<&str> =
        if all { SHIPPED.to_vec() } else { names.iter().map(String::as_str).collect() };
    let mut built = format!("{}\n", compiler()?);
    let mut different = Vec::new();
    for name in names {
        ensure!(SHIPPED.contains(&name), "{name} is not a shipped plugin: {}", SHIPPED.join(", "));
        let component = component(plugins, name)?;
        ensure!(
            component.len() <= LARGEST,
            "{name} has {} bytes, more than {LARGEST}",
            component.len()
        );
        println!("{name:15} {:6} bytes", component.len());
        if let Err(error) =
            outcome.settle(&plugins.join("dist").join(format!("{name}.wasm")), &component)
        {
            different.push(format!("{error:#}"));
        }
        writeln!(
            built,
            "{name} {} {}",
            sources::hex(&Sha256::digest(&component)),
            sources::digest(plugins, name)?
        )?;
    }
    if all && let Err(error) = outcome.settle(&plugins.join("dist/BUILT"), built.as_bytes()) {
        different.push(format!("{error:#}"));
    }
    ensure!(different.is_empty(), "{}\nrebuild them with plugins/build", different.join("\n"));
    Ok(())
}

/// Builds one plugin as a component. Each is built separately, so that no features of others are
/// unified into it.
fn component(plugins: &Path, name: &str) -> Result<Vec<u8>> {
    let target = plugins.join("target");
    let status = cargo(plugins)?
        .args(["build", "--locked", "--release", "--quiet", "--target", TARGET, "-p", name])
        .status()?;
    ensure!(
        status.success(),
        "{name} did not compile (the target is installed by `rustup target add {TARGET}`)"
    );
    let core = target.join(TARGET).join("release").join(format!("{}.wasm", name.replace('-', "_")));
    let core = fs::read(&core).with_context(|| format!("reading {}", core.display()))?;
    for machine in [plugins.to_owned(), cargo_home()?, sysroot()?] {
        let path = machine.as_os_str().as_encoded_bytes();
        ensure!(
            !core.windows(path.len()).any(|part| part == path),
            "{name} contains {}, a path of this machine",
            machine.display()
        );
    }
    wit_component::ComponentEncoder::default().module(&core)?.validate(true).encode()
}

/// Cargo without what differs between machines: the paths in its output (panics name their source
/// files), flags, and a compiler with lints, which gives symbols other names.
fn cargo(plugins: &Path) -> Result<Command> {
    let mut flags: Vec<OsString> = Vec::new();
    let mut remap = |from: &Path, to: &str| {
        let mut flag = OsString::from("--remap-path-prefix=");
        flag.push(from);
        flag.push("=");
        flag.push(to);
        flags.push(flag);
    };
    remap(plugins, "plugins");
    // With the component `rust-src` the compiler names its copy of the standard library.
    let library = sysroot()?.join("lib/rustlib/src/rust");
    remap(&library, &format!("/rustc/{}", commit()?));
    // Each registry has a folder here, whose name contains the address of the registry.
    if let Ok(registries) = fs::read_dir(cargo_home()?.join("registry/src")) {
        for registry in registries {
            remap(&registry?.path(), "crates");
        }
    }
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(plugins)
        .env("CARGO_TARGET_DIR", plugins.join("target"))
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join(&OsString::from("\u{1f}")))
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    Ok(cargo)
}

fn cargo_home() -> Result<PathBuf> {
    let named = env::var_os("CARGO_HOME").map(PathBuf::from);
    named.or_else(|| Some(env::home_dir()?.join(".cargo"))).context("no home directory")
}

fn sysroot() -> Result<PathBuf> {
    Ok(rustc(&["--print", "sysroot"])?.into())
}

/// The compiler's name and version.
fn compiler() -> Result<String> {
    rustc(&["--version"])
}

/// The hash of the compiler's commit, by which it names the files of the standard library.
fn commit() -> Result<String> {
    let said = rustc(&["--version", "--verbose"])?;
    let hash = said.lines().find_map(|line| line.strip_prefix("commit-hash: "));
    hash.map(str::to_owned).context("rustc does not say its commit")
}

/// The output of the compiler for `args`.
fn rustc(args: &[&str]) -> Result<String> {
    let output = Command::new("rustc").args(args).output().context("starting rustc")?;
    ensure!(output.status.success(), "rustc {} failed", args.join(" "));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
