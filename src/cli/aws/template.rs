//! The templates in this program: the deployment, and the bucket of its code.

use std::collections::BTreeMap;

/// The template of the deployment, which the functions of this release need.
pub const TEMPLATE: &str = include_str!("../../../infra/template.yaml");
/// The template of the bucket with the zips and the templates of all releases of one stack.
pub const CODE_TEMPLATE: &str = include_str!("../../../infra/code-bucket.yaml");

/// The parameters of [`TEMPLATE`], with their defaults; `None` if one is required.
pub fn parameters() -> BTreeMap<&'static str, Option<&'static str>> {
    let mut found = BTreeMap::new();
    let mut current = None;
    let section = TEMPLATE.lines().skip_while(|line| *line != "Parameters:").skip(1);
    // The next section begins with a line that is not indented.
    for line in section.take_while(|line| line.is_empty() || line.starts_with(' ')) {
        let indent = line.len() - line.trim_start().len();
        match (indent, line.trim_start().split_once(':')) {
            (2, Some((name, ""))) => {
                found.insert(name, None);
                current = Some(name);
            }
            (4, Some(("Default", default))) => {
                let default = default.trim().trim_matches(['\'', '"']);
                found.extend(current.map(|name| (name, Some(default))));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_with_their_defaults() {
        let parameters = parameters();
        assert!(parameters.len() > 40, "{parameters:?}");
        for (name, default) in [
            ("CodeBucket", None),
            ("AlarmEmail", None),
            ("Architecture", Some("arm64")),
            ("AdminToken", Some("")),
            ("IngestKafkaTopic", Some("")),
            ("EnqueueReservedConcurrency", Some("100")),
        ] {
            assert_eq!(parameters[name], default, "{name}");
        }
    }
}
