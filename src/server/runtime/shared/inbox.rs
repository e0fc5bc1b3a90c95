//! The inbox: applications request jobs in transactions of their own, and a server adds the jobs.
//!
//! ```text
//!   every 40 ms: the requests after the newest one that was read ─▶ jobs, or dead letters
//!   every second or more: those before it, too
//! ```
//!
//! A transaction may send a notice. Then the owner reads the new requests at once, and polls as before.
//!
//! A transaction that commits late leaves requests before the newest one. Their read may be slow while
//! an old transaction keeps removed rows in the index. The other read stays fast.
//!
//! One server owns the inbox. The others read it seldom: the owner may be of a release that does not
//! know it. Each request is taken by one of those that read it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::{Shared, upgrade};
use crate::{
    runtime::{Inner, Server, WeakServer},
    telemetry::metrics,
};
use tidegate_api::NewJobBody;
use tidegate_core::{
    event::Event,
    job::{Encoding, JobId, Payload, Spec, spec::Unique},
    port::{Clock, Inbox, InboxPage, InboxRequest, InboxRules, StoreError},
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    Error,
    jobs::inbox::{RefusedRequest, is_final},
    request::NewJob,
};

/// The name under which a server owns the inbox.
pub(super) const INBOX: &str = "tidegate.inbox";
/// The interval at which the owner polls.
const POLL_INTERVAL: Duration = Duration::from_millis(40);
/// The least time between a read of the owner and one that a notice of an application causes.
const NOTICE_INTERVAL: Duration = Duration::from_millis(5);
/// The interval at which another server finds out whether it owns the inbox; and the wait after an
/// error.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// After how many such intervals another server reads the inbox.
const TURNS_OF_OTHERS: u32 = 10;
/// The least and the most reads of new requests until the earlier ones are read: a second and half a
/// minute if there are none.
const TURNS_UNTIL_LATE: (u32, u32) = (25, 750);
/// The part of the time that reads of earlier requests may take: one of this.
const LATE_SHARE: u32 = 20;
/// How many numbers before the newest one a reader starts that cannot read all. So many removed rows
/// are passed in time.
const MAX_PASSED: u64 = 10_000;
/// Most requests that are read at once.
const PAGE: u32 = 500;
/// The length of the ids that an inbox makes.
const ID_LENGTH: usize = 26;
/// The type and the source of the event in the dead letter of a request.
const EVENT_TYPE: &str = "tidegate.enqueue.refused";
const EVENT_SOURCE: &str = "tidegate.inbox";

/// Lets the inbox check what this server would refuse.
pub(super) async fn set_rules(inner: &Inner, inbox: &dyn Inbox) -> Result<(), StoreError> {
    let rules = inner.engine.rules();
    inbox
        .set_rules(InboxRules {
            max_data_bytes: rules.max_data_bytes,
            create_unknown_types: rules.create_unknown_types,
        })
        .await
}

/// Where a reader of the inbox is.
#[derive(Default)]
struct Reader {
    /// The number of the newest request that was read.
    newest: u64,
    /// The read of earlier ones, while it goes on.
    late: Option<LateRead>,
    /// How many reads of new requests follow until the next read of earlier ones.
    turns_until_late: u32,
}

/// A read of the requests before the newest one.
#[derive(Default)]
struct LateRead {
    /// The number of the last request that was read.
    after: u64,
    took: Duration,
}

impl Reader {
    /// Reads new requests, and earlier ones if it is their turn. A read by a notice is no turn: it is in
    /// addition to the polls. The flag is whether there were any requests.
    async fn read(
        &mut self,
        inbox: &dyn Inbox,
        clock: &dyn Clock,
        by_notice: bool,
    ) -> Result<(Vec<InboxRequest>, bool), StoreError> {
        let new = match inbox.requests(self.newest, u64::MAX, PAGE).await {
            Err(error) if self.newest == 0 => {
                // There may be too many removed rows to pass. The earlier requests wait.
                self.newest = inbox.newest().await?.saturating_sub(MAX_PASSED);
                return Err(error);
            }
            page => page?,
        };
        let mut requests = new.requests;
        let had_new = new.last.is_some();
        if self.turns_until_late == 0 {
            self.late.get_or_insert_default();
        } else if !by_notice {
            self.turns_until_late -= 1;
        }
        let mut had_late = false;
        if let Some(LateRead { after, took }) = self.late.take() {
            let began = clock.machine_now();
            let page = inbox.requests(after, self.newest, PAGE).await;
            let took = took + clock.machine_now().since(began);
            let page = page.unwrap_or_else(|error| {
                tracing::warn!(error = %error.chain(), "requests of late transactions wait");
                InboxPage::default()
            });
            had_late = page.last.is_some();
            if let Some(after) = page.last {
                self.late = Some(LateRead { after, took });
            } else {
                let turns = took.as_millis() / POLL_INTERVAL.as_millis() * u128::from(LATE_SHARE);
                let (least, most) = TURNS_UNTIL_LATE;
                self.turns_until_late = u32::try_from(turns).unwrap_or(most).clamp(least, most);
            }
            requests.extend(page.requests);
        }
        self.newest = self.newest.max(new.last.unwrap_or_default());
        Ok((requests, had_new || had_late))
    }
}

