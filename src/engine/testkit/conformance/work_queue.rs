//! The contract of [`WorkQueue`], as tests that every adapter must pass: see
//! [`work_queue_conformance`](crate::work_queue_conformance).

use std::{collections::BTreeSet, time::Duration};

use async_trait::async_trait;

use super::super::builders::name;
use tidegate_core::{
    job::Version,
    port::{Hint, HintKind, Timer, Work, WorkQueue},
    time::Timestamp,
};

/// How long a delivery may take in addition to the delay of the message.
const MAX_DELIVERY_TIME: Duration = Duration::from_secs(10);

/// The receiving end of a work queue, as the suite needs it.
#[async_trait]
pub trait Arrivals: Send + Sync {
    /// The queue.
    fn queue(&self) -> &dyn WorkQueue;
    /// The time that its delays refer to.
    fn now(&self) -> Timestamp;
    /// Waits until `at`, or advances a fake clock to it.
    async fn pass(&self, at: Timestamp);
    /// The work that has arrived since the last call. If arrivals take time, it waits for at least
    /// one message if any is in flight.
    async fn work(&self) -> Vec<Work>;
    /// The same for hints.
    async fn hints(&self) -> Vec<Hint>;
    /// The same for timers.
    async fn timers(&self) -> Vec<Timer>;
}

