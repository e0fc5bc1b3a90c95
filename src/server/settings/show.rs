//! Settings as text and as JSON, without their secrets.

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

use super::Settings;

impl Settings {
    /// All settings as JSON, each secret replaced by `***`.
    pub(super) fn without_secrets(&self) -> Value {
        let mut shown = self.clone();
        shown.encryption_key = shown.encryption_key.map(|_| "***".to_owned());
        // The program alone: an argument may be a credential.
        shown.encryption_key_command.iter_mut().skip(1).for_each(|word| "***".clone_into(word));
        shown.store = shown.store.map(|address| without_password(&address));
        shown.admin_token = shown.admin_token.map(|_| "***".to_owned());
        shown.oidc.client_secret = shown.oidc.client_secret.map(|_| "***".to_owned());
        shown.tracing.otlp_headers.values_mut().for_each(|value| "***".clone_into(value));
        let single = [
            &mut shown.tracing.otlp_endpoint,
            &mut shown.console.page_url,
            &mut shown.jwt.jwks_url,
        ];
        let addresses = single.into_iter().flatten().chain(shown.console.servers.values_mut());
        // Their queries may have tokens.
        for address in addresses.filter(|address| address.query().is_some()) {
            address.set_query(Some("***"));
        }
        if let Some(target) = &mut shown.default_target {
            let blank = || "***".to_owned();
            target.headers.values_mut().for_each(|value| *value = blank());
            if let Some(basic) = &mut target.basic_auth {
                basic.password = blank();
            }
            if !target.signing_secret.is_empty() {
                target.signing_secret = tidegate_core::target::Secrets::One(blank());
            }
            if target.url.contains(['@', '?']) {
                target.url = blank();
            }
        }
        serde_json::to_value(shown).expect("settings are plain data")
    }
}

/// The address of a database without its password. What is no URL may have one anywhere.
fn without_password(address: &str) -> String {
    let Ok(mut url) = address.parse::<url::Url>() else { return "***".to_owned() };
    let has_password = url.query_pairs().any(|(name, _)| name == "password");
    if has_password || (url.password().is_some() && url.set_password(Some("***")).is_err()) {
        return "***".to_owned();
    }
    url.into()
}

/// One setting per line, as in TOML, without secrets.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = BTreeMap::new();
        flatten(String::new(), &self.without_secrets(), &mut lines);
        lines.iter().try_for_each(|(name, value)| writeln!(f, "{name} = {value}"))
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settings({})", self.without_secrets())
    }
}

fn flatten(name: String, value: &Value, lines: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                flatten(
                    if name.is_empty() { key.clone() } else { format!("{name}.{key}") },
                    value,
                    lines,
                );
            }
        }
        Value::Null => {}
        value => {
            lines.insert(name, value.clone());
        }
    }
}
