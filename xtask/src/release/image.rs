//! The container images as an OCI image layout, without Docker.
//!
//! ```text
//! index.json ── VERSION ──────▶ index ──▶ manifest (amd64) ──▶ config, layers
//!            │                        └─▶ manifest (arm64) ──▶ config, layers
//!            └─ VERSION-dev ──▶ index ──▶ ... other configs, the same layers
//! ```
//!
//! An image has two layers. The first one is the same for all: users, certificates of public
//! authorities, and the folders of data and of temporary files. The second one has the program.

use std::{collections::BTreeMap, fmt::Write as _};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    Files, Release,
    sums::sha256,
    target::Linux,
    tree::{Tree, gzip},
};

/// The user of the program, by convention that of images without a shell.
const USER: u64 = 65_532;
/// Where the program is.
const PROGRAM: &str = "/usr/bin/tidegate";
/// Where the server keeps its data.
pub const DATA: &str = "/data";
/// The address of the server in the container.
const LISTEN: &str = "0.0.0.0:8080";

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// An object of JSON; the format has empty ones in place of sets.
type Object = Map<String, Value>;

/// What a container of an image runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// A server that needs a token.
    Production,
    /// A server for development, which prints its token.
    Development,
}

impl Variant {
    /// Returns the tag of the image of `version`.
    fn tag(self, version: &str) -> String {
        match self {
            Self::Production => version.to_owned(),
            Self::Development => format!("{version}-dev"),
        }
    }
}

/// Returns the image layout as `tidegate-image.tar`, with the tags VERSION and VERSION-dev.
///
/// # Errors
///
/// A file of the repository is missing.
pub fn make(release: &Release) -> Result<Files, String> {
    let layout = layout(release)?;
    let mut tree = Tree::default();
    for (path, bytes) in layout {
        tree.file(path, 0o644, bytes);
    }
    Ok([("tidegate-image.tar".to_owned(), tree.tar("", release.time)?)].into())
}

/// Returns the files of the image layout.
fn layout(release: &Release) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let mut blobs = Blobs::default();
    let base = blobs.layer(&base(release)?.tar("", release.time)?)?;
    let mut programs = Vec::new();
    for binary in &release.binaries {
        if let Some(linux) = &binary.target.linux {
            let tar = program(release, &binary.bytes).tar("", release.time)?;
            programs.push((linux, blobs.layer(&tar)?));
        }
    }
    let mut tagged = Vec::new();
    for variant in [Variant::Production, Variant::Development] {
        let mut manifests = Vec::new();
        for (linux, program) in &programs {
            let layers = [&base, program];
            let config = blobs.json(CONFIG, &config(release, linux, variant, layers))?;
            let layers = layers.map(|layer| layer.descriptor.clone()).into();
            let manifest = Manifest { schema_version: 2, media_type: MANIFEST, config, layers };
            let mut manifest = blobs.json(MANIFEST, &manifest)?;
            manifest.platform = Some(Platform { architecture: linux.arch, os: "linux" });
            manifests.push(manifest);
        }
        let mut index = blobs.json(INDEX, &Index::of(manifests))?;
        let tag = variant.tag(&release.version);
        index.annotations.insert("org.opencontainers.image.ref.name", tag);
        tagged.push(index);
    }
    let mut files = blobs.0;
    files.insert("index.json".to_owned(), json(&Index::of(tagged))?);
    files.insert("oci-layout".to_owned(), b"{\"imageLayoutVersion\":\"1.0.0\"}\n".to_vec());
    Ok(files)
}

/// Returns the layer that all images share.
fn base(release: &Release) -> Result<Tree, String> {
    let mut tree = Tree::default();
    let passwd = format!(
        "root:x:0:0:root:/:/sbin/nologin\n\
         tidegate:x:{USER}:{USER}:tidegate:{DATA}:/sbin/nologin\n"
    );
    tree.file("etc/passwd", 0o644, passwd);
    tree.file("etc/group", 0o644, format!("root:x:0:\ntidegate:x:{USER}:\n"));
    tree.file("etc/ssl/certs/ca-certificates.crt", 0o644, certificates());
    tree.file("usr/share/doc/tidegate/LICENSE", 0o644, release.read("LICENSE")?);
    tree.folder(DATA.trim_start_matches('/'), 0o700, USER);
    tree.folder("tmp", 0o1777, 0);
    Ok(tree)
}

/// Returns the certificates of Mozilla's list as PEM: the program trusts those of its system.
fn certificates() -> String {
    let mut pem = String::new();
    for certificate in webpki_root_certs::TLS_SERVER_ROOT_CERTS {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let text = BASE64_STANDARD.encode(certificate);
        for line in text.as_bytes().chunks(64) {
            let _ = writeln!(pem, "{}", String::from_utf8_lossy(line));
        }
        pem.push_str("-----END CERTIFICATE-----\n");
    }
    pem
}

/// Returns the layer with the program.
fn program(release: &Release, binary: &[u8]) -> Tree {
    let mut tree = Tree::default();
    tree.file(PROGRAM.trim_start_matches('/'), 0o755, binary);
    tree.file("usr/share/doc/tidegate/THIRD-PARTY-LICENSES.txt", 0o644, release.licences.clone());
    tree
}

