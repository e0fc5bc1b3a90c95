//! All triggers of a server.

use std::collections::{BTreeMap, BTreeSet};

use super::{Decision, Trigger};
use crate::{
    event::{event_view::EventView, value::Event},
    job::{TriggerName, TypeName},
};

/// Every trigger, ready to decide on events.
#[derive(Clone, Debug, Default)]
pub struct Triggers {
    list: Vec<Trigger>,
    /// The JSON pointers into the data that the filters use; each key is its own value.
    pointers: BTreeMap<String, String>,
}

impl Triggers {
    /// These triggers, sorted by name.
    pub fn new(mut list: Vec<Trigger>) -> Self {
        list.sort_by(|a, b| a.name.cmp(&b.name));
        let mut pointers = BTreeSet::new();
        for trigger in &list {
            trigger.filter.pointers(&mut pointers);
        }
        let pointers =
            pointers.into_iter().map(|pointer| (pointer.to_owned(), pointer.to_owned())).collect();
        Self { list, pointers }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The trigger with this name.
    pub fn get(&self, name: &TriggerName) -> Option<&Trigger> {
        self.list.iter().find(|trigger| trigger.name == *name)
    }

    /// What each trigger that matches `event`, from elsewhere, makes of it, by name.
    pub fn decide<'a>(&'a self, event: &Event) -> Vec<(&'a Trigger, Decision)> {
        let view = EventView::new(event, &self.pointers);
        let triggers = self.list.iter().filter(|trigger| trigger.job_types.is_empty());
        triggers.filter_map(|trigger| Some((trigger, trigger.decide(&view)?))).collect()
    }

    /// Whether one of them handles ends of jobs of `job_type`.
    pub fn handle_ends_of(&self, job_type: &TypeName) -> bool {
        self.of(job_type).next().is_some()
    }

    /// Whether one of them matches `event`, the end of a job of `job_type`.
    pub fn match_end(&self, job_type: &TypeName, event: &Event) -> bool {
        let view = EventView::new(event, &self.pointers);
        self.of(job_type).any(|trigger| trigger.matches(&view))
    }

    /// What each trigger that matches `event`, the end of a job of `job_type`, makes of it, by name.
    pub fn decide_end<'a>(
        &'a self,
        job_type: &TypeName,
        event: &Event,
    ) -> Vec<(&'a Trigger, Decision)> {
        let view = EventView::new(event, &self.pointers);
        let triggers = self.of(job_type);
        triggers.filter_map(|trigger| Some((trigger, trigger.decide(&view)?))).collect()
    }

    /// The triggers that handle ends of jobs of `job_type`.
    fn of<'a>(&'a self, job_type: &TypeName) -> impl Iterator<Item = &'a Trigger> {
        self.list.iter().filter(move |trigger| trigger.job_types.contains(job_type))
    }

    /// What one of them makes of `event`.
    pub fn decide_one(&self, trigger: &Trigger, event: &Event) -> Option<Decision> {
        trigger.decide(&EventView::new(event, &self.pointers))
    }
}
