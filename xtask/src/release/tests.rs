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
    let files = release(&program).make(&functions).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let mut expected: Vec<String> = [
        "SHA256SUMS",
        "VERSION",
        "code-bucket.yaml",
        "install.sh",
        "template.yaml",
        "terraform-aws-tidegate.tar.gz",
        "tidegate-compose.tar.gz",
        "tidegate-image.tar",
        "tidegate-kubernetes.yaml",
        "tidegate.cdx.json",
        "tidegate.rb",
    ]
    .map(str::to_owned)
    .into();
    expected.push(format!("tidegate-chart-{version}.tgz"));
    expected.extend(TARGETS.iter().map(|target| archives::name(target.triple)));
    expected.extend(["amd64", "arm64"].map(|arch| deb::name(version, arch)));
    for arch in ["arm64", "x86_64"] {
        expected.extend(package::FUNCTIONS.map(|function| format!("{arch}-{function}.zip")));
    }
    expected.sort();
    assert_eq!(files.keys().cloned().collect::<Vec<_>>(), expected);
    assert_eq!(sums::check(&files), Ok(()));
    assert!(release(&program).make(&functions).unwrap() == files, "other bytes");

    // Functions that are damaged, and those of another version, are refused.
    let refused = |why: &str| {
        let found = release(&program).make(&functions).unwrap_err();
        assert!(found.contains(why), "{found}");
    };
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
        ("--fast", "there is no flag"),
    ] {
        assert!(parsed(wrong).unwrap_err().contains(why), "{wrong}");
    }
}

#[test]
fn packaged_files_have_the_version_of_the_release() {
    let root = package::root().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let images = "tidegate/tidegate:";
    let mut found = 0;
    let mut open = vec![root.join("packaging"), root.join("docs/kubernetes.md")];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        for (_, rest) in text.match_indices(images).map(|(at, _)| text.split_at(at + images.len()))
        {
            let tag: String = rest
                .chars()
                .take_while(|letter| letter.is_ascii_alphanumeric() || ".-".contains(*letter))
                .collect();
            let is_own = tag == version || tag == format!("{version}-dev") || tag.is_empty();
            assert!(is_own, "{}: {images}{tag}", path.display());
            found += 1;
        }
    }
    assert!(found > 2, "{found}");
    let chart = fs::read_to_string(root.join("packaging/helm/tidegate/Chart.yaml")).unwrap();
    for line in [format!("version: {version}"), format!("appVersion: \"{version}\"")] {
        assert!(chart.lines().any(|one| one == line), "{chart}");
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
