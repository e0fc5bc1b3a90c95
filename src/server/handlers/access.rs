//! Access tokens and their scopes: a handler names the scope it needs as an argument, [`May`] or
//! [`Within`].
//!
//! The argument is extracted before the body, so an unauthenticated caller cannot make the server
//! read one. A caller with `enqueue` may see and change single jobs. Bulk changes, configuration
//! and operation need `admin`. The token of an attempt allows the report and the heartbeats of that
//! attempt and nothing else; the server compares it.
//!
//! [`May`] refuses every caller whose token concerns only some queues or types. A handler that
//! applies such bounds takes [`Within`] instead, so no route forgets them.
//!
//! A caller with `enqueue` and without `read` has its own jobs alone: those that a caller of its
//! name enqueued. [`Within::check`] applies that together with the bounds.

use std::{marker::PhantomData, ops::Deref, sync::Arc};
use tidegate_core::error_code::ErrorCode;

use axum::{
    extract::{FromRef, FromRequestParts},
    http::{HeaderMap, HeaderValue, header, request::Parts},
};

use super::{Api, ApiOptions, audit::AuditNotes, error::Problem};
use crate::auth::{AuthError, Authenticate, Bounds, Credentials, Principal, Scope};
use tidegate_core::job::{Job, JobId, Token, TypeName, type_config::TypeConfig};
use tidegate_engine::{Catalog, Error};

/// The scopes that a route needs: any of them.
pub(crate) trait Needs: Send + Sync + 'static {
    /// The scopes.
    const ANY: &[Scope];
    /// Whether a caller without the scope `read` has its own jobs alone.
    const OWN_JOBS: bool;
}

macro_rules! needs {
    ($($name:ident: $any:expr, $own:literal, $doc:literal;)*) => {
        $(#[doc = $doc]
        #[derive(Debug)]
        pub struct $name;
        impl Needs for $name {
            const ANY: &[Scope] = &$any;
            const OWN_JOBS: bool = $own;
        })*
    };
}

needs! {
    Enqueue: [Scope::Enqueue], true, "Enqueues jobs and changes single jobs.";
    Work: [Scope::Work], false, "Leases jobs and reports on any attempt.";
    Read: [Scope::Read], false, "Reads.";
    ReadJob: [Scope::Read, Scope::Enqueue], true, "Reads single jobs.";
    Admin: [Scope::Admin], false, "Configures and operates.";
}

/// The caller, who has a scope of `N`, and whose token may concern only some queues and types: the
/// handler applies these bounds.
#[derive(Clone, Debug)]
pub(crate) struct Within<N> {
    /// The authenticated caller.
    pub caller: Principal,
    /// Whether the server is open: it accepts every caller, whatever its credentials.
    pub server_is_open: bool,
    needs: PhantomData<N>,
}

/// The caller, who has a scope of `N` without bounds.
#[derive(Clone, Debug)]
pub(crate) struct May<N>(Within<N>);

impl<N> Deref for May<N> {
    type Target = Within<N>;

    fn deref(&self) -> &Within<N> {
        &self.0
    }
}

/// The token in the cookie of a user who has signed in, if the request has no other credentials.
fn signed_in(headers: &HeaderMap, options: &ApiOptions) -> Option<String> {
    if headers.contains_key(header::AUTHORIZATION) {
        return None;
    }
    options.sign_in.as_ref()?.token_of(headers)
}

/// The credentials in these headers.
fn credentials(headers: &HeaderMap, options: &ApiOptions) -> Result<Credentials, AuthError> {
    if let Some(token) = signed_in(headers, options) {
        return Ok(Credentials::from_cookie(token));
    }
    let header = headers.get(header::AUTHORIZATION);
    Credentials::from_header(header.map(|value| value.to_str().unwrap_or_default()))
}

/// The caller of `parts`.
///
/// # Errors
///
/// 401; 403 if the page of another site may have sent a cookie; 503 if its credentials cannot be
/// checked now.
async fn authenticated(parts: &Parts, options: &ApiOptions) -> Result<Principal, Problem> {
    if signed_in(&parts.headers, options).is_some() {
        check_page(parts)?;
    }
    let answer = match credentials(&parts.headers, options) {
        Ok(credentials) => options.auth.authenticate(&credentials).await,
        Err(refused) => Err(refused),
    };
    answer.map_err(|error| unknown(&error, &parts.headers))
}

/// Checks that a page of this server sent a request with a cookie, which a browser adds by itself.
/// The pages of other sites cannot add a header without asking this server.
///
/// # Errors
///
/// 403 `cross_site`.
fn check_page(parts: &Parts) -> Result<(), Problem> {
    let site = parts.headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let is_foreign = matches!(site, Some(b"cross-site" | b"same-site"));
    let is_marked = parts.headers.contains_key("x-requested-with");
    // A link in a message opens a route without either, and a read of a result may take it.
    let is_own_read = parts.method.is_safe() && site == Some(b"same-origin");
    if is_foreign || !is_marked && !is_own_read {
        let detail = "a request with the cookie of a user must come from a page of this server, and \
                      have the header X-Requested-With";
        return Err(Problem::new(ErrorCode::CrossSite, detail));
    }
    Ok(())
}

