//! Stacks of `CloudFormation`: their state, changes by change sets, and what failed.

use std::collections::BTreeMap;

use aws_sdk_cloudformation::{
    error::ProvideErrorMetadata as _,
    types::{
        Capability, ChangeAction, ChangeSetStatus, ChangeSetType, Parameter, Replacement,
        StackEvent, TemplateStage,
    },
};
use tidegate_core::time::Timestamp;

use super::{
    cloud::Cloud,
    failure::{Failure, of_call},
};

/// Pages of events that are read at most. A page has 100 events.
const MAX_EVENT_PAGES: usize = 20;
/// The status of a stack whose failed update could not be undone.
const ROLLBACK_FAILED: &str = "UPDATE_ROLLBACK_FAILED";
/// How `CloudFormation` shows a parameter that must stay secret.
pub const MASKED: &str = "****";

/// The state of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Its id, under which it is found even after its deletion.
    pub id: String,
    /// Its status, such as `CREATE_COMPLETE`.
    pub status: String,
    /// Why it has this status.
    pub reason: String,
    /// The description in its template.
    pub description: String,
    /// Its parameters.
    pub parameters: BTreeMap<String, String>,
    /// Its outputs.
    pub outputs: BTreeMap<String, String>,
}

impl Stack {
    /// Whether it exists only as a change set that was never executed.
    pub fn is_review(&self) -> bool {
        self.status == "REVIEW_IN_PROGRESS"
    }

    /// Whether an operation runs.
    pub fn is_busy(&self) -> bool {
        self.status.ends_with("_IN_PROGRESS") && !self.is_review()
    }

    /// Whether its creation failed, so that it can only be deleted.
    pub fn was_never_created(&self) -> bool {
        matches!(self.status.as_str(), "ROLLBACK_COMPLETE" | "ROLLBACK_FAILED" | "CREATE_FAILED")
    }

    /// Whether it was created, so that it can be changed.
    pub fn is_created(&self) -> bool {
        !self.is_review() && !self.was_never_created()
    }

    /// Whether the last operation succeeded.
    pub fn is_done(&self) -> bool {
        matches!(self.status.as_str(), "CREATE_COMPLETE" | "UPDATE_COMPLETE")
    }

    /// Whether it was created by the template of the deployment, of any release.
    pub fn is_deployment(&self) -> bool {
        let has_code = ["CodeBucket", "CodePrefix"].map(|name| self.parameters.contains_key(name));
        has_code == [true, true] && (!self.is_done() || self.output("PluginsUrl").is_some())
    }

    /// An output.
    pub fn output(&self, name: &str) -> Option<&str> {
        self.outputs.get(name).map(String::as_str)
    }

    /// A parameter; empty if there is none.
    pub fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map_or("", String::as_str)
    }
}

/// A template.
pub enum Template<'a> {
    /// Its text, of at most 51,200 bytes.
    Text(&'a str),
    /// Its URL in a bucket.
    Url(String),
}

/// The value of a parameter of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// This one.
    Given(String),
    /// The one that the stack has.
    Kept,
}

/// A change of a stack that can be executed.
pub struct ChangeSet {
    id: String,
    /// How many resources are added, changed, replaced and removed.
    pub counts: [usize; 4],
}

impl ChangeSet {
    /// The number of resources that change.
    pub fn resources(&self) -> usize {
        self.counts.iter().sum()
    }
}

impl std::fmt::Display for ChangeSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [added, changed, replaced, removed] = self.counts;
        write!(
            f,
            "{added} resources are added, {changed} changed, {replaced} perhaps replaced, \
             {removed} removed"
        )
    }
}

