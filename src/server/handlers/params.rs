//! Names in paths, parameters in queries, and conditions in headers.

use std::{borrow::Borrow, collections::BTreeMap, str::FromStr};
use tidegate_core::error_code::ErrorCode;

use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::{HeaderMap, header, request::Parts},
};

use super::{audit::AuditNotes, error::Problem};
use tidegate_core::{
    job::{JobId, PluginName, TypeName, Value},
    port::{job_store::ListQuery, listing::Cursor},
    time::Timestamp,
};

/// Items of a page by default.
const DEFAULT_LIMIT: u32 = 100;
/// Maximum items of a page.
pub(super) const MAX_LIMIT: u32 = 1000;

/// `{type}/{id}` in a path.
#[derive(Debug)]
pub(crate) struct JobPath {
    /// The type that the job must have.
    pub job_type: TypeName,
    /// The job.
    pub id: JobId,
}

/// `{plugin}/versions/{number}` in a path.
#[derive(Debug)]
pub(crate) struct VersionPath {
    /// The plugin.
    pub plugin: PluginName,
    /// The number of its version.
    pub number: u32,
}

/// A recorded call of a plugin in a path.
pub(crate) struct PluginCallPath {
    /// The plugin.
    pub plugin: PluginName,
    /// The id of the call.
    pub id: String,
}

/// The one name in a path.
#[derive(Debug)]
pub struct Name<N>(pub N);

/// The value of path parameter `name`.
async fn segment<N: FromStr<Err: std::fmt::Display>, S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
    name: Option<&str>,
) -> Result<N, Problem> {
    let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| {
        Problem::new(ErrorCode::InvalidPath, "the path is not percent-encoded UTF-8")
    })?;
    let (name, text) =
        params.iter().find(|(have, _)| name.is_none_or(|name| name == *have)).ok_or_else(|| {
            Problem::internal("a handler reads a path parameter that its route lacks")
        })?;
    text.parse().map_err(|error| Problem::invalid(name, error))
}

