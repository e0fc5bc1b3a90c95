//! Loading settings from the file, the environment and the command line.

use std::{collections::BTreeSet, path::Path};

use figment::{
    Figment, Metadata, Profile, Provider,
    error::Kind,
    providers::{Format, Serialized, Toml},
    value::{Dict, Map, Value},
};
use serde::Serialize;

use super::{
    PREFIX, Settings, Sources,
    reference::{reference, variable},
};

/// The server must not start with these settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The file is missing, or not TOML.
    #[error("the settings file {path} {problem}")]
    File {
        /// Its path, as it was given.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A setting is unknown, or has an invalid value.
    #[error("the setting `{setting}` (from {origin}) {problem}")]
    Setting {
        /// Its name, with dots between the names of nested settings.
        setting: String,
        /// The source of its value.
        origin: String,
        /// What it must be. Never shows a secret.
        problem: String,
    },
}

/// Settings from one source.
struct Layer {
    origin: String,
    settings: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.origin.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.settings.clone()))
    }
}

const ENVIRONMENT: &str = "the environment";
const OPENTELEMETRY: &str = "the environment variables OTEL_…";
const COMMAND_LINE: &str = "the command line";

impl Settings {
    /// The settings of this process: defaults, then `file`, then the environment, then `flags`,
    /// checked.
    ///
    /// `flags` is a struct or map with the names of settings. Empty options in it set nothing.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] names the file, or the setting and its source.
    pub fn load(file: Option<&Path>, flags: &impl Serialize) -> Result<Self, SettingsError> {
        Self::load_with_sources(file, flags).map(|(settings, _)| settings)
    }

    /// [`Settings::load`], with the source of each setting.
    ///
    /// # Errors
    ///
    /// As [`Settings::load`].
    pub fn load_with_sources(
        file: Option<&Path>,
        flags: &impl Serialize,
    ) -> Result<(Self, Sources), SettingsError> {
        Self::read_with_sources(
            file,
            std::env::vars_os().filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.into_string().ok()?))
            }),
            flags,
        )
    }

    /// The same, with the environment as an argument.
    ///
    /// # Errors
    ///
    /// As [`Settings::load`].
    pub fn read(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: &impl Serialize,
    ) -> Result<Self, SettingsError> {
        Self::read_with_sources(file, environment, flags).map(|(settings, _)| settings)
    }

    /// [`Settings::read`], with the source of each setting.
    ///
    /// # Errors
    ///
    /// As [`Settings::load`].
    pub fn read_with_sources(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: &impl Serialize,
    ) -> Result<(Self, Sources), SettingsError> {
        let environment: Vec<(String, String)> = environment.into_iter().collect();
        let mut layers = Figment::new();
        if let Some(path) = file {
            layers = layers.merge(file_layer(path)?);
        }
        layers = layers
            .merge(opentelemetry_layer(&environment))
            .merge(environment_layer(environment))
            .merge(flag_layer(flags));
        // Variables are text: numbers and booleans are parsed from it.
        let settings: Self = layers.extract_lossy().map_err(|error| explain(&layers, error))?;
        settings.validate().map_err(|fault| SettingsError::Setting {
            setting: fault.setting.into(),
            origin: origin(&layers, fault.setting),
            problem: fault.problem,
        })?;
        let source = |name: String| {
            let origin = layers.find_metadata(&name)?.name.clone();
            let source = match &*origin {
                ENVIRONMENT | OPENTELEMETRY => "environment",
                COMMAND_LINE => "argument",
                _ => "file",
            };
            Some((name, source))
        };
        let sources = reference().into_iter().filter_map(|setting| source(setting.name)).collect();
        Ok((settings, sources))
    }
}

/// The variables with the prefix of settings that name no setting. They may be misspelt or belong
/// to other software, so the server warns of them and starts.
pub fn unknown_variables(
    environment: impl IntoIterator<Item = (String, String)>,
) -> BTreeSet<String> {
    let known = known();
    let names = environment.into_iter().map(|(name, _)| name);
    names
        .filter(|name| path(name).is_some_and(|path| !known.contains_key(path[0].as_str())))
        .collect()
}

/// The settings with their defaults.
fn known() -> Dict {
    let defaults = Value::serialize(Settings::default()).ok();
    defaults.and_then(Value::into_dict).expect("settings are plain data")
}

/// The path of the setting of the variable `name`, if it has the prefix.
fn path(name: &str) -> Option<Vec<String>> {
    Some(name.strip_prefix(PREFIX)?.split("__").map(str::to_lowercase).collect())
}

fn file_layer(path: &Path) -> Result<Layer, SettingsError> {
    let shown = path.display().to_string();
    let fail = |problem: String| SettingsError::File { path: shown.clone(), problem };
    let text =
        std::fs::read_to_string(path).map_err(|error| fail(format!("cannot be read: {error}")))?;
    let settings = Toml::from_str(&text).map_err(|error| {
        // The error's own text quotes the line, which may hold a secret.
        let line = error
            .span()
            .map_or(0, |span| text.get(..span.start).unwrap_or(&text).matches('\n').count())
            + 1;
        fail(format!("is not TOML: line {line}: {}", error.message().trim()))
    })?;
    Ok(Layer { origin: format!("the file {shown}"), settings })
}

