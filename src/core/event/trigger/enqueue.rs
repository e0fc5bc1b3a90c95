//! The job that a rule makes of an event.

use serde_json::{Map, Value};

use super::{Trigger, type_of};
use crate::{
    event::{event_view::EventView, expression::MAX_OUTPUT_BYTES, fields::JobFields},
    job::{JobId, Payload, TypeName},
    validate::ValidationError,
};

/// The job that a rule requests for an event.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedJob {
    /// Its id, which follows from the trigger and the event.
    pub id: JobId,
    /// Its type.
    pub job_type: TypeName,
    /// Its data.
    pub data: Payload,
    /// Its other fields.
    pub fields: JobFields,
}

impl Trigger {
    pub(super) fn job(&self, view: &EventView<'_>) -> Result<Box<RequestedJob>, ValidationError> {
        let mut left = MAX_OUTPUT_BYTES;
        let mut values = Map::new();
        let (mut job_type, mut data) = (None, None);
        for (name, template) in &self.fields {
            if name == "data" {
                data = Some(view.payload(template, &mut left).map_err(|fault| fault.within(name))?);
                continue;
            }
            let value = view.fill(template, &mut left).map_err(|fault| fault.within(name))?;
            match (name.as_str(), value) {
                ("type", value) => job_type = Some(type_of(&value)?),
                (_, Value::Null) => {}
                (_, value) => drop(values.insert(name.clone(), value)),
            }
        }
        let fields = JobFields::read(values)?;
        fields.check()?;
        Ok(Box::new(RequestedJob {
            id: self.job_id(view.event),
            job_type: job_type.ok_or_else(|| ValidationError::new("type", "is required"))?,
            data: data.unwrap_or_else(|| view.data()),
            fields,
        }))
    }
}
