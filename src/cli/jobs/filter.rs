//! The job filter: the same options for list, cancel and replay.

use crate::cli::{
    args::{self, When},
    client::Request,
};
use tidegate_api::{AttributeValue, Attributes, FilterBody, Words};
use tidegate_core::{
    job::{QueueName, TypeName},
    time::Timestamp,
};

/// The filter. A job matches if it fits every option.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Filter")]
pub struct Filter {
    /// Jobs of this type.
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<TypeName>,
    /// Jobs of this queue.
    #[arg(long)]
    queue: Option<QueueName>,
    /// Jobs in this state; several are separated by commas, `ended` means all final states.
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',')]
    states: Vec<String>,
    /// Jobs with this attribute; repeatable.
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = args::attribute)]
    attributes: Vec<(String, AttributeValue)>,
    /// Jobs created at this instant or later: RFC 3339, or a span from now such as -1h.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    from: Option<When>,
    /// Jobs created before this instant: RFC 3339, or a span from now such as -1h.
    #[arg(long, value_name = "INSTANT", value_parser = args::when, allow_hyphen_values = true)]
    to: Option<When>,
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

    /// Returns the filter as a request body. Spans count from `now`.
    pub fn body(&self, now: Timestamp) -> FilterBody {
        FilterBody {
            job_type: self.job_type.clone(),
            queue: self.queue.clone(),
            state: Some(self.states.clone()).filter(|states| !states.is_empty()).map(Words::Many),
            attribute: (!self.attributes.is_empty())
                .then(|| self.attributes.iter().cloned().collect()),
            from: self.from.map(|at| at.at(now)),
            to: self.to.map(|at| at.at(now)),
        }
    }

    /// Adds the filter to `request` as query parameters. Spans count from `now`.
    pub fn query<'a>(&self, mut request: Request<'a>, now: Timestamp) -> Request<'a> {
        let states = Some(self.states.join(",")).filter(|states| !states.is_empty());
        let text = |at: Option<When>| at.map(|at| at.at(now).to_string());
        for (name, value) in [
            ("type", self.job_type.as_ref().map(ToString::to_string)),
            ("queue", self.queue.as_ref().map(ToString::to_string)),
            ("state", states),
            ("from", text(self.from)),
            ("to", text(self.to)),
        ] {
            if let Some(value) = value {
                request = request.query(name, &value);
            }
        }
        let attributes: Attributes = self.attributes.iter().cloned().collect();
        for (name, value) in &attributes {
            request = request.query(&format!("attribute.{name}"), &value.text());
        }
        request
    }
}
