//! Triggers are set and removed. A rule is validated as a whole when it is set, and applies from
//! the answer on.

use crate::{
    Engine, Error,
    config::{
        configure::{MAX_CONFLICT_RETRIES, contended},
        unreadable::Unreadable,
    },
    jobs::enqueue::fault,
};
use tidegate_core::error_code::ErrorCode;
use tidegate_core::{
    event::{
        Trigger, TriggerConfig,
        trigger::{MAX_TRIGGERS, TriggerItem},
    },
    job::TriggerName,
    port::{Write, job_store::ItemKind},
    validate::ValidationError,
};

/// Most bytes of a trigger.
const MAX_TRIGGER_BYTES: usize = 64 << 10;

impl Engine {
    /// Sets a trigger as a whole. Returns the item, and whether it is new.
    ///
    /// # Errors
    ///
    /// 400 `invalid_trigger`, `invalid_expression` or `unknown_field` with the field; 413 over 64
    /// KiB; 409 `too_many_triggers`; 412 if `if_match` is not its version.
    pub async fn put_trigger(
        &self,
        name: &TriggerName,
        config: TriggerConfig,
        if_match: Option<u64>,
    ) -> Result<(TriggerItem, bool), Error> {
        self.put_trigger_over(name, config, if_match, Unreadable::Refuse).await
    }

    /// [`Self::put_trigger`], also over a stored trigger that cannot be read.
    ///
    /// # Errors
    ///
    /// As [`Self::put_trigger`].
    pub async fn replace_trigger(
        &self,
        name: &TriggerName,
        config: TriggerConfig,
        if_match: Option<u64>,
    ) -> Result<(TriggerItem, bool), Error> {
        self.put_trigger_over(name, config, if_match, Unreadable::Replace).await
    }

    /// Checks the host of the `callback_url` of the jobs, if it is the same for every event.
    fn check_callback(&self, config: &TriggerConfig) -> Result<(), ValidationError> {
        let given = config.enqueue.get("callback_url").and_then(|template| template.0.as_str());
        // `Trigger::new` has refused a text that is no URL.
        let Some(url) = given.and_then(|text| text.parse().ok()) else { return Ok(()) };
        self.rules.check_callback(&url).map_err(|fault| ValidationError {
            code: ErrorCode::InvalidTrigger,
            ..fault.within("enqueue")
        })
    }

    async fn put_trigger_over(
        &self,
        name: &TriggerName,
        config: TriggerConfig,
        if_match: Option<u64>,
        unreadable: Unreadable,
    ) -> Result<(TriggerItem, bool), Error> {
        Trigger::new(name, &config).map_err(fault)?;
        self.check_callback(&config).map_err(fault)?;
        for _ in 0..MAX_CONFLICT_RETRIES {
            let catalog = self.catalog().await?;
            let version = catalog.triggers.get(name).map(|item| item.version);
            let was = catalog.version_to_replace(
                ItemKind::Trigger,
                name.as_str(),
                version,
                unreadable,
            )?;
            if if_match.is_some_and(|version| version != was) {
                return Err(Error::Stale { version: was });
            }
            if was == 0 && catalog.triggers.len() >= MAX_TRIGGERS {
                let message = format!("there are {MAX_TRIGGERS} triggers, which is the maximum");
                return Err(Error::Conflict {
                    code: ErrorCode::TooManyTriggers,
                    message,
                    holder: None,
                });
            }
            let item = TriggerItem { config: config.clone(), version: was + 1 };
            let bytes =
                serde_json::to_vec(&item).map_err(|error| Error::Internal(error.to_string()))?;
            if bytes.len() > MAX_TRIGGER_BYTES {
                return Err(Error::TooLarge { field: "trigger", limit: MAX_TRIGGER_BYTES });
            }
            if self.set_trigger(name, was, Some(bytes)).await? {
                if version.is_none() && was > 0 {
                    tracing::warn!(trigger = %name, "an unreadable trigger was replaced");
                }
                return Ok((item, was == 0));
            }
        }
        Err(contended(name.as_str()))
    }

    /// A trigger.
    ///
    /// # Errors
    ///
    /// 404 `trigger_not_found`.
    pub async fn trigger(&self, name: &TriggerName) -> Result<TriggerItem, Error> {
        let catalog = self.catalog().await?;
        catalog.refuse_unreadable(ItemKind::Trigger, name.as_str())?;
        catalog.triggers.get(name).cloned().ok_or_else(|| no_trigger(name))
    }

    /// Removes a trigger. Later events are processed without it; its dead letters stay.
    ///
    /// # Errors
    ///
    /// 404; 412.
    pub async fn delete_trigger(
        &self,
        name: &TriggerName,
        if_match: Option<u64>,
    ) -> Result<(), Error> {
        for _ in 0..MAX_CONFLICT_RETRIES {
            let was = self.trigger(name).await?.version;
            if if_match.is_some_and(|version| version != was) {
                return Err(Error::Stale { version: was });
            }
            if self.set_trigger(name, was, None).await? {
                return Ok(());
            }
        }
        Err(contended(name.as_str()))
    }

    async fn set_trigger(
        &self,
        name: &TriggerName,
        was: u64,
        bytes: Option<Vec<u8>>,
    ) -> Result<bool, Error> {
        let write = Write::SetItem {
            kind: ItemKind::Trigger,
            name: name.to_string(),
            was,
            version: was + 1,
            bytes,
        };
        self.write_items(vec![write]).await
    }
}

/// The error for a trigger that does not exist.
pub(crate) fn no_trigger(name: &TriggerName) -> Error {
    Error::NotFound { code: ErrorCode::TriggerNotFound, what: format!("trigger {name}") }
}
