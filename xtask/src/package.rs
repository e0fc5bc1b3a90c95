//! `package`: the zip of each Lambda function, for both architectures.
//!
//! `target/functions/ARCH/NAME.zip` has the function as `bootstrap`. The zip of `plugins` also has
//! the compiler of plugins, a separate program. `target/functions/VERSION` has the version, and `SHA256SUMS` the
//! checksums of all, which `tidegate aws deploy` compares. Zig links them against the C library of Amazon
//! Linux 2023.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::zig::Zig;

/// The functions: the names of their folders. The function `sweep` is the program of `tick`.
pub const FUNCTIONS: [&str; 5] = ["enqueue", "tick", "deliver", "ingest", "plugins"];
/// The compiler's program, the function that starts it, and its file name in the zip.
const COMPILER: (&str, &str, &str) = ("tidegate-compile", "plugins", "compile");
/// The C library of Amazon Linux 2023.
const GLIBC: &str = "2.34";

/// An architecture of Lambda.
#[derive(Clone, Copy)]
struct Arch {
    name: &'static str,
    /// Its rustc target.
    target: &'static str,
    /// Largest stripped binary, in bytes. Larger ones start slowly.
    max_bytes: u64,
}

const ARCHS: [Arch; 2] = [
    Arch { name: "arm64", target: "aarch64-unknown-linux-gnu", max_bytes: 12_000_000 },
    Arch { name: "x86_64", target: "x86_64-unknown-linux-gnu", max_bytes: 14_000_000 },
];

/// The arguments.
struct Args {
    archs: Vec<Arch>,
    profile: String,
}

/// Makes the zips and prints their sizes.
///
/// # Errors
///
/// A tool fails, or a binary is too large.
pub fn run(args: impl Iterator<Item = String>) -> Result<(), String> {
    let parsed = parse(args)?;
    let root = &root()?;
    let zig = Zig::install(root)?;
    let mut too_large = Vec::new();
    let mut table = format!(
        "{:<8} {:<12} {:<18} {:>10} {:>10}",
        "arch", "function", "program", "bytes", "zipped"
    );
    for Arch { name: arch, target, max_bytes } in parsed.archs {
        cargo(&zig, target, &parsed.profile)?;
        let built = root.join("target").join(target).join(folder(&parsed.profile));
        let out = root.join("target/functions").join(arch);
        fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
        for function in FUNCTIONS {
            let zipped = zip(&built, &out, function)?;
            for (program, _) in programs(function) {
                let bytes = size(&built.join(&program))?;
                let _ = write!(
                    table,
                    "\n{arch:<8} {function:<12} {program:<18} {bytes:>10} {zipped:>10}"
                );
                if bytes > max_bytes {
                    too_large
                        .push(format!("{program} for {arch} has {bytes} of {max_bytes} bytes"));
                }
            }
        }
    }
    write_sums(&root.join("target/functions"))?;
    println!("{table}");
    if too_large.is_empty() { Ok(()) } else { Err(format!("too large: {}", too_large.join("; "))) }
}

/// Writes the version, and the checksums of it and of all zips in `folder`, of either architecture,
/// as `sha256sum` does.
///
/// # Errors
///
/// There is no Python, or a file cannot be written.
pub fn write_sums(folder: &Path) -> Result<(), String> {
    const PROGRAM: &str = "\
        import hashlib, pathlib\n\
        here = pathlib.Path('.')\n\
        digest = lambda file: hashlib.sha256(file.read_bytes()).hexdigest()\n\
        files = [*sorted(here.glob('*/*.zip')), here / 'VERSION']\n\
        lines = [f'{digest(file)}  {file}\\n' for file in files]\n\
        here.joinpath('SHA256SUMS').write_text(''.join(lines))\n";
    let version = folder.join("VERSION");
    fs::write(&version, concat!(env!("CARGO_PKG_VERSION"), "\n"))
        .map_err(|error| format!("{}: {error}", version.display()))?;
    call(Command::new("python3").current_dir(folder).args(["-c", PROGRAM]))
}

