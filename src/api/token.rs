//! Access tokens, and the scopes that a token has.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use tidegate_core::{
    job::{QueueName, TypeName},
    time::Timestamp,
};

/// A token to create.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewToken)]
pub struct NewTokenBody {
    /// Its owner's name for it, 1 to 128 bytes.
    pub name: String,
    /// What it allows: `enqueue`, `enqueue:critical`, `work`, `read`, `admin`.
    #[schema(value_type = Vec<String>)]
    pub scopes: Scopes,
    /// From when on it is no longer accepted (default: never).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Only jobs in these queues, 1 to 100 (default: all). Not with `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, min_items = 1, max_items = 100)]
    pub queues: Option<Vec<QueueName>>,
    /// Only jobs of these types, 1 to 100 (default: all). Not with `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, min_items = 1, max_items = 100)]
    pub types: Option<Vec<TypeName>>,
}

/// A token.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Token)]
pub struct TokenView {
    /// Its id.
    pub id: String,
    /// Its owner's name for it.
    pub name: String,
    /// What it allows.
    #[schema(value_type = Vec<String>)]
    pub scopes: Scopes,
    /// When it was created.
    pub created_at: Timestamp,
    /// From when on it is no longer accepted; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When it was used last, to about a minute; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
    /// The only queues that it allows; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub queues: Option<Vec<QueueName>>,
    /// The only types that it allows; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub types: Option<Vec<TypeName>>,
    /// The token itself; only the answer to its creation has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// A page of tokens.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TokenPage {
    /// The tokens, by id.
    pub tokens: Vec<TokenView>,
    /// Where the next page starts; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// One permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Enqueue jobs, and change single ones.
    Enqueue,
    /// Enqueue jobs that no limit holds; in addition to [`Scope::Enqueue`].
    EnqueueCritical,
    /// Lease jobs, and report on any.
    Work,
    /// Read everything but secrets.
    Read,
    /// Configure and operate. It includes every other scope.
    Admin,
}

/// A text is no scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownScope(String);

impl std::error::Error for UnknownScope {}

impl fmt::Display for UnknownScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a scope; there are enqueue, enqueue:critical, work, read and admin",
            self.0
        )
    }
}

impl Scope {
    /// Every scope, in order.
    pub const ALL: [Self; 5] =
        [Self::Enqueue, Self::EnqueueCritical, Self::Work, Self::Read, Self::Admin];

    /// The scope's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::EnqueueCritical => "enqueue:critical",
            Self::Work => "work",
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl FromStr for Scope {
    type Err = UnknownScope;
    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        Self::ALL
            .into_iter()
            .find(|scope| scope.as_str() == text)
            .ok_or_else(|| UnknownScope(text.into()))
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of scopes: a list of words in JSON, words with commas or spaces between them in a text.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// Whether these allow `scope`: it is among them, or `admin` is.
    pub fn allow(self, scope: Scope) -> bool {
        self.0 & (scope.bit() | Scope::Admin.bit()) != 0
    }

    /// The scopes of the set, in the order of [`Scope::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.0 & scope.bit() != 0)
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl From<Scope> for Scopes {
    fn from(scope: Scope) -> Self {
        Self(scope.bit())
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |set, scope| set | scope.bit()))
    }
}

impl FromStr for Scopes {
    type Err = UnknownScope;
    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        text.split([',', ' ']).filter(|word| !word.is_empty()).map(str::parse::<Scope>).collect()
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().map(Scope::as_str).collect::<Vec<_>>().join(" "))
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scopes({self})")
    }
}

impl Serialize for Scopes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Scope::as_str))
    }
}

impl<'de> Deserialize<'de> for Scopes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let words = Vec::<String>::deserialize(deserializer)?;
        words
            .iter()
            .map(|word| word.parse::<Scope>())
            .collect::<Result<_, _>>()
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scope_allows_itself_and_admin_allows_all() {
        for scope in Scope::ALL {
            for other in Scope::ALL {
                assert_eq!(
                    Scopes::from(scope).allow(other),
                    scope == other || scope == Scope::Admin,
                    "{scope} {other}"
                );
            }
            assert!(!Scopes::default().allow(scope));
        }
    }

    #[test]
    fn a_set_is_written_and_read_as_words() {
        let scopes: Scopes = "work, enqueue:critical work".parse().unwrap();
        assert_eq!(scopes.to_string(), "enqueue:critical work");
        let json = serde_json::to_string(&scopes).unwrap();
        assert_eq!(json, r#"["enqueue:critical","work"]"#);
        assert_eq!(serde_json::from_str::<Scopes>(&json).unwrap(), scopes);
        assert!(
            "work everything".parse::<Scopes>().unwrap_err().to_string().contains("`everything`")
        );
        assert!(serde_json::from_str::<Scopes>(r#"["Admin"]"#).is_err());
    }
}
