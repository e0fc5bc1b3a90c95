//! A release from a stand-in for the program: a script that answers what a release asks of it.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use super::{check::install::FileServer, *};

/// Answers `--version`, `manual` and `completions`.
const STAND_IN: &str = "#!/bin/sh\n\
    case \"$1\" in\n\
    --version) echo tidegate 0.1.0 ;;\n\
    manual) for page in tidegate tidegate-serve; do echo .TH >\"$3/$page.1\"; done ;;\n\
    completions) echo \"# $2\" ;;\n\
    esac\n";

fn stand_in(folder: &Path) -> PathBuf {
    let program = folder.join("stand-in");
    fs::write(&program, STAND_IN).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

fn functions(folder: &Path) -> PathBuf {
    for arch in ["arm64", "x86_64"] {
        fs::create_dir_all(folder.join(arch)).unwrap();
        for function in package::FUNCTIONS {
            fs::write(folder.join(arch).join(format!("{function}.zip")), "PK").unwrap();
        }
    }
    fs::write(folder.join("VERSION"), concat!(env!("CARGO_PKG_VERSION"), "\n")).unwrap();
    package::write_sums(folder).unwrap();
    folder.to_owned()
}

/// Stand-ins for the packages of the client libraries.
fn client_packages(folder: &Path) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    for name in clients::names(env!("CARGO_PKG_VERSION")) {
        fs::write(folder.join(&name), &name).unwrap();
    }
    folder.to_owned()
}

/// A release with a binary for every target.
fn release(program: &Path) -> Release {
    let bytes = fs::read(program).unwrap();
    let binary = |target| Binary { target, bytes: bytes.clone() };
    let root = package::root().unwrap();
    let libraries = Libraries::list(&root).unwrap();
    Release {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        time: DEFAULT_TIME,
        binaries: TARGETS.iter().map(binary).collect(),
        docs: Docs::of(program).unwrap(),
        licences: libraries.licences().unwrap(),
        libraries,
        root,
    }
}

#[test]
fn a_release_has_every_file_and_the_same_bytes_twice() {
    let folder = tempfile::tempdir().unwrap();
    let program = stand_in(folder.path());
    let functions = functions(&folder.path().join("functions"));
    let packages = client_packages(&folder.path().join("clients"));
    let files = release(&program).make(&functions, &packages).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let mut expected: Vec<String> = [
        "SHA256SUMS",
        "VERSION",
        "code-bucket.yaml",
        "install.sh",
        "template.yaml",
        "terraform-aws-tidegate.tar.gz",
        "tidegate-bucket.tar.gz",
        "tidegate-compose.tar.gz",
        "tidegate-image.tar",
        "tidegate-keda.yaml",
        "tidegate-kubernetes.yaml",
        "tidegate.cdx.json",
        "tidegate.rb",
    ]
    .map(str::to_owned)
    .into();
    expected.push(format!("tidegate-chart-{version}.tgz"));
    expected.extend(clients::names(version));
    expected.extend(TARGETS.iter().map(|target| archives::name(target.triple)));
    expected.extend(["amd64", "arm64"].map(|arch| deb::name(version, arch)));
    for arch in ["arm64", "x86_64"] {
        expected.extend(package::FUNCTIONS.map(|function| format!("{arch}-{function}.zip")));
    }
    expected.sort();
    assert_eq!(files.keys().cloned().collect::<Vec<_>>(), expected);
    assert_eq!(sums::check(&files), Ok(()));
    assert!(release(&program).make(&functions, &packages).unwrap() == files, "other bytes");

    // Packages that are missing, and functions that are damaged or of another version, are refused.
    let refused = |why: &str| {
        let found = release(&program).make(&functions, &packages).unwrap_err();
        assert!(found.contains(why), "{found}");
    };
    let [wheel, ..] = clients::names(version);
    fs::remove_file(packages.join(&wheel)).unwrap();
    refused(&wheel);
    fs::write(packages.join(&wheel), "wheel").unwrap();
    let zip = functions.join("arm64/tick.zip");
    fs::write(&zip, "PX").unwrap();
    refused("does not list arm64/tick.zip as it is");
    fs::write(&zip, "PK").unwrap();
    fs::write(functions.join("VERSION"), "9.9.9\n").unwrap();
    refused("does not list VERSION as it is");
    let sums = fs::read_to_string(functions.join(sums::SUMS)).unwrap();
    let other = format!("{sums}{}  VERSION\n", sums::sha256(b"9.9.9\n"));
    fs::write(functions.join(sums::SUMS), other).unwrap();
    refused("another version");
}

