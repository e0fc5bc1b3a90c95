//! The stream of changes ends with the session of its caller.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    Router,
    body::{Body, Bytes},
    http::Request,
};
use futures_util::{Stream, StreamExt as _};
use tower::ServiceExt as _;

use super::{ApiOptions, options};
use crate::{
    auth::{AuthError, Authenticate, Bounds, Credentials, Principal, Scope},
    handlers,
    runtime::{
        Server,
        testing::{builder, in_time},
    },
};
use tidegate_core::{job::type_config::TypeConfig, port::Clock as _};
use tidegate_engine::{memory::FakeClock, testkit::builders::name};

const VALID: u8 = 0;
const REVOKED: u8 = 1;
const UNKNOWN: u8 = 2;
const OTHER_BOUNDS: u8 = 3;
const OTHER_SCOPE: u8 = 4;

/// Accepts one token as long as it is valid.
struct OneToken(AtomicU8);

#[async_trait]
impl Authenticate for OneToken {
    async fn authenticate(&self, credentials: &Credentials) -> Result<Principal, AuthError> {
        assert_eq!(credentials.secret(), Some("token"));
        let state = self.0.load(Ordering::Relaxed);
        match state {
            REVOKED => return Err(AuthError::Refused("it was revoked".into())),
            UNKNOWN => return Err(AuthError::Unavailable("no keys".into())),
            _ => {}
        }
        let mut bounds = Bounds::default();
        if state == OTHER_BOUNDS {
            bounds.queues.get_or_insert_default().insert("mail".parse().unwrap());
        }
        let scope = if state == OTHER_SCOPE { Scope::Work } else { Scope::Read };
        Ok(Principal { name: "one".into(), scopes: scope.into(), bounds: Arc::new(bounds) })
    }
}

/// A server in memory, and an open stream of its changes.
async fn open(
    clock: &Arc<FakeClock>,
    auth: &Arc<OneToken>,
) -> (Server, impl Stream<Item = Result<Bytes, axum::Error>> + Unpin) {
    let server = builder(clock).start().await.unwrap();
    let options = ApiOptions { auth: Arc::clone(auth) as _, ..ApiOptions::clone(&options()) };
    let router: Router = handlers::router(server.clone(), options);
    let request = Request::get("/v1/stream").header("host", "127.0.0.1:8080");
    let request = request.header("authorization", "Bearer token").body(Body::empty()).unwrap();
    let answer = router.oneshot(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut events = answer.into_body().into_data_stream();
    assert!(events.next().await.unwrap().unwrap().starts_with(b"event: ready"));
    (server, events)
}

#[tokio::test]
async fn a_stream_ends_soon_after_its_token_is_revoked() {
    for state in [REVOKED, OTHER_BOUNDS, OTHER_SCOPE] {
        let clock = Arc::new(FakeClock::default());
        let auth = Arc::new(OneToken(AtomicU8::new(VALID)));
        let (_server, mut events) = open(&clock, &auth).await;
        for valid in [VALID, UNKNOWN, VALID] {
            auth.0.store(valid, Ordering::Relaxed);
            let event = in_time(&clock, events.next()).await.unwrap().unwrap();
            assert!(event.starts_with(b": keep-alive"), "it goes on");
        }
        auth.0.store(state, Ordering::Relaxed);
        let revoked_at = clock.now();
        assert!(in_time(&clock, events.next()).await.is_none(), "{state}");
        let took = clock.now().since(revoked_at);
        assert!(took <= Duration::from_secs(16), "{took:?}");
    }
}

#[tokio::test]
async fn changes_do_not_delay_the_end_of_a_revoked_stream() {
    let clock = Arc::new(FakeClock::default());
    let auth = Arc::new(OneToken(AtomicU8::new(VALID)));
    let (server, mut events) = open(&clock, &auth).await;
    auth.0.store(REVOKED, Ordering::Relaxed);
    let revoked_at = clock.now();
    // Without a change for the shortest time, none of its keep-alives would come.
    let mut changes = 0;
    loop {
        server.put_type(&name(&format!("t{changes}")), TypeConfig::default(), None).await.unwrap();
        match in_time(&clock, events.next()).await {
            Some(event) => {
                let event = event.unwrap();
                assert!(event.starts_with(b"event: job_type"), "{event:?}");
            }
            None => break,
        }
        changes += 1;
        clock.advance(Duration::from_secs(1));
        assert!(clock.now().since(revoked_at) < Duration::from_secs(20), "{changes} changes");
    }
    assert!(changes > 3, "{changes} changes came before the check");
}
