//! What a deployment on AWS needs: the zips of the functions, the templates, the Terraform module.
//!
//! The files of a release have no folders, so a zip is `ARCH-NAME.zip`; `tidegate aws deploy` knows
//! both forms. A registry of Terraform takes a repository whose root is the module.

use std::{fmt::Write as _, fs, path::Path};

use super::{
    Files, Release,
    sums::{SUMS, sha256},
    tree::Tree,
};
use crate::package::FUNCTIONS;

/// The architectures of Lambda.
const ARCHS: [&str; 2] = ["arm64", "x86_64"];
/// Files of the module's folder that belong to no published module.
const LOCAL: [&str; 2] = [".terraform", "terraform.tfstate"];

/// Returns the zips from the folder `functions`, the templates, and the module as
/// `terraform-aws-tidegate.tar.gz`.
///
/// # Errors
///
/// A zip is missing or not what the `SHA256SUMS` of the folder says, those of another version are
/// there, or a file of the repository is missing.
pub fn make(release: &Release, functions: &Path) -> Result<Files, String> {
    let mut files = Files::new();
    let read = |path: &Path| {
        fs::read(path)
            .map_err(|error| format!("{}: {error}; `cargo xtask package` makes it", path.display()))
    };
    let sums = read(&functions.join(SUMS))?;
    let sums = String::from_utf8_lossy(&sums);
    // A zip may have been damaged, or made again without its sum, on its way here.
    let read_listed = |name: &str| {
        let bytes = read(&functions.join(name))?;
        let line = format!("{}  {name}", sha256(&bytes));
        if sums.lines().any(|listed| listed == line) {
            return Ok(bytes);
        }
        Err(format!("{}: its {SUMS} does not list {name} as it is", functions.display()))
    };
    let version = read_listed("VERSION")?;
    if String::from_utf8_lossy(&version).trim() != release.version {
        return Err(format!("{} has functions of another version", functions.display()));
    }
    files.insert("VERSION".to_owned(), version);
    for arch in ARCHS {
        for function in FUNCTIONS {
            let zip = read_listed(&format!("{arch}/{function}.zip"))?;
            files.insert(format!("{arch}-{function}.zip"), zip);
        }
    }
    for template in ["template.yaml", "code-bucket.yaml"] {
        files.insert(template.to_owned(), release.read(&format!("infra/{template}"))?);
    }
    let module = module(release)?.tar_gz("terraform-aws-tidegate/", release.time)?;
    files.insert("terraform-aws-tidegate.tar.gz".to_owned(), module);
    Ok(files)
}

/// Returns the repository of the module: the module at its root, what it consists of in `modules/`,
/// and an example.
pub fn module(release: &Release) -> Result<Tree, String> {
    let mut tree = Tree::default();
    for (path, text) in release.folder("infra/terraform")? {
        if LOCAL.iter().any(|local| path.contains(local)) {
            continue;
        }
        // A registry expects inner modules below `modules`.
        let (path, text) = match path.strip_prefix("function/") {
            Some(rest) => (format!("modules/function/{rest}"), text),
            None => (path, replaced(&text, "\"./function\"", "\"./modules/function\"")),
        };
        let docs = format!("{}/blob/v{}/docs/", super::REPOSITORY, release.version);
        tree.file(path, 0o644, replaced(&text, "../../docs/", &docs));
    }
    let example = release.read("infra/examples/terraform/main.tf")?;
    let example = replaced(&example, "\"../../terraform\"", "\"../..\"");
    tree.file("examples/complete/main.tf", 0o644, example);
    let readme = release.read("packaging/terraform/README.md")?;
    let readme = replaced(&readme, "@VARIABLES@", &variables(release)?);
    tree.file("README.md", 0o644, replaced(&readme, "@VERSION@", &release.version));
    tree.file("LICENSE", 0o644, release.read("LICENSE")?);
    Ok(tree)
}

fn replaced(text: &[u8], from: &str, to: &str) -> Vec<u8> {
    String::from_utf8_lossy(text).replace(from, to).into_bytes()
}

/// Returns the variables of the module as rows of a table.
fn variables(release: &Release) -> Result<String, String> {
    let text = release.read("infra/terraform/variables.tf")?;
    let text = String::from_utf8_lossy(&text);
    let (mut rows, mut name, mut default, mut about) = (String::new(), "", None, "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("variable \"") {
            (name, default, about) = (rest.trim_end_matches("\" {"), None, "");
        } else if let Some((key, value)) = line.trim().split_once('=') {
            match key.trim() {
                "default" => default = Some(value.trim()),
                "description" => about = value.trim().trim_matches('"'),
                _ => {}
            }
        } else if line == "}" && !name.is_empty() {
            let default = default.map_or("required".to_owned(), |value| format!("`{value}`"));
            let _ = writeln!(rows, "| `{name}` | {default} | {about} |");
            name = "";
        }
    }
    if rows.is_empty() {
        return Err("infra/terraform/variables.tf has no variables".into());
    }
    Ok(rows)
}
