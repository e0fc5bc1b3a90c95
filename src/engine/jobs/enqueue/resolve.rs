//! The job that a request leads to: every option settled, every bound checked.

use std::{collections::BTreeMap, sync::Arc};

use super::KEY_TRIES;
use crate::{Engine, Error, config::catalog::Catalog, request::NewJob};
use tidegate_core::{
    calendar::window,
    error_code::ErrorCode,
    job::{
        Attributes, Body, Job, Lifecycle, Payload, Spec, TypeName,
        extract::{TEXT_BYTES, extract},
        lifecycle::Waiting,
        name::ROUTE_WORDS,
        payload::MAX_DEPTH,
        trace,
        type_config::{TypeConfig, TypeItem},
    },
    time::{Seconds, Timestamp},
    validate,
};

impl Engine {
    /// The type of a new job: made if the rules say so, and without the mark of somebody who means to move it.
    pub(super) async fn type_of(
        &self,
        name: &TypeName,
        catalog: &mut Arc<Catalog>,
    ) -> Result<Arc<TypeItem>, Error> {
        for _ in 0..KEY_TRIES {
            *catalog = match catalog.types.get(name).filter(|_| !is_reserved(name.as_str())) {
                Some(item) if !item.leaving => return Ok(Arc::clone(item)),
                Some(_) => Box::pin(self.keep_type(name)).await?,
                None => Box::pin(self.create_unknown_type(name)).await?,
            };
        }
        Err(Error::Conflict {
            code: ErrorCode::ConcurrentUpdate,
            message: format!("type {name} keeps changing"),
            holder: None,
        })
    }

    /// The catalog with a type that it did not have.
    async fn create_unknown_type(&self, name: &TypeName) -> Result<Arc<Catalog>, Error> {
        if !self.rules.create_unknown_types || is_reserved(name.as_str()) {
            return Err(Error::NotFound {
                code: ErrorCode::JobTypeNotFound,
                what: format!("job type {name}"),
            });
        }
        match self.put_type(name, TypeConfig::default(), Some(0)).await {
            // Somebody else created it meanwhile: as good.
            Ok(_) | Err(Error::Stale { .. }) => {}
            Err(error) => return Err(error),
        }
        self.catalog().await
    }

    /// The job that `new` requests under its type, with every option settled and every bound checked.
    pub(crate) fn resolve(
        &self,
        new: &NewJob,
        catalog: &Catalog,
        item: &TypeItem,
        digest: [u8; 16],
        now: Timestamp,
    ) -> Result<Job, Error> {
        let config = &item.config;
        if new.id.as_ref().is_some_and(|id| ROUTE_WORDS.contains(&id.as_str())) {
            return Err(Error::invalid(
                "id",
                format!("must not be one of {}", ROUTE_WORDS.join(", ")),
            ));
        }
        validate::check_start(new.run_at, new.delay_seconds).map_err(fault)?;
        if let Some(deadline) = new.options.deadline_seconds {
            validate::check_deadline(deadline).map_err(fault)?;
        }
        if new.data.bytes.len() > self.rules.max_data_bytes {
            return Err(Error::TooLarge { field: "data", limit: self.rules.max_data_bytes });
        }
        new.data.check(MAX_DEPTH).map_err(|malformed| Error::malformed("data", &malformed))?;
        let limits = catalog.limits(&config.queue);
        let mut spec = new.options.resolve(&new.job_type, config, now);
        let weight = spec.weight;
        if let Some(most) =
            limits.queue.concurrency.filter(|most| *most > 0 && weight > *most && !spec.critical)
        {
            let message = format!("{weight} is over the limit {most} of queue {}", config.queue);
            return Err(Error::Invalid {
                code: ErrorCode::WeightOverLimit,
                field: "weight".into(),
                message,
            });
        }
        let given = std::mem::take(&mut spec.attributes);
        spec.attributes = attributes(&config.attributes, &new.data, given)?;
        spec.partition = partition(&limits, &spec.attributes);
        let asked = new
            .run_at
            .or_else(|| new.delay_seconds.map(|delay| now + delay.duration()))
            .unwrap_or(now)
            .max(now);
        let run_at = window::next_opening(&spec.windows, asked);
        let waiting = if run_at == asked { Waiting::Due } else { Waiting::Window { due: asked } };
        // A job that names its own trace does not belong to the request's, and a trace makes no good request a bad one.
        if trace::named(&spec.headers, trace::PARENT).is_none()
            && spec.headers.len() + new.trace.len() <= validate::MAX_HEADERS
        {
            spec.headers.extend(new.trace.clone());
        }
        spec.expires_at = new.expires_at;
        spec.correlation_key.clone_from(&new.correlation_key);
        spec.replay_of.clone_from(&new.replay_of);
        spec.retention = self.retention(new, config);
        spec.request_digest = digest;
        validate::check_job(&spec, config.delivery).map_err(fault)?;
        if let Some(url) =
            new.options.callback_url.as_ref().filter(|_| self.rules.refuse_unsafe_hosts)
        {
            validate::check_host("callback_url", url).map_err(fault)?;
        }
        let id = new
            .id
            .clone()
            .unwrap_or_else(|| self.ports.store.assign_id(self.draw_id(now), &spec, run_at));
        Ok(Job {
            id,
            spec: Arc::new(spec),
            data: Body::Inline(new.data.clone()),
            life: Lifecycle::new(run_at, waiting),
        })
    }

