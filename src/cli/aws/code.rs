//! The bucket with the code of one stack: the zips and the template of each release, and the list of
//! the releases.
//!
//! The stack's parameter `CodePrefix` names the current release, and the list says what was before
//! it. So an interrupted command leaves nothing to repair: the list may name a release that was
//! never deployed, which the next upgrade removes.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Context as _;
use futures_util::TryStreamExt as _;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, path::Path};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tidegate_core::time::Timestamp;

use super::{
    cloud::Cloud,
    functions::{Functions, hex},
    stack::{MASKED, Stack, Template},
    template::CODE_TEMPLATE,
};
use crate::cli::UsageError;

/// The end of the name of the stack with the bucket of another one.
pub const STACK_SUFFIX: &str = "-code";
/// The list of releases.
const RELEASES: &str = "releases.json";
/// The output of the bucket's stack. A deployment has no output of that name.
const BUCKET_OUTPUT: &str = "CodeBucketName";
/// The number of releases that the list keeps.
const MAX_RELEASES: usize = 50;
/// Maximum bytes of the list.
const MAX_RELEASES_BYTES: u64 = 1 << 20;

/// What was deployed at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The bucket of the zips.
    pub bucket: String,
    /// The prefix of the zips' keys, which names the release.
    pub prefix: String,
    /// The key of the template, in the bucket of this list.
    pub template: String,
    /// The parameters of the stack when the next release replaced this one. `None` is a secret.
    #[serde(default)]
    pub parameters: BTreeMap<String, Option<String>>,
    /// When the deployment began.
    pub deployed_at: Timestamp,
}

impl Release {
    /// The version and the digest, for people.
    pub fn name(&self) -> &str {
        self.prefix.rsplit('/').next().unwrap_or(&self.prefix)
    }
}

/// The releases of a stack, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Releases {
    releases: Vec<Release>,
    /// The prefix of the release that the last rollback went back to, unless another change followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rolled_back_to: Option<String>,
}

/// What a rollback does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back<'a> {
    /// It goes back to this release.
    To(&'a Release),
    /// A rollback that was interrupted has gone back to this release.
    Done(&'a Release),
}

impl Releases {
    /// The position of the release that the stack runs.
    fn current(&self, stack: &Stack) -> Option<usize> {
        let is_it = |release: &Release| {
            release.prefix == stack.parameter("CodePrefix")
                && release.bucket == stack.parameter("CodeBucket")
        };
        self.releases.iter().rposition(is_it)
    }

    /// The release before the one that the stack runs.
    pub fn former(&self, stack: &Stack) -> Option<&Release> {
        self.releases.get(self.current(stack)?.checked_sub(1)?)
    }

    /// What a rollback does, to the release `to` if it is given. `None` if it cannot go there.
    ///
    /// A repeated rollback goes no further back: only a wish to do so names the release.
    pub fn back(&self, stack: &Stack, to: Option<&str>) -> Option<Back<'_>> {
        let running = &self.releases[self.current(stack)?];
        let is_wanted =
            |release: &Release| to.is_none_or(|to| to == release.name() || to == release.prefix);
        let is_done = self.rolled_back_to.as_ref() == Some(&running.prefix);
        if is_done && is_wanted(running) {
            return Some(Back::Done(running));
        }
        self.former(stack).filter(|former| is_wanted(former)).map(Back::To)
    }

    /// Records a rollback to the release of `prefix`.
    pub fn go_back(&mut self, prefix: &str) {
        self.rolled_back_to = Some(prefix.to_owned());
    }

    /// Whether the list has the release that the stack runs.
    pub fn know(&self, stack: &Stack) -> bool {
        self.current(stack).is_some()
    }

    /// Appends `next` after the release that the stack runs, whose parameters are kept. Later
    /// releases, which were rolled back or never deployed, leave the list.
    pub fn follow(&mut self, stack: Option<&Stack>, next: Release) {
        self.rolled_back_to = None;
        let current = stack.and_then(|stack| self.current(stack));
        self.releases.truncate(current.map_or(0, |current| current + 1));
        if let (Some(stack), Some(current)) = (stack, self.releases.last_mut()) {
            let shown = |value: &String| (value != MASKED).then(|| value.clone());
            current.parameters =
                stack.parameters.iter().map(|(name, value)| (name.clone(), shown(value))).collect();
        }
        let is_same = |last: &Release| last.prefix == next.prefix && last.bucket == next.bucket;
        if !self.releases.last().is_some_and(is_same) {
            self.releases.push(next);
        }
        let surplus = self.releases.len().saturating_sub(MAX_RELEASES);
        self.releases.drain(..surplus);
    }

    /// Appends the release of a stack that another tool has deployed.
    pub fn adopt(&mut self, release: Release) {
        self.releases.push(release);
    }
}

/// The bucket with the code of one stack.
pub struct Code {
    /// Its name.
    pub bucket: String,
    objects: Arc<dyn ObjectStore>,
}

