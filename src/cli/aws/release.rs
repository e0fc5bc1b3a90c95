//! A release of a stack: its parameters and its upload.

use std::collections::BTreeMap;

use tidegate_core::time::Timestamp;

use super::{
    cloud::Cloud,
    code::{Code, Release, Releases},
    functions::Functions,
    stack::{Stack, Value},
    template::{self, TEMPLATE},
};
use crate::cli::UsageError;

/// The parameters of a change to this release: the given ones, and those that the stack has. The
/// template's defaults apply to the others.
///
/// # Errors
///
/// A parameter without a default has no value.
pub fn parameters(
    before: Option<&Stack>,
    given: &[(String, String)],
) -> Result<BTreeMap<String, Value>, UsageError> {
    let mut values = BTreeMap::new();
    for (name, default) in template::parameters() {
        let given = given.iter().rev().find(|(given, _)| given == name);
        let value = match given {
            Some((_, value)) => Value::Given(value.clone()),
            None if before.is_some_and(|stack| stack.parameters.contains_key(name)) => Value::Kept,
            None if default.is_some() => continue,
            None => {
                let missing = format!(
                    "the parameter {name} has no default: give it with --parameter {name}=VALUE"
                );
                return Err(UsageError(missing));
            }
        };
        values.insert(name.to_owned(), value);
    }
    Ok(values)
}

/// Refuses to replace a later release by this one: only `rollback` goes back, to a release that is
/// known to share data with the later one.
///
/// # Errors
///
/// The stack runs a later release.
pub fn refuse_downgrade(stack: &Stack) -> Result<(), UsageError> {
    let own = env!("CARGO_PKG_VERSION");
    let of_stack = stack.parameter("CodePrefix").strip_prefix("tidegate/");
    let of_stack =
        of_stack.and_then(|release| release.rsplit_once('-')).map(|(version, _)| version);
    if of_stack.and_then(numbers) <= numbers(own) {
        return Ok(());
    }
    Err(UsageError(format!(
        "the deployment has tidegate {}, which is later than this program, {own}: use the program of \
         that release, or go back with `tidegate aws rollback`",
        of_stack.unwrap_or_default()
    )))
}

/// The numbers of a version, such as 1.2.3; none for other text.
fn numbers(version: &str) -> Option<[u64; 3]> {
    let version = version.split(['-', '+']).next()?;
    let numbers: Result<Vec<u64>, _> = version.split('.').map(str::parse).collect();
    numbers.ok()?.try_into().ok()
}

/// The processor of the functions.
pub fn architecture(parameters: &[(String, String)], before: Option<&Stack>) -> String {
    let given = parameters.iter().rev().find(|(name, _)| name == "Architecture");
    let of_stack = before.and_then(|stack| stack.parameters.get("Architecture"));
    let default = template::parameters()["Architecture"].unwrap_or_default();
    given.map(|(_, value)| value).or(of_stack).map_or(default, |value| value).to_owned()
}

/// Uploads a release and records it after the one that the stack runs. Returns it and the list.
///
/// # Errors
///
/// AWS does not answer or denies access.
pub async fn upload(
    cloud: &Cloud,
    code: &Code,
    before: Option<&Stack>,
    functions: &Functions,
    architecture: &str,
    now: Timestamp,
) -> anyhow::Result<(Release, Releases)> {
    let template = code.store(functions, architecture, TEMPLATE).await?;
    let next = Release {
        bucket: code.bucket.clone(),
        prefix: functions.prefix.clone(),
        template,
        parameters: BTreeMap::new(),
        deployed_at: now,
    };
    let mut releases = code.releases().await?;
    if let Some(stack) = before {
        adopt(cloud, code, stack, &mut releases, now).await?;
    }
    releases.follow(before, next.clone());
    code.set_releases(&releases).await?;
    Ok((next, releases))
}

/// Records what the stack runs if another tool has deployed it, so that it can be rolled back to.
async fn adopt(
    cloud: &Cloud,
    code: &Code,
    stack: &Stack,
    releases: &mut Releases,
    now: Timestamp,
) -> anyhow::Result<()> {
    if releases.know(stack) {
        return Ok(());
    }
    let template = cloud.template(&stack.id).await?;
    releases.adopt(Release {
        bucket: stack.parameter("CodeBucket").to_owned(),
        prefix: stack.parameter("CodePrefix").to_owned(),
        template: code.store_template(&template).await?,
        parameters: BTreeMap::new(),
        deployed_at: now,
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_release_is_not_replaced_by_an_earlier_one() {
        for (prefix, is_refused) in [
            (concat!("tidegate/", env!("CARGO_PKG_VERSION"), "-0123456789ab"), false),
            ("tidegate/0.0.9-0123456789ab", false),
            ("tidegate/999.0.0-0123456789ab", true),
            ("tidegate/999.0.0-rc.1-0123456789ab", true),
            ("my/own/prefix", false),
            ("", false),
        ] {
            let parameters = [("CodePrefix".to_owned(), prefix.to_owned())].into();
            let stack = Stack { parameters, ..Stack::default() };
            assert_eq!(refuse_downgrade(&stack).is_err(), is_refused, "{prefix}");
        }
    }

    #[test]
    fn parameters_are_kept_unless_they_are_given() {
        let given = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        let all = [
            ("CodeBucket", "b"),
            ("CodePrefix", "p"),
            ("EncryptionKeyParameter", "/k"),
            ("AlarmEmail", "a@example.com"),
            ("MonthlyBudget", "5"),
        ];
        let new = parameters(None, &given(&all)).unwrap();
        assert_eq!(new.len(), all.len(), "defaults are those of the template: {new:?}");
        let error = parameters(None, &given(&all[..4])).unwrap_err().to_string();
        assert!(error.contains("--parameter MonthlyBudget=VALUE"), "{error}");

        let kept = [("Shards", "4"), ("AdminToken", "****"), ("Retired", "x")];
        let stack = Stack { parameters: given(&kept).into_iter().collect(), ..Stack::default() };
        let changed = parameters(Some(&stack), &given(&all)).unwrap();
        assert_eq!(changed["Shards"], Value::Kept);
        assert_eq!(changed["AdminToken"], Value::Kept);
        assert_eq!(changed.get("Retired"), None, "the new template does not know it");
        let again = parameters(Some(&stack), &given(&[&all[..], &[("Shards", "8")]].concat()));
        assert_eq!(again.unwrap()["Shards"], Value::Given("8".into()));
    }
}