impl<S: Send + Sync> FromRequestParts<S> for JobPath {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Ok(Self {
            job_type: segment(parts, state, Some("type")).await?,
            id: segment(parts, state, Some("id")).await?,
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for VersionPath {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Ok(Self {
            plugin: segment(parts, state, Some("plugin")).await?,
            number: segment(parts, state, Some("number")).await?,
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for PluginCallPath {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Ok(Self {
            plugin: segment(parts, state, Some("plugin")).await?,
            id: segment(parts, state, Some("id")).await?,
        })
    }
}

impl<N: FromStr<Err: std::fmt::Display>, S: Send + Sync> FromRequestParts<S> for Name<N> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        segment(parts, state, None).await.map(Self)
    }
}

/// The parameters of a query. Handlers remove each one that they read, so that unknown ones remain.
#[derive(Debug, Default)]
pub struct Params(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self::parse(parts.uri.query().unwrap_or_default()))
    }
}

impl Params {
    pub(crate) fn parse(query: &str) -> Self {
        Self(url::form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    /// Every value of `name`.
    pub fn all(&mut self, name: &str) -> Vec<String> {
        self.0.extract_if(.., |(have, _)| have == name).map(|(_, value)| value).collect()
    }

    /// The value of `name`.
    ///
    /// # Errors
    ///
    /// 400 if it is given twice or malformed.
    pub fn one<T: FromStr<Err: std::fmt::Display>>(
        &mut self,
        name: &str,
    ) -> Result<Option<T>, Problem> {
        let mut values = self.all(name);
        if values.len() > 1 {
            return Err(Problem::invalid(name, "is given twice"));
        }
        values
            .pop()
            .map(|text| text.parse().map_err(|error| Problem::invalid(name, error)))
            .transpose()
    }

    /// Maximum items of the page.
    ///
    /// # Errors
    ///
    /// 400 if it is not 1 to 1000.
    pub fn limit(&mut self) -> Result<u32, Problem> {
        match self.one::<String>("limit")? {
            None => Ok(DEFAULT_LIMIT),
            Some(text) => match text.parse() {
                Ok(limit) if (1..=MAX_LIMIT).contains(&limit) => Ok(limit),
                _ => Err(Problem::invalid("limit", format!("must be 1 to {MAX_LIMIT}"))),
            },
        }
    }

    /// The query for a list of jobs, in the phases that they have at `now`.
    ///
    /// # Errors
    ///
    /// 400 with the name of the wrong parameter.
    pub fn jobs(mut self, now: Timestamp) -> Result<ListQuery, Problem> {
        let query = ListQuery {
            filter: self.filter()?,
            now,
            cursor: self.one::<Cursor>("cursor")?.map(|cursor| cursor.to_string()),
            limit: self.limit()?,
            ..ListQuery::default()
        };
        self.done()?;
        Ok(query)
    }

    /// The values of parameters that have a name of their own: `MAP.NAME`, or `MAP[NAME]` as
    /// generated clients write it. None if there are none.
    ///
    /// # Errors
    ///
    /// 400 if a value is given twice.
    pub(crate) fn named_values(
        &mut self,
        map: &str,
    ) -> Result<Option<BTreeMap<String, Value>>, Problem> {
        let name_of = |parameter: &str| {
            let rest = parameter.strip_prefix(map)?;
            let name = rest.strip_prefix('.').or_else(|| rest.strip_prefix('[')?.strip_suffix(']'));
            name.map(str::to_owned)
        };
        let mut values = BTreeMap::new();
        for (parameter, value) in self.0.extract_if(.., |(name, _)| name_of(name).is_some()) {
            let name = name_of(&parameter).unwrap_or_default();
            if values.insert(name, Value::Text(value)).is_some() {
                return Err(Problem::invalid(parameter, "is given twice"));
            }
        }
        Ok((!values.is_empty()).then_some(values))
    }

    /// Checks that every parameter was read.
    ///
    /// # Errors
    ///
    /// 400 with the name of an unknown parameter.
    pub fn done(self) -> Result<(), Problem> {
        match self.0.into_iter().next() {
            None => Ok(()),
            Some((name, _)) => Err(Problem::invalid_as(
                ErrorCode::UnknownParameter,
                name,
                "this route has no such parameter",
            )),
        }
    }
}

/// `?force=true` of a `PUT`: it also replaces what cannot be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Force(pub bool);

impl<S: Sync> FromRequestParts<S> for Force {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut params = Params::parse(parts.uri.query().unwrap_or_default());
        let force = params.one::<bool>("force")?.unwrap_or_default();
        params.done()?;
        Ok(Self(force))
    }
}

/// `?dry_run=true` of a change: it is checked and shown, and changes nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DryRun(pub bool);

impl DryRun {
    /// Reads the parameter. A dry run is not in the audit log.
    ///
    /// # Errors
    ///
    /// 400 if it is neither `true` nor `false`.
    fn read(params: &mut Params, parts: &Parts) -> Result<Self, Problem> {
        let dry_run = params.one::<bool>("dry_run")?.unwrap_or_default();
        if dry_run && let Some(notes) = parts.extensions.get::<AuditNotes>() {
            notes.nothing_changes();
        }
        Ok(Self(dry_run))
    }
}

impl<S: Sync> FromRequestParts<S> for DryRun {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut params = Params::parse(parts.uri.query().unwrap_or_default());
        let dry_run = Self::read(&mut params, parts)?;
        params.done()?;
        Ok(dry_run)
    }
}

/// `force` and `dry_run` of a `PUT`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutMode {
    /// It also replaces what cannot be read.
    pub force: bool,
    /// It is checked and shown, and changes nothing.
    pub dry_run: bool,
}

impl<S: Sync> FromRequestParts<S> for PutMode {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut params = Params::parse(parts.uri.query().unwrap_or_default());
        let force = params.one::<bool>("force")?.unwrap_or_default();
        let DryRun(dry_run) = DryRun::read(&mut params, parts)?;
        params.done()?;
        if force && dry_run {
            return Err(Problem::invalid("dry_run", "cannot be combined with force"));
        }
        Ok(Self { force, dry_run })
    }
}

/// The `limit` and `cursor` of a list by name, which has no other parameters.
#[derive(Debug)]
pub(crate) struct PageRequest {
    limit: u32,
    cursor: Option<String>,
}

impl<S: Sync> FromRequestParts<S> for PageRequest {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::read(Params::parse(parts.uri.query().unwrap_or_default()))
    }
}

