//! The commands against an account on loopback.

mod fake;
mod foreign;
mod repeat;

use std::{fmt::Write as _, path::Path, sync::Arc};

use clap::Parser as _;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tidegate_backends::system::SystemEntropy;

use self::fake::{FakeAws, FakeStack};
use super::{Command, deploy, destroy, functions::hex, question::Questions, rollback, upgrade};
use crate::cli::{Cli, Command as Any, Context, ExitCode, context::Output};

/// Writes zips of the functions with their checksums; `content` makes them differ.
fn write_zips(folder: &Path, content: &str) {
    let arm = folder.join("arm64");
    std::fs::create_dir_all(&arm).unwrap();
    let mut sums = String::new();
    for name in super::functions::NAMES {
        let zip = format!("PK\x03\x04{name} {content}");
        writeln!(sums, "{}  arm64/{name}.zip", hex(&Sha256::digest(&zip))).unwrap();
        std::fs::write(arm.join(format!("{name}.zip")), zip).unwrap();
    }
    let version = concat!(env!("CARGO_PKG_VERSION"), "\n");
    writeln!(sums, "{}  VERSION", hex(&Sha256::digest(version))).unwrap();
    std::fs::write(folder.join("VERSION"), version).unwrap();
    std::fs::write(folder.join("SHA256SUMS"), sums).unwrap();
}

/// An account, and a folder with zips.
struct Harness {
    aws: FakeAws,
    folder: tempfile::TempDir,
}

/// The outcome of a command: its exit code or error, and its output.
type Ran = (Result<ExitCode, String>, String);

impl Harness {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_zips(folder.path(), "1");
        Self { aws: FakeAws::start().await, folder }
    }

    /// Runs `tidegate aws LINE`; `FOLDER` is that of the zips. The user at the terminal types
    /// `typed`.
    async fn run_with(&self, line: &str, token: Option<&str>, typed: Option<&str>) -> Ran {
        let folder = self.folder.path().to_str().unwrap();
        let words = ["tidegate", "aws"].into_iter().chain(line.split(' '));
        let words = words.map(|word| if word == "FOLDER" { folder } else { word });
        let cli = Cli::try_parse_from(words).unwrap();
        let written: Arc<Mutex<Vec<u8>>> = Arc::default();
        let output: Output = written.clone();
        let mut ctx = Context::captured(cli.global, output);
        ctx.global.token = token.map(str::to_owned);
        let mut input = typed.unwrap_or_default().as_bytes();
        let mut questions =
            if typed.is_some() { Questions::to(&mut input) } else { Questions::none() };
        let cloud = self.aws.cloud();
        let Any::Aws(command) = cli.command else { panic!("{line}") };
        let (ctx, asked) = (&ctx, &mut questions);
        let ran = match command {
            Command::Deploy(args) => deploy::deploy(args, &cloud, ctx, asked, &SystemEntropy).await,
            Command::Upgrade(args) => upgrade::run(args, &cloud, ctx, asked).await,
            Command::Rollback(args) => rollback::run(args, &cloud, ctx, asked).await,
            Command::Destroy(args) => destroy::run(args, &cloud, ctx, asked).await,
        };
        let ran = ran.map_err(|error| format!("{:?} {error:#}", ExitCode::of(&error)));
        let written = String::from_utf8(written.lock().clone()).unwrap();
        (ran, written)
    }

    async fn run(&self, line: &str) -> Ran {
        self.run_with(line, Some("tg_ops_secret"), None).await
    }

    /// Runs a command that succeeds, and returns its output.
    async fn good(&self, line: &str) -> String {
        let (ran, output) = self.run(line).await;
        assert_eq!(ran, Ok(ExitCode::Ok), "{line}: {output}");
        output
    }

    /// Runs a command that fails, and returns its exit code and error.
    async fn bad(&self, line: &str) -> String {
        self.run(line).await.0.unwrap_err()
    }

    /// Nothing was created or changed.
    fn is_untouched(&self) -> bool {
        let account = self.aws.account.lock();
        account.stacks.is_empty() && account.objects.is_empty() && account.secrets.is_empty()
    }
}

const DEPLOY: &str = "deploy --functions FOLDER --alarm-email ops@example.com --yes";

