//! Lists the files that `tidegate plugin new` writes, so that they become part of the binary as they are in `plugins`.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Folders of `plugins` of which new projects are made.
const FOLDERS: [&str; 5] = ["sdk", "sdk-js", "sdk-python", "templates", "wit"];

fn main() {
    let plugins =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("plugins");
    let mut files = Vec::new();
    for folder in FOLDERS {
        println!("cargo::rerun-if-changed=plugins/{folder}");
        collect(&plugins.join(folder), &mut files);
    }
    files.sort();
    let mut list = String::from("&[\n");
    for file in &files {
        let path = file
            .strip_prefix(&plugins)
            .expect("it was found there")
            .to_str()
            .expect("a path of ASCII")
            .replace('\\', "/");
        let file = file.to_str().expect("a path of UTF-8");
        writeln!(list, "    ({path:?}, include_str!({file:?})),").expect("a text takes all");
    }
    list.push(']');
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("templates.rs");
    fs::write(out, list).expect("cargo's own folder can be written to");
}

/// The files in `folder` and below it, without what builds and editors leave there.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let left_behind = ["target", "node_modules", "__pycache__", ".venv"]
            .contains(&name.as_str())
            || name.ends_with('~');
        if left_behind {
            continue;
        }
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}
