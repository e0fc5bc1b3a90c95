//! Compresses the files of the console, so that no server does it.

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};

/// The files, in `dashboard/dist`.
const FILES: [&str; 3] = ["index.html", "console.js", "console.css"];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let folder = Path::new("dashboard/dist");
    for name in FILES {
        let path = folder.join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        let bytes = fs::read(&path).expect("the built files of the console are committed");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&bytes).expect("memory takes all bytes");
        let packed = encoder.finish().expect("memory takes all bytes");
        fs::write(out.join(name).with_added_extension("gz"), packed).expect("OUT_DIR is writable");
    }
}