#[tokio::test]
async fn a_deployment_is_created_checked_and_described() {
    let harness = Harness::new().await;
    let (ran, output) = harness.run_with(DEPLOY, None, None).await;
    assert_eq!(ran, Ok(ExitCode::Ok), "{output}");
    let token = output.lines().find_map(|line| line.split("again: ").nth(1)).unwrap();
    let setting = tidegate_server::auth::TokenItem::admin_setting(token).unwrap();
    assert_eq!(harness.aws.parameter("AdminToken"), setting, "only the hash leaves this machine");
    assert!(output.contains("a job was enqueued, leased and completed"), "{output}");
    assert!(output.contains("runs as the stack tidegate in us-east-1"), "{output}");
    for (name, value) in [
        ("AlarmEmail", "ops@example.com"),
        ("MonthlyBudget", "20"),
        ("EncryptionKeyParameter", "/tidegate/key"),
        ("CodeBucket", "tidegate-code-bucket"),
        ("TickReservedConcurrency", "40"),
    ] {
        assert_eq!(harness.aws.parameter(name), value, "{name}");
    }
    let account = harness.aws.account.lock();
    assert_eq!(account.secrets["/tidegate/key"].len(), 44, "32 bytes in base64");
    let prefix = &account.stacks["tidegate"].parameters["CodePrefix"];
    for name in super::functions::NAMES {
        let key = format!("tidegate-code-bucket/{prefix}/arm64/{name}.zip");
        assert!(account.objects.contains_key(&key), "{key}");
    }
    assert!(account.stacks["tidegate"].template.contains("/tidegate-code-bucket/templates/"));
    let secret = token.rsplit('_').next().unwrap();
    assert!(!format!("{account:?}").contains(secret), "the secret is nowhere in the account");
}

#[tokio::test]
async fn a_wrong_checksum_or_a_missing_zip_creates_nothing() {
    let harness = Harness::new().await;
    let zip = harness.folder.path().join("arm64/tick.zip");
    std::fs::write(&zip, b"PK\x03\x04other").unwrap();
    let error = harness.bad(DEPLOY).await;
    assert!(error.starts_with("Usage") && error.contains("arm64/tick.zip"), "{error}");
    assert!(error.contains("has the SHA-256"), "{error}");
    std::fs::remove_file(&zip).unwrap();
    let error = harness.bad(DEPLOY).await;
    assert!(error.starts_with("Usage") && error.contains("tick.zip cannot be read"), "{error}");
    let sums = harness.folder.path().join("SHA256SUMS");
    std::fs::write(&sums, "00  x86_64/tick.zip\n").unwrap();
    let error = harness.bad(DEPLOY).await;
    assert!(error.contains("lists no arm64/enqueue.zip"), "{error}");
    std::fs::write(harness.folder.path().join("VERSION"), "9.0.0\n").unwrap();
    let sum = hex(&Sha256::digest("9.0.0\n"));
    std::fs::write(&sums, format!("{sum}  VERSION\n")).unwrap();
    let error = harness.bad(DEPLOY).await;
    assert!(error.contains("are those of tidegate 9.0.0"), "{error}");
    std::fs::write(&sums, vec![b' '; 65 * 1024]).unwrap();
    let error = harness.bad(DEPLOY).await;
    assert!(error.contains("has more than 65536 bytes"), "{error}");
    assert!(harness.is_untouched());
}

#[tokio::test]
async fn zips_are_read_from_a_url_too() {
    let harness = Harness::new().await;
    let folder = harness.folder.path().to_owned();
    let files = axum::Router::new().fallback(move |uri: axum::http::Uri| {
        // Files without folders, as in a release of GitHub.
        let name = uri.path().trim_start_matches("/v1/").replace("arm64-", "arm64/");
        let found = std::fs::read_to_string(folder.join(name));
        std::future::ready(
            found
                .map(|text| text.replace("arm64/", "arm64-"))
                .map_err(|_| axum::http::StatusCode::NOT_FOUND),
        )
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, files).await });
    harness.good(&DEPLOY.replace("FOLDER", &format!("http://{at}/v1"))).await;
    let error = harness.bad(&DEPLOY.replace("FOLDER", &format!("http://{at}/v2"))).await;
    assert!(error.starts_with("Usage") && error.contains("404"), "{error}");
}