/// The caller, whatever it may do. None if it has no credentials and the server needs some.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The authenticated caller.
    pub principal: Option<Principal>,
    /// Whether it signed in at the identity provider.
    pub has_signed_in: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for Caller
where
    Arc<ApiOptions>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let options = Arc::<ApiOptions>::from_ref(state);
        let has_signed_in = signed_in(&parts.headers, &options).is_some();
        let has_credentials = has_signed_in || parts.headers.contains_key(header::AUTHORIZATION);
        if !has_credentials && !options.auth.is_open() {
            return Ok(Self { principal: None, has_signed_in });
        }
        match authenticated(parts, &options).await {
            // The token in a cookie expires. The user signs in again.
            Err(problem) if has_signed_in && problem.error_code() == ErrorCode::Unauthorized => {
                Ok(Self { principal: None, has_signed_in })
            }
            caller => Ok(Self { principal: Some(caller?), has_signed_in }),
        }
    }
}

impl<N: Needs, S: Send + Sync> FromRequestParts<S> for Within<N>
where
    Arc<ApiOptions>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let options = Arc::<ApiOptions>::from_ref(state);
        let caller = authenticated(parts, &options).await?;
        if let Some(notes) = parts.extensions.get::<AuditNotes>() {
            notes.caller(&caller.name);
        }
        if !N::ANY.iter().any(|scope| caller.may(*scope)) {
            return Err(forbidden(N::ANY));
        }
        Ok(Self { caller, server_is_open: options.auth.is_open(), needs: PhantomData })
    }
}

impl<N: Needs, S: Send + Sync> FromRequestParts<S> for May<N>
where
    Arc<ApiOptions>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let caller = Within::from_request_parts(parts, state).await?;
        if caller.bounds().is_everything() {
            return Ok(Self(caller));
        }
        let detail = "the token concerns only some queues and types, and this route concerns all";
        Err(Problem::new(ErrorCode::Forbidden, detail))
    }
}

impl<N: Needs> Within<N> {
    /// The queues and types that the caller's token concerns.
    pub fn bounds(&self) -> &Bounds {
        &self.caller.bounds
    }

    /// The job `id`, if it has this type, and [concerns the caller](Within::check).
    ///
    /// # Errors
    ///
    /// 403; 404 if there is no such job; those of [`Within::problem`].
    pub async fn job(
        &self,
        api: &Api,
        id: &JobId,
        job_type: Option<&TypeName>,
    ) -> Result<Job, Problem> {
        let found = api.server.job(id, job_type).await;
        let job = found.map_err(|error| self.problem(error))?;
        self.check(&job)?;
        Ok(job)
    }

    /// The name that jobs of the caller keep. None on an open server.
    pub fn producer(&self) -> Option<&str> {
        if self.server_is_open { None } else { self.caller.producer() }
    }

    /// Whether the caller has its own jobs alone.
    fn has_own_jobs_alone(&self) -> bool {
        N::OWN_JOBS && !self.caller.may(Scope::Read)
    }

    /// Whether every job concerns the caller.
    fn has_every_job(&self) -> bool {
        self.bounds().is_everything() && !self.has_own_jobs_alone()
    }

    /// Whether the caller may see all of `job`, which is within its bounds.
    pub fn sees(&self, job: &Job) -> bool {
        let producer = job.spec.enqueued_by.as_deref();
        !self.has_own_jobs_alone() || producer.is_some() && producer == self.producer()
    }

    /// The answer to `error` about a job. A job that cannot be read is outside for a caller who has
    /// only some of the jobs: its queue, its type and its producer are not known.
    pub fn problem(&self, error: Error) -> Problem {
        match error {
            Error::Unreadable(_) if !self.has_every_job() => outside(),
            error => error.into(),
        }
    }

    /// Checks that `job` is within the bounds.
    ///
    /// # Errors
    ///
    /// 403.
    pub fn check_bounds(&self, job: &Job) -> Result<(), Problem> {
        if self.bounds().allow(job) { Ok(()) } else { Err(outside()) }
    }

    /// Checks that `job` is within the bounds, and one of the caller's own if it has these alone.
    ///
    /// # Errors
    ///
    /// 403.
    pub fn check(&self, job: &Job) -> Result<(), Problem> {
        self.check_bounds(job)?;
        if self.sees(job) {
            return Ok(());
        }
        let detail = "a caller of another name enqueued the job, and the token has no scope read";
        Err(Problem::new(ErrorCode::Forbidden, detail))
    }

    /// Checks the job `id`, if it has this type, as [`Within::check`]. If every job concerns the
    /// caller, nothing is read.
    ///
    /// # Errors
    ///
    /// As for [`Within::job`].
    pub async fn check_job(
        &self,
        api: &Api,
        id: &JobId,
        job_type: Option<&TypeName>,
    ) -> Result<(), Problem> {
        if self.has_every_job() {
            return Ok(());
        }
        self.job(api, id, job_type).await.map(drop)
    }