#[test]
fn the_script_installs_what_matches_its_checksum() {
    let folder = tempfile::tempdir().unwrap();
    let release = release(&stand_in(folder.path()));
    let mut files = archives::make(&release).unwrap();
    let script = release.root.join("packaging/install.sh");
    let server = FileServer::start().unwrap();
    let own = TARGETS.iter().find(|target| target.runs_here()).unwrap();
    let archive = archives::name(own.triple);
    let to = folder.path().join("bin");
    let install = || {
        let args = ["--to", to.to_str().unwrap()];
        let done = server.install(&script, folder.path(), &args).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (done.status.code(), text(done.stdout), text(done.stderr))
    };
    let refused = |why: &str| {
        let (code, out, err) = install();
        assert!(code == Some(1) && err.contains(why), "{why}: {out} {err}");
        assert!(!to.exists(), "nothing is installed");
    };
    refused("SHA256SUMS cannot be downloaded");
    files.remove(&archive).map(|bytes| server.put(&archive, &bytes).unwrap()).unwrap();
    server.put(sums::SUMS, sums::make(&files).as_bytes()).unwrap();
    refused("does not list");
    let files = archives::make(&release).unwrap();
    server.put(sums::SUMS, sums::make(&files).as_bytes()).unwrap();
    server.put(&archive, b"damaged").unwrap();
    refused("the checksum of");
    server.remove(&archive);
    refused(&archive);

    server.put(&archive, &files[&archive]).unwrap();
    for _ in 0..2 {
        let (code, out, err) = install();
        assert_eq!(code, Some(0), "{err}");
        assert!(out.contains("installed tidegate 0.1.0 as"), "{out}");
        assert!(out.contains("Add it to your PATH"), "{out}");
    }
    assert_eq!(fs::read(to.join("tidegate")).unwrap(), STAND_IN.as_bytes());
    assert_eq!(fs::read_dir(&to).unwrap().count(), 1, "no other file is left");
    let args = server.install(&script, folder.path(), &["--nonsense"]).unwrap();
    assert_eq!(args.status.code(), Some(2));
}

#[test]
fn cargo_binstall_finds_the_archives() {
    let root = package::root().unwrap();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let (_, section) = manifest.split_once("[package.metadata.binstall]\n").unwrap();
    let value = |key: &str| {
        let line = section.lines().find_map(|line| line.strip_prefix(&format!("{key} = \"")));
        let triple = "x86_64-unknown-linux-musl";
        line.unwrap().trim_end_matches('"').replace("{ target }", triple)
    };
    let archive = archives::name("x86_64-unknown-linux-musl");
    assert_eq!(
        value("pkg-url").replace("{ repo }", REPOSITORY).replace("{ version }", "1.2.3"),
        format!("{REPOSITORY}/releases/download/v1.2.3/{archive}")
    );
    assert_eq!(
        value("bin-dir").replace("{ bin }{ binary-ext }", "tidegate"),
        "tidegate-x86_64-unknown-linux-musl/tidegate"
    );
}

#[test]
fn arguments_name_targets_and_files() {
    let parsed = |text: &str| parse(text.split_whitespace().map(str::to_owned));
    let args = parsed("--binary x86_64=a --binary aarch64-apple-darwin=b --complete").unwrap();
    assert!(args.complete && !args.check);
    let binaries: Vec<_> = args.binaries.iter().map(|(triple, file)| (*triple, file)).collect();
    assert_eq!(
        binaries,
        [
            ("aarch64-apple-darwin", &PathBuf::from("b")),
            ("x86_64-unknown-linux-musl", &PathBuf::from("a")),
        ]
    );
    for (wrong, why) in [
        ("--binary a", "must be TARGET=FILE"),
        ("--binary a=b", "there is no target"),
        ("--build", "needs a value"),
        ("--clients", "needs a value"),
        ("--fast", "there is no flag"),
    ] {
        assert!(parsed(wrong).unwrap_err().contains(why), "{wrong}");
    }
}