impl Code {
    /// The name of the stack that has the bucket of the stack `name`.
    pub fn stack_name(name: &str) -> String {
        format!("{name}{STACK_SUFFIX}")
    }

    /// The stack with the bucket of the stack `name`, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// AWS does not answer or denies access, or the stack is for another purpose: it must not be
    /// changed.
    pub async fn stack(cloud: &Cloud, name: &str) -> anyhow::Result<Option<Stack>> {
        let code = Self::stack_name(name);
        let stack = cloud.settled(&code).await?;
        // A stack whose creation failed has no outputs.
        let is_own = |stack: &Stack| {
            stack.output(BUCKET_OUTPUT).is_some() || CODE_TEMPLATE.contains(&described(stack))
        };
        let is_foreign = |stack: &Stack| !stack.is_review() && !is_own(stack);
        if stack.as_ref().is_some_and(is_foreign) {
            let foreign = format!(
                "the stack {code} is not one with the code of a deployment, and stays as it is: \
                 choose another name with --stack"
            );
            return Err(UsageError(foreign).into());
        }
        Ok(stack)
    }

    /// The bucket of the stack `name`, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// AWS does not answer or denies access, or the stack of the bucket is for another purpose.
    pub async fn find(cloud: &Cloud, name: &str) -> anyhow::Result<Option<Self>> {
        let Some(stack) = Self::stack(cloud, name).await? else { return Ok(None) };
        let Some(bucket) = stack.output(BUCKET_OUTPUT) else { return Ok(None) };
        Ok(Some(Self { objects: cloud.bucket(bucket).await?, bucket: bucket.to_owned() }))
    }

    /// The bucket of the stack `name`, which is created unless it exists.
    ///
    /// # Errors
    ///
    /// AWS does not answer or denies access, the bucket cannot be created, or the stack of the bucket
    /// is for another purpose.
    pub async fn create(cloud: &Cloud, name: &str, now: Timestamp) -> anyhow::Result<Self> {
        let stack = Self::stack_name(name);
        let mut before = Self::stack(cloud, name).await?;
        if let Some(failed) = before.take_if(|before| before.was_never_created()) {
            cloud.delete(&failed, |_| {}).await?;
        }
        let none = BTreeMap::new();
        let template = Template::Text(CODE_TEMPLATE);
        let change = cloud.prepare(&stack, before.as_ref(), &template, &none, now).await?;
        if let Some(change) = change {
            cloud.execute(&stack, change, |_| {}).await.context("the bucket for the code")?;
        }
        Self::find(cloud, name).await?.context("the bucket for the code is not there")
    }

    /// Stores the zips, unless they are there, and `template`. Returns the key of the template.
    ///
    /// # Errors
    ///
    /// S3 does not answer or denies access.
    pub async fn store(
        &self,
        functions: &Functions,
        architecture: &str,
        template: &str,
    ) -> anyhow::Result<String> {
        for (name, zip) in &functions.zips {
            let key = format!("{}/{architecture}/{name}.zip", functions.prefix);
            self.put(&key, zip.clone()).await?;
        }
        self.store_template(template).await
    }

    /// Stores a template under its digest and returns its key.
    ///
    /// # Errors
    ///
    /// S3 does not answer or denies access.
    pub async fn store_template(&self, template: &str) -> anyhow::Result<String> {
        let key = format!("templates/{}.yaml", hex(&Sha256::digest(template)));
        self.put(&key, template.to_owned().into()).await?;
        Ok(key)
    }

    /// Stores `bytes` under a key that is never used for others.
    async fn put(&self, key: &str, bytes: bytes::Bytes) -> anyhow::Result<()> {
        let path = Path::from(key);
        let failed = || format!("s3://{}/{key} cannot be written", self.bucket);
        match self.objects.head(&path).await {
            Ok(found) if found.size == bytes.len() as u64 => return Ok(()),
            Ok(_) | Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error).with_context(failed),
        }
        self.objects.put(&path, bytes.into()).await.with_context(failed)?;
        Ok(())
    }

    /// The releases.
    ///
    /// # Errors
    ///
    /// S3 does not answer or denies access, or the list is damaged.
    pub async fn releases(&self) -> anyhow::Result<Releases> {
        let failed = || format!("s3://{}/{RELEASES} cannot be read", self.bucket);
        let found = match self.objects.get(&Path::from(RELEASES)).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(Releases::default()),
            Err(error) => return Err(error).with_context(failed),
        };
        anyhow::ensure!(found.meta.size <= MAX_RELEASES_BYTES, "{}: it is too large", failed());
        let bytes = found.bytes().await.with_context(failed)?;
        serde_json::from_slice(&bytes).with_context(failed)
    }

    /// Replaces the releases.
    ///
    /// # Errors
    ///
    /// S3 does not answer or denies access.
    pub async fn set_releases(&self, releases: &Releases) -> anyhow::Result<()> {
        let bytes = serde_json::to_vec(releases)?;
        let failed = || format!("s3://{}/{RELEASES} cannot be written", self.bucket);
        self.objects.put(&Path::from(RELEASES), bytes.into()).await.with_context(failed)?;
        Ok(())
    }

    /// Deletes all objects.
    ///
    /// # Errors
    ///
    /// S3 does not answer or denies access.
    pub async fn empty(&self) -> anyhow::Result<()> {
        let objects: Vec<_> = self.objects.list(None).try_collect().await?;
        for object in objects {
            self.objects.delete(&object.location).await?;
        }
        Ok(())
    }
}

