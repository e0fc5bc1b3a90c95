//! The demands of a lease call, and the jobs that it is offered.

use super::{
    super::demands::{Answer, Posted},
    CONTENTION, LeaseCall, MAX_DEMANDS, MIN_CONTENDED_WAIT,
};
use tidegate_core::{job::QueueName, port::Work};
use tidegate_engine::{Claimed, Error};

impl LeaseCall<'_> {
    /// Posts a demand in each queue that has none. If others tick the queue, they are sent a hint,
    /// unless one of them serves it.
    pub(super) async fn post_demands(&mut self) -> Result<(), Error> {
        if self.gathers() {
            return Ok(());
        }
        let mut hinted = false;
        for index in 0..self.queues.len() {
            let queue = &self.queues[index];
            let posted = self.queues.iter().filter(|queue| queue.posted.is_some()).count();
            let is_late = self.until <= self.server.now() + MIN_CONTENDED_WAIT / 2;
            if queue.posted.is_some() || queue.closed || posted >= MAX_DEMANDS || is_late {
                continue;
            }
            let contended = self.is_contended(queue);
            let Some(demand) = self.demand(queue).await? else { continue };
            let bytes = self.space.map(|space| space.left);
            let released = queue.freed.clone();
            let name = queue.name.clone();
            let place = self.place.number;
            let post = self.server.post_demand(&name, place, &demand, bytes, released, self.until);
            let posted = post.await?;
            self.queues[index].posted = Some(posted);
            if contended && !self.server.is_served(&name).await? {
                self.serverless.outbox.queue_due(&name);
                hinted = true;
            }
        }
        if hinted {
            // If it fails, the next flush repeats it.
            let _ = self.server.flush().await;
        }
        Ok(())
    }

    /// Reads the answers to the demands, and claims what was offered.
    pub(super) async fn read_answers(&mut self) -> Result<(), Error> {
        let mut posted: Vec<&mut Posted> =
            self.queues.iter_mut().filter_map(|queue| queue.posted.as_mut()).collect();
        if posted.is_empty() {
            return Ok(());
        }
        let answers = self.server.answers(&mut posted).await?;
        let indices: Vec<usize> =
            (0..self.queues.len()).filter(|index| self.queues[*index].posted.is_some()).collect();
        for (index, answer) in indices.into_iter().zip(answers) {
            let now = self.server.now();
            let queue = &mut self.queues[index];
            queue.look_at = queue.look_at.into_iter().chain(answer.look_at).min();
            if !answer.offers.is_empty() {
                // Its releases are known: a tick has answered it.
                queue.freed.clear();
                let name = queue.name.clone();
                queue.posted = None;
                self.serverless.note(&name, |seen| {
                    seen.contended_until = seen.contended_until.map(|_| now + CONTENTION);
                });
                self.claim(index, answer.offers).await?;
                continue;
            }
            let name = queue.name.clone();
            self.give_back(&name, &answer.stale).await?;
            let queue = &self.queues[index];
            if answer.is_lost
                && now < self.until
                && let Some(posted) = &queue.posted
            {
                self.server.post_again(posted).await?;
            }
        }
        Ok(())
    }

    /// Claims offered jobs, as many as fit. The others are given back.
    async fn claim(&mut self, index: usize, mut offers: Vec<Work>) -> Result<(), Error> {
        let queue = &self.queues[index];
        let mut left = self.space.map_or(usize::MAX, |space| space.left);
        let mut room = self.room() as usize;
        let is_first = self.jobs.is_empty();
        let mut fits = |work: &Work, is_first: bool| {
            let bytes = work.data_bytes as usize;
            let fits = room > 0 && (bytes <= left || is_first);
            if fits {
                (room, left) = (room - 1, left.saturating_sub(bytes));
            }
            fits
        };
        let mut number = 0;
        let mut declined: Vec<Work> = offers
            .extract_if(.., |work| {
                number += 1;
                !fits(work, is_first && number == 1)
            })
            .collect();
        let name = queue.name.clone();
        if let Some(demand) = self.demand(queue).await? {
            let claimed = self.server.engine().claim_offers(&offers, &demand).await?;
            self.take(claimed.into_iter().flatten().map(|Claimed { job, .. }| job).collect());
        } else {
            declined.append(&mut offers);
        }
        self.give_back(&name, &declined).await
    }

    /// Gives offered jobs of `queue` back, so that their slots are free at once.
    async fn give_back(&self, queue: &QueueName, offers: &[Work]) -> Result<(), Error> {
        if !offers.is_empty() {
            for (job, version) in self.server.engine().decline(offers).await? {
                self.serverless.outbox.job_changed(&job, Some(version));
            }
            self.serverless.outbox.queue_due(queue);
        }
        Ok(())
    }

    /// Leaves to others what the call did not take.
    pub(super) async fn finish(&mut self) {
        let (now, idle) = (self.server.now(), self.jobs.is_empty());
        for queue in &mut self.queues {
            self.serverless.outbox.released(&queue.name, &queue.freed);
            self.serverless.note(&queue.name, |seen| {
                seen.idle_since = if idle { seen.idle_since.or(Some(now)) } else { None };
            });
        }
        // A call that lasted to its end has just read the answers.
        if now < self.until
            && let Err(error) = self.withdraw().await
        {
            // What it is offered now is revoked after a while.
            tracing::debug!(%error, "the demands of a lease call were not withdrawn");
        }
    }

    /// Withdraws the demands, and gives back what was offered meanwhile.
    async fn withdraw(&mut self) -> Result<(), Error> {
        let mut open: Vec<Posted> =
            self.queues.iter_mut().filter_map(|queue| queue.posted.take()).collect();
        if open.is_empty() {
            return Ok(());
        }
        let answers = self.server.answers(&mut open.iter_mut().collect::<Vec<_>>()).await?;
        self.server.withdraw(&open.iter().collect::<Vec<_>>()).await?;
        for (posted, Answer { offers, stale, .. }) in open.iter().zip(answers) {
            self.give_back(&posted.queue, &[offers, stale].concat()).await?;
        }
        Ok(())
    }
}