/// Texts that the version of a release follows in documents and packages.
const BEFORE_VERSION: [&str; 18] = [
    "tidegate/tidegate:",
    "tidegate-image.tar:",
    "releases/download/v",
    "tidegate-",
    "tidegate-chart-",
    "tidegate-npm-",
    "tidegate-go-",
    "clients/go@v",
    "tidegate_",
    "\"tidegate/",
    "\"tidegate ",
    "--annotate v",
    "origin v",
    " VERSION=",
    "--version ",
    "the release, such as ",
    "ersion: ",
    "ersion: \"",
];

/// The versions of three numbers in `line`, each with the text before it.
fn versions(line: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(digit) = line[from..].find(|letter: char| letter.is_ascii_digit()) {
        let start = from + digit;
        let number = |letter: char| letter.is_ascii_digit() || letter == '.';
        let length = line[start..].find(|letter| !number(letter)).unwrap_or(line.len() - start);
        let version = line[start..start + length].trim_end_matches('.');
        if version.split('.').filter(|part| !part.is_empty()).count() == 3 {
            found.push((&line[..start], version));
        }
        from = start + length;
    }
    found
}

/// What is wrong with the versions in `text`: another one after a text of [`BEFORE_VERSION`], or
/// `version` after no such text.
fn wrong_versions(text: &str, version: &str) -> Vec<String> {
    let wrong = |line: &&str| {
        versions(line).into_iter().any(|(before, found)| {
            let of_release = BEFORE_VERSION.iter().any(|text| before.ends_with(text));
            of_release != (found == version)
        })
    };
    text.lines().filter(wrong).map(str::to_owned).collect()
}

