//! The projects that `tidegate plugin new` makes, as they are in this repository's `plugins` folder.
//!
//! They are part of the binary, so that an author needs nothing but it: `build.rs` lists the files.

use super::new::{Lang, Role};

/// Files of `plugins`: path and text.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/templates.rs"));

/// What a template calls its plugin.
const NAME: &str = "my-plugin";

/// The files of a new project: path and text.
pub fn project(lang: Lang, role: Role, name: &str) -> Vec<(String, String)> {
    let template = format!("templates/{}-{}/", word(lang), word(role));
    let named = |text: &str| text.replace(NAME, name);
    let own = FILES.iter().filter_map(|(path, text)| Some((named(path.strip_prefix(&template)?), named(text))));
    let shared = FILES.iter().filter(|(path, _)| path.starts_with("wit/") || (lang == Lang::Rust && path.starts_with("sdk/")));
    own.chain(shared.map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))).collect()
}

/// What a choice is called on the command line and in the names of folders.
fn word(choice: impl clap::ValueEnum) -> String {
    choice.to_possible_value().expect("no choice is hidden").get_name().to_owned()
}
