//! From a request to its job: every option settled, every bound checked.

use std::{collections::BTreeMap, sync::Arc};

use super::MAX_ENQUEUE_RETRIES;
use crate::{
    Engine, Error,
    config::catalog::Catalog,
    jobs::replay::{is_replay_id, replay_id},
    request::NewJob,
};
use tidegate_core::{
    calendar::window::{self, Window},
    error_code::ErrorCode,
    job::{
        Attributes, Body, Job, Lifecycle, Payload, Spec, TypeName,
        extract::{TEXT_BYTES, extract},
        lifecycle::Waiting,
        name::ROUTE_WORDS,
        payload::MAX_DEPTH,
        trace,
        type_config::{Delivery, TypeConfig, TypeItem},
    },
    port::job_store::ItemKind,
    queue::Limits,
    time::{Seconds, Timestamp},
    validate,
};

/// How long an ended at-most-once job with an id or a key of its client is kept at least.
const MIN_REMEMBERED: Seconds = Seconds::new(600);
/// From this many types on, a job of an unknown type is refused.
const MAX_TYPES_WITH_UNKNOWN: usize = 1000;

impl Engine {
    /// The type of a new job. An unknown type is created if the rules allow it, and a type that is
    /// about to move to another queue stays.
    pub(super) async fn type_of(
        &self,
        name: &TypeName,
        catalog: &mut Arc<Catalog>,
    ) -> Result<Arc<TypeItem>, Error> {
        for _ in 0..MAX_ENQUEUE_RETRIES {
            catalog.refuse_unreadable(ItemKind::Type, name.as_str())?;
            *catalog = match catalog.types.get(name).filter(|_| !name.is_internal()) {
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

    /// Creates a type with defaults and returns the catalog with it. No type is created so if there
    /// are [`MAX_TYPES_WITH_UNKNOWN`]: names from data could be any number.
    async fn create_unknown_type(&self, name: &TypeName) -> Result<Arc<Catalog>, Error> {
        if !self.rules.create_unknown_types || name.is_internal() {
            return Err(Error::NotFound {
                code: ErrorCode::JobTypeNotFound,
                what: format!("job type {name}"),
            });
        }
        if self.catalog().await?.types.len() >= MAX_TYPES_WITH_UNKNOWN {
            return Err(Error::Conflict {
                code: ErrorCode::TooManyTypes,
                message: format!(
                    "job type {name} is unknown, and is not created, because there are \
                     {MAX_TYPES_WITH_UNKNOWN} types: configure it"
                ),
                holder: None,
            });
        }
        match self.put_type(name, TypeConfig::default(), Some(0)).await {
            // If another process created it meanwhile, that type is used.
            Ok(_) | Err(Error::Stale { .. }) => {}
            Err(error) => return Err(error),
        }
        self.catalog().await
    }

    /// The job that `new` requests under its type, with every option settled and every bound
    /// checked.
    pub(crate) fn resolve(
        &self,
        new: &NewJob,
        catalog: &Catalog,
        item: &TypeItem,
        digest: [u8; 16],
        now: Timestamp,
    ) -> Result<Job, Error> {
        let config = &item.config;
        self.check_request(new)?;
        let limits = catalog.limits(&config.queue);
        let mut spec = new.options.resolve(&new.job_type, config, now);
        check_weight(&spec, &limits)?;
        let given = std::mem::take(&mut spec.attributes);
        spec.attributes = attributes(&config.attributes, &new.data, given)?;
        spec.partition = limits.queue.partition_of(&spec.attributes);
        let (run_at, waiting) = first_start(new, &spec.windows, now);
        // A job that names its own trace does not join the trace of its request. A trace that
        // exceeds the number of headers is left out: the request is still valid.
        if trace::named(&spec.headers, trace::PARENT).is_none()
            && spec.headers.len() + new.trace.len() <= validate::MAX_HEADERS
        {
            spec.headers.extend(new.trace.clone());
        }
        spec.expires_at = new.expires_at;
        spec.correlation_key.clone_from(&new.correlation_key);
        spec.replay_of.clone_from(&new.replay_of);
        spec.enqueued_by.clone_from(&new.enqueued_by);
        spec.origin.clone_from(&new.origin);
        spec.retention = self.retention(new, config);
        spec.request_digest = digest;
        validate::check_job(&spec, config.delivery).map_err(fault)?;
        if let Some(url) = &spec.callback_url {
            self.rules.check_callback(url).map_err(fault)?;
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

    /// Checks the values of a request that do not depend on its type.
    fn check_request(&self, new: &NewJob) -> Result<(), Error> {
        if new.id.as_ref().is_some_and(|id| ROUTE_WORDS.contains(&id.as_str())) {
            let message = format!("must not be one of {}", ROUTE_WORDS.join(", "));
            return Err(Error::invalid("id", message));
        }
        if let Some(id) = new.id.as_ref().filter(|id| is_replay_id(id))
            && new.replay_of.as_ref().is_none_or(|of| replay_id(of) != *id)
        {
            let message = "must not look like the id of a replay: re- and 40 hexadecimal digits";
            return Err(Error::invalid("id", message));
        }
        if new
            .enqueued_by
            .as_ref()
            .is_some_and(|name| !(1..=Spec::MAX_CALLER_BYTES).contains(&name.len()))
        {
            return Err(Error::invalid("enqueued_by", "must have 1 to 256 bytes"));
        }
        validate::check_start(new.run_at, new.delay_seconds).map_err(fault)?;
        let unique = new.options.unique.as_ref();
        validate::check_keys(new.correlation_key.as_deref(), unique).map_err(fault)?;
        validate::check_debounced_start(unique, new.run_at, new.delay_seconds).map_err(fault)?;
        if let Some(deadline) = new.options.deadline_seconds {
            validate::check_deadline(deadline).map_err(fault)?;
        }
        if new.data.bytes.len() > self.rules.max_data_bytes {
            return Err(Error::TooLarge { field: "data", limit: self.rules.max_data_bytes });
        }
        new.data.check(MAX_DEPTH).map_err(|malformed| Error::malformed("data", &malformed))
    }

    /// How long the job is kept after its end.
    ///
    /// A job with a correlation key recognises a second delivery of its reply. So it is kept at
    /// least as long as an early reply, even if its type keeps no ended jobs. A job that must not
    /// run twice recognises a repeat of its request, whose first answer may have been lost.
    fn retention(&self, new: &NewJob, config: &TypeConfig) -> Seconds {
        let reply_wait = Seconds::from_millis(self.rules.events.reply_wait.as_millis() as u64);
        let waits = new.correlation_key.as_ref().map(|_| reply_wait);
        let repeats = config.delivery == Delivery::AtMostOnce && new.is_repeatable();
        let repeats = repeats.then_some(MIN_REMEMBERED);
        config.retention_seconds.max(waits.unwrap_or_default()).max(repeats.unwrap_or_default())
    }
}

/// Refuses a job that is heavier than its queue's concurrency. Critical jobs are not limited.
///
/// # Errors
///
/// `weight_over_limit`.
pub(crate) fn check_weight(spec: &Spec, limits: &Limits) -> Result<(), Error> {
    let weight = spec.weight;
    let Some(most) =
        limits.queue.concurrency.filter(|most| *most > 0 && weight > *most && !spec.critical)
    else {
        return Ok(());
    };
    Err(Error::Invalid {
        code: ErrorCode::WeightOverLimit,
        field: "weight".into(),
        message: format!("{weight} is over the limit {most} of queue {}", spec.queue),
    })
}

/// When the job can start first, and what it waits for until then.
fn first_start(new: &NewJob, windows: &[Window], now: Timestamp) -> (Timestamp, Waiting) {
    let debounce = new.options.unique.as_ref().and_then(|unique| unique.debounce);
    let delay = debounce.map(|debounce| debounce.seconds).or(new.delay_seconds);
    let due =
        new.run_at.or_else(|| delay.map(|delay| now + delay.duration())).unwrap_or(now).max(now);
    let run_at = window::next_opening(windows, due);
    let waiting = if run_at == due { Waiting::Due } else { Waiting::Window { due } };
    (run_at, waiting)
}

/// Extracts the attributes of a job again, from its new data. An attribute that its type's pointers
/// found only in the old data is removed.
///
/// # Errors
///
/// 400 if an extracted value is out of bounds.
pub(crate) fn extract_again(
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
    spec.partition = catalog.limits(&spec.queue).queue.partition_of(&found);
    spec.attributes = found;
    Ok(())
}

/// The attributes of a job with `data`. Those that `pointers` find replace `given` ones of the same
/// name.
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

/// The error that reports a value out of bounds.
pub fn fault(fault: validate::ValidationError) -> Error {
    Error::Invalid { code: fault.code, field: fault.field, message: fault.message }
}