#[test]
fn documents_have_the_version_of_the_release() {
    let text =
        "image: tidegate/tidegate:0.2.0-dev, h11 0.16.0\nversion: 0.1.9\nit came in 0.2.0.\n";
    assert_eq!(wrong_versions(text, "0.2.0"), ["version: 0.1.9", "it came in 0.2.0."]);

    let root = package::root().unwrap();
    // A pre-release ends with its own words.
    let version = env!("CARGO_PKG_VERSION").split('-').next().unwrap();
    let (mut wrong, mut right) = (Vec::new(), 0);
    let mut open: Vec<_> =
        ["README.md", "clients/README.md", "docs", "packaging", "infra/examples"]
            .map(|path| root.join(path))
            .into();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        // Lists of other packages, and the output of a run.
        if path.ends_with("requirements.txt") || path.ends_with("FULL-CHECK.md") {
            continue;
        }
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        right += text.matches(version).count();
        for line in wrong_versions(&text, version) {
            wrong.push(format!("{}: {line}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(right > 20, "{right}");
}

#[test]
fn packages_have_the_version_of_the_release() {
    let root = package::root().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    for (file, line) in [
        ("Cargo.toml", "tidegate-client = { path = \"clients/rust\", version = \"X.Y.Z\" }"),
        ("clients/rust/Cargo.toml", "version.workspace = true"),
        ("clients/python/pyproject.toml", "version = \"X.Y.Z\""),
        ("clients/python/src/tidegate/_http.py", "VERSION = \"X.Y.Z\""),
        ("clients/typescript/package.json", "  \"version\": \"X.Y.Z\","),
        ("clients/typescript/package-lock.json", "  \"version\": \"X.Y.Z\","),
        ("clients/typescript/package-lock.json", "      \"version\": \"X.Y.Z\","),
        ("clients/typescript/src/http.ts", "export const VERSION = \"X.Y.Z\";"),
        ("clients/go/doc.go", "const Version = \"X.Y.Z\""),
        ("examples/clients/reports/package-lock.json", "      \"version\": \"X.Y.Z\","),
        (
            "examples/clients/tenants/go.mod",
            "require github.com/tidegate/tidegate/clients/go vX.Y.Z",
        ),
        ("clients/python/CHANGELOG.md", "## X.Y.Z"),
        ("clients/typescript/CHANGELOG.md", "## X.Y.Z"),
        ("clients/go/CHANGELOG.md", "## X.Y.Z"),
        ("clients/rust/CHANGELOG.md", "## X.Y.Z"),
        ("packaging/helm/tidegate/Chart.yaml", "version: X.Y.Z"),
        ("packaging/helm/tidegate/Chart.yaml", "appVersion: \"X.Y.Z\""),
    ] {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let wanted = line.replace("vX.Y.Z", &format!("v{version}")).replace("X.Y.Z", version);
        assert!(text.lines().any(|one| one == wanted), "{file} lacks {wanted}");
    }
}

#[test]
fn notes_are_the_section_of_the_version() {
    let folder = tempfile::tempdir().unwrap();
    let changelog = folder.path().join("CHANGELOG.md");
    fs::write(
        &changelog,
        "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n### Added\n\n- Notes.\n\n\
         ## [0.1.0] - 2026-11-01\n\n- First.\n",
    )
    .unwrap();
    let notes = |version: &str| {
        let mut script = Command::new(package::root().unwrap().join("packaging/notes"));
        let done = script.arg(version).arg(&changelog).output().unwrap();
        (done.status.success(), String::from_utf8(done.stdout).unwrap())
    };
    let (of_latest, of_first) = (notes("0.2.0"), notes("0.1.0"));
    assert_eq!((of_latest.0, of_latest.1.trim()), (true, "### Added\n\n- Notes."));
    assert_eq!((of_first.0, of_first.1.trim()), (true, "- First."));
    for (missing, why) in
        [("Unreleased", "it is empty"), ("0.2", "it is no version"), ("0.3.0", "")]
    {
        assert_eq!(notes(missing), (false, String::new()), "{missing}: {why}");
    }
}

#[test]
fn jobs_of_workflows_have_what_their_commands_need() {
    let root = package::root().unwrap();
    // A job begins with its name, indented by two.
    let jobs = |workflow: &str| {
        let path = root.join(".github/workflows").join(workflow);
        let text = fs::read_to_string(path).unwrap();
        let (_, jobs) = text.split_once("\njobs:\n").unwrap();
        let mut found: BTreeMap<String, String> = BTreeMap::new();
        let mut name = String::new();
        for line in jobs.lines() {
            let key = line.strip_prefix("  ").and_then(|rest| rest.strip_suffix(':'));
            if let Some(key) = key.filter(|key| !key.starts_with(' ')) {
                key.clone_into(&mut name);
            }
            let text = found.entry(name.clone()).or_default();
            text.push_str(line);
            text.push('\n');
        }
        found
    };
    // The older build, to which the check goes back, is that of the latest tag.
    let mut with_tags = 0;
    for workflow in ["check.yml", "full-check.yml", "release.yml"] {
        for (name, job) in jobs(workflow) {
            if job.contains("xtask release --check") || job.contains("xtask check --full") {
                assert!(job.contains("fetch-depth: 0"), "{workflow}: {name} has no tags");
                with_tags += 1;
            }
        }
    }
    assert_eq!(with_tags, 2);
    // Nothing is published without the tests of its commit.
    let release = jobs("release.yml");
    assert!(release["check"].contains("uses: ./.github/workflows/check.yml"));
    let needs = |job: &str, other: &str| {
        let needs = release[job].lines().find_map(|line| line.strip_prefix("    needs: ")).unwrap();
        needs.trim_matches(['[', ']']).split(", ").any(|need| need == other)
    };
    for needed in ["check", "release", "starts"] {
        assert!(needs("attest", needed), "attest needs {needed}");
    }
    for job in ["images", "pypi", "npm", "crates", "go", "publish"] {
        assert!(release[job].contains("    if: github.ref_type == 'tag'\n"), "{job}");
        assert!(needs(job, "attest"), "{job}");
    }
}

#[test]
fn metrics_of_boards_and_alerts_exist() {
    let root = package::root().unwrap();
    let documented = fs::read_to_string(root.join("docs/operate.md")).unwrap();
    let mut found = 0;
    for file in ["compose/alerts.yml", "compose/alerts.test.yml", "compose/grafana/tidegate.json"] {
        let text = fs::read_to_string(root.join("packaging").join(file)).unwrap();
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for metric in words.filter(|word| word.starts_with("tidegate_")) {
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|part| metric.strip_suffix(part))
                .unwrap_or(metric);
            let is_there = |name| documented.contains(&format!("| `{name}` |"));
            assert!(is_there(metric) || is_there(base), "{file}: {metric}");
            found += 1;
        }
    }
    assert!(found > 20, "{found}");
}
