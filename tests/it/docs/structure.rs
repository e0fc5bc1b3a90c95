//! Links and anchors resolve, the table of contents is complete, and decisions have their parts.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::{SUMMARY, documents, root};

#[test]
fn every_link_and_anchor_resolves() {
    let documents = documents();
    let mut dead = Vec::new();
    for (path, text) in &documents {
        let dir = Path::new(path).parent().unwrap();
        let prose = without_code(text);
        for link in
            prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
        {
            let link = link.split_whitespace().next().unwrap_or_default();
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) =
                link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let target = if file.is_empty() { path.clone() } else { normal(&dir.join(file)) };
            let is_there = root().join(&target).exists();
            let has_anchor = anchor.is_none_or(|anchor| {
                documents.get(&target).is_none_or(|text| anchors(text).contains(anchor))
            });
            if !is_there || !has_anchor {
                dead.push(format!("{path}: {link}"));
            }
        }
        // The style guide names files of other projects.
        if path != "docs/STYLE.md" {
            dead.extend(dead_paths(text).map(|name| format!("{path}: `{name}`")));
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn every_path_in_a_comment_exists() {
    let mut dead = Vec::new();
    for folder in ["src", "functions", "tests", "examples", "benches", "xtask"] {
        for path in rust_files(&root().join(folder)) {
            let source = fs::read_to_string(&path).unwrap();
            let comments: Vec<&str> =
                source.lines().map(str::trim_start).filter(|line| line.starts_with("//")).collect();
            let comments = comments.join("\n");
            dead.extend(dead_paths(&comments).map(|name| format!("{}: `{name}`", path.display())));
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

/// The paths in back quotes that do not exist in this repository.
fn dead_paths(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2).filter(|name| {
        let is_path = ["src/", "tests/", "docs/", "examples/", "benches/"]
            .iter()
            .any(|start| name.starts_with(start));
        let is_plain =
            name.chars().all(|letter| letter.is_alphanumeric() || "/._-".contains(letter));
        is_path && is_plain && !root().join(name).exists()
    })
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
    found
}

/// A document without its code blocks and its code in lines.
fn without_code(text: &str) -> String {
    let mut prose = String::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            let parts = line.split('`').enumerate();
            prose.extend(parts.map(|(at, part)| if at % 2 == 0 { part } else { "code" }));
            prose.push('\n');
        }
    }
    prose
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.to_str().unwrap().split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of a document's headings, as mdBook and the usual forges form them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut in_block = false;
    for line in text.lines() {
        in_block ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        if in_block || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let lower = heading.trim().to_lowercase();
        let letters = lower.chars().filter_map(|letter| match letter {
            letter if letter.is_alphanumeric() || letter == '_' || letter == '-' => Some(letter),
            letter if letter.is_whitespace() => Some('-'),
            _ => None,
        });
        let anchor: String = letters.collect();
        let repeated = (1..).map(|n| format!("{anchor}-{n}"));
        let free = std::iter::once(anchor.clone())
            .chain(repeated)
            .find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}

#[test]
fn the_summary_lists_every_page_once() {
    let links = SUMMARY.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    // A heading of a group has no page.
    let listed: Vec<&str> = links.filter(|link| !link.is_empty()).collect();
    let unique: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!(listed.len(), unique.len(), "a page is listed twice: {listed:#?}");
    let documents = documents();
    let pages = documents
        .keys()
        .filter_map(|path| path.strip_prefix("docs/"))
        .filter(|page| *page != "SUMMARY.md");
    assert_eq!(unique, pages.collect(), "left: listed; right: in docs/");
}

#[test]
fn every_decision_has_the_usual_parts() {
    let documents = documents();
    let decisions: Vec<_> =
        documents.iter().filter(|(path, _)| path.starts_with("docs/decisions/")).collect();
    for (number, (path, text)) in decisions.iter().enumerate() {
        let name = path.trim_start_matches("docs/decisions/");
        assert!(name.starts_with(&format!("{:04}-", number + 1)), "there is a gap before {path}");
        for part in ["Status:", "Date:", "\n## Context\n", "\n## Decision\n", "\n## Consequences\n"]
        {
            assert!(text.contains(part), "{path} has no {}", part.trim());
        }
    }
}