/// The settings in the environment. Empty variables and unknown names are ignored: an orchestrator
/// gives a service named `tidegate` variables such as `TIDEGATE_PORT`.
fn environment_layer(environment: impl IntoIterator<Item = (String, String)>) -> Layer {
    let known = known();
    let mut settings = Dict::new();
    for (name, text) in environment {
        let Some(path) = path(&name).filter(|_| !text.is_empty()) else {
            continue;
        };
        let value = match known.get(path[0].as_str()) {
            Some(Value::Array(..)) => {
                text.split(',').map(|part| Value::from(part.trim())).collect::<Vec<_>>().into()
            }
            Some(_) => Value::from(text),
            None => continue,
        };
        insert(&mut settings, &path, value);
    }
    Layer { origin: ENVIRONMENT.into(), settings }
}

/// The settings in the standard variables of OpenTelemetry, which configure all programs of a
/// machine at once.
fn opentelemetry_layer(environment: &[(String, String)]) -> Layer {
    let text_of = |name: &str| {
        environment
            .iter()
            .find(|(have, text)| have == name && !text.is_empty())
            .map(|(_, text)| text.trim())
    };
    let mut settings = Dict::new();
    let mut set = |name: &str, value: Value| {
        insert(&mut settings, &["tracing".to_owned(), name.to_owned()], value);
    };
    let off = text_of("OTEL_SDK_DISABLED") == Some("true")
        || text_of("OTEL_TRACES_EXPORTER") == Some("none");
    let endpoint = text_of("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        .or_else(|| text_of("OTEL_EXPORTER_OTLP_ENDPOINT"));
    if let Some(endpoint) = endpoint.filter(|_| !off) {
        set("otlp_endpoint", endpoint.into());
    }
    if let Some(pairs) = text_of("OTEL_EXPORTER_OTLP_TRACES_HEADERS")
        .or_else(|| text_of("OTEL_EXPORTER_OTLP_HEADERS"))
    {
        // Written as in a form, but for the comma, and for the plus, which is one.
        let form = pairs.replace('&', "%26").replace('+', "%2B").replace(',', "&");
        let pairs = url::form_urlencoded::parse(form.as_bytes());
        let headers: Dict =
            pairs.map(|(name, value)| (name.trim().to_lowercase(), value.trim().into())).collect();
        set("otlp_headers", headers.into());
    }
    if let Some(name) = text_of("OTEL_SERVICE_NAME") {
        set("service_name", name.into());
    }
    match (text_of("OTEL_TRACES_SAMPLER"), text_of("OTEL_TRACES_SAMPLER_ARG")) {
        (Some("always_off" | "parentbased_always_off"), _) => set("sample_ratio", 0.0.into()),
        (Some("traceidratio" | "parentbased_traceidratio"), Some(ratio)) => {
            set("sample_ratio", ratio.into());
        }
        _ => {}
    }
    Layer { origin: OPENTELEMETRY.into(), settings }
}

fn insert(settings: &mut Dict, path: &[String], value: Value) {
    let [first, rest @ ..] = path else { return };
    if rest.is_empty() {
        settings.insert(first.clone(), value);
        return;
    }
    let inner = settings.entry(first.clone()).or_insert_with(|| Dict::new().into());
    if let Value::Dict(_, inner) = inner {
        insert(inner, rest, value);
    }
}

fn flag_layer(flags: &impl Serialize) -> Layer {
    let mut settings = Serialized::defaults(flags)
        .data()
        .ok()
        .and_then(|mut data| data.remove(&Profile::Default))
        .unwrap_or_default();
    settings.retain(|_, value| !matches!(value, Value::Empty(..)));
    Layer { origin: COMMAND_LINE.into(), settings }
}

/// The source of the value of a setting; of a missing setting, the source of its siblings.
fn origin(layers: &Figment, setting: &str) -> String {
    let parents = std::iter::successors(Some(setting), |name| Some(name.rsplit_once('.')?.0));
    let mut found = parents.filter_map(|name| Some((name, layers.find_metadata(name)?)));
    match found.next() {
        Some((name, metadata)) if metadata.name == ENVIRONMENT && name == setting => {
            format!("the environment variable {}", variable(name))
        }
        Some((name, metadata)) if metadata.name == ENVIRONMENT => {
            format!("the environment variables {}__…", variable(name))
        }
        Some((_, metadata)) => metadata.name.to_string(),
        None => "the defaults".into(),
    }
}

/// The error without the value, which may be a secret.
fn explain(layers: &Figment, error: figment::Error) -> SettingsError {
    let mut path = error.path;
    let problem = match error.kind {
        Kind::UnknownField(name, known) => {
            path.extend(Some(name).filter(|name| path.last() != Some(name)));
            format!("is not known; known are {}", known.join(", "))
        }
        Kind::MissingField(name) => {
            path.push(name.into_owned());
            "is missing".into()
        }
        Kind::InvalidType(_, expected) | Kind::InvalidValue(_, expected) if expected == "u32" => {
            "must be a whole number".into()
        }
        Kind::InvalidType(_, expected) | Kind::InvalidValue(_, expected) => {
            format!("must be {expected}")
        }
        Kind::UnknownVariant(_, known) => format!("must be one of {}", known.join(", ")),
        Kind::Message(text) => format!("is wrong: {text}"),
        _ => "has an invalid value".into(),
    };
    let setting = path.join(".");
    let origin = origin(layers, &setting);
    SettingsError::Setting { setting, origin, problem }
}
