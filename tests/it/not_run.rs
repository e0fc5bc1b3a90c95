//! Tests whose requirements are missing are left out by `./test`, which prints NOT RUN. Others would fail.

use std::collections::BTreeSet;

use crate::architecture::{root, sources};

/// What a test calls that needs Postgres.
const ON_POSTGRES: [&str; 3] = ["test_server::", "OwnServer::", "on_postgres("];

/// A function of a source file.
struct Function<'a> {
    name: &'a str,
    is_test: bool,
    text: &'a str,
}

#[test]
fn tests_on_postgres_are_left_out_where_it_is_missing() {
    let script = std::fs::read_to_string(root().join("test")).unwrap();
    let (_, without) = script.split_once("if ! has_postgres >/dev/null; then\n").unwrap();
    let without = without.split("\n    fi\n").next().unwrap();
    let patterns = without.split("test(").skip(1).map(|rest| rest.split(')').next().unwrap());
    let patterns: Vec<&str> = patterns.collect();
    let (mut found, mut missed) = (0, Vec::new());
    for source in sources() {
        // The tests of the store itself are in one module.
        if source.path.starts_with("src/backends/postgres/") || source.path == file!() {
            continue;
        }
        for name in tests_on_postgres(&source.whole) {
            let name = format!("{}::{name}", module(&source.path));
            found += 1;
            if !patterns.iter().any(|pattern| selects(pattern, &name)) {
                missed.push(name);
            }
        }
    }
    assert!(found > 10, "{found}");
    assert_eq!(missed, [""; 0]);
}

/// The module of a file, as the names of its tests have it.
fn module(path: &str) -> String {
    let path = path.trim_start_matches("tests/it/").trim_start_matches("src/");
    path.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::")
}

/// The tests of a file that use Postgres, also by its other functions. Those in a module of tests have its
/// name in theirs.
fn tests_on_postgres(source: &str) -> Vec<String> {
    let functions = functions(source);
    let uses = |function: &Function<'_>, known: &BTreeSet<&str>| {
        ON_POSTGRES.iter().any(|call| function.text.contains(call))
            || known.iter().any(|name| function.text.contains(&format!("{name}(")))
    };
    let mut known = BTreeSet::new();
    loop {
        let more: BTreeSet<&str> =
            functions.iter().filter(|of| uses(of, &known)).map(|of| of.name).collect();
        if more == known {
            break;
        }
        known = more;
    }
    let tests = functions.iter().filter(|of| of.is_test && known.contains(of.name));
    let is_inside = |of: &Function<'_>| of.text.starts_with("    ");
    tests
        .map(|of| if is_inside(of) { format!("tests::{}", of.name) } else { of.name.into() })
        .collect()
}

/// The functions of a file: outside of others, or in a block such as a module of tests.
fn functions(source: &str) -> Vec<Function<'_>> {
    let mut found = Vec::new();
    let (mut at, mut is_test) = (0, false);
    for line in source.split_inclusive('\n') {
        let (start, trimmed) = (at, line.trim_start());
        at += line.len();
        let indent = &line[..line.len() - trimmed.len()];
        let Some((before, rest)) = trimmed.split_once("fn ") else {
            // An attribute is about the next function, with others in between.
            is_test = (is_test && trimmed.starts_with('#')) || is_attribute_of_test(trimmed);
            continue;
        };
        let is_function =
            before.split_whitespace().all(|word| word.starts_with("pub") || word == "async");
        if is_function && indent.len() <= 4 {
            let name = rest.split(['(', '<']).next().unwrap();
            let end = format!("\n{indent}}}\n");
            let text = &source[start..];
            let text = text.find(&end).map_or(text, |length| &text[..length]);
            found.push(Function { name, is_test, text });
        }
        is_test = false;
    }
    found
}

fn is_attribute_of_test(line: &str) -> bool {
    ["#[test]", "#[tokio::test", "#[rstest]"].iter().any(|attribute| line.starts_with(attribute))
}

/// Whether a pattern of a filter, a part of a name or a simple regular expression, selects the test `name`.
fn selects(pattern: &str, name: &str) -> bool {
    let Some(regex) = pattern.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) else {
        return name.contains(pattern);
    };
    if let Some(start) = regex.strip_prefix('^') {
        return name.starts_with(start);
    }
    let mut rest = name;
    regex.split(".*").all(|part| {
        let after = rest.split_once(part).map(|(_, after)| after);
        rest = after.unwrap_or_default();
        after.is_some()
    })
}

#[test]
fn a_filter_selects_by_part_or_by_expression() {
    for (pattern, name, good) in [
        ("servers::", "e2e::servers::a", true),
        ("/^bench::/", "bench::a", true),
        ("/^bench::/", "e2e::bench::a", false),
        ("/e2e::crash::.*postgres/", "e2e::crash::outages::postgres_a", true),
        ("/e2e::crash::.*postgres/", "e2e::postgres::crash::a", false),
    ] {
        assert_eq!(selects(pattern, name), good, "{pattern} {name}");
    }
}

#[test]
fn a_test_uses_what_its_helpers_use() {
    let source = "fn helper() {\n    let a = test_server::address();\n}\n\n#[tokio::test]\n#[ignore]\n\
                  async fn a() {\n    helper();\n}\n\n#[test]\nfn b() {\n    other();\n}\n\n\
                  mod tests {\n    #[test]\n    fn c() {\n        helper();\n    }\n}\n";
    assert_eq!(tests_on_postgres(source), ["a", "tests::c"]);
}
