//! The values of settings that no source sets.

use std::collections::BTreeMap;

use super::{
    Console, Emf, Jwt, LogEncryption, LogFormat, LogLevel, LogProfile, Oidc, Settings, Tracing,
};
use tidegate_core::{time::Seconds, validate::AllowedHosts};

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 8080).into(),
            data: "./tidegate-data".into(),
            store: None,
            peer_url: None,
            log: None,
            standby: false,
            takeover_seconds: Seconds::new(7),
            log_encryption: LogEncryption::Off,
            log_profile: LogProfile::Latency,
            log_interval_seconds: None,
            log_record_bytes: None,
            log_history_seconds: Seconds::new(0),
            encryption_key: None,
            encryption_key_file: None,
            encryption_key_command: Vec::new(),
            admin_token: None,
            max_connections: None,
            head_timeout_seconds: Seconds::new(15),
            body_timeout_seconds: Seconds::new(30),
            idle_timeout_seconds: Seconds::new(75),
            public_url: None,
            max_data_bytes: 4 << 20,
            create_unknown_types: false,
            default_target: None,
            max_event_bytes: 256 << 10,
            max_event_hops: 8,
            reply_wait_seconds: Seconds::new(300),
            dead_letter_retention_seconds: Seconds::new(14 * 86_400),
            max_dead_letters: 10_000,
            push_slots: 256,
            allow_unsafe_targets: false,
            allowed_targets: AllowedHosts::default(),
            allowed_callbacks: AllowedHosts::default(),
            shutdown_seconds: Seconds::new(10),
            allow_unencrypted_proxy: false,
            console: Console::default(),
            log_level: LogLevel::Info,
            log_format: LogFormat::Text,
            log_traffic: false,
            metrics_exclude: Vec::new(),
            emf: Emf::default(),
            tracing: Tracing::default(),
            jwt: Jwt::default(),
            oidc: Oidc::default(),
        }
    }
}

impl Default for Console {
    fn default() -> Self {
        Self {
            title: "tidegate".into(),
            page_url: None,
            read_only: false,
            trace_url: None,
            servers: BTreeMap::new(),
        }
    }
}

impl Default for Emf {
    fn default() -> Self {
        Self { output: None, namespace: "tidegate".into(), interval_seconds: Seconds::new(60) }
    }
}

impl Default for Tracing {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            otlp_headers: BTreeMap::new(),
            service_name: "tidegate".into(),
            sample_ratio: 1.0,
        }
    }
}

impl Default for Oidc {
    fn default() -> Self {
        Self { client_id: None, client_secret: None, scopes: "openid".into() }
    }
}

impl Default for Jwt {
    fn default() -> Self {
        Self { jwks_url: None, issuer: None, audience: None, scope_claim: "scope".into() }
    }
}
