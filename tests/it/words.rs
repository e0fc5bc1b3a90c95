//! The words of prose and the length of test names.
//!
//! `docs/words.txt` lists words that documents and doc comments must not use, each with its
//! replacement. A test name has at most [`MAX_TEST_NAME`] characters.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

const WORDS: &str = "docs/words.txt";
const MAX_TEST_NAME: usize = 60;

/// Markdown that is searched: files, and folders with everything below them.
const PROSE: [&str; 9] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "docs",
    "infra/README.md",
    "localstack/README.md",
    "plugins",
];
/// Files that name the words in order to replace them.
const EXEMPT: [&str; 2] = ["docs/GLOSSARY.md", "docs/STYLE.md"];
/// Folders that tools write.
const GENERATED: [&str; 4] = ["target", "node_modules", "__pycache__", ".venv"];

/// Phrases to avoid and what to write instead, by their first word, in lower case, longest first.
type Banned = BTreeMap<String, Vec<(Vec<String>, String)>>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn banned(list: &str) -> Banned {
    let mut banned = Banned::new();
    for entry in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some((phrase, replacement)) = entry.split_once(" = ") else {
            panic!("{WORDS}: no \" = \" in {entry:?}");
        };
        let phrase: Vec<String> = phrase.split(' ').map(str::to_lowercase).collect();
        let same_start = banned.entry(phrase[0].clone()).or_default();
        same_start.push((phrase, replacement.to_owned()));
        same_start.sort_by_key(|(phrase, _)| Reverse(phrase.len()));
    }
    banned
}

/// The words of a Markdown text with their lines, without code, link targets and letter case.
/// An empty word is a boundary that no phrase crosses: punctuation, code, the end of a paragraph.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    let (mut fenced, mut code) = (false, false);
    for (number, line) in (1..).zip(text.lines()) {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if fence || fenced || line.trim().is_empty() {
            code = false;
            words.push((number, String::new()));
            continue;
        }
        let (mut word, mut target, mut before) = (String::new(), false, ' ');
        for letter in line.chars().chain([' ']) {
            if letter == '`' && before != '`' {
                code = !code;
            }
            target = (target || before == ']' && letter == '(') && before != ')';
            before = letter;
            if letter.is_alphanumeric() && !code && !target {
                word.extend(letter.to_lowercase());
                continue;
            }
            if !word.is_empty() {
                words.push((number, std::mem::take(&mut word)));
            }
            if !(letter.is_whitespace() || "*_'’-[\"".contains(letter)) {
                words.push((number, String::new()));
            }
        }
    }
    words
}

/// The doc comments of Rust source, each on its own line, every other line empty.
fn doc_comments(source: &str) -> String {
    let comment = |line: &str| {
        let line = line.trim_start();
        let text = line.strip_prefix("//!").or_else(|| line.strip_prefix("///")).unwrap_or("");
        text.to_owned() + "\n"
    };
    source.lines().map(comment).collect()
}

/// One sentence per banned phrase in `text`.
fn hits(path: &str, text: &str, banned: &Banned) -> Vec<String> {
    let words = words(text);
    let mut hits = Vec::new();
    let mut rest = &words[..];
    while let Some((line, first)) = rest.first() {
        let starts =
            |phrase: &[String]| rest.iter().map(|(_, word)| word).take(phrase.len()).eq(phrase);
        let found =
            banned.get(first).and_then(|same| same.iter().find(|(phrase, _)| starts(phrase)));
        if let Some((phrase, replacement)) = found {
            hits.push(format!("{path}:{line}: \"{}\": write {replacement}", phrase.join(" ")));
        }
        rest = &rest[found.map_or(1, |(phrase, _)| phrase.len())..];
    }
    hits
}

/// One sentence per test of Rust source whose name is too long.
fn long_test_names(path: &str, source: &str) -> Vec<String> {
    let mut long = Vec::new();
    let mut is_test = false;
    for (number, line) in (1..).zip(source.lines()) {
        let line = line.trim_start();
        is_test |=
            ["#[test", "#[tokio::test", "#[rstest"].iter().any(|start| line.starts_with(start));
        let function = line.strip_prefix("pub ").unwrap_or(line);
        let function = function.strip_prefix("async ").unwrap_or(function);
        let Some(rest) = function.strip_prefix("fn ").filter(|_| is_test) else {
            continue;
        };
        is_test = false;
        let name = rest.split(['(', '<']).next().unwrap_or_default();
        if name.len() > MAX_TEST_NAME {
            let over = format!("{} characters, at most {MAX_TEST_NAME}", name.len());
            long.push(format!("{path}:{number}: the test name {name} has {over}"));
        }
    }
    long
}

/// Every file with this ending at `path` or below it, by its path from the root.
fn files(path: &Path, ending: &str, found: &mut Vec<String>) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if path.is_dir() && !GENERATED.contains(&name) {
        let mut entries: Vec<PathBuf> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for entry in entries {
            files(&entry, ending, found);
        }
    } else if path.is_file() && path.extension().is_some_and(|end| end == ending) {
        found.push(path.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/"));
    }
}

fn files_in(places: &[&str], ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    for place in places {
        files(&root().join(place), ending, &mut found);
    }
    found
}

/// One sentence per finding.
fn findings() -> Vec<String> {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let banned = banned(&read(WORDS));
    let mut findings = Vec::new();
    for path in files_in(&PROSE, "md").iter().filter(|path| !EXEMPT.contains(&path.as_str())) {
        findings.extend(hits(path, &read(path), &banned));
    }
    for path in files_in(&["src"], "rs") {
        findings.extend(hits(&path, &doc_comments(&read(&path)), &banned));
    }
    for path in files_in(&["src", "tests"], "rs") {
        findings.extend(long_test_names(&path, &read(&path)));
    }
    findings
}

#[test]
fn prose_and_test_names_keep_the_rules() {
    let findings = findings();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn banned_words_are_found_outside_of_code() {
    let list =
        "# A comment.\nof which = whose\nnobody = no worker\nnobody else = no other process\n";
    let text = "Nobody's job, *of\nwhich* `nobody` and ``nobody`` know. Made of. Which is [x](nobody).\n\
                ```sh\nnobody\n```\n`a\nnobody` said that nobody else comes.\n";
    let found = hits("x.md", text, &banned(list));
    let expected = [
        "x.md:1: \"nobody\": write no worker",
        "x.md:1: \"of which\": write whose",
        "x.md:7: \"nobody else\": write no other process",
    ];
    assert_eq!(found, expected);
    let source = "//! Of it.\nlet nobody = 1; // nobody\n    /// Tells nobody.\nfn f() {}\n";
    assert_eq!(
        hits("x.rs", &doc_comments(source), &banned(list)),
        ["x.rs:3: \"nobody\": write no worker"]
    );
}

#[test]
fn only_names_of_tests_are_measured() {
    let (long, fits) = ("x".repeat(MAX_TEST_NAME + 1), "x".repeat(MAX_TEST_NAME));
    let source = format!(
        "fn {long}() {{}}\n#[test]\nfn {fits}() {{}}\n#[rstest]\n#[case(1)]\nfn {long}(#[case] n: u8) {{}}\n\
         #[tokio::test]\nasync fn {long}() {{}}\nfn {long}() {{}}\n"
    );
    let lines = long_test_names("x.rs", &source);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("x.rs:6: ") && lines[1].starts_with("x.rs:8: "), "{lines:?}");
}
