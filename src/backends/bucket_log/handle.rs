//! How a server passes commands to its node, and what it gets back.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::select;
use parking_lot::Mutex;
use tidegate_core::port::ClockReading;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::{
    body::{MAX_GROUP_BYTES, plain_bytes},
    bucket::Edge,
    key::{Epoch, ObjectKey},
    probe::{UnfitStore, check_store},
};

/// Most commands of a record, unless a single request has more.
pub(super) const MAX_GROUP_COMMANDS: usize = 4096;
/// Bytes of commands at which a record is full.
const FULL_GROUP_BYTES: usize = 8 << 20;
/// Most requests that wait in the channel, and as many at the leader; further callers wait to send
/// theirs.
pub(super) const MAX_WAITING_REQUESTS: usize = 4096;
/// Most bytes of the commands that wait, in the channel and at the leader. It has room for the
/// largest request.
const MAX_WAITING_BYTES: usize = 4 * MAX_GROUP_BYTES;
/// The longest wait for a standby that an end was announced to. A standby reads the beat at least every two
/// seconds.
const MAX_NOTICE: Duration = Duration::from_secs(3);

/// Why commands were not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogRefusal {
    /// This node does not lead. The commands were not executed, and never will be.
    #[error("this node does not lead")]
    NotLeader,
    /// The commands may have been executed. Repeat them with what makes a repeat harmless.
    #[error("the outcome is unknown")]
    OutcomeUnknown,
    /// The commands are larger than a record can be. They were not executed.
    #[error("the commands are larger than {MAX_GROUP_BYTES} bytes")]
    TooLarge,
}

/// Commands that are executed in one record, in their order.
pub(super) struct LogRequest<A> {
    pub commands: Vec<Bytes>,
    pub reply: Reply<A>,
    /// Its share of [`MAX_WAITING_BYTES`], until it is in a record.
    _room: Option<OwnedSemaphorePermit>,
}

type Answers<A> = Result<Vec<A>, LogRefusal>;
pub(super) type Reply<A> = oneshot::Sender<Answers<A>>;

impl<A> LogRequest<A> {
    /// A request of no caller, for a record that proves the leadership.
    pub(super) fn empty() -> Self {
        Self { commands: Vec::new(), reply: oneshot::channel().0, _room: None }
    }

    /// Whether its caller has stopped waiting, so that it need not be executed.
    fn is_abandoned(&self) -> bool {
        self.reply.is_closed() && !self.commands.is_empty()
    }

    fn bytes(&self) -> usize {
        plain_bytes(&self.commands)
    }

    pub(super) fn refuse(self) {
        // The caller may have stopped waiting.
        let _ = self.reply.send(Err(LogRefusal::NotLeader));
    }
}

/// Removes the requests of the next record from `waiting`: the first one, and those behind it until
/// the record is full. Abandoned ones are dropped.
pub(super) fn take_group<A>(waiting: &mut VecDeque<LogRequest<A>>) -> Vec<LogRequest<A>> {
    let (mut commands, mut bytes, mut group) = (0, 0, Vec::new());
    while let Some(next) = waiting.front() {
        if next.is_abandoned() {
            waiting.pop_front();
            continue;
        }
        commands += next.commands.len();
        bytes += next.bytes();
        let is_over = commands > MAX_GROUP_COMMANDS || bytes > FULL_GROUP_BYTES;
        if is_over && !group.is_empty() {
            break;
        }
        group.extend(waiting.pop_front());
    }
    group
}

/// What a node and its handles know of each other.
#[derive(Debug, Default)]
pub(super) struct Leadership {
    /// The epoch that the node leads.
    epoch: watch::Sender<Option<Epoch>>,
    /// Whether the node is to end its epoch and stop.
    is_released: watch::Sender<bool>,
    /// Whether records wait for no more requests, and the end of the epoch is announced.
    is_hurried: watch::Sender<bool>,
    /// Whether a standby waits for the announced end, or none is waited for.
    is_awaited: watch::Sender<bool>,
    /// Where the leader that the node follows answers requests; none while it leads, and after.
    leader: Mutex<Option<String>>,
    /// Whether the local state was at the end of the log once, and was not cleared since.
    has_caught_up: AtomicBool,
    /// The epoch of the newest snapshot that the state of this node, or of a standby, has differed from.
    difference: Mutex<Option<Epoch>>,
    /// Before the first PUT of the newest durable record of this leader.
    record_began: Mutex<Option<ClockReading>>,
    /// Whether the bucket is silent: a read of this leader has waited for an answer for long.
    is_silent: AtomicBool,
}

