//! Lists the files of `plugins` that `tidegate plugin new` writes, and includes them in the binary.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Folders of `plugins` from which new projects are made.
const TEMPLATE_FOLDERS: [&str; 9] = [
    "sdk",
    "sdk-assemblyscript",
    "sdk-c",
    "sdk-go",
    "sdk-js",
    "sdk-python",
    "sdk-zig",
    "templates",
    "wit",
];

fn main() {
    let plugins =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("plugins");
    let mut files = Vec::new();
    for folder in TEMPLATE_FOLDERS {
        println!("cargo::rerun-if-changed=plugins/{folder}");
        collect(&plugins.join(folder), &mut files);
    }
    files.sort();
    let mut list = String::from("&[\n");
    for file in &files {
        let path = file
            .strip_prefix(&plugins)
            .expect("the file was found below this folder")
            .to_str()
            .expect("the sources have ASCII paths")
            .replace('\\', "/");
        let file = file.to_str().expect("the checkout has a UTF-8 path");
        writeln!(list, "    ({path:?}, include_str!({file:?})),").expect("a string grows");
    }
    list.push(']');
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("templates.rs");
    fs::write(out, list).expect("OUT_DIR is writable");
}

/// Adds the files in and below `folder` to `files`, except the leftovers of builds and editors.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.expect("the sources are readable").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let left_behind =
            ["target", "node_modules", "__pycache__", ".compiled", ".venv", ".zig-cache"]
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
