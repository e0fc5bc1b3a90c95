//! The projects that `tidegate plugin new` creates: the files of this repository's `plugins`
//! folder.
//!
//! The binary contains them, so that an author needs only the binary. `build.rs` lists the files.

use super::new::{Lang, Role};

/// Files of `plugins`: path and text.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/templates.rs"));

/// The name of the plugin in a template.
const NAME: &str = "my-plugin";

/// Returns the files of a new project: path and text.
pub fn project(lang: Lang, role: Role, name: &str) -> Vec<(String, String)> {
    let (template, sdk) = (format!("templates/{}-{}/", word(&lang), word(&role)), sdk(lang));
    let place = |path: &str| {
        let own = path.strip_prefix(&template).map(str::to_owned);
        let sdk = path.strip_prefix(sdk).map(|rest| format!("sdk/{rest}"));
        own.or(sdk).or_else(|| path.starts_with("wit/").then(|| path.to_owned()))
    };
    FILES.iter().filter_map(|(path, text)| Some((place(path)?, text.replace(NAME, name)))).collect()
}

/// Returns the folder of a language's SDK.
fn sdk(lang: Lang) -> &'static str {
    match lang {
        Lang::Rust => "sdk/",
        Lang::Js | Lang::Ts => "sdk-js/",
        Lang::Python => "sdk-python/",
        Lang::Go => "sdk-go/",
        Lang::AssemblyScript => "sdk-assemblyscript/",
        Lang::C | Lang::Cpp => "sdk-c/",
        Lang::Zig => "sdk-zig/",
    }
}

/// Returns the word for a choice on the command line and in names of folders.
fn word(choice: &impl clap::ValueEnum) -> String {
    choice.to_possible_value().expect("no choice is hidden").get_name().to_owned()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_project_has_its_source_its_sdk_and_the_contract() {
        for lang in Lang::value_variants() {
            for role in Role::value_variants() {
                let files = project(*lang, *role, "fair-share");
                let has = |wanted: &str| {
                    files.iter().any(|(path, text)| path == wanted && !text.is_empty())
                };
                let (source, sdk) = match lang {
                    Lang::Rust => ("src/lib.rs", "sdk/src/lib.rs"),
                    Lang::Js => ("plugin.js", "sdk/throttler.js"),
                    Lang::Ts => ("plugin.ts", "sdk/throttler.d.ts"),
                    Lang::Python => ("plugin.py", "sdk/throttler.py"),
                    Lang::Go => ("plugin.go", "sdk/throttler/throttler.go"),
                    Lang::AssemblyScript => ("plugin.ts", "sdk/throttler.ts"),
                    Lang::C => ("plugin.c", "sdk/tidegate.h"),
                    Lang::Cpp => ("plugin.cpp", "sdk/tidegate.hpp"),
                    Lang::Zig => ("plugin.zig", "sdk/tidegate.zig"),
                };
                assert!(
                    has(source) && has(sdk) && has("wit/plugin.wit"),
                    "{lang:?} {role:?}: {files:?}"
                );
                assert!(
                    files.iter().any(|(path, _)| path.starts_with("cases/")),
                    "{lang:?} {role:?} has no case"
                );
                assert!(
                    files.iter().all(|(path, text)| !path.contains(NAME) && !text.contains(NAME)),
                    "{lang:?} {role:?}"
                );
            }
        }
    }
}
