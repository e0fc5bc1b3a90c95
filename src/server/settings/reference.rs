//! The reference of settings for operators, generated from the struct so that it is complete.

use super::{Console, Emf, Jwt, Oidc, PREFIX, Settings, Tracing};

/// The description of one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Its name in the file, with dots between the names of nested settings.
    pub name: String,
    /// Its environment variable.
    pub variable: String,
    /// Its default in the syntax of the file; empty if it has none.
    pub default: String,
    /// Its meaning, in Markdown.
    pub meaning: &'static str,
}

/// Settings that are tables of documented settings.
const TABLES: [(&str, &[(&str, &str)]); 5] = [
    ("console", Console::FIELDS),
    ("emf", Emf::FIELDS),
    ("tracing", Tracing::FIELDS),
    ("jwt", Jwt::FIELDS),
    ("oidc", Oidc::FIELDS),
];
/// Settings that are tables with other fields. Each field has its own variable.
const OPEN_TABLES: [&str; 3] = ["default_target", "tracing.otlp_headers", "console.servers"];

/// Maximum width of the meanings in [`reference_list`].
const LIST_COLUMNS: usize = 80;
/// What precedes a meaning in [`reference_list`].
const LIST_INDENT: &str = "          ";

/// Every setting, in the order of [`Settings`].
pub fn reference() -> Vec<Reference> {
    let defaults = serde_json::to_value(Settings::default()).expect("settings are plain data");
    let one = |name: String, meaning: &'static str, default: &serde_json::Value| Reference {
        variable: variable(&name) + if OPEN_TABLES.contains(&name.as_str()) { "__…" } else { "" },
        name,
        default: if default.is_null() { String::new() } else { default.to_string() },
        meaning: meaning.trim(),
    };
    let mut all = Vec::new();
    for (name, meaning) in Settings::FIELDS {
        let fields =
            TABLES.iter().find(|(table, _)| table == name).map_or(&[][..], |(_, fields)| fields);
        all.extend(fields.iter().map(|(field, meaning)| {
            one(format!("{name}.{field}"), meaning, &defaults[name][field])
        }));
        if fields.is_empty() {
            all.push(one((*name).into(), meaning, &defaults[name]));
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

/// [`reference()`] as a plain list for a terminal, in the form of the options in a command's help.
pub fn reference_list() -> String {
    let lines = reference().into_iter().map(|Reference { name, variable, default, meaning }| {
        let default = if default.is_empty() { default } else { format!(" [default: {default}]") };
        let meaning = wrapped(&meaning.replace('`', ""));
        format!("\n  {name}\n{meaning}{LIST_INDENT}[env: {variable}]{default}\n")
    });
    "Settings:".to_owned() + &lines.collect::<String>()
}

/// The words of `text` in indented lines of at most [`LIST_COLUMNS`], where a word fits.
fn wrapped(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), LIST_INDENT.to_owned());
    for word in text.split_whitespace() {
        let is_first = line.len() == LIST_INDENT.len();
        if !is_first && line.len() + 1 + word.len() > LIST_COLUMNS {
            lines += &line;
            lines.push('\n');
            line = format!("{LIST_INDENT}{word}");
        } else {
            line += if is_first { "" } else { " " };
            line += word;
        }
    }
    lines + &line + "\n"
}

/// The environment variable of a setting.
pub(super) fn variable(setting: &str) -> String {
    format!("{PREFIX}{}", setting.to_uppercase().replace('.', "__"))
}