impl Cloud {
    /// The stack `name`, or `None` if there is none. A deleted stack has only an id.
    ///
    /// # Errors
    ///
    /// AWS does not answer or denies access.
    pub async fn stack(&self, name: &str) -> anyhow::Result<Option<Stack>> {
        let answer = self.formation.describe_stacks().stack_name(name).send().await;
        let found = match answer {
            Ok(found) => found,
            Err(error) if error.message().is_some_and(|text| text.contains("does not exist")) => {
                return Ok(None);
            }
            Err(error) => return Err(of_call(error)),
        };
        let Some(stack) = found.stacks().first() else { return Ok(None) };
        let pairs = |(name, value): (Option<&str>, Option<&str>)| {
            Some((name?.to_owned(), value.unwrap_or_default().to_owned()))
        };
        let stack = Stack {
            id: stack.stack_id().unwrap_or(name).to_owned(),
            status: stack.stack_status().map_or("", |status| status.as_str()).to_owned(),
            reason: stack.stack_status_reason().unwrap_or_default().to_owned(),
            description: stack.description().unwrap_or_default().to_owned(),
            parameters: stack
                .parameters()
                .iter()
                .filter_map(|each| pairs((each.parameter_key(), each.parameter_value())))
                .collect(),
            outputs: stack
                .outputs()
                .iter()
                .filter_map(|each| pairs((each.output_key(), each.output_value())))
                .collect(),
        };
        Ok((stack.status != "DELETE_COMPLETE").then_some(stack))
    }

    /// The template of the stack, as it was given.
    ///
    /// # Errors
    ///
    /// AWS does not answer or denies access.
    pub async fn template(&self, stack: &str) -> anyhow::Result<String> {
        let call = self.formation.get_template().stack_name(stack);
        let found = call.template_stage(TemplateStage::Original).send().await.map_err(of_call)?;
        Ok(found.template_body().unwrap_or_default().to_owned())
    }

    /// Prepares a change of the stack `name`, which is created if `before` is `None`. `None` if
    /// nothing differs.
    ///
    /// # Errors
    ///
    /// AWS does not answer or refuses the template or a parameter.
    pub async fn prepare(
        &self,
        name: &str,
        before: Option<&Stack>,
        template: &Template<'_>,
        parameters: &BTreeMap<String, Value>,
        now: Timestamp,
    ) -> anyhow::Result<Option<ChangeSet>> {
        let is_new = before.is_none_or(Stack::is_review);
        let parameters = parameters.iter().map(|(name, value)| {
            let parameter = Parameter::builder().parameter_key(name);
            match value {
                Value::Given(value) => parameter.parameter_value(value).build(),
                Value::Kept => parameter.use_previous_value(true).build(),
            }
        });
        // A name is never used twice, so a repeated command does not meet its own remains.
        let unique = format!("tidegate-{}", now.millis());
        let request = self
            .formation
            .create_change_set()
            .stack_name(name)
            .change_set_name(&unique)
            // An attempt whose answer was lost is not made twice.
            .client_token(&unique)
            .change_set_type(if is_new { ChangeSetType::Create } else { ChangeSetType::Update })
            .capabilities(Capability::CapabilityIam)
            // The template is one of SAM, which CloudFormation transforms.
            .capabilities(Capability::CapabilityAutoExpand)
            .set_parameters(Some(parameters.collect()));
        let request = match template {
            Template::Text(text) => request.template_body(*text),
            Template::Url(url) => request.template_url(url),
        };
        let made = request.send().await.map_err(of_call)?;
        let mut change = ChangeSet { id: made.id().unwrap_or_default().to_owned(), counts: [0; 4] };
        match self.prepared(name, &change.id).await {
            Ok(true) => {
                change.counts = self.counts(name, &change.id).await?;
                Ok(Some(change))
            }
            done => {
                self.discard(name, change).await?;
                done.map(|_| None)
            }
        }
    }

    /// Waits until a change set is prepared. False if nothing differs.
    async fn prepared(&self, name: &str, id: &str) -> anyhow::Result<bool> {
        let mut wait = self.wait();
        loop {
            let found = self.formation.describe_change_set().change_set_name(id).stack_name(name);
            let found = found.send().await.map_err(of_call)?;
            match found.status() {
                Some(ChangeSetStatus::CreateComplete) => return Ok(true),
                Some(ChangeSetStatus::Failed) => {
                    let reason = found.status_reason().unwrap_or("it gives no reason");
                    let is_same = ["didn't contain changes", "No updates are to be performed"];
                    if is_same.iter().any(|text| reason.contains(text)) {
                        return Ok(false);
                    }
                    anyhow::bail!("CloudFormation refuses the change: {reason}");
                }
                _ => wait.next("CloudFormation has not prepared the change").await?,
            }
        }
    }