    /// The types of new jobs, to check them.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn types(&self, api: &Api) -> Result<AllowedTypes<'_>, Problem> {
        let bounds = self.bounds();
        let catalog =
            if bounds.is_everything() { None } else { Some(api.server.engine().catalog().await?) };
        Ok(AllowedTypes { bounds, catalog })
    }
}

/// Checks the caller of a request again while its answer is being sent.
pub(crate) struct Recheck {
    auth: Arc<dyn Authenticate>,
    credentials: Credentials,
    needs: &'static [Scope],
    bounds: Arc<Bounds>,
}

impl Recheck {
    /// Of the request of `caller` with these headers.
    ///
    /// # Errors
    ///
    /// 401 if they have no valid credentials, which the request of a caller has.
    pub fn new<N: Needs>(
        caller: &Within<N>,
        headers: &HeaderMap,
        options: &ApiOptions,
    ) -> Result<Self, Problem> {
        let credentials =
            credentials(headers, options).map_err(|error| unknown(&error, headers))?;
        let bounds = Arc::clone(&caller.caller.bounds);
        Ok(Self { auth: Arc::clone(&options.auth), credentials, needs: N::ANY, bounds })
    }

    /// Whether the caller still has a scope of the route, within the same bounds. True if that
    /// cannot be checked now.
    pub async fn is_allowed(&self) -> bool {
        match self.auth.authenticate(&self.credentials).await {
            Ok(caller) => {
                self.needs.iter().any(|scope| caller.may(*scope)) && caller.bounds == self.bounds
            }
            Err(AuthError::Refused(_)) => false,
            Err(AuthError::Unavailable(_)) => true,
        }
    }
}

/// The types whose jobs a caller may enqueue.
pub(crate) struct AllowedTypes<'a> {
    bounds: &'a Bounds,
    /// Absent: every type.
    catalog: Option<Arc<Catalog>>,
}

impl AllowedTypes<'_> {
    /// Checks that new jobs of `job_type` are within the bounds. A type that does not exist is
    /// judged as the one that an enqueue would create.
    ///
    /// # Errors
    ///
    /// 403.
    pub fn check(&self, job_type: &TypeName) -> Result<(), Problem> {
        let Some(catalog) = &self.catalog else { return Ok(()) };
        let missing = TypeConfig::default();
        let config = catalog.types.get(job_type).map_or(&missing, |item| &item.config);
        if self.bounds.allow_type(job_type) && self.bounds.allow_queue(&config.queue) {
            Ok(())
        } else {
            Err(outside())
        }
    }
}

/// The caller may enqueue critical jobs.
///
/// # Errors
///
/// 403 if it lacks the scope `enqueue:critical`.
pub(super) fn check_critical(caller: &Within<Enqueue>) -> Result<(), Problem> {
    let scope = Scope::EnqueueCritical;
    if caller.caller.may(scope) { Ok(()) } else { Err(forbidden(&[scope]).blame("critical")) }
}

/// The answer about what is outside the caller's bounds.
pub(super) fn outside() -> Problem {
    Problem::new(ErrorCode::Forbidden, "the token does not concern this queue and type")
}

fn forbidden(any: &[Scope]) -> Problem {
    let scopes: Vec<&str> = any.iter().map(|scope| scope.as_str()).collect();
    let scopes = scopes.join(" or ");
    Problem::new(ErrorCode::Forbidden, format!("the token has no scope {scopes}"))
}

/// The answer to a caller who is not known.
pub(super) fn unknown(error: &AuthError, headers: &HeaderMap) -> Problem {
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
                // The console prompts for a token itself; a Basic challenge would open the
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

/// The right to report on an attempt: its token, which the server compares, or a caller with the
/// scope `work`.
#[derive(Debug)]
pub(crate) enum Holder {
    /// Has the token of the attempt.
    OfAttempt(Token),
    /// May report on every attempt within its bounds.
    Worker(Within<Work>),
}

impl Holder {
    /// The token of the attempt, if that was shown.
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::OfAttempt(token) => Some(*token),
            Self::Worker(_) => None,
        }
    }

    /// Checks that the caller may report on the job `id`. One with the token of an attempt may if
    /// the server finds it right.
    ///
    /// # Errors
    ///
    /// As for [`Within::check_job`].
    pub async fn check_job(
        &self,
        api: &Api,
        id: &JobId,
        job_type: Option<&TypeName>,
    ) -> Result<(), Problem> {
        match self {
            Self::OfAttempt(_) => Ok(()),
            Self::Worker(caller) => caller.check_job(api, id, job_type).await,
        }
    }
}

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
        match token {
            Some(token) => Ok(Self::OfAttempt(token)),
            None => Within::from_request_parts(parts, state).await.map(Self::Worker),
        }
    }
}

/// `text` as the token of an attempt: 32 hexadecimal digits, a form that no other token has.
pub(crate) fn attempt_token(text: &str) -> Option<Token> {
    let form = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if form { u128::from_str_radix(text, 16).ok().map(Token::new) } else { None }
}
