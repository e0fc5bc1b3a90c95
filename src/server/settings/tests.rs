use std::io::Write as _;

use super::*;
use tidegate_backends::sealed::KeySource;

const NO_FLAGS: [(&str, u8); 0] = [];

#[derive(Default, Serialize)]
struct Flags {
    listen: Option<String>,
    push_slots: Option<u32>,
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn environment(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn from_file(text: &str) -> Result<Settings, SettingsError> {
    Settings::read(Some(file(text).path()), [], &Flags::default())
}

fn from_environment(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    Settings::read(None, environment(pairs), &Flags::default())
}

/// The setting, the first word of its origin after "the", and the problem.
fn wrong(read: Result<Settings, SettingsError>) -> (String, String, String) {
    match read.unwrap_err() {
        SettingsError::Setting { setting, origin, problem } => (setting, origin, problem),
        file @ SettingsError::File { .. } => panic!("{file}"),
    }
}

#[test]
fn defaults_apply_and_are_valid() {
    let settings = from_environment(&[]).unwrap();
    assert_eq!(settings, Settings::default());
    assert_eq!(
        (settings.listen.to_string(), settings.max_data_bytes, settings.push_slots),
        ("127.0.0.1:8080".into(), 4_194_304, 256)
    );
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let file = file(
        "push_slots = 1\nmax_data_bytes = 2000\nshutdown_seconds = 0.5\n\
         metrics_exclude = ['a', 'b']",
    );
    let environment = environment(&[
        ("TIDEGATE_PUSH_SLOTS", "2"),
        ("TIDEGATE_MAX_DATA_BYTES", "3000"),
        ("TIDEGATE_METRICS_EXCLUDE", "c, d"),
    ]);
    let flags = Flags { push_slots: Some(3), ..Flags::default() };
    let settings = Settings::read(Some(file.path()), environment, &flags).unwrap();
    assert_eq!((settings.push_slots, settings.max_data_bytes), (3, 3000));
    assert_eq!(
        (settings.shutdown_seconds, settings.metrics_exclude),
        (Seconds::from_millis(500), vec!["c".into(), "d".into()])
    );
}

#[test]
fn every_kind_of_value_can_come_from_the_environment() {
    let settings = from_environment(&[
        ("TIDEGATE_LISTEN", "0.0.0.0:80"),
        ("TIDEGATE_LOG_TRAFFIC", "true"),
        ("TIDEGATE_LOG_FORMAT", "json"),
        ("TIDEGATE_SHUTDOWN_SECONDS", "2.5"),
        ("TIDEGATE_CONSOLE__TITLE", "2024"),
        ("TIDEGATE_CONSOLE__SERVERS__EU", "https://eu.example"),
        ("TIDEGATE_PUBLIC_URL", ""),
        ("TIDEGATE_DEFAULT_TARGET__URL", "http://127.0.0.1:9000/{type}"),
        ("TIDEGATE_DEFAULT_TARGET__SIGNING_SECRET", "12345"),
        ("TIDEGATE_JWT__JWKS_URL", "https://id.example/keys"),
        ("TIDEGATE_JWT__ISSUER", "https://id.example"),
        ("TIDEGATE_JWT__AUDIENCE", "jobs"),
        ("TIDEGATE_PORT", "tcp://10.0.0.1:8080"),
    ])
    .unwrap();
    assert_eq!(
        (settings.listen.to_string(), settings.log_traffic, settings.log_format),
        ("0.0.0.0:80".into(), true, LogFormat::Json)
    );
    assert_eq!((settings.console.title.as_str(), settings.public_url.as_ref()), ("2024", None));
    let servers: Vec<_> = settings.console.servers.iter().collect();
    assert_eq!(servers, [(&"eu".to_owned(), &"https://eu.example/".parse().unwrap())]);
    assert_eq!(settings.shutdown_seconds, Seconds::from_millis(2500));
    assert_eq!(settings.default_target.as_ref().unwrap().signing_secret.list(), ["12345"]);
    assert_eq!(
        (settings.jwt.audience.as_deref(), settings.jwt.scope_claim.as_str()),
        (Some("jobs"), "scope")
    );
}

#[test]
fn unknown_variables_are_listed() {
    let given = environment(&[
        ("TIDEGATE_PORT", "1"),
        ("TIDEGATE_LISTEN", "x"),
        ("TIDEGATE_JWT__ISSUER", "x"),
        ("PATH", "x"),
    ]);
    assert_eq!(unknown_variables(given).into_iter().collect::<Vec<_>>(), ["TIDEGATE_PORT"]);
}

#[test]
fn a_wrong_setting_is_named_with_its_source_and_bounds() {
    let (setting, origin, problem) = wrong(from_file("listne = '127.0.0.1:1'"));
    assert_eq!(setting, "listne");
    assert!(origin.starts_with("the file /"), "{origin}");
    assert!(problem.starts_with("is not known; known are listen, data,"), "{problem}");

    let (setting, origin, problem) = wrong(from_file("[jwt]\nissuer = 'x'\naudiense = 'y'"));
    assert_eq!(setting, "jwt.audiense");
    assert!(origin.starts_with("the file /") && problem.contains("audience"), "{origin} {problem}");

    let (setting, origin, problem) = wrong(from_environment(&[("TIDEGATE_PUSH_SLOTS", "0")]));
    assert_eq!((setting.as_str(), problem.as_str()), ("push_slots", "must be 1 to 10000, not 0"));
    assert_eq!(origin, "the environment variable TIDEGATE_PUSH_SLOTS");

    let (setting, origin, problem) =
        wrong(from_environment(&[("TIDEGATE_MAX_DATA_BYTES", "much")]));
    assert_eq!((setting.as_str(), problem.as_str()), ("max_data_bytes", "must be a whole number"));
    assert_eq!(origin, "the environment variable TIDEGATE_MAX_DATA_BYTES");

    let (setting, origin, _) = wrong(from_environment(&[("TIDEGATE_JWT__ISSUER", "x")]));
    assert_eq!(
        (setting.as_str(), origin.as_str()),
        ("jwt.jwks_url", "the environment variables TIDEGATE_JWT__…")
    );

    let flags = Flags { listen: Some("here".into()), ..Flags::default() };
    let (setting, origin, problem) = wrong(Settings::read(None, [], &flags));
    assert_eq!((setting.as_str(), origin.as_str()), ("listen", "the command line"));
    assert!(problem.contains("address"), "{problem}");
    assert_eq!(
        SettingsError::Setting { setting, origin, problem: "must be x".into() }.to_string(),
        "the setting `listen` (from the command line) must be x"
    );
}

#[test]
fn every_bound_is_held() {
    for (name, value) in [
        ("data", ""),
        ("encryption_key", "short"),
        ("max_connections", "15"),
        ("max_connections", "1000001"),
        ("head_timeout_seconds", "0.9"),
        ("head_timeout_seconds", "3601"),
        ("body_timeout_seconds", "0"),
        ("idle_timeout_seconds", "86401"),
        ("public_url", "ftp://a"),
        ("public_url", "http://a/?q"),
        ("public_url", "http://me:pw@a/"),
        ("peer_url", "ftp://a"),
        ("peer_url", "http://a/?q"),
        ("peer_url", "http://10.0.0.7:8080"),
        ("max_data_bytes", "1023"),
        ("max_data_bytes", "67108865"),
        ("max_data_bytes", "-1"),
        ("push_slots", "10001"),
        ("push_slots", "many"),
        ("shutdown_seconds", "3600.1"),
        ("shutdown_seconds", "-1"),
        ("log_level", "loud"),
        ("log_format", "xml"),
        ("log_traffic", "perhaps"),
        ("log_encryption", "true"),
        ("console.title", &"x".repeat(101)),
        ("console.page_url", "javascript:alert(1)"),
        ("console.trace_url", "https://traces.example/"),
        ("console.trace_url", "javascript:{trace_id}"),
        ("console.trace_url", "{trace_id}"),
        ("oidc.client_id", "console"),
        ("oidc.client_secret", "hidden"),
        ("oidc.scopes", "profile"),
        ("emf.output", ""),
        ("emf.namespace", ""),
        ("emf.namespace", "my jobs"),
        ("emf.namespace", "AWS/jobs"),
        ("emf.interval_seconds", "0"),
        ("emf.interval_seconds", "3601"),
        ("tracing.otlp_endpoint", "grpc://a"),
        ("tracing.otlp_endpoint", "http://me:pw@a/"),
        ("tracing.otlp_endpoint", "a:4317"),
        ("tracing.service_name", ""),
        ("tracing.sample_ratio", "1.1"),
        ("tracing.sample_ratio", "NaN"),
        ("tracing.sample_ratio", "half"),
        ("tracing.otlp_headers", "x"),
        ("jwt.jwks_url", "file:///keys"),
        ("default_target.url", "http://169.254.169.254/"),
        ("default_target.url", "worker"),
    ] {
        let (table, key) = name.rsplit_once('.').unwrap_or(("", name));
        let header = if table.is_empty() { String::new() } else { format!("[{table}]\n") };
        assert_eq!(wrong(from_file(&format!("{header}{key} = '{value}'"))).0, name, "{value}");
    }
    assert_eq!(
        wrong(from_file("default_target = {url = 'http://a', signing_secret = ['a', 'b', 'c']}")).0,
        "default_target.signing_secret"
    );
    assert_eq!(
        wrong(from_file("default_target = {url = 'http://a', signing_secret = 'whsec_%'}")).0,
        "default_target.signing_secret"
    );
    let (setting, ..) = wrong(from_file("[console.servers]\neu = 'javascript:alert(1)'"));
    assert_eq!(setting, "console.servers");
    assert_eq!(wrong(from_file("default_target = {headers = {}}")).0, "default_target.url");
    assert_eq!(wrong(from_file("[jwt]\njwks_url = 'http://a'\nissuer = 'x'")).0, "jwt.audience");
    assert!(
        from_file(
            "allow_unsafe_targets = true\ndefault_target = {url = 'http://169.254.169.254/'}"
        )
        .is_ok()
    );
}

#[test]
fn a_server_on_a_shared_store_may_have_a_peer_url() {
    let settings = from_environment(&[
        ("TIDEGATE_STORE", "postgres://db.example/jobs"),
        ("TIDEGATE_PEER_URL", "http://[fd00::7]:8080"),
    ]);
    assert_eq!(settings.unwrap().peer_url.unwrap().as_str(), "http://[fd00::7]:8080/");
}

#[test]
fn opentelemetry_variables_configure_tracing() {
    let settings = from_environment(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20aGk%3D+, x-team = blue&red"),
        ("OTEL_SERVICE_NAME", "12"),
        ("OTEL_TRACES_SAMPLER", "traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ("OTEL_LOG_LEVEL", "info"),
    ]);
    let Tracing { otlp_endpoint, otlp_headers, service_name, sample_ratio } =
        settings.unwrap().tracing;
    assert_eq!(otlp_endpoint.unwrap().as_str(), "http://collector:4318/");
    let headers: Vec<_> =
        otlp_headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(headers, [("authorization", "Basic aGk=+"), ("x-team", "blue&red")]);
    assert_eq!((service_name.as_str(), sample_ratio), ("12", 0.25));

    let general = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a");
    let endpoint = |more: &[(&str, &str)]| {
        from_environment(&[&[general], more].concat()).unwrap().tracing.otlp_endpoint
    };
    assert_eq!(
        endpoint(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b")]).unwrap().as_str(),
        "http://b/"
    );
    assert_eq!(
        endpoint(&[("TIDEGATE_TRACING__OTLP_ENDPOINT", "http://c")]).unwrap().as_str(),
        "http://c/"
    );
    for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
        assert_eq!(endpoint(&[off]), None);
    }
    let ratio = |sampler, ratio| {
        from_environment(&[("OTEL_TRACES_SAMPLER", sampler), ("OTEL_TRACES_SAMPLER_ARG", ratio)])
            .unwrap()
            .tracing
            .sample_ratio
    };
    let ratios = [
        ratio("always_off", ""),
        ratio("always_on", "0.5"),
        ratio("parentbased_traceidratio", "0.5"),
    ];
    assert_eq!(ratios.map(|ratio| ratio.to_string()), ["0", "1", "0.5"]);

    let (setting, origin, problem) =
        wrong(from_environment(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://a:4317")]));
    assert_eq!(
        (setting.as_str(), origin.as_str()),
        ("tracing.otlp_endpoint", "the environment variables OTEL_…")
    );
    assert_eq!(problem, "must begin with http:// or https://");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let missing = Settings::read(
        Some("/no/such.toml".as_ref()),
        [],
        &NO_FLAGS.into_iter().collect::<BTreeMap<_, _>>(),
    )
    .unwrap_err();
    assert!(
        missing.to_string().starts_with("the settings file /no/such.toml cannot be read:"),
        "{missing}"
    );
    let damaged = from_file("log_traffic = true\njwt.secret = hidden").unwrap_err().to_string();
    assert!(damaged.contains(" is not TOML: line 2: ") && !damaged.contains("hidden"), "{damaged}");
}

#[test]
fn secrets_are_never_shown_even_in_errors() {
    let text = "default_target = {url = 'http://u:hidden@a/?key=hidden', \
                headers = {authorization = 'hidden'}, \
                basic_auth = {username = 'ann', password = 'hidden'}, \
                signing_secret = ['hidden', 'whsec_aGlkZGVu']}\n\
                [tracing]\notlp_endpoint = 'http://a/?key=hidden'\n\
                otlp_headers = {authorization = 'hidden'}\n\
                [jwt]\njwks_url = 'https://a/?key=hidden'\nissuer = 'https://a'\naudience = 'x'\n\
                [console]\npage_url = 'http://a/?key=hidden'\nservers.eu = 'http://a/?key=hidden'\n\
                [oidc]\nclient_id = 'console'\nclient_secret = 'hidden'";
    let settings = from_file(text).unwrap();
    for shown in [settings.to_string(), format!("{settings:?}")] {
        assert!(
            !shown.contains("hidden") && !shown.contains("aGlkZGVu") && shown.contains("ann"),
            "{shown}"
        );
    }
    for wrong in [
        "default_target = {url = 'http://a', \
         basic_auth = {username = 'ann', password = ['hidden']}}",
        "default_target = {url = 'http://a', basic_auth = 'hidden'}",
        "default_target = {url = 'http://a', signing_secret = {x = 'hidden'}}",
        "default_target = {url = 'hidden'}",
        "default_target = 'hidden'",
    ] {
        let error = from_file(wrong).unwrap_err().to_string();
        assert!(!error.contains("hidden") && error.contains("default_target"), "{error}");
    }
}

#[test]
fn a_sign_in_needs_encryption_outside_of_this_machine() {
    let at = |public: &str, issuer: &str, listen: &str| {
        from_file(&format!(
            "listen = '{listen}'\n{public}\n[jwt]\njwks_url = '{issuer}/keys'\n\
             issuer = '{issuer}'\naudience = 'x'\n[oidc]\nclient_id = 'console'"
        ))
    };
    let (local, any) = ("127.0.0.1:8080", "0.0.0.0:8080");
    let (own, far) = ("public_url = 'https://jobs.example'", "public_url = 'http://jobs.example'");
    assert!(at("", "http://127.0.0.1:9000", local).is_ok());
    assert!(at(own, "https://id.example", any).is_ok());
    for (settings, name) in [
        (at(far, "https://id.example", any), "public_url"),
        (at("", "https://id.example", any), "public_url"),
        (at(own, "http://id.example", any), "jwt.issuer"),
    ] {
        assert_eq!(wrong(settings).0, name);
    }
}

#[test]
fn a_described_setting_has_its_value_and_its_source() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let text = "push_slots = 7\ndefault_target = {url = 'http://a'}\n[console]\ntitle = 'jobs'";
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let environment = [("TIDEGATE_LOG_LEVEL", "debug"), ("TIDEGATE_ENCRYPTION_KEY", key)];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let flags = BTreeMap::from([("listen", "127.0.0.1:7000")]);
    let (settings, sources) =
        Settings::read_with_sources(Some(file.path()), environment, &flags).unwrap();
    let described = settings.described(&sources);
    assert_eq!(described.len(), reference().len());
    let of = |name: &str| {
        let setting = described.iter().find(|setting| setting.name == name).unwrap();
        (setting.value.to_string(), setting.from.to_string())
    };
    let expected = |value: &str, from: &str| (value.to_owned(), from.to_owned());
    assert_eq!(of("push_slots"), expected("7", "file"));
    assert_eq!(of("console.title"), expected("\"jobs\"", "file"));
    assert_eq!(of("log_level"), expected("\"debug\"", "environment"));
    assert_eq!(of("encryption_key"), expected("\"***\"", "environment"));
    assert_eq!(of("listen"), expected("\"127.0.0.1:7000\"", "argument"));
    assert_eq!(of("max_event_hops"), expected("8", "default"));
    assert_eq!(of("console.servers"), expected("null", "default"));
    assert_eq!(of("default_target").1, "file");
}

#[test]
fn shown_settings_can_be_read_again() {
    let shown = Settings::default().to_string();
    assert!(shown.contains("listen = \"127.0.0.1:8080\"\n"), "{shown}");
    assert_eq!(from_file(&shown).unwrap(), Settings::default());
}

#[test]
fn the_reference_names_every_setting_once() {
    let all = reference();
    let tables = [
        Console::FIELDS.len(),
        Emf::FIELDS.len(),
        Tracing::FIELDS.len(),
        Jwt::FIELDS.len(),
        Oidc::FIELDS.len(),
    ];
    assert_eq!(all.len(), Settings::FIELDS.len() - tables.len() + tables.iter().sum::<usize>());
    let slots = all.iter().find(|one| one.name == "push_slots").unwrap();
    assert_eq!((slots.variable.as_str(), slots.default.as_str()), ("TIDEGATE_PUSH_SLOTS", "256"));
    assert!(
        slots.meaning.starts_with("Maximum number of concurrent push calls"),
        "{}",
        slots.meaning
    );
    assert!(
        all.iter()
            .any(|one| one.variable == "TIDEGATE_JWT__SCOPE_CLAIM" && one.default == "\"scope\"")
    );
    assert_eq!(
        unknown_variables(all.iter().map(|one| (one.variable.clone(), String::new()))).len(),
        0
    );
    assert_eq!(reference_table().lines().count(), all.len() + 2);
}

#[test]
fn the_list_for_terminals_is_plain_and_narrow() {
    let list = reference_list();
    let listen = "Settings:\n  listen\n          Address and port to listen on.";
    assert!(list.starts_with(listen), "{list}");
    let variable = "\n          [env: TIDEGATE_PUSH_SLOTS] [default: 256]\n";
    assert!(list.contains(variable), "{list}");
    assert!(!list.contains(['`', '|']), "{list}");
    let meanings = list.lines().filter(|line| !line.contains("[env: "));
    assert!(meanings.clone().count() > 2 * reference().len(), "{list}");
    assert!(meanings.clone().all(|line| line.len() <= 80), "{list}");
}

#[test]
fn callbacks_use_the_public_url_or_the_listen_address() {
    let mut settings = Settings::default();
    assert_eq!(settings.public_url(([127, 0, 0, 1], 4711).into()), "http://127.0.0.1:4711");
    assert_eq!(settings.public_url(([0, 0, 0, 0], 80).into()), "http://127.0.0.1:80");
    settings.public_url = Some("https://jobs.example/base/".parse().unwrap());
    assert_eq!(settings.public_url(([127, 0, 0, 1], 4711).into()), "https://jobs.example/base");
}

#[test]
fn metrics_are_excluded_by_name_or_prefix() {
    let settings = from_file("metrics_exclude = ['tidegate_jobs', 'http_*']").unwrap();
    assert_eq!(
        ["tidegate_jobs", "tidegate_jobs_total", "http_requests"]
            .map(|name| settings.excludes_metric(name)),
        [true, false, true]
    );
}

#[test]
fn a_store_is_the_address_of_a_database_and_needs_a_given_key() {
    for (store, problem) in [
        ("jobs.db", "must begin with postgres://"),
        ("postgres://h/d?sslmode=maybe", "cannot be used: "),
        ("postgres://h/d?schema=A", "cannot be used: the schema "),
    ] {
        let (setting, origin, found) = wrong(from_environment(&[("TIDEGATE_STORE", store)]));
        assert_eq!((&*setting, &*origin), ("store", "the environment variable TIDEGATE_STORE"));
        assert!(found.starts_with(problem), "{found}");
    }
    let store = ("TIDEGATE_STORE", "postgresql://ann:secret@db.example/jobs");
    let refused = from_environment(&[store]).unwrap().keys().map(drop).unwrap_err();
    assert_eq!(refused.setting, "encryption_key");
    let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let settings = from_environment(&[store, ("TIDEGATE_ENCRYPTION_KEY", key)]).unwrap();
    assert!(matches!(settings.keys(), Ok(KeySource::Given(_))));
    assert!(settings.database().unwrap().is_some());
    assert!(Settings::default().database().unwrap().is_none());
}

#[test]
fn keys_come_from_one_setting() {
    let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let all = [
        ("TIDEGATE_ENCRYPTION_KEY", key),
        ("TIDEGATE_ENCRYPTION_KEY_FILE", "/etc/tidegate/key"),
        ("TIDEGATE_ENCRYPTION_KEY_COMMAND", "aws, kms,decrypt"),
    ];
    for (first, second, setting) in
        [(0, 1, "encryption_key"), (0, 2, "encryption_key"), (1, 2, "encryption_key_file")]
    {
        let (found, _, problem) = wrong(from_environment(&[all[first], all[second]]));
        assert_eq!(found, setting);
        assert!(problem.starts_with("must not be given with encryption_key_"), "{problem}");
    }
    let settings = from_environment(&all[2..]).unwrap();
    assert_eq!(settings.encryption_key_command, ["aws", "kms", "decrypt"]);
    assert_eq!(
        settings.without_secrets()["encryption_key_command"],
        serde_json::json!(["aws", "***", "***"])
    );
    let (setting, ..) = wrong(from_file("encryption_key_command = ['', 'x']"));
    assert_eq!(setting, "encryption_key_command");
}

#[test]
fn the_password_of_a_store_is_never_shown() {
    for (store, shown) in [
        ("postgres://ann:hunter2@h/d?schema=a", "postgres://ann:***@h/d?schema=a"),
        ("postgres://ann@h/d", "postgres://ann@h/d"),
        ("postgres://h/d?user=ann&password=hunter2", "***"),
        ("host=h password=hunter2", "***"),
    ] {
        let settings = Settings { store: Some(store.into()), ..Settings::default() };
        assert_eq!(settings.without_secrets()["store"], shown, "{store}");
        assert!(!format!("{settings} {settings:?}").contains("hunter2"), "{store}");
    }
}
