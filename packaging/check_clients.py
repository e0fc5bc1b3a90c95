"""Checks the client packages of a release, as their users get them.

    check_clients.py contents FILES
    check_clients.py jobs FILES PROGRAM [LANGUAGE...]
    check_clients.py versions FILES PROGRAM OLDER SOURCE

FILES is the folder of the release, PROGRAM its installed program. `contents` reads each package.
`jobs` installs the packages, without another registry's copy of them, and runs the programs of
clients/README.md. `versions` runs the conformance kit with clients and servers of different
versions: OLDER is an older program, SOURCE the folder with its sources.

Python, TypeScript and Go need no Rust. A user of the Rust client has Rust: its crates are built here.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ROOT / "clients"
CONFORMANCE = Path("clients/conformance")
MODULE = "github.com/tidegate/tidegate/clients/go"
# In the order in which they can be published.
CRATES = ("core", "api", "client")
# Builds of the crates' dependencies, kept from one check to the next.
RUST_TARGET = ROOT / "target/release-clients"
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def run(*command, **options):
    """The output of a command, which must succeed. Variables of `env` are added to this process's."""
    env = {**os.environ, **options.pop("env", {})}
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True, env=env, **options)
    if done.returncode != 0:
        sys.exit(f"{command}: {done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def package(files, name):
    path = Path(files, name.replace("VERSION", VERSION)).resolve()
    if not path.is_file():
        sys.exit(f"{path.name} is missing")
    return path


def lacks(name, found, wanted):
    if missing := sorted(set(wanted) - set(found)):
        sys.exit(f"{name} lacks {missing}")


def tracked(folder):
    """The files of a folder of the repository, by their paths in it."""
    names = run("git", "-c", "safe.directory=*", "ls-files", cwd=CLIENTS / folder).splitlines()
    return [name for name in names if not name.endswith(".gitignore")]


def tar_files(path):
    """The files of an archive, without the folder that all are in."""
    with tarfile.open(path) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        return {
            member.name.split("/", 1)[1]: archive.extractfile(member).read().decode() for member in members
        }


# ---------------------------------------------------------------- contents


def python_contents(files):
    wheel = package(files, "tidegate-VERSION-py3-none-any.whl")
    modules = [name.removeprefix("src/") for name in tracked("python/src")]
    with zipfile.ZipFile(wheel) as archive:
        info = f"tidegate-{VERSION}.dist-info/"
        lacks(wheel.name, archive.namelist(), [*modules, "tidegate/py.typed", f"{info}licenses/LICENSE"])
        metadata = archive.read(f"{info}METADATA").decode()
    if f"\nVersion: {VERSION}\n" not in metadata or "\nRequires-Dist:" in metadata:
        sys.exit(f"{wheel.name}: another version, or a dependency: {metadata[:500]}")
    sdist = package(files, "tidegate-VERSION.tar.gz")
    wanted = [f"src/{module}" for module in modules]
    lacks(sdist.name, tar_files(sdist), [*wanted, "PKG-INFO", "LICENSE", "README.md", "CHANGELOG.md"])


def npm_contents(files):
    path = package(files, "tidegate-npm-VERSION.tgz")
    found = tar_files(path)
    manifest = json.loads(found["package.json"])
    entries = [entry.removeprefix("./") for one in manifest["exports"].values() for entry in one.values()]
    lacks(path.name, found, [*entries, "LICENSE", "README.md", "CHANGELOG.md"])
    if manifest["version"] != VERSION or manifest.get("dependencies"):
        sys.exit(f"{path.name}: another version, or a dependency: {manifest}")
    # A provenance is refused without it.
    if not manifest["repository"]["url"].endswith("/tidegate/tidegate.git"):
        sys.exit(f"{path.name}: repository is {manifest['repository']}")


def rust_contents(files):
    for crate in CRATES:
        path = package(files, f"tidegate-{crate}-VERSION.crate")
        found = tar_files(path)
        lacks(path.name, found, ["Cargo.toml", "Cargo.lock", "LICENSE", "README.md"])
        manifest = tomllib.loads(found["Cargo.toml"])
        if manifest["package"]["version"] != VERSION:
            sys.exit(f"{path.name} has version {manifest['package']['version']}")
        for name, needs in manifest["dependencies"].items():
            if "path" in needs:
                sys.exit(f"{path.name}: {name} is a path")
            # What is published before it.
            before = [f"tidegate-{other}" for other in CRATES[: CRATES.index(crate)]]
            if name.startswith("tidegate") and (name not in before or needs["version"] != VERSION):
                sys.exit(f"{path.name} depends on {name} {needs['version']}")
    lacks(path.name, found, ["CHANGELOG.md", "src/lib.rs"])


def go_contents(files):
    path = package(files, "tidegate-go-VERSION.zip")
    prefix = f"{MODULE}@v{VERSION}/"
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        lacks(path.name, names, [prefix + name for name in tracked("go")])
        if other := [name for name in names if not name.startswith(prefix)]:
            sys.exit(f"{path.name}: {other} are outside of {prefix}")


# ---------------------------------------------------------------- first jobs


def readme(language, program, *command):
    script = CLIENTS / "conformance/readme.py"
    run(sys.executable, script, "--program", program, "--language", language, "--", *command)


def script(path, text):
    path.write_text(f"#!/bin/sh\nset -e\ncd {path.parent}\n{text}")
    path.chmod(0o755)
    return path


def python_installed(files, folder):
    """The Python that has the wheel, and nothing else."""
    venv.create(folder, with_pip=True)
    wheel = package(files, "tidegate-VERSION-py3-none-any.whl")
    python = folder / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", wheel)
    return python


def python_job(files, program, folder):
    python = python_installed(files, folder / "venv")
    readme("python", program, script(folder / "run", f'exec "{python}" "$1/$2.py"\n'))


def typescript_job(files, program, folder):
    """The compiler reads the types of the package."""
    dev = json.loads((CLIENTS / "typescript/package.json").read_text())["devDependencies"]
    tools = [f"{name}@{dev[name]}" for name in ("typescript", "@types/node")]
    (folder / "package.json").write_text('{"type": "module", "private": true}')
    options = {"module": "nodenext", "target": "es2022", "strict": True, "types": ["node"], "outDir": "built"}
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": ["*.ts"]}))
    npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
    run(*npm, package(files, "tidegate-npm-VERSION.tgz"), *tools, cwd=folder)
    text = 'cp "$1/$2.ts" .\nnpx tsc --outDir "built-$2"\nexec node "built-$2/$2.js"\n'
    readme("typescript", program, script(folder / "run", text))


def go_job(files, program, folder):
    """The module comes from a proxy of files that has nothing but it."""
    proxy = folder / "proxy" / MODULE / "@v"
    proxy.mkdir(parents=True)
    path = package(files, "tidegate-go-VERSION.zip")
    shutil.copy(path, proxy / f"v{VERSION}.zip")
    with zipfile.ZipFile(path) as archive:
        (proxy / f"v{VERSION}.mod").write_bytes(archive.read(f"{MODULE}@v{VERSION}/go.mod"))
    (proxy / f"v{VERSION}.info").write_text(json.dumps({"Version": f"v{VERSION}"}))
    (proxy / "list").write_text(f"v{VERSION}\n")
    os.environ.update(
        GOPROXY=f"file://{folder}/proxy",
        GOSUMDB="off",
        GOTOOLCHAIN="local",
        GOMODCACHE=str(folder / "modules"),
        # Else the modules cannot be removed with their folder.
        GOFLAGS="-modcacherw",
    )
    if shutil.which("go") is None:
        requirements = CLIENTS / "python/requirements-dev.txt"
        tools = run(ROOT / "infra/venv", "clients-python", requirements).strip()
        os.environ["PATH"] = f"{tools}:{os.environ['PATH']}"
    first = folder / "first"
    first.mkdir()
    run("go", "mod", "init", "first", cwd=first)
    run("go", "get", f"{MODULE}@v{VERSION}", cwd=first)
    text = 'cp "$1/main.go" .\ngo build -o "program-$2" .\nexec "./program-$2" "$1" "$2"\n'
    readme("go", program, script(first / "run", text))


def rust_job(files, program, folder):
    """The crates of the release take the place of those of the registry; the others come from it."""
    patches = ""
    for crate in CRATES:
        with tarfile.open(package(files, f"tidegate-{crate}-VERSION.crate")) as archive:
            archive.extractall(folder, filter="data")
        patches += f'tidegate-{crate} = {{ path = "../tidegate-{crate}-{VERSION}" }}\n'
    first = folder / "first"
    (first / "src/bin").mkdir(parents=True)
    for name in ("letter_worker", "letter_enqueue"):
        shutil.copy(folder / f"tidegate-client-{VERSION}/examples/{name}.rs", first / "src/bin")
    (first / "Cargo.toml").write_text(
        '[package]\nname = "first"\nversion = "0.0.0"\nedition = "2024"\n\n[dependencies]\n'
        f'tidegate-client = "={VERSION}"\nserde = {{ version = "1", features = ["derive"] }}\n'
        'serde_json = "1"\ntokio = { version = "1", features = ["macros", "rt-multi-thread"] }\n\n'
        f"[patch.crates-io]\n{patches}\n[workspace]\n"
    )
    # The versions that the release was tested with.
    shutil.copy(ROOT / "Cargo.lock", first)
    run("cargo", "build", "--quiet", "--target-dir", RUST_TARGET, cwd=first, env={"CARGO_PROFILE_DEV_DEBUG": "0"})
    built = RUST_TARGET / "debug"
    text = f'case "$2" in work) exec "{built}/letter_worker" ;; *) exec "{built}/letter_enqueue" ;; esac\n'
    readme("rust", program, script(folder / "run", text))


# ---------------------------------------------------------------- versions


def conformance(sources, program, python, agent, path=None):
    """How many scenarios of `sources` pass."""
    env = {"PYTHONDONTWRITEBYTECODE": "1", **({"PYTHONPATH": str(path)} if path else {})}
    driver = Path(sources, CONFORMANCE, "driver.py")
    out = run(
        sys.executable, driver, "--program", program, "--language", "python", "--", python, agent, env=env
    )
    return re.search(r"python: (\d+ of \d+ scenarios)", out)[1]


def versions(files, program, older, sources, folder):
    """The scenarios are those of the older build: what they show stays so in the newer one."""
    python = python_installed(files, folder / "venv")
    agent = CLIENTS / "python/conformance_agent.py"
    newer_client = conformance(sources, older, python, agent)
    agent = Path(sources, "clients/python/conformance_agent.py")
    older_client = conformance(sources, program, sys.executable, agent, Path(sources, "clients/python/src"))
    print(f"this client with an older server: {newer_client}; an older client with this server: {older_client}")


JOBS = {"python": python_job, "typescript": typescript_job, "go": go_job, "rust": rust_job}


def main():
    task, files, *rest = sys.argv[1:]
    if task == "contents":
        for check in (python_contents, npm_contents, rust_contents, go_contents):
            check(files)
        return
    # The paths are used in other folders.
    rest[0] = os.path.abspath(rest[0])
    with tempfile.TemporaryDirectory(prefix="tidegate-clients-") as folder:
        if task == "versions":
            versions(files, *rest, Path(folder))
            return
        languages = rest[1:] or list(JOBS)
        for language in languages:
            place = Path(folder, language)
            place.mkdir()
            JOBS[language](files, rest[0], place)
        print(", ".join(languages))


if __name__ == "__main__":
    main()
