//! The files for Kubernetes: the plain manifests in one file, and the Helm chart as Helm packages
//! it.

use super::{Files, Release, tree::Tree};

/// Returns `tidegate-kubernetes.yaml`, `tidegate-chart-VERSION.tgz`, the files of the compose example
/// as `tidegate-compose.tar.gz`, and the example of KEDA, which its users edit, as
/// `tidegate-keda.yaml`.
///
/// # Errors
///
/// A file of the repository is missing.
pub fn make(release: &Release) -> Result<Files, String> {
    let manifests = release.folder("packaging/kubernetes")?;
    let manifests: Vec<String> = manifests
        .into_iter()
        .filter(|(path, _)| !path.contains('/'))
        .map(|(_, text)| String::from_utf8_lossy(&text).trim_end().to_owned())
        .collect();
    let mut chart = Tree::default();
    for (path, text) in release.folder("packaging/helm/tidegate")? {
        chart.file(path, 0o644, text);
    }
    let mut compose = Tree::default();
    for (path, text) in release.folder("packaging/compose")? {
        compose.file(path, 0o644, text);
    }
    Ok([
        ("tidegate-kubernetes.yaml".to_owned(), format!("{}\n", manifests.join("\n---\n")).into()),
        (
            format!("tidegate-chart-{}.tgz", release.version),
            chart.tar_gz("tidegate/", release.time)?,
        ),
        ("tidegate-compose.tar.gz".to_owned(), compose.tar_gz("tidegate-compose/", release.time)?),
        (
            "tidegate-keda.yaml".to_owned(),
            release.read("packaging/kubernetes/keda/scaled-worker.yaml")?,
        ),
    ]
    .into())
}