impl PageRequest {
    /// The request in `params`, which have nothing else.
    ///
    /// # Errors
    ///
    /// 400 with the name of the wrong or unknown parameter.
    pub fn read(mut params: Params) -> Result<Self, Problem> {
        let (limit, cursor) = (params.limit()?, params.one("cursor")?);
        params.done()?;
        Ok(Self { limit, cursor })
    }

    /// The named items after the cursor, at most the limit, and the cursor of the next page.
    pub fn page<N: Borrow<str>, T>(&self, mut items: Vec<(N, T)>) -> (Vec<(N, T)>, Option<String>) {
        let limit = self.limit as usize;
        items.sort_by(|a, b| a.0.borrow().cmp(b.0.borrow()));
        items
            .retain(|(name, _)| self.cursor.as_deref().is_none_or(|cursor| name.borrow() > cursor));
        let more = items.len() > limit;
        items.truncate(limit);
        let next = if more { items.last().map(|(name, _)| name.borrow().to_owned()) } else { None };
        (items, next)
    }
}

/// The version that `If-Match` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IfMatch(pub Option<u64>);

impl<S: Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        if_match(&parts.headers).map(Self)
    }
}

/// The version in `If-Match`. `*` sets no condition; a tag of another form matches no version.
fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        return Ok(None);
    };
    let tag = value.to_str().unwrap_or_default().trim();
    if tag == "*" {
        return Ok(None);
    }
    let version = tag
        .strip_prefix("W/")
        .unwrap_or(tag)
        .strip_prefix("\"v")
        .and_then(|rest| rest.strip_suffix('"'));
    version.and_then(|digits| digits.parse().ok()).map(Some).ok_or_else(|| {
        Problem::new(
            ErrorCode::PreconditionFailed,
            "If-Match must be the one ETag that was read, such as \"v3\"",
        )
        .blame("If-Match")
    })
}

/// The `Idempotency-Key`, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct IdempotencyKey(pub Option<String>);

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Some(value) = parts.headers.get("idempotency-key") else {
            return Ok(Self(None));
        };
        match value.to_str() {
            Ok(key) if (1..=255).contains(&key.len()) => Ok(Self(Some(key.to_owned()))),
            _ => Err(Problem::invalid(
                "Idempotency-Key",
                "must be 1 to 255 printable ASCII characters",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn blamed(query: &str) -> Option<String> {
        Params::parse(query)
            .jobs(Timestamp::EPOCH)
            .err()
            .and_then(|problem| problem.field().map(str::to_owned))
    }

    #[test]
    fn a_list_query_reads_its_page() {
        let query = Params::parse("type=a&limit=7&cursor=9_x").jobs(Timestamp::EPOCH).unwrap();
        assert_eq!(
            (query.limit, query.cursor.as_deref(), query.filter.job_type.unwrap().as_str()),
            (7, Some("9_x"), "a")
        );
        assert_eq!(Params::default().jobs(Timestamp::EPOCH).unwrap().limit, 100);
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        for (query, field) in [
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=x", "limit"),
            ("stat=failed", "stat"),
            ("cursor=zzz", "cursor"),
        ] {
            assert_eq!(blamed(query).as_deref(), Some(field), "{query}");
        }
    }

    #[test]
    fn pages_follow_one_another_without_gaps() {
        let items = || ["c", "a", "b"].map(|name| (name, ())).to_vec();
        let (first, cursor) = PageRequest { limit: 2, cursor: None }.page(items());
        assert_eq!(
            (first.iter().map(|item| item.0).collect::<Vec<_>>(), cursor.as_deref()),
            (vec!["a", "b"], Some("b"))
        );
        let (second, cursor) = PageRequest { limit: 2, cursor }.page(items());
        assert_eq!((second.len(), second[0].0, cursor), (1, "c", None));
    }

    #[test]
    fn etags_are_compared_weakly() {
        let with = |tag: &'static str| {
            if_match(&HeaderMap::from_iter([(header::IF_MATCH, HeaderValue::from_static(tag))]))
        };
        assert_eq!(with("\"v3\"").unwrap(), Some(3));
        assert_eq!(with("W/\"v3\"").unwrap(), Some(3));
        assert_eq!(with("*").unwrap(), None);
        assert_eq!(with("\"abc\"").unwrap_err().status().as_u16(), 412);
        assert_eq!(if_match(&HeaderMap::new()).unwrap(), None);
    }
}