/// The blobs of a layout, by path.
#[derive(Default)]
struct Blobs(BTreeMap<String, Vec<u8>>);

impl Blobs {
    fn add(&mut self, media_type: &'static str, bytes: Vec<u8>) -> Descriptor {
        let digest = sha256(&bytes);
        let size = bytes.len();
        self.0.insert(format!("blobs/sha256/{digest}"), bytes);
        Descriptor {
            media_type,
            digest: format!("sha256:{digest}"),
            size,
            platform: None,
            annotations: BTreeMap::new(),
        }
    }

    fn json(
        &mut self,
        media_type: &'static str,
        value: &impl Serialize,
    ) -> Result<Descriptor, String> {
        Ok(self.add(media_type, json(value)?))
    }

    fn layer(&mut self, tar: &[u8]) -> Result<Layer, String> {
        let diff_id = format!("sha256:{}", sha256(tar));
        Ok(Layer { descriptor: self.add(LAYER, gzip(tar)?), diff_id })
    }
}

/// A compressed layer.
struct Layer {
    descriptor: Descriptor,
    /// The digest of the layer that is not compressed.
    diff_id: String,
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, String> {
    serde_json::to_vec(value).map_err(|error| error.to_string())
}

/// A reference to a blob.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: &'static str,
    digest: String,
    size: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    platform: Option<Platform>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'static str, String>,
}

#[derive(Clone, Serialize)]
struct Platform {
    architecture: &'static str,
    os: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Index {
    schema_version: u32,
    media_type: &'static str,
    manifests: Vec<Descriptor>,
}

impl Index {
    fn of(manifests: Vec<Descriptor>) -> Self {
        Self { schema_version: 2, media_type: INDEX, manifests }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    schema_version: u32,
    media_type: &'static str,
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Serialize)]
struct Image {
    created: String,
    architecture: &'static str,
    os: &'static str,
    config: Config,
    rootfs: RootFs,
    history: Vec<History>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    user: String,
    exposed_ports: BTreeMap<&'static str, Object>,
    env: Vec<&'static str>,
    entrypoint: Vec<&'static str>,
    cmd: Vec<&'static str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    volumes: BTreeMap<&'static str, Object>,
    working_dir: &'static str,
    labels: BTreeMap<&'static str, String>,
    stop_signal: &'static str,
    /// An extension of Docker, which Docker and Podman read. Times are nanoseconds.
    healthcheck: HealthCheck,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct HealthCheck {
    test: [&'static str; 4],
    interval: u64,
    timeout: u64,
    start_period: u64,
    retries: u32,
}

#[derive(Serialize)]
struct RootFs {
    r#type: &'static str,
    diff_ids: Vec<String>,
}

#[derive(Serialize)]
struct History {
    created: String,
    created_by: &'static str,
}

/// Returns the configuration of an image.
fn config(release: &Release, linux: &Linux, variant: Variant, layers: [&Layer; 2]) -> Image {
    const SECOND: u64 = 1_000_000_000;
    let created = release.timestamp();
    let (entrypoint, cmd): (&[_], &[_]) = match variant {
        Variant::Production => (&[PROGRAM], &["serve", "--listen", LISTEN, "--data", DATA]),
        // Further arguments, such as --insecure, follow.
        Variant::Development => (&[PROGRAM, "dev", "--listen", LISTEN], &[]),
    };
    let volumes = match variant {
        Variant::Production => BTreeMap::from([(DATA, Object::new())]),
        Variant::Development => BTreeMap::new(),
    };
    let labels = [
        ("org.opencontainers.image.title", "tidegate"),
        ("org.opencontainers.image.description", "A durable job queue"),
        ("org.opencontainers.image.licenses", "Apache-2.0"),
        ("org.opencontainers.image.source", "https://github.com/tidegate/tidegate"),
        ("org.opencontainers.image.version", &release.version),
        ("org.opencontainers.image.created", &created),
    ];
    let history = ["users, certificates, folders", "tidegate"];
    Image {
        created: created.clone(),
        architecture: linux.arch,
        os: "linux",
        config: Config {
            user: format!("{USER}:{USER}"),
            exposed_ports: BTreeMap::from([("8080/tcp", Object::new())]),
            env: vec!["PATH=/usr/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"],
            entrypoint: entrypoint.to_vec(),
            cmd: cmd.to_vec(),
            volumes,
            working_dir: "/",
            labels: labels.map(|(name, value)| (name, value.to_owned())).into(),
            stop_signal: "SIGTERM",
            healthcheck: HealthCheck {
                test: ["CMD", PROGRAM, "health", "--quiet"],
                interval: 10 * SECOND,
                timeout: 5 * SECOND,
                start_period: 60 * SECOND,
                retries: 3,
            },
        },
        rootfs: RootFs {
            r#type: "layers",
            diff_ids: layers.map(|layer| layer.diff_id.clone()).into(),
        },
        history: history.map(|created_by| History { created: created.clone(), created_by }).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_pem_of_known_authorities() {
        let pem = certificates();
        let count = pem.matches("-----BEGIN CERTIFICATE-----").count();
        assert!(count > 100 && pem.lines().all(|line| line.len() <= 64), "{count}");
    }
}
