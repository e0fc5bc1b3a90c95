//! Waiting for a condition, with a bound.

use std::{future::Future, time::Duration};

use parking_lot::Mutex;

/// How long a test waits for a required result. It is long, because all tests may run at once.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The first value that `ask` yields. `what` names what was awaited if a timeout ends it.
pub async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let mut looks = tokio::time::interval(Duration::from_millis(10));
    let asked = async {
        loop {
            looks.tick().await;
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
    let mut looks = tokio::time::interval(Duration::from_millis(10));
    let asked = async {
        loop {
            looks.tick().await;
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
