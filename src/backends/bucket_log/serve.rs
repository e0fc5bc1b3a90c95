//! Leading: collect what waits, encode it once, create it in its slot, and apply and answer what is
//! durable, in order.
//!
//! ```text
//!   requests ──▶ one record ──PUT──▶ decided? ──in order──▶ apply ──▶ answers
//!                    up to `MAX_PUTS` under way
//! ```
//!
//! Nothing is evaluated before it is durable, so an answer never has to be taken back.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use futures_util::{
    FutureExt as _, StreamExt as _,
    future::BoxFuture,
    stream::{BoxStream, FuturesUnordered},
};
use tidegate_core::{error_chain::ErrorChain, port::ClockReading, time::Timestamp};
use tokio::sync::mpsc;

use super::{
    body,
    create::Created,
    error::LogError,
    flight::{Flight, MAX_PUTS},
    handle::{LogRefusal, LogRequest, MAX_WAITING_REQUESTS, Reply, take_group},
    handover::{Activity, ClaimWatch, Intent, RECORDS_PER_CLAIM_CHECK, Reaction},
    hedge::PutTimes,
    key::Epoch,
    lead::Leading,
    node::{Ended, Node},
    object::Kind,
    pace::{Gathered, Pace},
    planted::PlantedBug,
    replica::Replica,
    snapshot::Snapshot,
};

/// The caller of some commands of a record.
struct Waiter<A> {
    commands: usize,
    reply: Reply<A>,
}

/// What a record under way is for.
struct Sent<A> {
    /// Before its first PUT.
    began: ClockReading,
    waiters: Vec<Waiter<A>>,
}

/// A PUT that was decided.
struct Put {
    /// The number of its slot.
    seq: u64,
    created: Created,
    took: Duration,
}

/// The output of `work`, which may take longer than a beat may be late.
async fn beating<T>(beats: &mut BoxStream<'_, Intent>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        // A claim is the reason of this work, or is found again after it.
        while let Poll::Ready(Some(_)) = beats.poll_next_unpin(context) {}
        work.as_mut().poll(context)
    })
    .await
}

/// What a leader waits for.
enum Happened<A> {
    /// A request arrived.
    Arrived(LogRequest<A>),
    /// Every handle is gone.
    Closed,
    /// A PUT was decided.
    Decided(Put),
    /// The next PUT may start.
    MayStart,
    /// A snapshot was made, or there was one already, or it failed.
    Made(Result<Option<Snapshot>, LogError>),
    /// What a snapshot replaces was removed, or not.
    Truncated(Result<(), LogError>),
    /// The claim of the next epoch was looked for, between two records.
    Checked(Option<Intent>),
    /// A beat found that another process has claimed the next epoch.
    Claimed(Intent),
    /// The claim of this leader or the seal before it is gone.
    Unfenced(LogError),
    /// This leader is to end its epoch.
    Released,
}

/// What a leader has under way.
struct Work<'n, A> {
    waiting: VecDeque<LogRequest<A>>,
    gathered: Gathered,
    flight: Flight<Sent<A>>,
    puts: FuturesUnordered<BoxFuture<'n, Put>>,
    put_times: PutTimes,
    /// At most one snapshot.
    snapshots: FuturesUnordered<BoxFuture<'n, Result<Option<Snapshot>, LogError>>>,
    /// At most one truncation.
    truncations: FuturesUnordered<BoxFuture<'n, Result<(), LogError>>>,
    /// Ends when the next PUT may start; none if no time must pass.
    timer: Option<BoxFuture<'n, ()>>,
    /// Whether such a timer has ended since the last PUT started.
    has_waited: bool,
    /// Beats, and finds the claim of the next epoch.
    beats: BoxStream<'n, Intent>,
    /// Ends when the claim of this leader or the seal before it is gone. Until then, it notes whether the
    /// bucket is silent.
    fence: BoxFuture<'n, LogError>,
    /// At most one read of the claim of the next epoch.
    claim_checks: FuturesUnordered<BoxFuture<'n, Option<Intent>>>,
    claims: ClaimWatch,
    /// Whether this leader is to roll over because of a claim.
    is_claimed: bool,
    /// Ends when this leader may hand over; none if it may now.
    handover_timer: Option<BoxFuture<'n, ()>>,
    /// Ends once records are to wait for no more requests; none when it has.
    hurry: Option<BoxFuture<'n, ()>>,
    /// Ends once this leader is to end its epoch; none when it has.
    release: Option<BoxFuture<'n, ()>>,
    /// When the epoch began.
    since: Timestamp,
    /// The bytes of records in this epoch.
    bytes: u64,
    /// The bytes of records at which it ends.
    epoch_bytes: u64,
    is_closed: bool,
}