impl Leadership {
    pub(super) fn set(&self, epoch: Option<Epoch>) {
        if epoch.is_some() {
            *self.leader.lock() = None;
        }
        self.epoch.send_replace(epoch);
    }

    pub(super) fn epoch(&self) -> Option<Epoch> {
        *self.epoch.borrow()
    }

    pub(super) fn set_leader(&self, address: String) {
        *self.leader.lock() = Some(address).filter(|address| !address.is_empty());
    }

    pub(super) fn set_caught_up(&self, has_caught_up: bool) {
        self.has_caught_up.store(has_caught_up, Ordering::Release);
    }

    /// Notes that the state of a node has differed from the snapshot of `epoch`.
    pub(super) fn note_difference(&self, epoch: Epoch) {
        let mut difference = self.difference.lock();
        *difference = (*difference).max(Some(epoch));
    }

    pub(super) fn difference(&self) -> Option<Epoch> {
        *self.difference.lock()
    }

    /// Notes that a record of this leader is durable, whose first PUT began at `began`.
    pub(super) fn note_record(&self, began: ClockReading) {
        *self.record_began.lock() = Some(began);
    }

    /// Notes whether the bucket is silent.
    pub(super) fn set_silent(&self, is_silent: bool) {
        self.is_silent.store(is_silent, Ordering::Relaxed);
    }

    pub(super) fn is_released(&self) -> bool {
        *self.is_released.borrow()
    }

    /// Ends once the node is to end its epoch and stop.
    pub(super) async fn released(&self) {
        // The sender is this value, so it is not gone.
        let _ = self.is_released.subscribe().wait_for(|is_released| *is_released).await;
    }

    pub(super) fn is_hurried(&self) -> bool {
        *self.is_hurried.borrow()
    }

    /// Ends once records are to wait for no more requests, and the end of the epoch is to be announced.
    pub(super) async fn hurried(&self) {
        // As above.
        let _ = self.is_hurried.subscribe().wait_for(|is_hurried| *is_hurried).await;
    }

    pub(super) fn is_awaited(&self) -> bool {
        *self.is_awaited.borrow()
    }

    /// Notes that a standby waits for the announced end, or that none is waited for.
    pub(super) fn set_awaited(&self) {
        self.is_awaited.send_replace(true);
    }

    async fn awaited(&self) {
        let _ = self.is_awaited.subscribe().wait_for(|is_awaited| *is_awaited).await;
    }

    /// Ends once the node leads no epoch.
    async fn over(&self) {
        let _ = self.epoch.subscribe().wait_for(Option::is_none).await;
    }
}

/// Passes commands to a node.
pub struct Handle<A> {
    requests: mpsc::Sender<LogRequest<A>>,
    /// The bytes of commands that may still wait.
    room: Arc<Semaphore>,
    leadership: Arc<Leadership>,
    edge: Edge,
}

impl<A> Clone for Handle<A> {
    fn clone(&self) -> Self {
        Self {
            requests: self.requests.clone(),
            room: Arc::clone(&self.room),
            leadership: Arc::clone(&self.leadership),
            edge: self.edge.clone(),
        }
    }
}

impl<A> Handle<A> {
    /// A handle, and where its requests arrive.
    pub(super) fn new(
        edge: Edge,
        leadership: Arc<Leadership>,
    ) -> (Self, mpsc::Receiver<LogRequest<A>>) {
        let (requests, arrivals) = mpsc::channel(MAX_WAITING_REQUESTS);
        let room = Arc::new(Semaphore::new(MAX_WAITING_BYTES));
        (Self { requests, room, leadership, edge }, arrivals)
    }

