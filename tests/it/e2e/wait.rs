//! Waiting for a condition, with a bound.

use std::{future::Future, time::Duration};

use parking_lot::Mutex;
use tokio::time::Interval;

/// How long a test waits for a required result. It is long, because all tests may run at once.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The pause from one look to the next: short, so that the test goes on soon, and longer after the first
/// looks. Each look is a request, which takes processor time from all tests.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(50)];
/// How many looks are the first.
const FIRST_LOOKS: u32 = 25;

/// The looks of one wait.
struct Looks {
    interval: Interval,
    taken: u32,
}

impl Looks {
    fn new() -> Self {
        Self { interval: tokio::time::interval(PAUSES[0]), taken: 0 }
    }

    /// Ends when it is time for the next look; at once for the first.
    async fn next(&mut self) {
        self.interval.tick().await;
        self.taken += 1;
        self.interval.reset_after(PAUSES[usize::from(self.taken > FIRST_LOOKS)]);
    }
}

/// The first value that `ask` yields. `what` names what was awaited if a timeout ends it.
pub async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let mut looks = Looks::new();
    let asked = async {
        loop {
            looks.next().await;
            if let Some(answer) = ask().await {
                return answer;
            }
        }
    };
    tokio::time::timeout(PATIENCE, asked)
        .await
        .unwrap_or_else(|_| panic!("waited in vain until {what}"))
}

/// The first answer of `ask` that it marks as good. A timeout shows the last one.
pub async fn until<T: std::fmt::Debug, F: Future<Output = (bool, T)>>(
    mut ask: impl FnMut() -> F,
) -> T {
    let last = Mutex::new(None);
    let mut looks = Looks::new();
    let asked = async {
        loop {
            looks.next().await;
            let (good, answer) = ask().await;
            if good {
                return answer;
            }
            *last.lock() = Some(answer);
        }
    };
    tokio::time::timeout(PATIENCE, asked)
        .await
        .unwrap_or_else(|_| panic!("it stayed at {:#?}", last.lock()))
}
