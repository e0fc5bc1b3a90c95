//! How a server passes commands to its node, and what it gets back.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::{
    body::{MAX_GROUP_BYTES, plain_bytes},
    bucket::Edge,
    key::{Epoch, ObjectKey},
};

/// Most commands of a record, unless a single request has more.
const MAX_GROUP_COMMANDS: usize = 4096;
/// Bytes of commands at which a record is full.
const FULL_GROUP_BYTES: usize = 8 << 20;
/// Most requests that wait in the channel, and as many at the leader; further callers wait to send
/// theirs.
pub(super) const MAX_WAITING_REQUESTS: usize = 4096;

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
}

pub(super) type Reply<A> = oneshot::Sender<Result<Vec<A>, LogRefusal>>;

impl<A> LogRequest<A> {
    fn bytes(&self) -> usize {
        plain_bytes(&self.commands)
    }

    pub(super) fn refuse(self) {
        // The caller may have stopped waiting.
        let _ = self.reply.send(Err(LogRefusal::NotLeader));
    }
}

/// Removes the requests of the next record from `waiting`: the first one, and those behind it until
/// the record is full.
pub(super) fn take_group<A>(waiting: &mut VecDeque<LogRequest<A>>) -> Vec<LogRequest<A>> {
    let (mut commands, mut bytes, mut group) = (0, 0, Vec::new());
    while let Some(next) = waiting.front() {
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

/// Which epoch a node leads, for its handles.
#[derive(Debug, Default)]
pub(super) struct Leadership(AtomicU64);

impl Leadership {
    pub(super) fn set(&self, epoch: Option<Epoch>) {
        self.0.store(epoch.map_or(0, Epoch::number), Ordering::Release);
    }

    pub(super) fn epoch(&self) -> Option<Epoch> {
        Epoch::new(self.0.load(Ordering::Acquire))
    }
}

/// Passes commands to a node.
pub struct Handle<A> {
    requests: mpsc::Sender<LogRequest<A>>,
    leadership: Arc<Leadership>,
    edge: Edge,
}

impl<A> Clone for Handle<A> {
    fn clone(&self) -> Self {
        Self {
            requests: self.requests.clone(),
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
        (Self { requests, leadership, edge }, arrivals)
    }

    /// The epoch that the node leads, as far as it knows; none on a standby.
    pub fn epoch(&self) -> Option<Epoch> {
        self.leadership.epoch()
    }

    /// Executes `commands`: an answer for each, after they are in the log and applied.
    ///
    /// # Errors
    ///
    /// [`LogRefusal`].
    pub async fn submit(&self, commands: Vec<Bytes>) -> Result<Vec<A>, LogRefusal> {
        if plain_bytes(&commands) > MAX_GROUP_BYTES {
            return Err(LogRefusal::TooLarge);
        }
        if self.epoch().is_none() {
            return Err(LogRefusal::NotLeader);
        }
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.send(LogRequest { commands, reply }).await;
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(requests: &[&[usize]]) -> Vec<usize> {
        let request = |lengths: &&[usize]| LogRequest {
            commands: lengths.iter().map(|length| Bytes::from(vec![0; *length])).collect(),
            reply: oneshot::channel::<Result<Vec<()>, LogRefusal>>().0,
        };
        let mut waiting: VecDeque<_> = requests.iter().map(request).collect();
        let mut groups = Vec::new();
        while !waiting.is_empty() {
            groups.push(take_group(&mut waiting).len());
        }
        groups
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
