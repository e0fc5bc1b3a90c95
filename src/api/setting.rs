//! The settings of a server, as it runs with them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::AnyValue;

/// All settings of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SettingsView {
    /// The settings, in the order of their documentation.
    pub settings: Vec<SettingView>,
}

/// A setting of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Setting)]
pub struct SettingView {
    /// Its name in the settings file, such as `console.title`; on AWS its environment variable.
    pub name: String,
    /// Its value, null without one. A secret is `***`.
    #[schema(value_type = AnyValue)]
    pub value: Value,
    /// The source of the value: `default`, `file`, `environment` or `argument`.
    #[schema(value_type = String)]
    pub from: Cow<'static, str>,
    /// What it means, in Markdown.
    pub about: String,
}