    /// How long the job is kept when it has ended. One that waits for a reply knows a second delivery for one, and so is kept as
    /// long as an early reply would be, even where others go at their end.
    fn retention(&self, new: &NewJob, config: &TypeConfig) -> Seconds {
        let waits =
            new.correlation_key.as_ref().map(|_| self.rules.events.reply_wait.as_millis() as u64);
        config.retention_seconds.max(Seconds::from_millis(waits.unwrap_or(0)))
    }
}

/// Takes the attributes of a job anew from its new data. What its type's pointers found in the old data and do not find in the new
/// is gone.
///
/// # Errors
///
/// 400 if what is found is out of bounds.
pub(crate) fn extract_anew(
    catalog: &Catalog,
    spec: &mut Spec,
    data: &Payload,
) -> Result<(), Error> {
    let Some(item) = catalog.types.get(&spec.job_type) else {
        return Ok(());
    };
    let pointers = &item.config.attributes;
    let given = spec.attributes.iter().filter(|(name, _)| !pointers.contains_key(*name));
    let given = given.map(|(name, value)| (name.clone(), value.clone())).collect();
    let found = attributes(pointers, data, given)?;
    validate::check_attributes(&found).map_err(fault)?;
    spec.partition = partition(&catalog.limits(&spec.queue), &found);
    spec.attributes = found;
    Ok(())
}

/// The partition of a job with `attributes`: the value of the queue's attribute; empty without one.
fn partition(limits: &tidegate_core::queue::Limits, attributes: &Attributes) -> String {
    limits
        .queue
        .partition_by
        .as_ref()
        .and_then(|name| attributes.get(name))
        .map(tidegate_core::job::Value::text)
        .unwrap_or_default()
}

/// The attributes of a job that carries `data`: those that `pointers` find win over the `given` ones.
fn attributes(
    pointers: &BTreeMap<String, String>,
    data: &Payload,
    mut given: Attributes,
) -> Result<Attributes, Error> {
    given.extend(
        extract(pointers, data, TEXT_BYTES)
            .map_err(|malformed| Error::malformed("data", &malformed))?,
    );
    Ok(given)
}

/// Whether a type's or queue's name is one of the server's own.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.starts_with("tidegate.")
}

/// A fault of a value as an answer.
pub fn fault(fault: validate::ValidationError) -> Error {
    Error::Invalid { code: fault.code, field: fault.field, message: fault.message }
}
