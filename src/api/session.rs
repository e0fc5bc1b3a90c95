//! Who a caller is, and what a console may offer.

use std::{borrow::Cow, collections::BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_core::job::{QueueName, TypeName};

use crate::Scopes;

/// The caller, the options of the console, and the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Session {
    /// Whether the caller is known. If not, `name`, `signed_in_by` and `server` are absent, and
    /// there are no scopes.
    pub authenticated: bool,
    /// The name of the caller: of its token, or the `sub` of an identity provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the caller may do: `enqueue`, `enqueue:critical`, `work`, `read`, `admin`.
    #[schema(value_type = Vec<String>)]
    pub scopes: Scopes,
    /// The only queues that the token allows; null: all.
    #[schema(value_type = Option<Vec<String>>)]
    pub queues: Option<BTreeSet<QueueName>>,
    /// The only types that the token allows; null: all.
    #[schema(value_type = Option<Vec<String>>)]
    pub types: Option<BTreeSet<TypeName>>,
    /// How a user can sign in: with a `token`, and by an identity provider (`oidc`).
    #[schema(value_type = Vec<String>)]
    pub sign_in: Vec<Cow<'static, str>>,
    /// How the caller signed in: with a `token`, by an identity provider (`oidc`), or `open`: the
    /// server accepts every caller of its machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub signed_in_by: Option<Cow<'static, str>>,
    /// The options of the console.
    pub console: ConsoleView,
    /// The server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerView>,
}

/// The options of the console, from the settings of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ConsoleView {
    /// Its title.
    pub title: String,
    /// Whether it offers no changes.
    pub read_only: bool,
    /// A page that it embeds.
    pub embed: Option<String>,
    /// The URL of a trace, with `{trace_id}` in place of its id.
    pub trace_url: Option<String>,
    /// The consoles of other servers, by name.
    pub servers: Vec<OtherServer>,
}

/// The console of another server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct OtherServer {
    /// Its name.
    pub name: String,
    /// Its address.
    pub url: String,
}

/// What a server is and offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ServerView {
    /// Its version.
    #[schema(value_type = String)]
    pub version: Cow<'static, str>,
    /// `embedded`, or `serverless` on AWS.
    #[schema(value_type = String)]
    pub deployment_mode: Cow<'static, str>,
    /// Whether `GET /v1/stream` sends changes.
    pub stream: bool,
    /// Whether `POST /v1/queues/{queue}/simulate` simulates queues.
    pub simulate: bool,
}