/// Tests the [`Arrivals`] that the expression makes against the contract of [`WorkQueue`], in a
/// module of this name. The attributes are added to each test.
#[macro_export]
macro_rules! work_queue_conformance {
    ($(#[$attribute:meta])* $name:ident, $arrivals:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::work_queue_conformance!(
                @each [$(#[$attribute])*] $arrivals;
                work_arrives_as_it_was_sent
                work_does_not_arrive_before_its_time
                a_repeat_of_work_arrives_and_changes_nothing
                hints_of_a_queue_arrive_in_their_order
                equal_hints_are_two_hints
                a_timer_fires_at_its_instant
                nothing_to_send_is_sent
            );
        }
    };
    (@each $attributes:tt $arrivals:expr; $($clause:ident)*) => {
        $($crate::work_queue_conformance!(@one $attributes $arrivals; $clause);)*
    };
    (@one [$(#[$attribute:meta])*] $arrivals:expr; $clause:ident) => {
        $(#[$attribute])*
        #[tokio::test]
        async fn $clause() {
            let arrivals = $arrivals;
            $crate::testkit::conformance::$clause(&arrivals).await;
        }
    };
}

fn piece(queue: &str, number: usize, run_at: Timestamp) -> Work {
    let granted_at = number.is_multiple_of(2).then_some(run_at);
    Work {
        queue: name(queue),
        job: name(&format!("{queue}-{number}")),
        version: Version(number as u64 + 1),
        run_at,
        granted_at,
        data_bytes: 0,
    }
}

/// Collects from `more` until there are `count` different items or the slack is over.
async fn gather<T: Ord, F: Future<Output = Vec<T>>>(
    arrivals: &dyn Arrivals,
    count: usize,
    more: impl Fn() -> F,
) -> BTreeSet<T> {
    let end = arrivals.now() + MAX_DELIVERY_TIME;
    let mut found = BTreeSet::new();
    while found.len() < count && arrivals.now() < end {
        found.extend(more().await);
    }
    found
}

fn key(work: &Work) -> (String, String, u64, Timestamp, Option<Timestamp>) {
    (work.queue.to_string(), work.job.to_string(), work.version.0, work.run_at, work.granted_at)
}

async fn all_work(
    arrivals: &dyn Arrivals,
    count: usize,
) -> BTreeSet<(String, String, u64, Timestamp, Option<Timestamp>)> {
    gather(arrivals, count, || async { arrivals.work().await.iter().map(key).collect() }).await
}

/// Work of several queues, more than one call takes, arrives completely.
pub async fn work_arrives_as_it_was_sent(arrivals: &dyn Arrivals) {
    let now = arrivals.now();
    let work: Vec<Work> = ["mail", "calls", "b"]
        .iter()
        .flat_map(|queue| (0..75).map(|number| piece(queue, number, now)))
        .collect();
    arrivals.queue().send(&work).await.expect("it is sent");
    assert_eq!(all_work(arrivals, work.len()).await, work.iter().map(key).collect());
}

/// Work that is due later arrives at most half a second early.
pub async fn work_does_not_arrive_before_its_time(arrivals: &dyn Arrivals) {
    let at = arrivals.now() + Duration::from_secs(3);
    let later = Work { granted_at: None, ..piece("mail", 1, at) };
    arrivals.queue().send(std::slice::from_ref(&later)).await.expect("it is sent");
    while arrivals.now() + Duration::from_millis(1500) < at {
        assert!(
            arrivals.work().await.is_empty(),
            "it came at {}, and is due at {at}",
            arrivals.now()
        );
        arrivals.pass(arrivals.now() + Duration::from_millis(200)).await;
    }
    arrivals.pass(at).await;
    assert_eq!(all_work(arrivals, 1).await, BTreeSet::from([key(&later)]));
}

/// Sending the same work again is harmless.
pub async fn a_repeat_of_work_arrives_and_changes_nothing(arrivals: &dyn Arrivals) {
    let work = [piece("mail", 2, arrivals.now())];
    arrivals.queue().send(&work).await.expect("it is sent");
    arrivals.queue().send(&work).await.expect("it is sent again");
    assert_eq!(all_work(arrivals, 1).await, work.iter().map(key).collect());
}

/// Hints of one queue arrive in the order of their publication, whatever other queues receive.
pub async fn hints_of_a_queue_arrive_in_their_order(arrivals: &dyn Arrivals) {
    let hint = |queue: &str, number: u64| Hint {
        queue: name(queue),
        kind: HintKind::Released(name(&format!("j{number}")), Version(number)),
    };
    for number in 0..5 {
        arrivals
            .queue()
            .hint(&[hint("mail", number), hint("calls", number)])
            .await
            .expect("it is published");
    }
    let end = arrivals.now() + MAX_DELIVERY_TIME;
    let mut came: Vec<Hint> = Vec::new();
    while came.len() < 10 && arrivals.now() < end {
        came.extend(arrivals.hints().await);
    }
    for queue in ["mail", "calls"] {
        let of: Vec<Hint> = came.iter().filter(|hint| hint.queue == name(queue)).cloned().collect();
        assert_eq!(of, (0..5).map(|number| hint(queue, number)).collect::<Vec<_>>());
    }
}

/// Two equal hints are two messages: the second may be about a change after the first was read.
pub async fn equal_hints_are_two_hints(arrivals: &dyn Arrivals) {
    let hint = Hint { queue: name("mail"), kind: HintKind::Due };
    let mut came = Vec::new();
    for count in 1..=2 {
        arrivals.queue().hint(std::slice::from_ref(&hint)).await.expect("it is published");
        let end = arrivals.now() + MAX_DELIVERY_TIME;
        while came.len() < count && arrivals.now() < end {
            came.extend(arrivals.hints().await);
        }
        assert_eq!(came, vec![hint.clone(); count]);
    }
}

/// A timer fires at its instant, not long before.
pub async fn a_timer_fires_at_its_instant(arrivals: &dyn Arrivals) {
    let soon = Timer { at: arrivals.now(), queue: name("mail") };
    let later = Timer { at: arrivals.now() + Duration::from_secs(2), queue: name("mail") };
    arrivals.queue().set_timers(&[soon.clone(), later.clone()]).await.expect("it is set");
    let came = gather(arrivals, 1, || arrivals.timers()).await;
    assert_eq!(came, BTreeSet::from([soon]));
    arrivals.pass(later.at).await;
    assert_eq!(gather(arrivals, 1, || arrivals.timers()).await, BTreeSet::from([later]));
}

/// An empty call succeeds.
pub async fn nothing_to_send_is_sent(arrivals: &dyn Arrivals) {
    let queue = arrivals.queue();
    assert!(
        queue.send(&[]).await.is_ok()
            && queue.hint(&[]).await.is_ok()
            && queue.set_timers(&[]).await.is_ok()
    );
}