#[tokio::test]
async fn a_failed_stack_names_its_resource_and_can_be_repeated() {
    let harness = Harness::new().await;
    harness.aws.account.lock().fails = Some(("Tick", "the quota is used up"));
    let error = harness.bad(DEPLOY).await;
    assert!(
        error.contains("ended as ROLLBACK_COMPLETE: Tick (AWS::Some::Type): the quota is used up"),
        "{error}"
    );
    assert!(!error.contains("cancelled"), "{error}");
    harness.aws.account.lock().fails = None;
    harness.good(DEPLOY).await;
    assert_eq!(harness.aws.stack("tidegate").status, "CREATE_COMPLETE");
}

#[tokio::test]
async fn a_repeated_deploy_changes_only_what_is_given() {
    let harness = Harness::new().await;
    harness.good(DEPLOY).await;
    let before = harness.aws.stack("tidegate").parameters;
    let uploads = harness.aws.count("PUT tidegate-code-bucket/tidegate/");
    harness.good("deploy --functions FOLDER --yes").await;
    assert_eq!(harness.aws.stack("tidegate").parameters, before);
    assert_eq!(harness.aws.count("PUT tidegate-code-bucket/tidegate/"), uploads, "they are there");
    assert_eq!(harness.aws.count("ExecuteChangeSet"), 2, "the bucket and the deployment");
    harness.good("deploy --functions FOLDER --parameter Alarms=all --yes").await;
    assert_eq!(harness.aws.parameter("Alarms"), "all");
    assert_eq!(harness.aws.parameter("AlarmEmail"), "ops@example.com");
    let (ran, _) = harness.run_with("deploy --functions FOLDER --yes", None, None).await;
    assert!(ran.unwrap_err().contains("set TIDEGATE_TOKEN"));
    harness.run_with("deploy --functions FOLDER --new-token --yes", None, None).await.0.unwrap();
    assert_ne!(harness.aws.parameter("AdminToken"), before["AdminToken"]);
}

#[tokio::test]
async fn without_a_terminal_every_answer_is_a_flag() {
    let harness = Harness::new().await;
    let error = harness.bad("deploy --functions FOLDER --yes").await;
    assert!(error.starts_with("Usage --alarm-email is missing"), "{error}");
    let error = harness.bad("deploy --functions FOLDER --alarm-email a@b.c").await;
    assert!(error.starts_with("Usage") && error.contains("Confirm with --yes"), "{error}");
    assert!(harness.is_untouched());
}

#[tokio::test]
async fn a_terminal_is_asked_for_what_no_flag_says() {
    let harness = Harness::new().await;
    let typed = "orders\nops@example.com\n\ny\n";
    let (ran, _) = harness.run_with("deploy --functions FOLDER", None, Some(typed)).await;
    assert_eq!(ran, Ok(ExitCode::Ok));
    let stack = harness.aws.stack("orders");
    assert_eq!(stack.parameters["AlarmEmail"], "ops@example.com");
    assert_eq!(stack.parameters["EncryptionKeyParameter"], "/orders/key");
    let (ran, _) =
        harness.run_with("deploy --functions FOLDER", None, Some("new\na@b.c\n\nn\n")).await;
    assert_eq!(ran, Ok(ExitCode::Refused));
    assert!(!harness.aws.account.lock().stacks.contains_key("new"));
}

#[tokio::test]
async fn a_small_account_reserves_no_concurrency() {
    let harness = Harness::new().await;
    harness.aws.account.lock().concurrency = 10;
    harness.good(DEPLOY).await;
    assert_eq!(harness.aws.parameter("TickReservedConcurrency"), "0");
    assert_eq!(harness.aws.parameter("EnqueueReservedConcurrency"), "0");
}

#[tokio::test]
async fn an_upgrade_keeps_parameters_and_can_be_rolled_back() {
    let harness = Harness::new().await;
    harness.good(&format!("{DEPLOY} --parameter Shards=4")).await;
    let first = harness.aws.stack("tidegate");
    assert!(harness.bad("rollback --yes").await.contains("has no former release"));

    write_zips(harness.folder.path(), "2");
    let output = harness.good("upgrade --functions FOLDER --yes").await;
    let second = harness.aws.stack("tidegate");
    assert_ne!(second.parameters["CodePrefix"], first.parameters["CodePrefix"]);
    let former = first.parameters["CodePrefix"].rsplit('/').next().unwrap();
    assert!(output.contains(&format!("rollback` goes back to {former}")), "{output}");
    assert_eq!(second.parameters["Shards"], "4");

    harness.good("rollback --yes").await;
    let back = harness.aws.stack("tidegate");
    assert_eq!((back.parameters, back.template), (first.parameters, first.template));
    harness.good("upgrade --functions FOLDER --yes").await;
    assert_eq!(harness.aws.stack("tidegate").parameters, second.parameters);
}

