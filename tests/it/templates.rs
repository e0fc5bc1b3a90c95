//! The SAM template and the Terraform module describe the same deployment: their parameters, the
//! defaults of these, and the environment of the functions.

use std::collections::{BTreeMap, BTreeSet};

const TEMPLATE: &str = include_str!("../../infra/template.yaml");
const VARIABLES: &str = include_str!("../../infra/terraform/variables.tf");
const MODULE: [&str; 2] = [
    include_str!("../../infra/terraform/functions.tf"),
    include_str!("../../infra/terraform/ingest.tf"),
];
/// Parameters that the module lacks, as `docs/deploy-aws.md` explains: warm throughput, canaries.
const TEMPLATE_ONLY: [&str; 4] = ["canary", "canary_type", "warm_read_units", "warm_write_units"];
/// The variable that replaces the name of the stack.
const MODULE_ONLY: &str = "name";

/// `snake_case` of a parameter's name.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// A default without quotes; an empty list is an empty text.
fn value(text: &str) -> String {
    let text = text.trim().trim_matches(['\'', '"']);
    if text == "[]" { String::new() } else { text.to_owned() }
}

/// The parameters of the template, with their defaults; none if one is required.
fn parameters() -> BTreeMap<String, Option<String>> {
    let (_, rest) = TEMPLATE.split_once("\nParameters:\n").unwrap();
    let (section, _) = rest.split_once("\nRules:\n").unwrap();
    let mut found = BTreeMap::new();
    let mut current = String::new();
    for line in section.lines() {
        if let Some(default) = line.strip_prefix("    Default: ") {
            found.insert(current.clone(), Some(value(default)));
        } else if let Some(name) = line.strip_prefix("  ").and_then(|line| line.strip_suffix(':'))
            && !name.starts_with(' ')
        {
            current = snake(name);
            found.insert(current.clone(), None);
        }
    }
    found
}

/// The variables of the module, with their defaults; none if one is required.
fn variables() -> BTreeMap<String, Option<String>> {
    let blocks = VARIABLES.split("\nvariable \"").skip(1);
    let variable = |block: &str| {
        let (name, body) = block.split_once('"').unwrap();
        let assignment = body.lines().find_map(|line| line.trim().strip_prefix("default "));
        let default = assignment.map(|line| value(line.trim_start().trim_start_matches('=')));
        (name.to_owned(), default)
    };
    blocks.map(variable).collect()
}

/// The variables of the functions that a text sets.
fn environment(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_uppercase() && c != '_')
        .filter(|word| word.starts_with("TIDEGATE_"))
        .collect()
}

#[test]
fn the_module_has_the_parameters_of_the_template() {
    let (mut parameters, mut variables) = (parameters(), variables());
    assert!(parameters.len() > 40 && parameters["shards"] == Some("1".to_owned()));
    assert!(parameters["alarm_email"].is_none() && parameters["monthly_budget"].is_none());
    for name in TEMPLATE_ONLY {
        assert!(parameters.remove(name).is_some(), "{name}");
    }
    assert!(variables.remove(MODULE_ONLY).is_some());
    assert_eq!(parameters, variables);
}

#[test]
fn the_module_sets_the_environment_of_the_template() {
    let of_module: BTreeSet<&str> = MODULE.into_iter().flat_map(environment).collect();
    assert_eq!(environment(TEMPLATE), of_module);
}

#[test]
fn functions_without_tokens_cannot_write_them() {
    for (role, owns) in [
        ("Enqueue", true),
        ("Plugins", true),
        ("Tick", false),
        ("Sweep", false),
        ("Deliver", false),
        ("Ingest", false),
    ] {
        let (_, rest) = TEMPLATE.split_once(&format!("\n  {role}Role:\n")).unwrap();
        let policies = rest.lines().find(|line| line.contains("ManagedPolicyArns")).unwrap();
        assert_eq!(!policies.contains("!Ref NoOwnerPolicy"), owns, "{role}");
        let module = MODULE.iter().find_map(|text| {
            text.split_once(&format!("\nmodule \"{}\" {{\n", role.to_lowercase()))
        });
        let (_, rest) = module.unwrap();
        let (block, _) = rest.split_once("\n}\n").unwrap();
        let denied = block.lines().any(|line| line.split_whitespace().eq(["owner", "=", "false"]));
        assert_eq!(!denied, owns, "{role} of the module");
    }
}