    /// The epoch that the node leads, as far as it knows; none on a standby.
    pub fn epoch(&self) -> Option<Epoch> {
        self.leadership.epoch()
    }

    /// The epoch that the node leads, whenever it changes.
    pub fn leadership(&self) -> watch::Receiver<Option<Epoch>> {
        self.leadership.epoch.subscribe()
    }

    /// Where the leader answers requests, as far as this node knows. It is a hint.
    pub fn leader(&self) -> Option<String> {
        self.leadership.leader.lock().clone()
    }

    /// Whether the local state was at the end of the log once in this process, and was not cleared
    /// since. Before that, it may be as old as the log.
    pub fn has_caught_up(&self) -> bool {
        self.leadership.has_caught_up.load(Ordering::Acquire)
    }

    /// The epoch of the newest snapshot that the state of this node, or of a standby that has announced it,
    /// has differed from since this process began; none if no difference is known.
    pub fn difference(&self) -> Option<Epoch> {
        self.leadership.difference()
    }

    /// Lets records be written at once from now on, in every profile, and announces the end of the
    /// leadership to standbys: the server stops. The node goes on leading.
    pub fn hurry(&self) {
        self.leadership.is_hurried.send_replace(true);
    }

    /// Ends once a standby waits for the end that [`Self::hurry`] announces, and will lead less than a second
    /// after it. It also ends if no standby is known, if none answers within three seconds, and if the node
    /// does not lead.
    pub async fn awaited(&self) {
        let leadership = &self.leadership;
        let notice = self.edge.pause(MAX_NOTICE);
        select(select(pin!(leadership.awaited()), pin!(leadership.over())), pin!(notice)).await;
        leadership.set_awaited();
    }

    /// Lets the node stop: a leader executes what it has accepted, and ends its epoch, so that a
    /// standby need not wait. The run of the node returns then.
    pub fn release(&self) {
        self.hurry();
        self.leadership.is_released.send_replace(true);
    }

    /// Executes `commands`: an answer for each, after they are in the log and applied.
    ///
    /// # Errors
    ///
    /// [`LogRefusal`].
    pub async fn submit(&self, commands: Vec<Bytes>) -> Result<Vec<A>, LogRefusal> {
        let bytes = plain_bytes(&commands);
        if bytes > MAX_GROUP_BYTES {
            return Err(LogRefusal::TooLarge);
        }
        if self.epoch().is_none() || self.leadership.is_released() {
            return Err(LogRefusal::NotLeader);
        }
        // The semaphore is never closed.
        let room = Arc::clone(&self.room).acquire_many_owned(bytes as u32).await.ok();
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.send(LogRequest { commands, reply, _room: room }).await;
        sent.map_err(|_| LogRefusal::NotLeader)?;
        // A node that stops drops the replies of records whose PUTs are under way.
        answer.await.unwrap_or(Err(LogRefusal::OutcomeUnknown))
    }

    /// Ends once it is certain that no other node had acknowledged anything when this call began:
    /// a read of the local state after it sees every acknowledged command. No clock is involved.
    ///
    /// # Errors
    ///
    /// [`LogRefusal`].
    pub async fn prove_leadership(&self) -> Result<(), LogRefusal> {
        let epoch = self.epoch().ok_or(LogRefusal::NotLeader)?;
        match self.edge.read(&ObjectKey::Claim(epoch.next())).await {
            None => Ok(()),
            // A process wants to lead. Only a record of this leader proves that it has not yet
            // sealed this epoch.
            Some(_) => self.submit(Vec::new()).await.map(drop),
        }
    }

    /// When the first PUT of the newest durable record of this leader began, by the clock of the node. No
    /// other node had acknowledged anything then, as after [`Self::prove_leadership`]. None before its
    /// first record.
    pub fn record_began(&self) -> Option<ClockReading> {
        *self.leadership.record_began.lock()
    }

    /// Whether the bucket answers, as far as the last requests of the node show. No request is sent.
    pub fn bucket_answers(&self) -> bool {
        self.edge.bucket.answers() && !self.leadership.is_silent.load(Ordering::Relaxed)
    }

