//! Names in paths, parameters in queries, and conditions in headers.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};
use tidegate_core::error_code::ErrorCode;

use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::{HeaderMap, header, request::Parts},
};

use super::error::Problem;
use tidegate_core::{
    job::{JobId, Outcome, Phase, PluginName, TypeName, Value},
    port::{
        job_store::{ListQuery, PhaseFilter, StateFilter},
        listing::Cursor,
    },
    time::Timestamp,
};

/// Items of a page by default.
const DEFAULT_LIMIT: u32 = 100;
/// Maximum items of a page.
const MAX_LIMIT: u32 = 1000;

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
    fn parse(query: &str) -> Self {
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
        let mut any_of = Vec::new();
        for text in self.all("phase").iter().flat_map(|value| value.split(',')) {
            any_of.push(
                text.parse::<Phase>()
                    .map_err(|error| Problem::invalid("phase", error.to_string()))?,
            );
        }
        let mut states = Vec::new();
        for text in self.all("state").iter().flat_map(|value| value.split(',')) {
            states.extend(states_of(text).ok_or_else(|| Problem::invalid("state", NO_STATE))?);
        }
        // A store finds jobs by state; the phase selects among them.
        if states.is_empty() {
            states.extend(any_of.iter().copied().map(StateFilter::from).collect::<BTreeSet<_>>());
        }
        let mut attributes = BTreeMap::new();
        for (parameter, value) in self.0.extract_if(.., |(name, _)| attribute(name).is_some()) {
            let name = attribute(&parameter).unwrap_or_default().to_owned();
            if attributes.contains_key(&name) {
                return Err(Problem::invalid(parameter, "is given twice"));
            }
            attributes.insert(name, Value::Text(value));
        }
        let query = ListQuery {
            job_type: self.one("type")?,
            queue: self.one("queue")?,
            states,
            phases: (!any_of.is_empty()).then_some(PhaseFilter { any_of, at: now }),
            attributes,
            from: self.one("from")?,
            to: self.one("to")?,
            cursor: self.one::<Cursor>("cursor")?.map(|cursor| cursor.to_string()),
            limit: self.limit()?,
            ..ListQuery::default()
        };
        self.done()?;
        Ok(query)
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

/// The attribute that a parameter names: `attribute.NAME`, or `attribute[NAME]` as generated
/// clients write it.
fn attribute(parameter: &str) -> Option<&str> {
    let dotted = parameter.strip_prefix("attribute.");
    dotted.or_else(|| parameter.strip_prefix("attribute[")?.strip_suffix(']'))
}

/// The message for a word that names no state.
pub(crate) const NO_STATE: &str =
    "must be scheduled, running, succeeded, failed, expired, cancelled, dropped or ended";

/// The states that a word names.
pub(crate) fn states_of(word: &str) -> Option<Vec<StateFilter>> {
    match word {
        "ended" => Some(Outcome::ALL.map(StateFilter::Ended).to_vec()),
        _ => word.parse().ok().map(|state| vec![state]),
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
        let mut params = Params::parse(parts.uri.query().unwrap_or_default());
        let (limit, cursor) = (params.limit()?, params.one("cursor")?);
        params.done()?;
        Ok(Self { limit, cursor })
    }
}

impl PageRequest {
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
    fn a_list_query_reads_every_parameter() {
        let query = Params::parse(
            "type=a&state=failed,running&state=scheduled&attribute.region=east&attribute[n]=5\
             &from=2026-01-31T08:00:00Z&limit=7&cursor=9_x",
        );
        let query = query.jobs(Timestamp::EPOCH).unwrap();
        assert_eq!(
            query.states,
            [StateFilter::Ended(Outcome::Failed), StateFilter::Running, StateFilter::Scheduled]
        );
        assert_eq!(query.attributes["region"], Value::Text("east".into()));
        assert_eq!(query.attributes["n"], Value::Text("5".into()));
        assert_eq!(
            (query.limit, query.cursor.as_deref(), query.job_type.unwrap().as_str()),
            (7, Some("9_x"), "a")
        );
        assert_eq!(Params::default().jobs(Timestamp::EPOCH).unwrap().limit, 100);
        assert_eq!(states_of("ended").unwrap().len(), 5);
    }

    #[test]
    fn a_phase_is_looked_for_among_the_jobs_of_its_state() {
        let query = Params::parse("phase=retrying,ready").jobs(Timestamp::EPOCH).unwrap();
        assert_eq!(query.states, [StateFilter::Scheduled]);
        let any_of = vec![Phase::Retrying, Phase::Ready];
        assert_eq!(query.phases, Some(PhaseFilter { any_of, at: Timestamp::EPOCH }));
        let both = Params::parse("phase=ready&state=failed").jobs(Timestamp::EPOCH).unwrap();
        assert_eq!(both.states, [StateFilter::Ended(Outcome::Failed)]);
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        for (query, field) in [
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=x", "limit"),
            ("state=done", "state"),
            ("phase=ended", "phase"),
            ("from=yesterday", "from"),
            ("type=a&type=b", "type"),
            ("queue=a%20b", "queue"),
            ("attribute.x=1&attribute.x=2", "attribute.x"),
            ("attribute.x=1&attribute[x]=2", "attribute[x]"),
            ("attribute[x=1", "attribute[x"),
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