    /// Deletes a change set that is not executed.
    ///
    /// # Errors
    ///
    /// AWS does not answer or denies access.
    pub async fn discard(&self, name: &str, change: ChangeSet) -> anyhow::Result<()> {
        let call = self.formation.delete_change_set().change_set_name(change.id).stack_name(name);
        call.send().await.map_err(of_call)?;
        Ok(())
    }

    /// How many resources a change set adds, changes, replaces and removes.
    async fn counts(&self, stack: &str, id: &str) -> anyhow::Result<[usize; 4]> {
        let mut counts = [0; 4];
        let pages = self.formation.describe_change_set().change_set_name(id).stack_name(stack);
        let mut pages = pages.into_paginator().send();
        while let Some(page) = pages.next().await {
            for change in page.map_err(of_call)?.changes() {
                let Some(change) = change.resource_change() else { continue };
                let replaced = change.replacement().is_some_and(|replacement| {
                    matches!(replacement, Replacement::True | Replacement::Conditional)
                });
                let kind = match change.action() {
                    Some(ChangeAction::Add) => 0,
                    Some(ChangeAction::Remove) => 3,
                    _ if replaced => 2,
                    _ => 1,
                };
                counts[kind] += 1;
            }
        }
        Ok(counts)
    }

    /// Executes a change and waits for its end. `changed` is called with each number of changed
    /// resources.
    ///
    /// # Errors
    ///
    /// The change failed, or has not ended in time.
    pub async fn execute(
        &self,
        name: &str,
        change: ChangeSet,
        changed: impl Fn(usize),
    ) -> anyhow::Result<Stack> {
        let mark = self.newest_event(name).await?;
        let call = self.formation.execute_change_set().change_set_name(&change.id).stack_name(name);
        // What a failed creation has made goes with it, the table and the bucket included.
        call.retain_except_on_create(true).send().await.map_err(of_call)?;
        let (stack, events) = self.end(name, mark.as_deref(), changed).await?;
        if stack.is_done() { Ok(stack) } else { Err(ended_badly(&stack, &events)) }
    }

    /// The stack once no operation runs on it.
    ///
    /// # Errors
    ///
    /// AWS does not answer, or the operation has not ended in time.
    pub async fn settled(&self, name: &str) -> anyhow::Result<Option<Stack>> {
        let mut wait = self.wait();
        loop {
            match self.stack(name).await? {
                Some(stack) if stack.is_busy() => {
                    wait.next(&format!("the stack {name} is still {}", stack.status)).await?;
                }
                settled => return Ok(settled),
            }
        }
    }

    /// The stack once it can be changed. A stack whose failed update could not be undone gets another
    /// try.
    ///
    /// # Errors
    ///
    /// AWS does not answer, the operation has not ended in time, or the update cannot be undone.
    pub async fn repaired(&self, name: &str) -> anyhow::Result<Option<Stack>> {
        let found = self.settled(name).await?;
        if found.as_ref().is_none_or(|stack| stack.status != ROLLBACK_FAILED) {
            return Ok(found);
        }
        let mark = self.newest_event(name).await?;
        let call = self.formation.continue_update_rollback().stack_name(name);
        call.send().await.map_err(of_call)?;
        let (stack, events) = self.end(name, mark.as_deref(), |_| {}).await?;
        if stack.status == ROLLBACK_FAILED {
            return Err(ended_badly(&stack, &events));
        }
        Ok(Some(stack))
    }