impl<A> Work<'_, A> {
    fn push(&mut self, request: LogRequest<A>) {
        self.gathered.add(&request.commands);
        self.waiting.push_back(request);
    }

    /// The requests of the next record, which has waited long enough.
    fn take_group(&mut self) -> Vec<LogRequest<A>> {
        let group = take_group(&mut self.waiting);
        self.gathered = Gathered::of(&self.waiting);
        (self.timer, self.has_waited) = (None, false);
        group
    }

    async fn next(&mut self, requests: &mut mpsc::Receiver<LogRequest<A>>) -> Happened<A> {
        poll_fn(|context| {
            if let Poll::Ready(Some(put)) = self.puts.poll_next_unpin(context) {
                return Poll::Ready(Happened::Decided(put));
            }
            if let Poll::Ready(Some(made)) = self.snapshots.poll_next_unpin(context) {
                return Poll::Ready(Happened::Made(made));
            }
            if let Poll::Ready(Some(ended)) = self.truncations.poll_next_unpin(context) {
                return Poll::Ready(Happened::Truncated(ended));
            }
            if let Some(timer) = &mut self.timer
                && Pin::new(timer).poll(context).is_ready()
            {
                (self.timer, self.has_waited) = (None, true);
                return Poll::Ready(Happened::MayStart);
            }
            if let Poll::Ready(Some(claim)) = self.claim_checks.poll_next_unpin(context) {
                return Poll::Ready(Happened::Checked(claim));
            }
            if let Poll::Ready(Some(intent)) = self.beats.poll_next_unpin(context) {
                return Poll::Ready(Happened::Claimed(intent));
            }
            if let Poll::Ready(error) = self.fence.poll_unpin(context) {
                return Poll::Ready(Happened::Unfenced(error));
            }
            if let Some(timer) = &mut self.handover_timer
                && timer.poll_unpin(context).is_ready()
            {
                self.handover_timer = None;
            }
            if let Some(hurry) = &mut self.hurry
                && hurry.poll_unpin(context).is_ready()
            {
                self.hurry = None;
                return Poll::Ready(Happened::MayStart);
            }
            if let Some(release) = &mut self.release
                && release.poll_unpin(context).is_ready()
            {
                self.release = None;
                return Poll::Ready(Happened::Released);
            }
            if self.is_closed || self.waiting.len() >= MAX_WAITING_REQUESTS {
                return Poll::Pending;
            }
            requests
                .poll_recv(context)
                .map(|arrived| arrived.map_or(Happened::Closed, Happened::Arrived))
        })
        .await
    }

    /// Reacts to the claim of the next epoch.
    fn note_claim(&mut self, intent: Intent) {
        let activity = Activity {
            is_idle: self.flight.is_empty() && self.waiting.is_empty(),
            may_hand_over: self.handover_timer.is_none(),
        };
        match self.claims.react(intent, activity) {
            Reaction::GoOn => {}
            Reaction::Prove => self.push(LogRequest::empty()),
            Reaction::RollOver => self.is_claimed = true,
        }
    }
}

