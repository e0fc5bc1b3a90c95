//! Access tokens and their scopes: a handler names the scope it needs as an argument, [`May`].
//!
//! The argument is extracted before the body, so an unauthenticated caller cannot make the server
//! read one. A caller with `enqueue` may change single jobs. Bulk changes, configuration and
//! operation need `admin`. The token of an attempt allows the report and the heartbeats of that
//! attempt and nothing else; the server compares it.

use std::{marker::PhantomData, sync::Arc};
use tidegate_core::error_code::ErrorCode;

use axum::{
    extract::{FromRef, FromRequestParts},
    http::{HeaderMap, HeaderValue, header, request::Parts},
};

use super::{ApiOptions, error::Problem};
use crate::auth::{AuthError, Credentials, Principal, Scope};
use tidegate_core::job::Token;

/// A scope that a route needs.
pub(crate) trait Needs: Send + Sync + 'static {
    /// The scope.
    const SCOPE: Scope;
}

macro_rules! needs {
    ($($name:ident: $doc:literal),*) => {
        $(#[doc = $doc]
        #[derive(Debug)]
        pub struct $name;
        impl Needs for $name {
            const SCOPE: Scope = Scope::$name;
        })*
    };
}

needs! {
    Enqueue: "Enqueues jobs and changes single jobs.",
    Work: "Leases jobs and reports on any attempt.",
    Read: "Reads.",
    Admin: "Configures and operates."
}

/// The caller, who has the scope `N`.
#[derive(Clone, Debug)]
pub(crate) struct May<N> {
    /// The authenticated caller.
    pub caller: Principal,
    /// Whether the request had no credentials, which an open server accepts.
    pub anonymous: bool,
    needs: PhantomData<N>,
}

impl<N: Needs, S: Send + Sync> FromRequestParts<S> for May<N>
where
    Arc<ApiOptions>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let options = Arc::<ApiOptions>::from_ref(state);
        let header = parts
            .headers
            .get(header::AUTHORIZATION)
            .map(|value| value.to_str().unwrap_or_default());
        let answer = match Credentials::from_header(header) {
            Ok(credentials) => options.auth.authenticate(&credentials).await,
            Err(refused) => Err(refused),
        };
        let caller = answer.map_err(|error| unknown(&error, &parts.headers))?;
        if !caller.may(N::SCOPE) {
            return Err(forbidden(N::SCOPE));
        }
        Ok(Self { caller, anonymous: header.is_none(), needs: PhantomData })
    }
}

impl May<Enqueue> {
    /// Checks that the caller may enqueue critical jobs.
    ///
    /// # Errors
    ///
    /// 403 if it lacks the scope `enqueue:critical`.
    pub fn critical(&self) -> Result<(), Problem> {
        let scope = Scope::EnqueueCritical;
        if self.caller.may(scope) { Ok(()) } else { Err(forbidden(scope).blame("critical")) }
    }
}

fn forbidden(scope: Scope) -> Problem {
    Problem::new(ErrorCode::Forbidden, format!("the token has no scope {scope}"))
}

fn unknown(error: &AuthError, headers: &HeaderMap) -> Problem {
    let detail = error.to_string();
    match error {
        AuthError::Unavailable(_) => Problem::new(ErrorCode::Unavailable, detail)
            .header(header::RETRY_AFTER, HeaderValue::from_static("1")),
        AuthError::Refused(_) => {
            let problem = Problem::new(ErrorCode::Unauthorized, detail);
            let problem = problem.header(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"tidegate\""),
            );
            if headers.contains_key("x-requested-with") {
                // The dashboard prompts for a token itself; a Basic challenge would open the
                // browser's own prompt.
                return problem;
            }
            problem.header(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Basic realm=\"tidegate\", charset=\"UTF-8\""),
            )
        }
    }
}

/// The right to report on an attempt: its token, which the server compares, or `None` for a caller
/// with the scope `work`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder(pub Option<Token>);

impl<S: Send + Sync> FromRequestParts<S> for Holder
where
    Arc<ApiOptions>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let shown = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = Credentials::from_header(shown)
            .ok()
            .and_then(|credentials| credentials.secret().and_then(attempt_token));
        if token.is_none() {
            May::<Work>::from_request_parts(parts, state).await?;
        }
        Ok(Self(token))
    }
}

/// `text` as the token of an attempt: 32 hexadecimal digits, a form that no other token has.
pub(crate) fn attempt_token(text: &str) -> Option<Token> {
    let form = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if form { u128::from_str_radix(text, 16).ok().map(Token) } else { None }
}