    /// Deletes the stack and waits until it is gone.
    ///
    /// # Errors
    ///
    /// A resource cannot be deleted, or the deletion has not ended in time.
    pub async fn delete(&self, stack: &Stack, changed: impl Fn(usize)) -> anyhow::Result<()> {
        let mark = self.newest_event(&stack.id).await?;
        self.formation.delete_stack().stack_name(&stack.id).send().await.map_err(of_call)?;
        let mut wait = self.wait();
        while let Some(now) = self.stack(&stack.id).await? {
            let events = self.events_since(&stack.id, mark.as_deref()).await?;
            changed(ended(&events));
            // Without an event it may still have the status of an earlier deletion.
            if !events.is_empty() && now.status == "DELETE_FAILED" {
                anyhow::bail!("the stack cannot be deleted: {}", failures(&events, &now));
            }
            wait.next("the stack is still being deleted").await?;
        }
        Ok(())
    }

    /// Waits for the end of the operation that began after the event `mark`. Returns the stack and
    /// the events of the operation.
    async fn end(
        &self,
        name: &str,
        mark: Option<&str>,
        changed: impl Fn(usize),
    ) -> anyhow::Result<(Stack, Vec<StackEvent>)> {
        let mut wait = self.wait();
        loop {
            let events = self.events_since(name, mark).await?;
            changed(ended(&events));
            let stack = self.stack(name).await?.ok_or_else(|| self.no_stack(name))?;
            let has_begun = !events.is_empty();
            if has_begun && !stack.is_busy() && !stack.is_review() {
                return Ok((stack, events));
            }
            wait.next(&format!(
                "the stack {name} still changes; repeat the command to wait for its end"
            ))
            .await?;
        }
    }

    /// The newest event of the stack; `None` if it has none.
    async fn newest_event(&self, stack: &str) -> anyhow::Result<Option<String>> {
        let events = self.formation.describe_stack_events().stack_name(stack).send().await;
        let events = events.map_err(of_call)?;
        Ok(events.stack_events().first().and_then(|event| event.event_id().map(str::to_owned)))
    }

    /// The events after `mark`, the oldest first.
    async fn events_since(
        &self,
        stack: &str,
        mark: Option<&str>,
    ) -> anyhow::Result<Vec<StackEvent>> {
        let (mut found, mut token) = (Vec::new(), None);
        for _ in 0..MAX_EVENT_PAGES {
            let call = self.formation.describe_stack_events().stack_name(stack);
            let page = call.set_next_token(token).send().await.map_err(of_call)?;
            token = page.next_token().map(str::to_owned);
            let new = page.stack_events().iter().take_while(|event| event.event_id() != mark);
            let before = found.len();
            found.extend(new.cloned());
            if token.is_none() || found.len() - before < page.stack_events().len() {
                break;
            }
        }
        found.reverse();
        Ok(found)
    }

    /// The error of a missing stack.
    pub fn no_stack(&self, name: &str) -> Failure {
        Failure::NoStack { stack: name.to_owned(), region: self.region.clone() }
    }
}

fn status(event: &StackEvent) -> &str {
    event.resource_status().map_or("", |status| status.as_str())
}

/// The error of an operation that has left the stack in a state that was not wanted.
fn ended_badly(stack: &Stack, events: &[StackEvent]) -> anyhow::Error {
    anyhow::anyhow!("the stack ended as {}: {}", stack.status, failures(events, stack))
}

/// The number of resources whose change has ended.
fn ended(events: &[StackEvent]) -> usize {
    events.iter().filter(|event| status(event).ends_with("_COMPLETE")).count()
}

/// Which resources failed and why. One failure cancels the others, which are left out.
fn failures(events: &[StackEvent], stack: &Stack) -> String {
    let failed = events.iter().filter(|event| {
        status(event).ends_with("_FAILED")
            && !event.resource_status_reason().is_some_and(|text| text.contains("cancelled"))
            && event.physical_resource_id() != Some(&stack.id)
    });
    let failed: Vec<String> = failed
        .map(|event| {
            format!(
                "{} ({}): {}",
                event.logical_resource_id().unwrap_or_default(),
                event.resource_type().unwrap_or_default(),
                event.resource_status_reason().unwrap_or("no reason is given")
            )
        })
        .collect();
    match (failed.is_empty(), stack.reason.is_empty()) {
        (false, _) => failed.join("; "),
        (true, false) => stack.reason.clone(),
        (true, true) => "no reason is given".to_owned(),
    }
}
