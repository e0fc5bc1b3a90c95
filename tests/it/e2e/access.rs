//! Access: tokens that the command line creates and revokes, their scopes, and a server that never
//! opens by mistake.

use std::{os::unix::fs::MetadataExt as _, path::Path};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use reqwest::Method;
use serde_json::{Value, json};
use tidegate_server::auth::TokenItem;

use super::{
    serve::{Setup, Tidegate, program},
    target::Target,
    wait::eventually,
};

/// Makes a token by the command line.
async fn make(tide: &Tidegate, admin: Option<&str>, name: &str, scopes: &[&str]) -> String {
    let args = [&["token", "create", "--name", name, "--scope"], scopes].concat();
    tide.cli_as(admin, &args).await.ok().trim().to_owned()
}

#[tokio::test]
async fn a_token_opens_what_its_scopes_say_and_nothing_else() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    tide.post("/v1/tokens", json!({"name": "x", "scopes": ["read"]})).await.blames(
        409,
        "admin_token_required",
        "scopes",
    );
    // An open server accepts any credentials, and the rules of the first token hold for all.
    let any = tide.with_token("tg_nonsense");
    let first = json!({"name": "x", "scopes": ["read"]});
    any.post("/v1/tokens", first).await.blames(409, "admin_token_required", "scopes");
    let brief = json!({"name": "x", "scopes": ["admin"], "expires_at": "2099-01-01T00:00:00Z"});
    any.post("/v1/tokens", brief).await.blames(400, "invalid_field", "expires_at");
    let admin = make(&tide, None, "ops", &["admin"]).await;
    let mut tokens = vec![("admin", admin.clone())];
    for (name, scopes) in [
        ("enqueue", &["enqueue"][..]),
        ("critical", &["enqueue", "enqueue:critical"]),
        ("work", &["work"]),
        ("read", &["read"]),
    ] {
        tokens.push((name, make(&tide, Some(&admin), name, scopes).await));
    }
    let job = json!({"type": "t", "data": 1});
    let critical = json!({"type": "t", "data": 1, "critical": true});
    let cases: &[(Method, &str, Value, &[&str])] = &[
        (Method::POST, "/v1/jobs", job.clone(), &["admin", "enqueue", "critical"]),
        (Method::POST, "/v1/jobs", critical, &["admin", "critical"]),
        (Method::POST, "/v1/jobs/batch", json!({"jobs": [job]}), &["admin", "enqueue", "critical"]),
        (Method::POST, "/v1/leases", json!({"max": 0}), &["admin", "work"]),
        (Method::PUT, "/v1/workers/w", json!({}), &["admin", "work"]),
        (Method::GET, "/v1/jobs", Value::Null, &["admin", "read"]),
        (Method::GET, "/v1/queues", Value::Null, &["admin", "read"]),
        (Method::GET, "/metrics", Value::Null, &["admin", "read"]),
        (Method::PUT, "/v1/queues/q", json!({}), &["admin"]),
        (Method::PUT, "/v1/job-types/u", json!({}), &["admin"]),
        (Method::POST, "/v1/queues/default/pause", Value::Null, &["admin"]),
        (Method::POST, "/v1/queues/default/resume", Value::Null, &["admin"]),
        (Method::POST, "/v1/jobs/cancel", json!({"filter": {"type": "none"}}), &["admin"]),
        (Method::GET, "/v1/tokens", Value::Null, &["admin"]),
        (Method::GET, "/v1/doctor", Value::Null, &["admin"]),
    ];
    let mut wrong = Vec::new();
    for (method, path, body, may) in cases {
        tide.ask(method.clone(), path, body).await.problem(401, "unauthorized");
        tide.with_token("tg_nonsense")
            .ask(method.clone(), path, body)
            .await
            .problem(401, "unauthorized");
        for (scope, token) in &tokens {
            let answer = tide.with_token(token).ask(method.clone(), path, body).await;
            let let_in = answer.status < 300;
            if let_in != may.contains(scope) || (!let_in && answer.status != 403) {
                wrong.push(format!(
                    "{method} {path} {body} with {scope}: {} {}",
                    answer.status,
                    answer.value()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for open in ["/healthz", "/readyz", "/openapi.json"] {
        tide.get(open).await.is(200);
    }
    let challenged = tide.get("/v1/jobs").await;
    let challenges: Vec<_> = challenged
        .headers
        .get_all("www-authenticate")
        .iter()
        .map(|value| value.to_str().unwrap())
        .collect();
    assert!(
        challenges.iter().any(|one| one.starts_with("Bearer"))
            && challenges.iter().any(|one| one.starts_with("Basic")),
        "{challenges:?}"
    );
    let basic = format!("Basic {}", BASE64_STANDARD.encode(format!("any-user:{}", tokens[4].1)));
    tide.send(Method::GET, "/v1/jobs", &[("authorization", &basic)], "").await.is(200);
}

#[tokio::test]
async fn the_admin_token_of_the_settings_opens_a_new_server() {
    let text = "tg_boot_0123456789abcdef";
    let setting = TokenItem::admin_setting(text).unwrap();
    let setup = || Setup::new().flag("--listen", "0.0.0.0:0");
    let tide = setup().env("TIDEGATE_ADMIN_TOKEN", &setting).start().await;
    tide.get("/v1/queues").await.problem(401, "unauthorized");
    let admin = make(&tide, Some(text), "ops", &["admin"]).await;
    for token in [text, &admin] {
        tide.with_token(token).get("/v1/tokens").await.is(200);
    }
    let settings = tide.with_token(text).get("/v1/settings").await.is(200).to_string();
    assert!(!settings.contains(&setting) && settings.contains("admin_token"), "{settings}");

    // Without the setting it is gone, and stored tokens stay.
    let kept = tide.stop().await.without_env("TIDEGATE_ADMIN_TOKEN").start().await;
    kept.with_token(text).get("/v1/tokens").await.problem(401, "unauthorized");
    kept.with_token(&admin).get("/v1/tokens").await.is(200);

    let (status, log) = setup().env("TIDEGATE_ADMIN_TOKEN", text).refused().await;
    assert_eq!(status.code(), Some(2), "{log}");
    assert!(log.contains("`admin_token`") && !log.contains(text), "{log}");
}

#[tokio::test]
async fn an_open_server_refuses_pages_that_rebind_its_dns_name() {
    let tide = Tidegate::start().await;
    let asked = async |api: &super::api::Api, host: &str| {
        api.send(Method::GET, "/v1/jobs", &[("host", host)], "").await
    };
    for (path, status) in [("/metrics", 403), ("/healthz", 200), ("/readyz", 200)] {
        tide.send(Method::GET, path, &[("host", "evil.example")], "").await.is(status);
    }
    asked(&tide, "evil.example:8080").await.problem(403, "host_not_allowed");
    asked(&tide, "localhost:8080").await.is(200);
    let admin = make(&tide, None, "ops", &["admin"]).await;
    asked(&tide.with_token(&admin), "queue.internal").await.is(200);
    asked(&tide, "queue.internal").await.problem(401, "unauthorized");
}

#[tokio::test]
async fn replaying_a_critical_job_needs_the_right_to_enqueue_one() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({"max_attempts": 1})).await;
    let id = tide.enqueue(json!({"type": "t", "data": 1, "critical": true})).await;
    let lease = tide.lease_one("t").await;
    tide.report(&lease, "failed").await.is(200);
    let admin = make(&tide, None, "ops", &["admin"]).await;
    let plain = make(&tide, Some(&admin), "plain", &["enqueue", "read"]).await;
    let replay = format!("/v1/jobs/t/{id}/replay");
    tide.with_token(&plain).post(&replay, Value::Null).await.problem(403, "forbidden");
    assert_eq!(tide.with_token(&admin).post(&replay, Value::Null).await.is(201)["critical"], true);
}

#[tokio::test]
async fn tokens_hide_secrets_revoke_at_once_and_survive_a_restart() {
    let tide = Tidegate::start().await;
    let admin = make(&tide, None, "ops", &["admin"]).await;
    let reader = make(&tide, Some(&admin), "reader", &["read"]).await;
    let listed = tide.cli_as(Some(&admin), &["token", "list"]).await.ok();
    assert!(listed.contains("reader") && !listed.contains(&reader), "{listed}");
    let refused = tide.cli_as(Some(&reader), &["token", "list"]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("no scope admin"), "{refused:?}");
    let tide = tide.stop().await.start().await;
    tide.get("/v1/jobs").await.problem(401, "unauthorized");
    tide.with_token(&reader).get("/v1/jobs").await.is(200);
    let all = tide.with_token(&admin).get("/v1/tokens").await.is(200);
    let id = all["tokens"].as_array().unwrap().iter().find(|one| one["name"] == "reader").unwrap()
        ["id"]
        .as_str()
        .unwrap()
        .to_owned();
    tide.cli_as(Some(&admin), &["token", "revoke", &id]).await.ok();
    tide.with_token(&reader).get("/v1/jobs").await.problem(401, "unauthorized");
    assert_eq!(tide.cli_as(Some(&admin), &["token", "revoke", &id]).await.code, Some(4));
    let files = std::fs::read(tide.data().join("tidegate.db")).unwrap();
    assert!(
        !files.windows(admin.len()).any(|window| window == admin.as_bytes()),
        "tokens are stored hashed"
    );
}

#[tokio::test]
async fn an_address_for_others_needs_tokens() {
    for (setup, named) in [
        (Setup::new().flag("--listen", "0.0.0.0:0"), "listen: 0.0.0.0:0"),
        (Setup::new().flag("--public-url", "https://queue.example"), "public_url: https://queue"),
    ] {
        let (status, said) = setup.refused().await;
        assert!(!status.success() && said.contains(named), "{said}");
        // The message has the command that helps.
        let command = said.split_once("tidegate token create").unwrap().1.trim();
        let args = ["token", "create"].into_iter().chain(command.split(' '));
        let made = program(args).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let tide = setup.start().await;
        tide.get("/v1/jobs").await.problem(401, "unauthorized");
        let token = String::from_utf8(made.stdout).unwrap();
        tide.with_token(token.trim()).get("/v1/tokens").await.is(200);
    }
}

#[tokio::test]
async fn a_proxy_makes_no_caller_anonymous() {
    let tide = Tidegate::start().await;
    assert!(tide.log().contains("there is no token"), "{}", tide.log());
    tide.get("/v1/tokens").await.is(200);
    for header in ["x-forwarded-for", "forwarded", "via", "x-real-ip"] {
        let proxied = tide.send(Method::GET, "/v1/tokens", &[(header, "203.0.113.9")], "").await;
        assert!(proxied.problem(401, "unauthorized")["detail"].to_string().contains(header));
        for (path, status) in [("/metrics", 401), ("/healthz", 200), ("/readyz", 200)] {
            tide.send(Method::GET, path, &[(header, "203.0.113.9")], "").await.is(status);
        }
    }
}

#[tokio::test]
async fn a_server_stays_closed_without_its_last_token() {
    let tide = Tidegate::start().await;
    let admin = make(&tide, None, "ops", &["admin"]).await;
    let reader = make(&tide, Some(&admin), "reader", &["read"]).await;
    let of = |token: &str| format!("/v1/tokens/{}", token.split('_').nth(1).unwrap());
    let ask = tide.with_token(&admin);
    let refused = ask.delete(&of(&admin)).await;
    assert!(refused.problem(409, "last_admin_token")["detail"].to_string().contains("force=true"));
    let other = make(&tide, Some(&admin), "other", &["admin"]).await;
    ask.delete(&of(&other)).await.is(204);
    ask.delete(&of(&reader)).await.is(204);
    // One that expires does not count.
    let brief = ["token", "create", "--name", "b", "--scope", "admin", "--expires-in", "1h"];
    let brief = tide.cli_as(Some(&admin), &brief).await.ok();
    ask.delete(&of(&admin)).await.problem(409, "last_admin_token");
    ask.delete(&of(brief.trim())).await.is(204);
    let id = admin.split('_').nth(1).unwrap();
    let said = tide.cli_as(Some(&admin), &["token", "revoke", id]).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    tide.cli_as(Some(&admin), &["token", "revoke", id, "--force"]).await.ok();
    for path in ["/v1/tokens", "/v1/jobs"] {
        tide.get(path).await.problem(401, "unauthorized");
    }
    let tide = tide.stop().await.start().await;
    tide.get("/v1/tokens").await.problem(401, "unauthorized");
    assert!(tide.log().contains("every token is revoked"), "{}", tide.log());

    // The way back in, with the server stopped and not before.
    let data = tide.data();
    let args = |scope| {
        let start = ["token", "create", "--name", "back", "--scope", scope, "--data"];
        start.into_iter().map(str::to_owned).chain([data.display().to_string()])
    };
    let held = program(args("admin")).output().unwrap();
    assert!(String::from_utf8_lossy(&held.stderr).contains("is held by process"), "{held:?}");
    let setup = tide.stop().await;
    let refused = program(args("read")).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let made = program(args("admin")).output().unwrap();
    let tide = setup.start().await;
    let token = String::from_utf8(made.stdout).unwrap();
    tide.with_token(token.trim()).get("/v1/tokens").await.is(200);
}

#[tokio::test]
async fn a_token_expires_and_shows_its_last_use() {
    let tide = Tidegate::start().await;
    let soon = json!({"name": "x", "scopes": ["admin"], "expires_at": "2099-01-01T00:00:00Z"});
    tide.post("/v1/tokens", soon).await.blames(400, "invalid_field", "expires_at");
    let admin = make(&tide, None, "ops", &["admin"]).await;
    let made = tide.cli_as(
        Some(&admin),
        &["token", "create", "--name", "ci", "--scope", "read", "--expires-in", "5s"],
    );
    let ci = made.await.ok();
    tide.with_token(ci.trim()).get("/v1/jobs").await.is(200);
    eventually("the token expires", || async {
        let answer = tide.with_token(ci.trim()).get("/v1/jobs").await;
        (answer.status == 401).then_some(())
    })
    .await;
    // Uses are stored once a minute, and at the stop.
    let tide = tide.stop().await.start().await;
    let listed = tide.with_token(&admin).get("/v1/tokens").await.is(200);
    let ci = listed["tokens"].as_array().unwrap().iter().find(|one| one["name"] == "ci").unwrap();
    let instant = |field: &str| ci[field].as_str().unwrap_or_else(|| panic!("{field} of {ci}"));
    assert!(instant("created_at") <= instant("last_used_at"), "{ci}");
    assert!(instant("last_used_at") < instant("expires_at"), "{ci}");
}

/// What other users of the machine may do with the files below `dir`.
fn open_to_others(dir: &Path) -> Vec<String> {
    let mode = std::fs::metadata(dir).unwrap().mode() & 0o777;
    let expected = if dir.is_dir() { 0o700 } else { 0o600 };
    let own = (mode != expected).then(|| format!("{}: {mode:o}", dir.display()));
    let entries = if dir.is_dir() { Some(std::fs::read_dir(dir).unwrap()) } else { None };
    let below =
        entries.into_iter().flatten().flat_map(|entry| open_to_others(&entry.unwrap().path()));
    own.into_iter().chain(below).collect()
}

#[tokio::test]
async fn files_are_for_their_owner_whatever_the_umask() {
    // Each test is a process of its own. Its children inherit this.
    nix::sys::stat::umask(nix::sys::stat::Mode::empty());
    let setup = Setup::new();
    std::fs::create_dir(setup.data()).unwrap();
    let tide = setup.start().await;
    tide.job_type("t", json!({})).await;
    tide.enqueue(json!({"type": "t", "data": "x".repeat(100_000)})).await;
    let names: Vec<_> = std::fs::read_dir(tide.data()).unwrap().map(Result::unwrap).collect();
    assert!(names.len() >= 5, "lock, database, its two logs, objects: {names:?}");
    assert_eq!(open_to_others(&tide.data()), [""; 0]);
    let (data, copy) = (tide.data(), tide.data().with_extension("copy"));
    let args = ["backup", "--data", data.to_str().unwrap(), copy.to_str().unwrap()];
    let output = program(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(open_to_others(&copy), [""; 0]);
    let fresh = tide.data().with_extension("fresh");
    let args = ["token", "create", "--name", "a", "--scope", "admin", "--new", "--data"];
    let output = program(args.into_iter().chain([fresh.to_str().unwrap()])).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(open_to_others(&fresh), [""; 0]);
}

/// The files below `dir` that contain `bytes`.
fn containing(dir: &Path, bytes: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(containing(&path, bytes));
        } else if std::fs::read(&path).unwrap().windows(bytes.len()).any(|part| part == bytes) {
            found.push(path.display().to_string());
        }
    }
    found
}

#[tokio::test]
async fn no_secret_is_readable_in_the_files() {
    let tide = Tidegate::start().await;
    let target = Target::start(|_| async { "ok" }).await;
    let config = json!({
        "target": {
            "url": target.url, "signing_secret": "hidden-signing-secret",
            "headers": {"x-key": "hidden-header"},
            "basic_auth": {"username": "ann", "password": "hidden-password"},
        },
        "callback_signing_secret": "hidden-callback-secret",
    });
    tide.job_type("push", config).await;
    tide.job_type("pull", json!({})).await;
    tide.enqueue_a("pull").await;
    let lease = tide.lease_one("pull").await;
    let setup = tide.stop().await;
    let token = u128::from_str_radix(&lease.token, 16).unwrap().to_be_bytes();
    for secret in [
        &b"hidden-signing-secret"[..],
        b"hidden-header",
        b"hidden-password",
        b"hidden-callback-secret",
        lease.token.as_bytes(),
        &token,
    ] {
        let found = containing(&setup.data(), secret);
        assert!(found.is_empty(), "{}: {found:?}", String::from_utf8_lossy(secret));
    }
    // The attempt of before the restart still reports by its token.
    let tide = setup.start().await;
    tide.report(&lease, "succeeded").await.is(200);
    let id = tide.enqueue_a("push").await;
    tide.job_in(&id, "succeeded").await;
    let call = target.call(1).await;
    assert_eq!(call.header("x-key"), "hidden-header");

    // A copy lacks the key, which the backup reports. Only the type with secrets waits for it.
    let (data, copy) = (tide.data(), tide.data().with_extension("copy"));
    let args = ["backup", "--data", data.to_str().unwrap(), copy.to_str().unwrap()];
    let output = program(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no key") && !copy.join("key").exists(), "{said}");
    let key = tide.data().join("key");
    let restored = Setup::new().flag("--data", copy.to_str().unwrap()).start().await;
    restored.get("/v1/job-types/push").await.problem(503, "unavailable");
    restored.enqueue_a("pull").await;
    assert!(restored.log().contains("does not have"), "{}", restored.log());
    restored.stop().await;
    let with_key = Setup::new()
        .flag("--data", copy.to_str().unwrap())
        .env("TIDEGATE_ENCRYPTION_KEY_FILE", key.to_str().unwrap());
    let with_key = with_key.start().await;
    let id = with_key.enqueue_a("push").await;
    with_key.job_in(&id, "succeeded").await;
}

#[tokio::test]
async fn queries_of_urls_are_shown_to_administrators_only() {
    let tide = Tidegate::start().await;
    let url = "http://127.0.0.1:9/work/{id}?key=hidden";
    let callback = "http://127.0.0.1:9/ended?key=secret";
    tide.job_type("t", json!({"target": {"url": url}, "callback_url": callback})).await;
    let late = json!({"type": "t", "data": 1, "run_at": "2099-01-01T00:00:00Z"});
    let id = tide.enqueue(late).await;
    let rule = json!({"type": "t", "cron": "0 0 1 1 *", "callback_url": callback});
    tide.put("/v1/schedules/s", rule).await.is(201);
    let rule = json!({"enqueue": {"type": "t", "callback_url": callback}});
    tide.put("/v1/triggers/r", rule).await.is(201);
    let admin = make(&tide, None, "ops", &["admin"]).await;
    let reader = make(&tide, Some(&admin), "reader", &["read"]).await;
    for path in ["/v1/job-types/t", "/v1/job-types"] {
        let seen = tide.with_token(&reader).get(path).await.is(200).to_string();
        assert!(seen.contains("/work/{id}?***") && seen.contains("/ended?***"), "{seen}");
        assert!(!seen.contains("hidden") && !seen.contains("secret"), "{seen}");
        let all = tide.with_token(&admin).get(path).await.is(200).to_string();
        assert!(all.contains("hidden") && all.contains("secret"), "{all}");
    }
    for path in ["/v1/schedules/s", "/v1/schedules", "/v1/triggers/r", "/v1/triggers"] {
        let seen = tide.with_token(&reader).get(path).await.is(200).to_string();
        assert!(seen.contains("/ended?***") && !seen.contains("secret"), "{seen}");
        let all = tide.with_token(&admin).get(path).await.is(200).to_string();
        assert!(all.contains("secret"), "{all}");
    }
    // A job has the URL of its type or of its client, and does not say which.
    for path in ["/v1/jobs", &format!("/v1/jobs/{id}")] {
        for token in [&admin, &reader] {
            let seen = tide.with_token(token).get(path).await.is(200).to_string();
            assert!(seen.contains("/ended?***") && !seen.contains("secret"), "{seen}");
        }
    }
}

#[tokio::test]
async fn targets_and_callbacks_have_allowed_hosts() {
    let target = Target::start(|_| async { "ok" }).await;
    let setup = Setup::new()
        .env("TIDEGATE_ALLOWED_TARGETS", "*.workers.example, 127.0.0.0/8")
        .env("TIDEGATE_ALLOWED_CALLBACKS", "hooks.example");
    let tide = setup.start().await;
    let put = async |config: Value| tide.put("/v1/job-types/t", config).await;
    put(json!({"target": {"url": "http://other.example/"}})).await.blames(
        400,
        "invalid_type",
        "target.url",
    );
    let callback = json!({"callback_url": "http://127.0.0.1/"});
    put(callback).await.blames(400, "invalid_type", "callback_url");
    put(json!({"target": {"url": "http://a.workers.example/{id}"}})).await.is(201);
    put(json!({"target": {"url": target.url}, "max_attempts": 1})).await.is(200);
    let job = json!({"type": "t", "data": 1, "callback_url": "http://127.0.0.1/"});
    tide.post("/v1/jobs", job).await.blames(400, "invalid_field", "callback_url");
    let id = tide.enqueue_a("t").await;
    tide.job_in(&id, "succeeded").await;
    // A type of before the restriction is not called any more.
    let data = tide.data();
    let _stopped = tide.stop().await;
    let stricter = Setup::new()
        .flag("--data", data.to_str().unwrap())
        .env("TIDEGATE_ALLOWED_TARGETS", "workers.example");
    let tide = stricter.start().await;
    let id = tide.enqueue_a("t").await;
    let job = tide.job_in(&id, "failed").await;
    assert!(job["error"]["message"].to_string().contains("do not allow 127.0.0.1"), "{job}");
    assert_eq!(target.calls().len(), 1);
}