/// Returns the programs in the zip of `function`: the name of the binary, and the name in the zip.
fn programs(function: &str) -> Vec<(String, &'static str)> {
    let (program, parent, name) = COMPILER;
    let compiler = (parent == function).then(|| (program.to_owned(), name));
    [(format!("tidegate-{function}"), "bootstrap")].into_iter().chain(compiler).collect()
}

/// Returns the folder of the repository.
///
/// # Errors
///
/// The crate has no parent folder, which cannot happen.
pub fn root() -> Result<PathBuf, String> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .ok_or_else(|| "xtask has no folder above it".into())
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut parsed = Args { archs: ARCHS.to_vec(), profile: "lambda".into() };
    while let Some(flag) = args.next() {
        let value = args.next().ok_or(format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--arch" => {
                parsed.archs.retain(|arch| arch.name == value);
                if parsed.archs.is_empty() {
                    return Err(format!("--arch must be arm64 or x86_64, not {value}"));
                }
            }
            "--profile" => parsed.profile = value,
            _ => return Err(format!("there is no flag {flag}")),
        }
    }
    Ok(parsed)
}

/// Makes functions of instructions that repeat: a program for `x86_64` is a twentieth smaller. For arm64, the
/// compiler does so by itself when it optimises for size.
const OUTLINED: &str = "-C llvm-args=-enable-machine-outliner=always";

/// Returns the folder of cargo's output for `profile`.
fn folder(profile: &str) -> &str {
    if profile == "dev" { "debug" } else { profile }
}

/// Builds every function for `target`.
fn cargo(zig: &Zig, target: &str, profile: &str) -> Result<(), String> {
    let build = |rustflags: Option<&str>, what: Vec<String>| {
        let mut build = zig.build(&format!("{target}.{GLIBC}"))?;
        build.envs(rustflags.map(|flags| ("RUSTFLAGS", flags)));
        call(build.args(["--profile", profile]).args(what))
    };
    let packages = FUNCTIONS
        .into_iter()
        .flat_map(|function| ["--package".to_owned(), format!("tidegate-{function}")]);
    // The compiler is built apart: cargo unifies the features of what it builds together.
    build(Some(OUTLINED), packages.chain(["--no-default-features".to_owned()]).collect())?;
    let (program, function, _) = COMPILER;
    build(
        None,
        [
            "--package".to_owned(),
            format!("tidegate-{function}"),
            "--bin".to_owned(),
            program.to_owned(),
        ]
        .into(),
    )
}

fn size(binary: &Path) -> Result<u64, String> {
    Ok(fs::metadata(binary).map_err(|error| format!("{}: {error}", binary.display()))?.len())
}

/// Packs `function` and returns the size of the zip in bytes.
fn zip(built: &Path, out: &Path, function: &str) -> Result<u64, String> {
    let packed = out.join(format!("{function}.zip"));
    let programs = programs(function);
    for (program, name) in &programs {
        let program = built.join(program);
        fs::copy(&program, out.join(name))
            .map_err(|error| format!("{}: {error}", program.display()))?;
    }
    // Python's zipfile keeps the modes of files, which Lambda needs to start them.
    let mut zip = Command::new("python3");
    call(
        zip.current_dir(out)
            .args(["-m", "zipfile", "--create"])
            .arg(&packed)
            .args(programs.iter().map(|(_, name)| name)),
    )?;
    programs.iter().try_for_each(|(_, name)| {
        fs::remove_file(out.join(name)).map_err(|error| error.to_string())
    })?;
    size(&packed)
}

/// Runs `command` to its end.
///
/// # Errors
///
/// It cannot be started, or fails.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksums_name_every_zip_and_the_version() {
        let folder = std::env::temp_dir().join(format!("tidegate-sums-{}", std::process::id()));
        fs::create_dir_all(folder.join("arm64")).expect("a folder");
        fs::write(folder.join("arm64/tick.zip"), "abc").expect("a file");
        write_sums(&folder).expect("the sums");
        let sums = fs::read_to_string(folder.join("SHA256SUMS")).expect("the sums");
        let expected =
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  arm64/tick.zip\n";
        assert_eq!(sums.lines().next(), expected.lines().next());
        assert!(sums.ends_with("  VERSION\n") && sums.lines().count() == 2, "{sums}");
        fs::remove_dir_all(&folder).expect("the folder");
    }
}