/// Adds the jobs of the inbox.
pub(super) async fn read_inbox(server: WeakServer) -> Option<()> {
    let (mut reader, mut turns, mut had_some) = (Reader::default(), 0_u32, false);
    let (mut by_notice, mut poll_at) = (false, Timestamp::EPOCH);
    loop {
        let (inner, shared) = upgrade(&server)?;
        let clock = Arc::clone(&inner.engine.ports().clock);
        let began = clock.now();
        let inbox = shared.inbox.as_deref()?;
        let is_owner = inner.owns(INBOX);
        turns = turns.wrapping_add(1);
        let pause = if is_owner || had_some || turns.is_multiple_of(TURNS_OF_OTHERS) {
            let read = match reader.read(inbox, &*clock, by_notice).await {
                Ok((requests, had)) => inner.accept_requests(requests).await.map(|()| had),
                Err(error) => Err(error.into()),
            };
            had_some = read.as_ref().is_ok_and(|had| *had);
            match read {
                Ok(true) => Duration::ZERO,
                Ok(false) if is_owner => POLL_INTERVAL,
                Ok(false) => IDLE_INTERVAL,
                Err(error) => {
                    tracing::warn!(%error, "requests of the inbox wait");
                    IDLE_INTERVAL
                }
            }
        } else {
            reader = Reader::default();
            IDLE_INTERVAL
        };
        drop(inner);
        // After an error, notices would repeat it.
        by_notice = if pause == POLL_INTERVAL {
            let now = clock.now();
            // Notices do not put off the next poll: only polls find the requests of late transactions.
            if !by_notice {
                poll_at = now + POLL_INTERVAL;
            }
            tokio::select! {
                () = clock.sleep(poll_at.since(now).min(POLL_INTERVAL)) => false,
                () = notice_after(&shared, &*clock, began + NOTICE_INTERVAL) => true,
            }
        } else {
            if !pause.is_zero() {
                clock.sleep(pause).await;
            }
            false
        };
    }
}

/// Waits for a notice of an application, and until `earliest`.
async fn notice_after(shared: &Shared, clock: &dyn Clock, earliest: Timestamp) {
    shared.requested.notified().await;
    clock.sleep_until(earliest).await;
}

impl Inner {
    /// Adds the job of this id if the inbox has its request. Returns whether the store may have the job
    /// now. A request that may change a waiting job is left to the reader, which keeps their order.
    pub(in crate::runtime) async fn take_from_inbox(
        self: &Arc<Self>,
        id: &JobId,
    ) -> Result<bool, Error> {
        let inbox = self.shared.as_ref().and_then(|shared| shared.inbox.as_deref());
        let Some(inbox) = inbox.filter(|_| id.as_str().len() == ID_LENGTH) else {
            return Ok(false);
        };
        let request = inbox.request(id).await?;
        let merges = |request: &InboxRequest| {
            let job = read(request);
            job.is_ok_and(|job| job.options.unique.as_ref().is_some_and(Unique::merges))
        };
        match request {
            Some(request) if merges(&request) => Ok(false),
            Some(request) => {
                self.accept_requests(vec![request]).await?;
                Ok(true)
            }
            // A reader may have added it after the caller looked for the job.
            None => Ok(true),
        }
    }

