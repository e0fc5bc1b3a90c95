//! The settings as people are told of them: taken from the struct, so that the docs are true.

use super::{Jwt, PREFIX, Settings};

/// What people are told of one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Its name in the file, with dots between the names of nested ones.
    pub name: String,
    /// The environment variable with its value.
    pub variable: String,
    /// Its default, as it would stand in the file; empty if it has none.
    pub default: String,
    /// What it means, in Markdown.
    pub meaning: &'static str,
}

/// Every setting, in the order of [`Settings`].
pub fn reference() -> Vec<Reference> {
    let defaults = serde_json::to_value(Settings::default()).expect("settings are plain data");
    let one = |name: String, meaning: &'static str, default: &serde_json::Value| Reference {
        variable: variable(&name),
        name,
        default: if default.is_null() { String::new() } else { default.to_string() },
        meaning: meaning.trim(),
    };
    let mut all = Vec::new();
    for (name, meaning) in Settings::FIELDS {
        if *name == "jwt" {
            all.extend(Jwt::FIELDS.iter().map(|(field, meaning)| one(format!("jwt.{field}"), meaning, &defaults["jwt"][field])));
        } else {
            all.push(one((*name).into(), meaning, &defaults[name]));
            if *name == "default_target" {
                // A table whose fields are those of a type's target: each is a variable of its own.
                all.iter_mut().last().expect("just pushed").variable += "__…";
            }
        }
    }
    all
}

/// [`reference()`] as a Markdown table.
pub fn reference_table() -> String {
    let head = "| setting | variable | default | meaning |\n|---|---|---|---|\n".to_owned();
    let lines = reference().into_iter().map(|Reference { name, variable, default, meaning }| {
        let default = if default.is_empty() { default } else { format!("`{default}`") };
        format!("| `{name}` | `{variable}` | {default} | {meaning} |\n")
    });
    head + &lines.collect::<String>()
}

/// The environment variable of a setting.
pub(super) fn variable(setting: &str) -> String {
    format!("{PREFIX}{}", setting.to_uppercase().replace('.', "__"))
}
