//! `package`: each function as a zip with its `bootstrap`, for both processors of Lambda, in `target/functions/ARCH/NAME.zip`. The one that takes plugins has
//! the compiler beside it, a program of its own.
//!
//! They are linked by zig against the C library of Amazon Linux 2023, so that any machine makes the same; zig and its cargo
//! command come from `PyPI` and crates.io into `target/tools`, pinned.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The functions, by their folders' names.
pub const FUNCTIONS: [&str; 6] = ["enqueue", "tick", "deliver", "dead-letter", "ingest", "plugins"];
/// The compiler's program, the function that starts it, and what that calls it.
const COMPILER: (&str, &str, &str) = ("tidegate-compile", "plugins", "compile");
/// Most bytes of a stripped binary: what is larger starts late.
const MOST_BYTES: u64 = 12_000_000;
/// The C library of Amazon Linux 2023.
const GLIBC: &str = "2.34";
const ZIGBUILD: &str = "0.24.1";
const ZIG: &str = "0.17.0";

/// A processor that functions run on, and the target that rustc calls it.
const ARCHS: [(&str, &str); 2] =
    [("arm64", "aarch64-unknown-linux-gnu"), ("x86_64", "x86_64-unknown-linux-gnu")];

/// What was asked for.
struct Asked {
    archs: Vec<(&'static str, &'static str)>,
    profile: String,
}

/// Makes the zips and prints what each weighs.
///
/// # Errors
///
/// A tool that fails, and a binary that is too large.
pub fn run(args: impl Iterator<Item = String>) -> Result<(), String> {
    let asked = asked(args)?;
    let root = &root()?;
    let tools = root.join("target/tools");
    let zig = zig(&tools)?;
    let mut heavy = Vec::new();
    let mut table = format!(
        "{:<8} {:<12} {:<18} {:>10} {:>10}",
        "arch", "function", "program", "bytes", "zipped"
    );
    for (arch, target) in asked.archs {
        cargo(root, &tools, &zig, target, &asked.profile)?;
        let built = root.join("target").join(target).join(folder(&asked.profile));
        let out = root.join("target/functions").join(arch);
        fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
        for function in FUNCTIONS {
            let zipped = zip(&built, &out, function)?;
            for (program, _) in programs(function) {
                let bytes = weigh(&built.join(&program))?;
                let _ = write!(
                    table,
                    "\n{arch:<8} {function:<12} {program:<18} {bytes:>10} {zipped:>10}"
                );
                if bytes > MOST_BYTES {
                    heavy.push(format!("{program} for {arch} has {bytes} bytes"));
                }
            }
        }
    }
    println!("{table}");
    if heavy.is_empty() {
        Ok(())
    } else {
        Err(format!("over the limit of {MOST_BYTES} bytes: {}", heavy.join("; ")))
    }
}

/// What lies in the package of `function`: programs as they are built, and what they are called there.
fn programs(function: &str) -> Vec<(String, &'static str)> {
    let (program, of, called) = COMPILER;
    let compiler = (of == function).then(|| (program.to_owned(), called));
    [(format!("tidegate-{function}"), "bootstrap")].into_iter().chain(compiler).collect()
}

/// The repository.
///
/// # Errors
///
/// None that can be: the crate lies in it.
pub fn root() -> Result<PathBuf, String> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .ok_or_else(|| "xtask has no folder above it".into())
}

fn asked(mut args: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked { archs: ARCHS.to_vec(), profile: "lambda".into() };
    while let Some(flag) = args.next() {
        let value = args.next().ok_or(format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--arch" => {
                asked.archs.retain(|(arch, _)| *arch == value);
                if asked.archs.is_empty() {
                    return Err(format!("--arch must be arm64 or x86_64, not {value}"));
                }
            }
            "--profile" => asked.profile = value,
            _ => return Err(format!("there is no flag {flag}")),
        }
    }
    Ok(asked)
}

/// Where cargo puts what it builds with `profile`.
fn folder(profile: &str) -> &str {
    if profile == "dev" { "debug" } else { profile }
}

/// A Python with zig in it.
fn zig(tools: &Path) -> Result<PathBuf, String> {
    let env = tools.join("zig");
    let python = env.join("bin/python");
    if !python.exists() {
        call(Command::new("python3").args(["-m", "venv"]).arg(&env))?;
        call(Command::new(&python).args([
            "-m",
            "pip",
            "install",
            "--quiet",
            &format!("ziglang=={ZIG}"),
        ]))?;
    }
    Ok(python)
}

/// Builds every function for `target`.
fn cargo(root: &Path, tools: &Path, zig: &Path, target: &str, profile: &str) -> Result<(), String> {
    if !tools.join("bin/cargo-zigbuild").exists() {
        let install =
            ["install", "cargo-zigbuild", "--version", ZIGBUILD, "--locked", "--debug", "--root"];
        call(Command::new("cargo").args(install).arg(tools))?;
    }
    call(Command::new("rustup").args(["target", "add", target]))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let with = std::iter::once(tools.join("bin"))
        .chain(zig.parent().map(Path::to_path_buf))
        .chain(std::env::split_paths(&path));
    let path = std::env::join_paths(with).map_err(|error| error.to_string())?;
    let build = |what: Vec<String>| {
        let mut build = Command::new("cargo");
        build.current_dir(root).env("PATH", &path).env("CARGO_ZIGBUILD_PYTHON_PATH", zig);
        call(
            build
                .args([
                    "zigbuild",
                    "--locked",
                    "--profile",
                    profile,
                    "--target",
                    &format!("{target}.{GLIBC}"),
                ])
                .args(what),
        )
    };
    let packages = FUNCTIONS
        .into_iter()
        .flat_map(|function| ["--package".to_owned(), format!("tidegate-{function}")]);
    // Apart from the compiler: what is built together has what one of it needs.
    build(packages.chain(["--no-default-features".to_owned()]).collect())?;
    let (program, function, _) = COMPILER;
    build(
        [
            "--package".to_owned(),
            format!("tidegate-{function}"),
            "--bin".to_owned(),
            program.to_owned(),
        ]
        .into(),
    )
}

fn weigh(binary: &Path) -> Result<u64, String> {
    Ok(fs::metadata(binary).map_err(|error| format!("{}: {error}", binary.display()))?.len())
}

/// Packs `function`, whose `bootstrap` is what Lambda starts; how many bytes the zip has.
fn zip(built: &Path, out: &Path, function: &str) -> Result<u64, String> {
    let packed = out.join(format!("{function}.zip"));
    let programs = programs(function);
    for (program, called) in &programs {
        let program = built.join(program);
        fs::copy(&program, out.join(called))
            .map_err(|error| format!("{}: {error}", program.display()))?;
    }
    // It keeps the files' modes, without which Lambda could not start them.
    let mut zip = Command::new("python3");
    call(
        zip.current_dir(out)
            .args(["-m", "zipfile", "--create"])
            .arg(&packed)
            .args(programs.iter().map(|(_, called)| called)),
    )?;
    programs.iter().try_for_each(|(_, called)| {
        fs::remove_file(out.join(called)).map_err(|error| error.to_string())
    })?;
    weigh(&packed)
}

/// Runs `command` to its end.
///
/// # Errors
///
/// It cannot be started, or says that it failed.
pub fn call(command: &mut Command) -> Result<(), String> {
    let status = command
        .status()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{} {:?}: {status}", command.get_program().display(), command.get_args()))
    }
}