/// The line of the template of `stack` with its description.
fn described(stack: &Stack) -> String {
    format!("\nDescription: {}\n", stack.description)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_has_an_output_that_no_deployment_has() {
        let output = format!("\n  {BUCKET_OUTPUT}:\n");
        assert!(CODE_TEMPLATE.contains(&output));
        assert!(!super::super::template::TEMPLATE.contains(&output));
    }

    #[test]
    fn a_repeated_rollback_goes_back_once() {
        let mut releases = Releases::default();
        for number in 1..=3 {
            let before = (number > 1).then(|| stack(&(number - 1).to_string()));
            releases.follow(before.as_ref(), release(&number.to_string()));
        }
        let back =
            |releases: &Releases, of: &str, to: Option<&str>| match releases.back(&stack(of), to) {
                Some(Back::To(release)) => format!("to {}", release.name()),
                Some(Back::Done(release)) => format!("done {}", release.name()),
                None => "none".to_owned(),
            };
        assert_eq!(back(&releases, "3", None), "to 2");
        releases.go_back("tidegate/2");
        assert_eq!(back(&releases, "3", None), "to 2", "it failed");
        assert_eq!(back(&releases, "2", None), "done 2");
        assert_eq!(back(&releases, "2", Some("2")), "done 2");
        assert_eq!(back(&releases, "2", Some("1")), "to 1");
        assert_eq!(back(&releases, "2", Some("tidegate/1")), "to 1");
        assert_eq!(back(&releases, "3", Some("1")), "none", "one release at a time");
        releases.follow(Some(&stack("2")), release("4"));
        assert_eq!(back(&releases, "4", None), "to 2");
        assert_eq!(back(&releases, "2", None), "to 1");
    }

    fn release(name: &str) -> Release {
        Release {
            bucket: "code".into(),
            prefix: format!("tidegate/{name}"),
            template: format!("templates/{name}.yaml"),
            parameters: BTreeMap::new(),
            deployed_at: Timestamp::EPOCH,
        }
    }

    fn stack(name: &str) -> Stack {
        let pairs =
            [("CodeBucket", "code"), ("CodePrefix", &format!("tidegate/{name}")), ("A", MASKED)];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Stack { parameters: pairs.into(), ..Stack::default() }
    }

    fn former(releases: &Releases, of: &str) -> Option<String> {
        releases.former(&stack(of)).map(|release| release.name().to_owned())
    }

    #[test]
    fn the_former_release_is_the_one_before_the_current() {
        let mut releases = Releases::default();
        releases.follow(None, release("1"));
        releases.follow(Some(&stack("1")), release("2"));
        releases.follow(Some(&stack("2")), release("3"));
        assert_eq!(former(&releases, "3"), Some("2".into()));
        assert_eq!(former(&releases, "2"), Some("1".into()));
        assert_eq!((former(&releases, "1"), former(&releases, "unknown")), (None, None));
        let kept = &releases.former(&stack("3")).unwrap().parameters;
        assert_eq!(kept["CodePrefix"].as_deref(), Some("tidegate/2"));
        assert_eq!(kept["A"], None, "a secret is not kept");
    }

    #[test]
    fn an_upgrade_after_a_rollback_replaces_the_later_release() {
        let mut releases = Releases::default();
        releases.follow(None, release("1"));
        releases.follow(Some(&stack("1")), release("2"));
        // Rolled back to 1, or never deployed.
        releases.follow(Some(&stack("1")), release("3"));
        assert_eq!(former(&releases, "3"), Some("1".into()));
        assert_eq!(former(&releases, "2"), None);
        releases.follow(Some(&stack("3")), release("3"));
        assert_eq!(former(&releases, "3"), Some("1".into()), "a repeat changes nothing");
    }

    #[test]
    fn the_list_of_releases_is_bounded() {
        let mut releases = Releases::default();
        releases.follow(None, release("0"));
        for number in 1..200 {
            releases.follow(Some(&stack(&(number - 1).to_string())), release(&number.to_string()));
        }
        assert_eq!(releases.releases.len(), MAX_RELEASES);
        assert_eq!(former(&releases, "199"), Some("198".into()));
    }
}