#[tokio::test]
async fn a_failed_upgrade_leaves_the_release_and_its_former() {
    let harness = Harness::new().await;
    harness.good(DEPLOY).await;
    write_zips(harness.folder.path(), "2");
    harness.good("upgrade --functions FOLDER --yes").await;
    let second = harness.aws.parameter("CodePrefix");
    write_zips(harness.folder.path(), "3");
    harness.aws.account.lock().fails = Some(("Deliver", "no"));
    let error = harness.bad("upgrade --functions FOLDER --yes").await;
    assert!(error.contains("UPDATE_ROLLBACK_COMPLETE: Deliver"), "{error}");
    assert_eq!(harness.aws.parameter("CodePrefix"), second);
    harness.aws.account.lock().fails = None;
    harness.good("rollback --yes").await;
    write_zips(harness.folder.path(), "1");
    harness.good("upgrade --functions FOLDER --yes").await;
    assert_eq!(harness.aws.count("GetTemplate"), 0, "all releases are known");
}

#[tokio::test]
async fn a_stack_of_another_tool_is_upgraded_and_rolled_back() {
    let harness = Harness::new().await;
    let parameters = [
        ("CodeBucket", "mine"),
        ("CodePrefix", "old"),
        ("Architecture", "arm64"),
        ("AlarmEmail", "a@b.c"),
        ("MonthlyBudget", "0"),
        ("EncryptionKeyParameter", "/k"),
        ("AdminToken", "x:y"),
    ];
    let stack = FakeStack::deployed(&parameters);
    harness.aws.account.lock().stacks.insert("tidegate".into(), stack);
    harness.good("upgrade --functions FOLDER --yes").await;
    assert_eq!(harness.aws.parameter("CodeBucket"), "tidegate-code-bucket");
    harness.good("rollback --yes").await;
    let back = harness.aws.stack("tidegate");
    assert_eq!(back.parameters["CodeBucket"], "mine");
    let key = back.template.split_once("/tidegate-code-bucket/").unwrap().1.to_owned();
    let stored = &harness.aws.account.lock().objects[&format!("tidegate-code-bucket/{key}")];
    assert_eq!(stored, "former", "the template that the stack had");
}

#[tokio::test]
async fn nothing_is_destroyed_without_the_name_of_the_stack() {
    let harness = Harness::new().await;
    harness.good(DEPLOY).await;
    let error = harness.bad("destroy --yes").await;
    assert!(error.starts_with("Usage --confirm is missing"), "{error}");
    let error = harness.bad("destroy --confirm other").await;
    assert!(error.starts_with("Usage other is not the name of the stack"), "{error}");
    let (ran, _) = harness.run_with("destroy", None, Some("y\n")).await;
    assert!(ran.unwrap_err().contains("y is not the name"));
    assert_eq!(harness.aws.count("DeleteStack"), 0);
}

#[tokio::test]
async fn destroy_says_what_stays_and_can_be_repeated() {
    let harness = Harness::new().await;
    harness.good(DEPLOY).await;
    let code = harness.aws.stack("tidegate-code");
    let output = harness.good("destroy --confirm tidegate").await;
    for kept in ["tidegate-table", "s3://tidegate-bucket", "--name /tidegate/key"] {
        assert!(output.contains(kept), "{kept} is not in {output}");
    }
    assert!(harness.aws.account.lock().stacks.is_empty());
    assert!(harness.aws.account.lock().objects.is_empty());
    assert_eq!(harness.aws.account.lock().secrets.len(), 1, "the key stays");
    let error = harness.bad("destroy --confirm tidegate").await;
    assert_eq!(error, "NotFound there is no stack tidegate in us-east-1");
    // An interrupted command has left the bucket.
    harness.aws.account.lock().stacks.insert("tidegate-code".into(), code);
    harness.good("destroy --confirm tidegate").await;
    assert!(harness.aws.account.lock().stacks.is_empty());
}

#[tokio::test]
async fn a_missing_stack_and_account_have_exit_codes() {
    let harness = Harness::new().await;
    for line in ["upgrade --functions FOLDER --yes", "rollback --yes"] {
        assert!(
            harness.bad(line).await.starts_with("NotFound there is no stack tidegate"),
            "{line}"
        );
    }
}