impl<R: Replica> Node<R> {
    /// Leads until another node does, or until it is to end its epoch.
    pub(super) async fn serve(
        &self,
        leading: Leading,
        requests: &mut mpsc::Receiver<LogRequest<R::Answer>>,
    ) -> Result<Ended, LogError> {
        self.end_audit();
        let mut work = Work {
            waiting: VecDeque::new(),
            gathered: Gathered::default(),
            flight: Flight::behind(self.replica.tail()),
            puts: FuturesUnordered::new(),
            put_times: PutTimes::default(),
            snapshots: FuturesUnordered::new(),
            truncations: FuturesUnordered::new(),
            timer: None,
            has_waited: false,
            beats: self.beats(),
            fence: Box::pin(self.watch_bucket()),
            claim_checks: FuturesUnordered::new(),
            claims: ClaimWatch::default(),
            is_claimed: false,
            handover_timer: Some(self.handover_timer()),
            hurry: Some(Box::pin(self.leadership.hurried())),
            release: Some(Box::pin(self.leadership.released())),
            since: self.edge.clock.now(),
            bytes: 0,
            epoch_bytes: self.settings.epoch_bytes(self.replica.bytes()),
            is_closed: false,
        };
        self.begin_snapshot(&mut work, leading);
        loop {
            if self.must_roll_over(&work) {
                if work.flight.is_empty() || self.planted.has(PlantedBug::RolloverInFlight) {
                    let Some(leading) = self.roll_over(&mut work).await? else {
                        return self.fenced(work).await;
                    };
                    let old =
                        std::mem::replace(&mut work.flight, Flight::behind(self.replica.tail()));
                    answer_lost(old, LogRefusal::NotLeader);
                    work.puts.clear();
                    work.bytes = 0;
                    work.epoch_bytes = self.settings.epoch_bytes(self.replica.bytes());
                    // One that is under way may find this leader's own claim.
                    work.claim_checks.clear();
                    (work.claims, work.is_claimed) = (ClaimWatch::default(), false);
                    work.since = self.edge.clock.now();
                    self.begin_snapshot(&mut work, leading);
                }
            } else {
                self.start_puts(&mut work);
            }
            if work.release.is_none() && work.waiting.is_empty() && work.flight.is_empty() {
                return self.end_epoch(work).await;
            }
            match work.next(requests).await {
                Happened::Arrived(request) => work.push(request),
                Happened::MayStart
                | Happened::Made(Ok(None))
                | Happened::Truncated(Ok(()))
                | Happened::Checked(None) => {}
                Happened::Closed => work.is_closed = true,
                Happened::Decided(Put { seq, created, took }) => {
                    work.put_times.note(took);
                    work.flight.decide(seq, &created);
                    self.apply_durable(&mut work.flight).await?;
                    if work.flight.is_fenced() {
                        return self.fenced(work).await;
                    }
                }
                Happened::Made(Ok(Some(snapshot))) => {
                    metrics::counter!("tidegate_log_snapshots_total").increment(1);
                    // A later truncation removes what this one would have.
                    if work.truncations.is_empty() {
                        work.truncations.push(Box::pin(self.truncate(snapshot)));
                    }
                }
                Happened::Made(Err(error)) => {
                    metrics::counter!("tidegate_log_snapshot_failures_total").increment(1);
                    let error = ErrorChain(&error);
                    tracing::error!(%error, "a snapshot of the log could not be made");
                }
                Happened::Truncated(Err(error)) => {
                    tracing::error!(%error, "what a snapshot replaces could not be removed");
                }
                Happened::Checked(Some(intent)) | Happened::Claimed(intent) => {
                    work.note_claim(intent);
                }
                // Leading on would let a frozen leader acknowledge in the slot that is empty now.
                Happened::Unfenced(error) => return Err(error),
                Happened::Released => requests.close(),
            }
        }
    }

