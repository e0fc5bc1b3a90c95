//! The words of prose and the length of test names.
//!
//! `docs/words.txt` lists words that documents must not use, each with its replacement. The list
//! also applies to the comments of Rust source and to its prose: the string literals with a space.
//! A test name has at most [`MAX_TEST_NAME`] characters.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

const WORDS: &str = "docs/words.txt";
const MAX_TEST_NAME: usize = 60;

/// Markdown that is searched: files, and folders with everything below them.
const PROSE: [&str; 11] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "clients",
    "docs",
    "examples",
    "infra/README.md",
    "localstack/README.md",
    "plugins",
];
/// Folders of Rust source that is searched.
const SOURCE: [&str; 7] = ["src", "tests", "functions", "xtask", "examples", "benches", "plugins"];
/// Files that name the words in order to replace them.
const EXEMPT: [&str; 3] = ["docs/GLOSSARY.md", "docs/STYLE.md", "tests/it/words.rs"];
/// Folders that tools write; `plugins/sdk/src/bindings` is one.
const GENERATED: [&str; 5] = ["target", "node_modules", "__pycache__", ".venv", "bindings"];

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

/// The words of a Markdown text with their lines, without code, link targets and letter case. The
/// text starts in line `first`. An empty word is a boundary that no phrase crosses: punctuation,
/// code, the end of a paragraph.
fn words(first: usize, text: &str) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    let (mut fenced, mut code) = (false, false);
    for (number, line) in (first..).zip(text.lines()) {
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

/// The length of the first lexeme of `source`: a line comment, a string literal, a character, a
/// word, or one other letter. The prefixes of a string are words of their own, except those of a
/// raw string.
pub fn lexeme(source: &str) -> usize {
    let end_of = |from: usize, end: &str| {
        source[from..].find(end).map_or(source.len(), |at| from + at + end.len())
    };
    if source.starts_with("//") {
        return source.find('\n').unwrap_or(source.len());
    }
    if let Some(text) = source.strip_prefix('"') {
        let mut escaped = false;
        let ends = |letter| {
            let ends = letter == '"' && !escaped;
            escaped = letter == '\\' && !escaped;
            ends
        };
        return text.find(ends).map_or(source.len(), |at| at + 2);
    }
    if let Some(text) = source.strip_prefix('\'') {
        let mut letters = text.chars();
        return match (letters.next(), letters.next()) {
            (Some('\\'), _) => end_of(3, "'"),
            (Some(letter), Some('\'')) => letter.len_utf8() + 2,
            _lifetime => 1,
        };
    }
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let word = source.find(|letter| !is_word(letter)).unwrap_or(source.len());
    let hashes = source[word..].bytes().take_while(|byte| *byte == b'#').count();
    if ["r", "br"].contains(&&source[..word]) && source[word + hashes..].starts_with('"') {
        return end_of(word + hashes + 1, &format!("\"{}", "#".repeat(hashes)));
    }
    word.max(source.chars().next().map_or(0, char::len_utf8))
}

/// The comments of Rust source and its string literals with a space, each with its first line.
/// Comments on consecutive lines are one text.
fn prose(source: &str) -> Vec<(usize, String)> {
    let mut texts: Vec<(usize, String)> = Vec::new();
    let (mut rest, mut line, mut next_comment) = (source, 1, 0);
    while !rest.is_empty() {
        let (lexeme, after) = rest.split_at(lexeme(rest));
        if let Some(comment) = lexeme.strip_prefix("//") {
            let comment = comment.trim_start_matches(['/', '!']);
            match texts.last_mut() {
                Some((_, text)) if line == next_comment => text.extend(["\n", comment]),
                _ => texts.push((line, comment.to_owned())),
            }
            next_comment = line + 1;
        } else if let Some((_, string)) = lexeme.split_once('"')
            && !lexeme.starts_with('\'')
            && string.contains(' ')
        {
            texts.push((line, string.replace("\\n", " ").replace("\\\n", "\n")));
            next_comment = 0;
        }
        line += lexeme.matches('\n').count();
        rest = after;
    }
    texts
}

/// One sentence per banned phrase in `text`, which starts in line `first`.
fn hits(path: &str, first: usize, text: &str, banned: &Banned) -> Vec<String> {
    let words = words(first, text);
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
    found.retain(|path| !EXEMPT.contains(&path.as_str()));
    found
}

/// One sentence per finding.
fn findings() -> Vec<String> {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let banned = banned(&read(WORDS));
    let mut findings = Vec::new();
    for path in files_in(&PROSE, "md") {
        findings.extend(hits(&path, 1, &read(&path), &banned));
    }
    for path in files_in(&SOURCE, "rs") {
        let texts = prose(&read(&path));
        findings.extend(texts.iter().flat_map(|(line, text)| hits(&path, *line, text, &banned)));
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
    let found = hits("x.md", 1, text, &banned(list));
    let expected = [
        "x.md:1: \"nobody\": write no worker",
        "x.md:1: \"of which\": write whose",
        "x.md:7: \"nobody else\": write no other process",
    ];
    assert_eq!(found, expected);
}

#[test]
fn comments_and_prose_are_found_in_source() {
    let source = r##"//! Made of it,
//! of

let nobody = "nobody"; // Which one.
/// Tells nobody.
fn f<'a>(c: char, b: &'a u8) -> String {
    assert!(c != '"' && c != '\'' && *b != b'\\', "a \"quoted\" part, \nof \
        which");
    format!(r#"{c} "of "#, "which one")
}
const T: &[u8] = b"//\\"; // For it is.
"##;
    let expected: [(usize, &str); 6] = [
        (1, " Made of it,\n of"),
        (4, " Which one.\n Tells nobody."),
        (7, "a \\\"quoted\\\" part,  of \n        which\""),
        (9, "{c} \"of \"#"),
        (9, "which one\""),
        (11, " For it is."),
    ];
    assert_eq!(prose(source), expected.map(|(line, text)| (line, text.to_owned())));
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