    /// Adds the jobs of `requests`, or dead letters for those that are refused. What fails for
    /// another reason stays in the inbox.
    pub(super) async fn accept_requests(
        self: &Arc<Self>,
        requests: Vec<InboxRequest>,
    ) -> Result<(), Error> {
        if requests.is_empty() {
            return Ok(());
        }
        let (mut jobs, mut kept, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for request in requests {
            match read(&request) {
                Ok(job) => {
                    jobs.push((request.id.clone(), job.clone()));
                    kept.push((request, job));
                }
                Err(reason) => refused.push((request, reason)),
            }
        }
        let server = Server { inner: Arc::clone(self) };
        let mut failed = None;
        for ((request, job), answer) in
            kept.into_iter().zip(Box::pin(server.enqueue_requests(jobs)).await)
        {
            let is_refused = answer.as_ref().is_err_and(is_final);
            // A call has bounds that the jobs of others may have used up.
            let answer = if is_refused {
                let again =
                    Box::pin(server.enqueue_requests(vec![(request.id.clone(), job)])).await;
                again.into_iter().next().unwrap_or(answer)
            } else {
                answer
            };
            match answer {
                Err(error) if is_final(&error) => refused.push((request, error.to_string())),
                // Another server has taken it.
                Err(Error::Stale { .. }) | Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        let most = self.engine.rules().events.max_bytes;
        let refused = refused.into_iter().map(|(request, why)| refusal(request, why, most));
        metrics::inbox_refused(self.engine.refuse_requests(refused.collect()).await?);
        failed.map_or(Ok(()), Err)
    }
}

/// The job of `request`.
fn read(request: &InboxRequest) -> Result<NewJob, String> {
    let (data, options) = (text(&request.data)?, text(&request.options)?);
    let type_name = request.job_type.parse().map_err(|error| format!("type: {error}"))?;
    // `options` has the fields of a request over HTTP, without those that are arguments.
    let rest = options.trim_start().strip_prefix('{').ok_or("options: must be a JSON object")?;
    let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
    let body = format!("{{\"data\":{data}{comma}{rest}");
    let NewJobBody {
        job_type,
        id,
        data,
        run_at,
        delay_seconds,
        expires_at,
        correlation_key,
        options,
    } = serde_json::from_str(&body).map_err(|error| {
        let error = error.to_string();
        // The place is one in the text above.
        format!("options: {}", error.split(" at line ").next().unwrap_or(&error))
    })?;
    for (field, is_given) in [
        ("type", job_type.is_some()),
        ("id", id.is_some()),
        ("run_at", run_at.is_some()),
        ("delay_seconds", delay_seconds.is_some()),
    ] {
        if is_given {
            return Err(format!("options.{field}: must not be given"));
        }
    }
    if options.critical {
        return Err("options.critical: needs a token with the scope `critical`".into());
    }
    let payload =
        Payload { encoding: Encoding::Json, bytes: data.get().as_bytes().to_vec().into() };
    let caller = &request.caller;
    let named =
        format!("sql:{}", &caller[..caller.floor_char_boundary(Spec::MAX_CALLER_BYTES - 4)]);
    Ok(NewJob {
        run_at: request.run_at,
        delay_seconds: request.delay.map(seconds),
        expires_at,
        correlation_key,
        options,
        enqueued_by: Some(named),
        ..NewJob::new(type_name, payload)
    })
}

fn text(json: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(json).map_err(|error| error.to_string())
}

/// What the dead letter of a request shows of it.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(rename = "type")]
    job_type: &'a str,
    data: Option<Box<RawValue>>,
    /// How many bytes of data were left out, because they are more than an event may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out_bytes: Option<usize>,
    options: Option<Box<RawValue>>,
    run_at: Option<Timestamp>,
    delay_seconds: Option<Seconds>,
}

/// The refusal of `request` for `reason`. Its dead letter has no more than `most` bytes of data.
fn refusal(request: InboxRequest, reason: String, most: usize) -> RefusedRequest {
    let raw = |json: &[u8]| {
        let text = std::str::from_utf8(json).unwrap_or_default();
        RawValue::from_string(text.to_owned()).ok()
    };
    let is_large = request.data.len() > most;
    let shown = Shown {
        job_type: &request.job_type,
        data: if is_large { None } else { raw(&request.data) },
        left_out_bytes: is_large.then_some(request.data.len()),
        options: raw(&request.options),
        run_at: request.run_at,
        delay_seconds: request.delay.map(seconds),
    };
    let data = to_raw_value(&shown).ok().map(|shown| Payload {
        encoding: Encoding::Json,
        bytes: shown.get().as_bytes().to_vec().into(),
    });
    let event = Event {
        id: request.id.to_string(),
        source: EVENT_SOURCE.to_owned(),
        event_type: EVENT_TYPE.to_owned(),
        subject: Some(request.caller),
        time: None,
        data_content_type: None,
        data_schema: None,
        extensions: BTreeMap::new(),
        data,
    };
    RefusedRequest { id: request.id, reason, event }
}

fn seconds(delay: Duration) -> Seconds {
    Seconds::from_millis(delay.as_millis() as u64)
}
