//! Requests: jobs to enqueue, changes of a scheduled job, and a replay.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use tidegate_core::{
    calendar::window::Window,
    job::{
        Attributes, JobId, TypeName, Value as AttributeValue,
        options::{JobOptions, Split},
    },
    strict::{or_default, present},
    time::{Seconds, Timestamp},
};

use crate::AnyValue;

/// A job to enqueue. Absent fields are taken from its type, then from the server's defaults.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
#[schema(as = NewJob)]
pub struct NewJobBody<'a> {
    /// Its type: 1 to 64 of `A-Z a-z 0-9 _ . -`. With PUT it may be left to the path.
    #[serde(rename = "type")]
    #[schema(value_type = Option<String>)]
    pub job_type: Option<TypeName>,
    /// The id that makes the enqueue idempotent: 1 to 64 of `A-Z a-z 0-9 _ . : -`. Absent, the
    /// server generates one.
    #[schema(value_type = Option<String>)]
    pub id: Option<JobId>,
    /// What it carries: any value, kept byte for byte.
    #[serde(borrow)]
    #[schema(value_type = AnyValue)]
    pub data: &'a RawValue,
    /// The earliest start; in the past means now.
    pub run_at: Option<Timestamp>,
    /// The same as a span from now; not together with `run_at`.
    pub delay_seconds: Option<Seconds>,
    /// It never starts after this instant.
    pub expires_at: Option<Timestamp>,
    /// The key by which a later reply finds the job; unique among the live jobs of the type.
    pub correlation_key: Option<String>,
    /// The options that it carries, as fields of their own.
    #[serde(skip)]
    #[schema(ignore)]
    pub options: JobOptions,
}

impl<'de: 'a, 'a> Deserialize<'de> for NewJobBody<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut options = JobOptions::default();
        let body = Self::deserialize(Split::new(deserializer, &mut options))?;
        Ok(Self { options, ..body })
    }
}

impl Serialize for NewJobBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
            job_type: &'a Option<TypeName>,
            #[serde(skip_serializing_if = "Option::is_none")]
            id: &'a Option<JobId>,
            data: &'a RawValue,
            #[serde(skip_serializing_if = "Option::is_none")]
            run_at: Option<Timestamp>,
            #[serde(skip_serializing_if = "Option::is_none")]
            delay_seconds: Option<Seconds>,
            #[serde(skip_serializing_if = "Option::is_none")]
            expires_at: Option<Timestamp>,
            #[serde(skip_serializing_if = "Option::is_none")]
            correlation_key: &'a Option<String>,
            #[serde(flatten)]
            options: &'a JobOptions,
        }
        let Self {
            job_type,
            id,
            data,
            run_at,
            delay_seconds,
            expires_at,
            correlation_key,
            options,
        } = self;
        let (run_at, delay_seconds, expires_at) = (*run_at, *delay_seconds, *expires_at);
        Fields { job_type, id, data, run_at, delay_seconds, expires_at, correlation_key, options }
            .serialize(serializer)
    }
}

/// Changes to a scheduled job. Absent fields stay; null is what an enqueue without the field has.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobPatch)]
pub struct PatchBody<'a> {
    /// The new due time; in the past and null mean now. A job that is due stays due since then.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Timestamp>)]
    pub run_at: Option<Option<Timestamp>>,
    /// The new priority; null means that of the type.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i32>)]
    pub priority: Option<Option<i32>>,
    /// The new data; null is a value.
    #[serde(
        borrow,
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = AnyValue, required = false)]
    pub data: Option<&'a RawValue>,
    /// The new instant after which it never starts; null means none.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Timestamp>)]
    pub expires_at: Option<Option<Timestamp>>,
    /// The new windows; an empty list means always, null those of the type.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Window>>)]
    pub windows: Option<Option<Vec<Window>>>,
}

/// What a replay changes in the new job. Absent fields are those of the old job; null is what an
/// enqueue without the field has.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReplayWith)]
pub struct ReplayBody<'a> {
    /// Other data; null is a value.
    #[serde(
        borrow,
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = AnyValue, required = false)]
    pub data: Option<&'a RawValue>,
    /// Another priority; null means that of the type.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i32>)]
    pub priority: Option<Option<i32>>,
    /// Another weight; null means that of the type.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub weight: Option<Option<u32>>,
    /// Other attributes; null means only those extracted from the data.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, AttributeValue>>)]
    pub attributes: Option<Option<Attributes>>,
    /// Other windows; null means those of the type.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Window>>)]
    pub windows: Option<Option<Vec<Window>>>,
    /// Another instant after which it never starts; null means none.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Timestamp>)]
    pub expires_at: Option<Option<Timestamp>>,
    /// Make another job if the old one was replayed before.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

/// Many jobs.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewJobs)]
pub struct BatchBody<'a> {
    /// The jobs, at most 1000.
    #[serde(borrow)]
    pub jobs: Vec<NewJobBody<'a>>,
}
