//! What follows when a worker hands an attempt back.

use super::{Failure, HandBack, HandBacks, Lifecycle, Outcome, Reason, Running, State, Waiting};
use crate::{calendar::window, job::Spec, time::Timestamp};

impl Lifecycle {
    /// Ends the running attempt as one that does not count. The job has its place in the order
    /// again, or waits until the time that its worker asked for.
    pub(super) fn hand_back(
        &mut self,
        run: &Running,
        spec: &Spec,
        hand_back: HandBack,
        received: bool,
        at_most_once: bool,
        now: Timestamp,
    ) {
        let backs = self.hand_backs.get_or_insert_default();
        backs.total += 1;
        if received {
            backs.in_a_row = if run.has_advanced { 0 } else { backs.in_a_row.saturating_add(1) };
            backs.not_received = 0;
        } else {
            backs.not_received = backs.not_received.saturating_add(1);
        }
        backs.not_begun += u16::from(at_most_once);
        if run.cancel {
            self.record_hand_back(run, now, hand_back, None);
            return self.end(now, Outcome::Cancelled);
        }
        let due = hand_back.until.or(self.latest_due_at()).unwrap_or(now);
        let opening = window::next_opening(&spec.windows, due.max(now));
        let (run_at, waiting) = if opening > due.max(now) {
            (opening, Waiting::Window { due })
        } else {
            (due, Waiting::Due)
        };
        self.record_hand_back(run, now, hand_back, Some(run_at));
        self.state = State::Scheduled { run_at, waiting };
    }

    /// The failure of an attempt that is handed back when no more may be.
    pub(super) fn handed_back_too_often(&self, hand_back: HandBack, received: bool) -> Failure {
        let before = match self.hand_backs_in_a_row(received) {
            _ if self.attempt == u16::MAX => {
                "handed back, and no attempt has a higher number".into()
            }
            0 => "handed back, which its type does not allow".to_owned(),
            number if received => format!("handed back without progress, as {number} before it"),
            number => format!("its worker did not receive it, as {number} before it"),
        };
        let why = hand_back.message.map(|message| format!(": {message}")).unwrap_or_default();
        Failure::new(Reason::NotDelivered, before + &why)
    }
    /// How many attempts in a row were handed back without progress: by workers, or because no
    /// worker received their leases.
    pub(super) fn hand_backs_in_a_row(&self, received: bool) -> u16 {
        let of = |backs: &HandBacks| if received { backs.in_a_row } else { backs.not_received };
        self.hand_backs.as_ref().map_or(0, of)
    }
}
