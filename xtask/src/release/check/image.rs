//! The container images: their layout, in skopeo and umoci, and running from their own root file
//! system.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::{Checked, process::Running, tool};
use crate::release::{archives::output, image::DATA, sums::sha256};

/// Most bytes that a pull of an image transfers.
const MAX_BYTES: u64 = 60_000_000;
/// The user of the image, and its group.
const USER: &str = "65532";

/// A layout that is unpacked.
struct Layout(tempfile::TempDir);

impl Layout {
    fn of(checked: &Checked) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        tar::Archive::new(checked.file("tidegate-image.tar")?)
            .unpack(folder.path())
            .map_err(|error| error.to_string())?;
        Ok(Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the document that `descriptor` names, and compares size and digest.
    fn json(&self, descriptor: &Value) -> Result<Value, String> {
        let bytes = self.blob(descriptor)?;
        serde_json::from_slice(&bytes).map_err(|error| error.to_string())
    }

    fn blob(&self, descriptor: &Value) -> Result<Vec<u8>, String> {
        let digest = descriptor["digest"].as_str().ok_or("a descriptor has no digest")?;
        let sum = digest.trim_start_matches("sha256:");
        let path = self.path().join("blobs/sha256").join(sum);
        let bytes = fs::read(&path).map_err(|error| format!("{digest}: {error}"))?;
        if sha256(&bytes) != sum || descriptor["size"].as_u64() != Some(bytes.len() as u64) {
            return Err(format!("{digest} has another size or digest"));
        }
        Ok(bytes)
    }
}

/// Follows each reference of the layout, and checks what the images have.
pub fn layout(checked: &Checked) -> Result<String, String> {
    let layout = Layout::of(checked)?;
    let index = fs::read(layout.path().join("index.json")).map_err(|error| error.to_string())?;
    let index: Value = serde_json::from_slice(&index).map_err(|error| error.to_string())?;
    let version = &checked.release.version;
    let mut sizes = BTreeMap::new();
    for tagged in list(&index["manifests"]) {
        let tag = tagged["annotations"]["org.opencontainers.image.ref.name"].as_str().unwrap_or("");
        for descriptor in list(&layout.json(tagged)?["manifests"]) {
            let arch = descriptor["platform"]["architecture"].as_str().unwrap_or("");
            let manifest = layout.json(descriptor)?;
            let config = layout.json(&manifest["config"])?;
            if config["architecture"] != arch
                || config["config"]["User"] != format!("{USER}:{USER}")
            {
                return Err(format!("{tag} {arch} has a wrong architecture or user"));
            }
            let has_volume = config["config"]["Volumes"][DATA].is_object();
            if has_volume == tag.ends_with("-dev") {
                return Err(format!("{tag} {arch}: only the image for production has a volume"));
            }
            if config["config"]["Healthcheck"]["Test"][0] != "CMD" {
                return Err(format!("{tag} {arch} has no health check"));
            }
            let mut bytes = 0;
            let layers = list(&manifest["layers"]);
            for (layer, diff_id) in layers.iter().zip(list(&config["rootfs"]["diff_ids"])) {
                let blob = layout.blob(layer)?;
                bytes += blob.len() as u64;
                let mut tar = Vec::new();
                std::io::copy(&mut flate2::read::GzDecoder::new(&blob[..]), &mut tar)
                    .map_err(|error| error.to_string())?;
                if *diff_id != format!("sha256:{}", sha256(&tar)) {
                    return Err(format!("{tag} {arch} has another layer than its diff_id says"));
                }
            }
            if bytes > MAX_BYTES {
                return Err(format!("{tag} {arch} has {bytes} bytes, more than {MAX_BYTES}"));
            }
            sizes.insert((tag.to_owned(), arch.to_owned()), bytes);
        }
    }
    let expected =
        checked.release.binaries.iter().filter_map(|binary| binary.target.linux.as_ref());
    for arch in expected.map(|linux| linux.arch) {
        for tag in [version.clone(), format!("{version}-dev")] {
            if !sizes.contains_key(&(tag.clone(), arch.to_owned())) {
                return Err(format!("there is no {tag} for {arch}"));
            }
        }
    }
    let sizes: Vec<_> = sizes
        .iter()
        .map(|((tag, arch), bytes)| format!("{tag} {arch} {:.1} MB", *bytes as f64 / 1e6))
        .collect();
    Ok(sizes.join(", "))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Copies the whole index with skopeo, one image into a layout of its own, and unpacks it with umoci.
pub fn tools(checked: &Checked) -> Result<String, String> {
    let layout = Layout::of(checked)?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let version = &checked.release.version;
    let mut all = skopeo(checked)?;
    all.args(["copy", "--quiet", "--all", &reference(layout.path(), version)]);
    output(all.arg(format!("dir:{}", folder.path().join("all").display())))?;
    let (root, config) = root_file_system(checked, version)?;
    for path in ["usr/bin/tidegate", "etc/ssl/certs/ca-certificates.crt", "data", "tmp"] {
        if !root.path().join("rootfs").join(path).exists() {
            return Err(format!("the root file system has no /{path}"));
        }
    }
    let entry = &config["config"]["Entrypoint"];
    Ok(format!("runs {entry} {}", config["config"]["Cmd"]))
}

fn skopeo(checked: &Checked) -> Result<Command, String> {
    let mut skopeo = tool(&checked.release.root, "skopeo")?;
    skopeo.arg("--insecure-policy");
    Ok(skopeo)
}

fn reference(layout: &Path, tag: &str) -> String {
    format!("oci:{}:{tag}", layout.display())
}

/// Returns a folder with the root file system `rootfs` of the image `tag` for this machine, as umoci
/// unpacks it, and the configuration of the image.
fn root_file_system(checked: &Checked, tag: &str) -> Result<(tempfile::TempDir, Value), String> {
    let layout = Layout::of(checked)?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let single = folder.path().join("single");
    output(
        skopeo(checked)?
            .args(["copy", "--quiet", &reference(layout.path(), tag)])
            .arg(reference(&single, tag)),
    )?;
    let mut config = skopeo(checked)?;
    let config = output(config.args(["inspect", "--config", &reference(&single, tag)]))?;
    let config = serde_json::from_slice(&config).map_err(|error| error.to_string())?;
    let mut umoci = tool(&checked.release.root, "umoci")?;
    umoci.args(["unpack", "--image", &format!("{}:{tag}", single.display())]);
    if !is_root()? {
        umoci.arg("--rootless");
    }
    let bundle = folder.path().join("bundle");
    output(umoci.arg(&bundle))?;
    let root = tempfile::tempdir().map_err(|error| error.to_string())?;
    fs::rename(bundle.join("rootfs"), root.path().join("rootfs"))
        .map_err(|error| error.to_string())?;
    Ok((root, config))
}

fn is_root() -> Result<bool, String> {
    Ok(output(Command::new("id").arg("-u"))?.trim_ascii() == b"0")
}

/// An unpacked image.
struct Container {
    root: PathBuf,
    config: Value,
    is_root: bool,
}

impl Container {
    /// Returns what the image starts, on a free port: other programs of this machine may have its
    /// own one.
    fn start(&self) -> Vec<String> {
        let words = [&self.config["config"]["Entrypoint"], &self.config["config"]["Cmd"]];
        words
            .into_iter()
            .flat_map(list)
            .filter_map(Value::as_str)
            .map(|word| word.replace("0.0.0.0:8080", "0.0.0.0:0"))
            .collect()
    }

    /// Returns the command `words` in the root file system, with its own processes, and the user and
    /// the environment of the image.
    fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--mount-proc"]);
        if self.is_root {
            command.args(["--setuid", USER, "--setgid", USER]);
        } else {
            command.args(["--user", "--map-root-user"]);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.arg(format!("--root={}", self.root.display())).env_clear().env("PATH", path);
        for variable in list(&self.config["config"]["Env"]) {
            if let Some((name, value)) = variable.as_str().and_then(|text| text.split_once('='))
                && name != "PATH"
            {
                command.env(name, value);
            }
        }
        command.args(words);
        command
    }

    /// Runs the program of the image with `args` against the server at `address`.
    fn run(&self, address: &str, token: &str, args: &[&str]) -> Result<String, String> {
        let program = self.start().swap_remove(0);
        let words: Vec<String> =
            std::iter::once(program).chain(args.iter().map(|arg| (*arg).to_owned())).collect();
        let mut command = self.command(&words);
        // An empty variable is a value too.
        let given = [("TIDEGATE_URL", address), ("TIDEGATE_TOKEN", token)];
        command.envs(given.into_iter().filter(|(_, value)| !value.is_empty()));
        let out = output(&mut command)?;
        Ok(String::from_utf8_lossy(&out).trim().to_owned())
    }

    /// Starts the image with further arguments; returns the server and its address.
    fn serve(&self, extra: &[&str]) -> Result<(Running, String), String> {
        let mut words = self.start();
        words.extend(extra.iter().map(|arg| (*arg).to_owned()));
        let mut server = Running::start(&mut self.command(&words))?;
        let address = server.line_after(" on http://")?.replace("0.0.0.0", "127.0.0.1");
        Ok((server, address))
    }
}

/// Unpacks the image `tag`; the folder must be kept.
fn container(checked: &Checked, tag: &str) -> Result<(tempfile::TempDir, Container), String> {
    let (folder, config) = root_file_system(checked, tag)?;
    let root = folder.path().join("rootfs");
    // A container runtime makes the places for its mounts.
    fs::create_dir_all(root.join("proc")).map_err(|error| error.to_string())?;
    Ok((folder, Container { root, config, is_root: is_root()? }))
}

/// Runs the image for production: it refuses to start for other machines without a token, and with
/// one it serves, is healthy and keeps a job over a restart.
pub fn runs(checked: &Checked) -> Result<String, String> {
    let (_folder, container) = container(checked, &checked.release.version)?;
    let without = container.command(&container.start()).output();
    let without = without.map_err(|error| error.to_string())?;
    let why = String::from_utf8_lossy(&without.stderr).into_owned();
    if without.status.success() || !why.contains("there are no tokens") {
        return Err(format!("without a token it does not refuse to start: {why}"));
    }
    let create = ["token", "create", "--name=admin", "--scope=admin", "--data", DATA];
    let token = container.run("", "", &create)?;

    let (server, address) = container.serve(&[])?;
    container.run(&address, "", &["health"])?;
    container.run(&address, &token, &["types", "put", "letter", "--config={}"])?;
    let job = container.run(&address, &token, &["enqueue", "--type=letter", "--data=1"])?;
    server.stop()?;
    let (server, address) = container.serve(&[])?;
    container.run(&address, &token, &["jobs", "get", &job])?;
    server.stop()?;

    let owner =
        output(Command::new("stat").args(["--format=%u:%a"]).arg(container.root.join("data")))?;
    let owner = String::from_utf8_lossy(&owner).trim().to_owned();
    if container.is_root && owner != format!("{USER}:700") {
        return Err(format!("the data belongs to {owner}"));
    }
    Ok("a job survives a restart".into())
}

/// Runs the image for development: it prints a token, and `--insecure` opens it.
pub fn development_runs(checked: &Checked) -> Result<String, String> {
    let (_folder, container) = container(checked, &format!("{}-dev", checked.release.version))?;
    let list = ["queues", "list"];
    let (mut server, address) = container.serve(&[])?;
    let token = server.line_after("Admin token: ")?;
    container.run(&address, &token, &list)?;
    if container.run(&address, "tg_wrong_token", &list).is_ok() {
        return Err("it accepts a wrong token".into());
    }
    server.stop()?;
    let (server, address) = container.serve(&["--insecure"])?;
    container.run(&address, "", &list)?;
    server.stop()?;
    Ok("it prints a token, and --insecure opens it".into())
}
