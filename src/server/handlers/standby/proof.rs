//! The proof that no other node leads, which every read of a leader needs, and every push of a claimed job.
//!
//! Reads and pushes share proofs. A push and an ordinary read accept a proof that began less than a second
//! ago. A durable record of this leader is one too, which began with its first PUT. A consistent read needs a
//! proof that began after its request came, whatever clocks show: proofs are numbered, and a request notes
//! how many have begun.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::Response,
};
use tidegate_backends::bucket_log::Replica as _;
use tidegate_core::port::ClockReading;
use tokio::sync::{Mutex, Semaphore};

use super::{
    LogRoutes, MAX_POSITION_WAITS, NO_PROOF, add_position, is_consistent, is_read, wanted_position,
};
use crate::runtime::Leadership;

/// How old the proof of leadership behind an ordinary read may be.
const PROOF_AGE: Duration = Duration::from_secs(1);
/// How long a proof may take. The bucket does not answer then.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);

/// The proofs of a node. All that share a value share its proofs, so a node needs one.
pub struct Proofs {
    log: LogRoutes,
    /// How many have begun.
    begun: AtomicU64,
    /// The newest one, if it succeeded.
    newest: Mutex<Option<Proved>>,
    /// Those of reads that wait for their positions.
    places: Semaphore,
}

/// A proof that succeeded: its number, from 1 on, and when it began. A server that was frozen for minutes may
/// find that its clock was set back, so no clock alone decides how old it is.
#[derive(Clone, Copy)]
struct Proved {
    number: u64,
    began: ClockReading,
}

/// Which proof a read accepts.
#[derive(Clone, Copy)]
enum Accepted {
    /// One that began less than [`PROOF_AGE`] ago.
    Recent,
    /// One with a higher number.
    After(u64),
}

impl Proofs {
    /// The proofs of the node of `log`, before the first one.
    pub fn new(log: LogRoutes) -> Self {
        let places = Semaphore::new(MAX_POSITION_WAITS);
        Self { log, begun: AtomicU64::new(0), newest: Mutex::default(), places }
    }

    /// The `routes` of a server while the node leads. A read is at most a second behind what another
    /// leader has acknowledged, and one with `Tidegate-Consistent: true` is not behind.
    pub fn leading(self: &Arc<Self>, routes: Router) -> Router {
        routes.layer(middleware::from_fn_with_state(Arc::clone(self), answer))
    }

    /// Whether this node leads, by an accepted proof.
    async fn holds(&self, accepted: Accepted) -> bool {
        tokio::select! {
            holds = self.prove(accepted) => holds,
            () = self.log.clock.sleep(PROOF_TIMEOUT) => false,
        }
    }

    async fn prove(&self, accepted: Accepted) -> bool {
        let LogRoutes { handle, clock, .. } = &self.log;
        // Before the lock, which a proof for a consistent read may hold while the bucket answers.
        if matches!(accepted, Accepted::Recent)
            && let Some(began) = handle.record_began()
            && began.is_within(PROOF_AGE, ClockReading::of(&**clock))
        {
            return true;
        }
        let mut newest = self.newest.lock().await;
        let now = ClockReading::of(&**clock);
        let suffices = |proved: Proved| match accepted {
            Accepted::Recent => proved.began.is_within(PROOF_AGE, now),
            Accepted::After(begun) => proved.number > begun,
        };
        if newest.is_some_and(suffices) {
            return true;
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let proved = handle.prove_leadership().await.is_ok();
        *newest = proved.then_some(Proved { number, began: now });
        proved
    }
}

#[async_trait]
impl Leadership for Proofs {
    async fn is_proved(&self) -> bool {
        self.holds(Accepted::Recent).await
    }
}

/// Answers a request by the routes, and a read only with a proof.
async fn answer(State(proofs): State<Arc<Proofs>>, request: Request, next: Next) -> Response {
    let log = &proofs.log;
    if !request.uri().path().starts_with("/v1/") {
        return next.run(request).await;
    }
    let is_read = is_read(request.method());
    if is_read {
        let wanted = match wanted_position(request.headers()) {
            Ok(wanted) => wanted,
            Err(problem) => return log.refused(&problem),
        };
        // Before the proof, which must be recent when the read begins.
        if !log.reaches(wanted, &proofs.places).await {
            return log.behind();
        }
        let begun = proofs.begun.load(Ordering::SeqCst);
        let accepted = match is_consistent(request.headers()) {
            Ok(true) => Accepted::After(begun),
            Ok(false) => Accepted::Recent,
            Err(problem) => return log.refused(&problem),
        };
        if !proofs.holds(accepted).await {
            return log.refusal(NO_PROOF);
        }
    }
    // A read may begin at once, and a change is in the log when it is answered.
    let before = log.replica.tail();
    let mut response = next.run(request).await;
    let tail = if is_read { before } else { log.replica.tail() };
    add_position(response.headers_mut(), &tail);
    response
}
