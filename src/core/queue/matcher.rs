//! Matchers: conditions on a job that decide whether a constraint counts it.

use std::{cmp::Ordering, collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{
        self, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};

use crate::job::{Attributes, TypeName, Value, spec::ValueVisitor};

/// Conditions that all hold for a job that matches; an empty one matches every job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Matcher {
    /// The job's type: a name or a list of names.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub job_type: Option<Condition>,
    /// The job's priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Condition>,
    /// The job's attributes, by name.
    #[serde(
        deserialize_with = "crate::strict::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub attribute: BTreeMap<String, Condition>,
    /// Every one of these matches.
    #[serde(deserialize_with = "crate::strict::or_default", skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub all: Vec<Matcher>,
    /// At least one of these matches, unless the list is empty.
    #[serde(deserialize_with = "crate::strict::or_default", skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub any: Vec<Matcher>,
    /// This does not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    pub not: Option<Box<Matcher>>,
}

/// A condition on one value.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum Condition {
    /// It equals this.
    Equals(Value),
    /// It is one of these.
    In(Vec<Value>),
    /// Everything that is given here holds.
    Test(Box<Test>),
}

// Not derived, because an untagged enum cannot name the unknown comparison in its error.
impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Condition;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, a list of values, or an object of comparisons")
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Condition, E> {
                ValueVisitor.visit_bool(value).map(Condition::Equals)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Condition, E> {
                ValueVisitor.visit_i64(value).map(Condition::Equals)
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Condition, E> {
                ValueVisitor.visit_u64(value).map(Condition::Equals)
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Condition, E> {
                ValueVisitor.visit_f64(value).map(Condition::Equals)
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Condition, E> {
                ValueVisitor.visit_str(value).map(Condition::Equals)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Condition, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Condition::In)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Condition, A::Error> {
                Test::deserialize(MapAccessDeserializer::new(map))
                    .map(|test| Condition::Test(Box::new(test)))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// Comparisons on one value; all that are given hold. An absent value passes only `exists: false`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Test {
    /// It equals this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eq: Option<Value>,
    /// It is one of these.
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    pub within: Option<Vec<Value>>,
    /// It is less than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lt: Option<Value>,
    /// It is at most this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lte: Option<Value>,
    /// It is more than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gt: Option<Value>,
    /// It is at least this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gte: Option<Value>,
    /// It is a text that starts with this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Whether it is present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exists: Option<bool>,
}

/// The values of a job that a matcher compares.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The job's type.
    pub job_type: &'a TypeName,
    /// Its priority.
    pub priority: i32,
    /// Its attributes.
    pub attributes: &'a Attributes,
}

impl Matcher {
    /// Whether `subject` meets every condition.
    pub fn matches(&self, subject: Subject<'_>) -> bool {
        self.job_type
            .as_ref()
            .is_none_or(|c| c.holds(Some(Operand::Text(subject.job_type.as_str()))))
            && self
                .priority
                .as_ref()
                .is_none_or(|c| c.holds(Some(Operand::Whole(subject.priority.into()))))
            && self
                .attribute
                .iter()
                .all(|(name, c)| c.holds(subject.attributes.get(name).map(Operand::of)))
            && self.all.iter().all(|m| m.matches(subject))
            && (self.any.is_empty() || self.any.iter().any(|m| m.matches(subject)))
            && self.not.as_ref().is_none_or(|m| !m.matches(subject))
    }

    /// Whether it has no conditions, so that it matches every job.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it matches every job of this type, without further conditions.
    pub(crate) fn is_every(&self, job_type: &TypeName) -> bool {
        let Self { job_type: condition, priority, attribute, all, any, not } = self;
        let of_type = condition
            .as_ref()
            .is_none_or(|condition| condition.holds(Some(Operand::Text(job_type.as_str()))));
        of_type
            && priority.is_none()
            && attribute.is_empty()
            && all.is_empty()
            && any.is_empty()
            && not.is_none()
    }

    /// Adds the names of all attributes that it compares to `names`.
    pub fn declare<'a>(&'a self, names: &mut std::collections::BTreeSet<&'a str>) {
        names.extend(self.attribute.keys().map(String::as_str));
        for inner in self.all.iter().chain(&self.any).chain(self.not.as_deref()) {
            inner.declare(names);
        }
    }
}

/// A value of a job, borrowed: matchers run for every candidate and allocate nothing.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// A text.
    Text(&'a str),
    /// A whole number.
    Whole(i64),
    /// A fraction, or a number too large for the others.
    Real(f64),
}

impl<'a> Operand<'a> {
    /// An attribute's value.
    pub fn of(value: &'a Value) -> Self {
        match value {
            Value::Text(text) => Self::Text(text),
            Value::Number(number) => number
                .as_i64()
                .map_or_else(|| Self::Real(number.as_f64().unwrap_or(f64::NAN)), Self::Whole),
        }
    }
}

impl Condition {
    /// Whether the condition holds for `value`, which may be absent.
    pub fn holds(&self, value: Option<Operand<'_>>) -> bool {
        match (self, value) {
            (Self::Test(test), value) => test.holds(value),
            (_, None) => false,
            (Self::Equals(wanted), Some(value)) => equal(value, wanted),
            (Self::In(list), Some(value)) => list.iter().any(|wanted| equal(value, wanted)),
        }
    }
}

impl Test {
    fn holds(&self, value: Option<Operand<'_>>) -> bool {
        use Ordering::{Equal, Greater, Less};
        let Some(value) = value else {
            return *self == Self { exists: Some(false), ..Self::default() };
        };
        let compares = |bound: &Option<Value>, fits: &[Ordering]| {
            bound.as_ref().is_none_or(|bound| {
                compare(value, Operand::of(bound)).is_some_and(|order| fits.contains(&order))
            })
        };
        self.exists != Some(false)
            && self.eq.as_ref().is_none_or(|wanted| equal(value, wanted))
            && self
                .within
                .as_ref()
                .is_none_or(|list| list.iter().any(|wanted| equal(value, wanted)))
            && compares(&self.lt, &[Less])
            && compares(&self.lte, &[Less, Equal])
            && compares(&self.gt, &[Greater])
            && compares(&self.gte, &[Greater, Equal])
            && self.prefix.as_ref().is_none_or(
                |prefix| matches!(value, Operand::Text(text) if text.starts_with(prefix)),
            )
    }
}

fn equal(value: Operand<'_>, wanted: &Value) -> bool {
    compare(value, Operand::of(wanted)) == Some(Ordering::Equal)
}

/// How two values compare; a text and a number do not.
fn compare(a: Operand<'_>, b: Operand<'_>) -> Option<Ordering> {
    match (a, b) {
        (Operand::Text(a), Operand::Text(b)) => Some(a.cmp(b)),
        (Operand::Whole(a), Operand::Whole(b)) => Some(a.cmp(&b)),
        (Operand::Whole(a), Operand::Real(b)) => (a as f64).partial_cmp(&b),
        (Operand::Real(a), Operand::Whole(b)) => a.partial_cmp(&(b as f64)),
        (Operand::Real(a), Operand::Real(b)) => a.partial_cmp(&b),
        (Operand::Text(_), _) | (_, Operand::Text(_)) => None,
    }
}