    fn begin_snapshot<'n>(&'n self, work: &mut Work<'n, R::Answer>, leading: Leading) {
        // One that is being made goes on: leaderships in quick succession must not end without one.
        if let Some(base) = leading.base.filter(|_| work.snapshots.is_empty()) {
            work.snapshots.push(Box::pin(self.snapshot(base)));
        }
    }

    fn must_roll_over(&self, work: &Work<'_, R::Answer>) -> bool {
        let records = work.flight.tail().next.seq;
        records >= self.settings.rollover_records
            || work.bytes >= work.epoch_bytes
            || work.is_claimed
            || (records > 1
                && self.edge.clock.now().since(work.since) >= self.settings.rollover_interval)
    }

    /// Begins the next epoch; none if another node leads. A process that has claimed the epoch to
    /// replace this leader may lead first.
    async fn roll_over<'n>(
        &'n self,
        work: &mut Work<'n, R::Answer>,
    ) -> Result<Option<Leading>, LogError> {
        let hands_over =
            work.handover_timer.is_none() && self.next_claim().await == Some(Intent::Replace);
        let next = async {
            if hands_over && !self.hand_over().await? {
                return Ok(None);
            }
            self.lead(Intent::Succeed).await
        };
        let leading = beating(&mut work.beats, next).await?;
        if hands_over {
            work.handover_timer = Some(self.handover_timer());
        }
        Ok(leading)
    }

    /// Ends when a leader may hand over that has just begun to lead, or could not hand over.
    fn handover_timer(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.edge.pause(self.settings.handover_interval))
    }

    /// Ends the epoch of this leader, which has no record under way: a standby can then lead
    /// without a wait.
    async fn end_epoch(&self, work: Work<'_, R::Answer>) -> Result<Ended, LogError> {
        let ended = work.flight.epoch();
        if !self.seal_own().await? {
            return self.fenced(work).await;
        }
        self.leadership.set(None);
        drop(work);
        self.write_release(ended).await;
        Ok(Ended::Released)
    }

    /// Starts the PUTs that may start now.
    fn start_puts<'n>(&'n self, work: &mut Work<'n, R::Answer>) {
        while !work.waiting.is_empty() && self.may_start(work) && work.flight.len() < MAX_PUTS {
            let group = work.take_group();
            if group.is_empty() {
                return;
            }
            if let Pace::Latency { interval } = self.settings.pace
                && !interval.is_zero()
            {
                // A span, because a clock that is set must not stop the log.
                work.timer = Some(self.edge.clock.sleep(interval));
            }
            let body = body::pack(group.iter().flat_map(|request| &request.commands));
            let tail = work.flight.tail();
            let object = self.object(Kind::Record, tail, &body);
            let (key, bytes) = (tail.key(), object.bytes().clone());
            work.bytes += bytes.len() as u64;
            let waiters = group.into_iter().map(|LogRequest { commands, reply, .. }| Waiter {
                commands: commands.len(),
                reply,
            });
            let began = ClockReading::of(&*self.edge.clock);
            work.flight.push(object, Sent { began, waiters: waiters.collect() });
            let hedge_after = work.put_times.hedge_after(bytes.len());
            work.puts.push(Box::pin(async move {
                let began = self.edge.clock.now();
                let created = self.edge.create_hedged(&key, &bytes, hedge_after).await;
                let took = self.edge.clock.now().since(began);
                Put { seq: tail.next.seq, created, took }
            }));
            if tail.next.seq % RECORDS_PER_CLAIM_CHECK == 0 && work.claim_checks.is_empty() {
                work.claim_checks.push(Box::pin(self.next_claim()));
            }
            if self.must_roll_over(work) {
                return;
            }
        }
    }

    /// Whether the requests that wait have waited long enough. If not, a timer runs.
    fn may_start<'n>(&'n self, work: &mut Work<'n, R::Answer>) -> bool {
        let Pace::Price { interval, bytes } = self.settings.pace else {
            return work.timer.is_none();
        };
        if work.has_waited || work.hurry.is_none() || work.gathered.is_enough(bytes) {
            return true;
        }
        if work.timer.is_none() {
            work.timer = Some(self.edge.clock.sleep(interval));
        }
        false
    }

    /// Applies the records that have become durable, and answers their callers.
    async fn apply_durable(&self, flight: &mut Flight<Sent<R::Answer>>) -> Result<(), LogError> {
        let (objects, sent): (Vec<_>, Vec<_>) =
            flight.take_durable(self.planted).into_iter().unzip();
        let Some(Sent { began, .. }) = sent.last() else { return Ok(()) };
        // The records before it are own ones too, so its epoch had no seal when it was written.
        self.leadership.note_record(*began);
        let answers = self.replica.apply(objects).await?;
        for (Sent { waiters, .. }, answers) in sent.into_iter().zip(answers) {
            let mut answers = answers.into_iter();
            for Waiter { commands, reply } in waiters {
                // The caller may have stopped waiting. Its commands are executed in any case.
                let _ = reply.send(Ok(answers.by_ref().take(commands).collect()));
            }
        }
        Ok(())
    }

    /// Ends a leadership: first it stops serving, and then it answers what it cannot execute.
    async fn fenced(&self, work: Work<'_, R::Answer>) -> Result<Ended, LogError> {
        let Work { waiting, flight, .. } = work;
        let epoch = flight.epoch();
        self.leadership.set(None);
        waiting.into_iter().for_each(LogRequest::refuse);
        let refused = match self.is_truncated(epoch).await {
            Ok(false) => LogRefusal::NotLeader,
            Ok(true) | Err(_) => LogRefusal::OutcomeUnknown,
        };
        self.learn_leader().await;
        answer_lost(flight, refused);
        Ok(Ended::Lost)
    }

    /// Notes where the process of the newest claim answers requests, unless that is this one, whose
    /// claim came to nothing.
    async fn learn_leader(&self) {
        if let Some(newest) = self.newest_epoch().await
            && let Ok(claim) = self.claim(newest).await
            && claim.address != self.settings.address
        {
            self.leadership.set_leader(claim.address);
        }
    }

    /// Whether slots of `epoch` may have been emptied. Then one's own record may have been in a slot
    /// that now has another object.
    async fn is_truncated(&self, epoch: Epoch) -> Result<bool, LogError> {
        let snapshot = self.newest_snapshot().await?;
        Ok(snapshot.is_some_and(|snapshot| snapshot.epoch >= epoch))
    }
}

/// Answers the callers of records that this leader will not apply.
fn answer_lost<A>(flight: Flight<Sent<A>>, refused: LogRefusal) {
    for Waiter { reply, .. } in flight.into_lost().into_iter().flat_map(|sent| sent.waiters) {
        let _ = reply.send(Err(refused));
    }
}
