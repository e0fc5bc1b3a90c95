//! The job filter: the same options for list, cancel and replay.

use serde::Serialize;

use crate::cli::{
    args::{self, When},
    client::Request,
};
use tidegate_core::{
    job::spec::{Attributes, Value},
    time::Timestamp,
};

/// The filter. A job matches if it fits every option.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Filter")]
pub struct Filter {
    /// Jobs of this type.
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// Jobs of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// Jobs in this state; several are separated by commas, `ended` means all final states.
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',')]
    states: Vec<String>,
    /// Jobs with this attribute; repeatable.
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = args::attribute)]
    attributes: Vec<(String, Value)>,
    /// Jobs created at this instant or later: RFC 3339, or a span from now such as -1h.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    from: Option<When>,
    /// Jobs created before this instant: RFC 3339, or a span from now such as -1h.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    to: Option<When>,
}

/// A filter as a request's body has it.
#[derive(Debug, Serialize)]
pub struct Body {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    job_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(rename = "state", skip_serializing_if = "Vec::is_empty")]
    states: Vec<String>,
    #[serde(rename = "attribute", skip_serializing_if = "Attributes::is_empty")]
    attributes: Attributes,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Timestamp>,
}

impl Filter {
    /// Whether every job fits.
    pub fn is_empty(&self) -> bool {
        self.job_type.is_none()
            && self.queue.is_none()
            && self.states.is_empty()
            && self.attributes.is_empty()
            && self.from.is_none()
            && self.to.is_none()
    }

    /// The filter as a body, its instants counted from `now`.
    pub fn body(&self, now: Timestamp) -> Body {
        Body {
            job_type: self.job_type.clone(),
            queue: self.queue.clone(),
            states: self.states.clone(),
            attributes: self.attributes.iter().cloned().collect(),
            from: self.from.map(|at| at.at(now)),
            to: self.to.map(|at| at.at(now)),
        }
    }

    /// The filter as query parameters, its instants counted from `now`.
    pub fn query<'a>(&self, mut request: Request<'a>, now: Timestamp) -> Request<'a> {
        let body = self.body(now);
        let states = Some(body.states.join(",")).filter(|states| !states.is_empty());
        let text = |at: Option<Timestamp>| at.map(|at| at.to_string());
        for (name, value) in [
            ("type", body.job_type),
            ("queue", body.queue),
            ("state", states),
            ("from", text(body.from)),
            ("to", text(body.to)),
        ] {
            if let Some(value) = value {
                request = request.query(name, &value);
            }
        }
        for (name, value) in &body.attributes {
            request = request.query(&format!("attribute.{name}"), &value.text());
        }
        request
    }
}