    /// Checks with an object of its own that the server still has its rights in the bucket, and that
    /// the store still creates an object once. It is right on a leader and on a standby.
    ///
    /// # Errors
    ///
    /// [`UnfitStore`].
    pub async fn check_store(&self) -> Result<(), UnfitStore> {
        check_store(&self.edge).await
    }

    /// The name of an object that must be in the bucket for ever and is gone: the identity of the log, the
    /// claim of its first epoch, or that of the epoch that the node leads; none if all are there. Rules
    /// that expire objects remove the oldest ones first. It ends when the store has answered.
    pub async fn lost_object(&self) -> Option<String> {
        let claims = [Some(Epoch::FIRST), self.epoch()].into_iter().flatten();
        for key in std::iter::once(ObjectKey::Identity).chain(claims.map(ObjectKey::Claim)) {
            if self.edge.read(&key).await.is_none() {
                return Some(key.to_string());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt as _, poll, stream::FuturesUnordered};
    use object_store::memory::InMemory;

    use super::*;
    use crate::{
        bucket_log::StoreBucket,
        system::{SystemClock, SystemEntropy},
    };

    fn request(lengths: &[usize]) -> (LogRequest<()>, oneshot::Receiver<Answers<()>>) {
        let commands = lengths.iter().map(|length| Bytes::from(vec![0; *length])).collect();
        let (reply, answer) = oneshot::channel();
        (LogRequest { commands, reply, _room: None }, answer)
    }

    fn groups(requests: &[&[usize]]) -> Vec<usize> {
        let (mut waiting, _answers): (VecDeque<_>, Vec<_>) =
            requests.iter().map(|lengths| request(lengths)).unzip();
        let mut groups = Vec::new();
        while !waiting.is_empty() {
            groups.push(take_group(&mut waiting).len());
        }
        groups
    }

    #[test]
    fn a_request_whose_caller_has_left_is_not_executed() {
        let (mut waiting, mut answers): (VecDeque<_>, Vec<_>) =
            [&[1][..], &[2], &[3], &[]].into_iter().map(request).unzip();
        answers.drain(..2);
        waiting.push_back(LogRequest::empty());
        let left: Vec<usize> =
            take_group(&mut waiting).iter().flat_map(|one| &one.commands).map(Bytes::len).collect();
        assert_eq!(left, [3]);
        assert!(waiting.is_empty());
    }

    #[tokio::test]
    async fn the_bytes_of_waiting_requests_are_bounded() {
        let leadership = Arc::<Leadership>::default();
        leadership.set(Some(Epoch::FIRST));
        let edge = Edge {
            bucket: Arc::new(StoreBucket::new(Arc::new(InMemory::new()), "prefix".into())),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        };
        let (handle, mut arrivals) = Handle::<()>::new(edge, leadership);
        let largest = Bytes::from(vec![0; MAX_GROUP_BYTES - 4]);
        let mut submits: FuturesUnordered<_> =
            (0..5).map(|_| handle.submit(vec![largest.clone()])).collect();
        assert!(poll!(submits.next()).is_pending());
        let mut arrived: Vec<_> = std::iter::from_fn(|| arrivals.try_recv().ok()).collect();
        assert_eq!(arrived.len(), 4);
        arrived.pop();
        assert!(poll!(submits.next()).is_ready(), "the node has dropped one");
        assert!(poll!(submits.next()).is_pending());
        assert!(arrivals.try_recv().is_ok(), "there is room for the last one");
    }

    #[test]
    fn a_record_takes_requests_until_it_is_full() {
        assert_eq!(groups(&[]), [0; 0]);
        assert_eq!(groups(&[&[1], &[], &[2, 3]]), [3]);
        let full = vec![1; MAX_GROUP_COMMANDS];
        assert_eq!(groups(&[&full, &[1], &[1]]), [1, 2]);
        assert_eq!(groups(&[&[FULL_GROUP_BYTES], &[1]]), [1, 1]);
        // A request is never divided.
        assert_eq!(groups(&[&[1], &[FULL_GROUP_BYTES + 1], &[1]]), [1, 1, 1]);
    }
}
