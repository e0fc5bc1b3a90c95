//! Logs in the object storage of Google and of Azure, which are a [stand-in](super::stand_in) and
//! Azurite here.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use chrono::DateTime;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tidegate_backends::{
    bucket_log::{BucketAddress, BucketClients},
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::port::{Clock as _, Entropy as _};

use super::{
    super::serve::Setup,
    a_lost_machine_is_restored,
    contents::log_command_with,
    server_of_log,
    stand_in::{Conditions, StandIn},
};

/// The account of each emulator of Azure, and its key, which Azure's documentation has.
const ACCOUNT: &str = "devstoreaccount1";
const ACCOUNT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// The version of Azure's interface in which a container is created.
const AZURE_VERSION: &str = "2021-12-02";

const TAKEOVER: &str = "TIDEGATE_TAKEOVER_SECONDS";

/// A log in the object storage of a cloud, and the variables that lead to it.
pub struct CloudLog {
    address: String,
    env: Vec<(&'static str, String)>,
}

impl CloudLog {
    /// A log in a stand-in for Google Cloud Storage.
    pub fn google(store: &StandIn) -> Self {
        Self { address: "gs://jobs/log".to_owned(), env: store.as_google() }
    }

    /// A log in a stand-in for Azure Blob Storage.
    fn azure(store: &StandIn) -> Self {
        Self { address: "az://jobs/log".to_owned(), env: store.as_azure() }
    }

    /// A log in a new container of the Azurite that the environment names.
    pub async fn azurite() -> Self {
        #[expect(clippy::disallowed_methods, reason = "tests/azurite/check sets it")]
        let url = std::env::var("AZURITE_BLOB_STORAGE_URL").expect("there is an Azurite");
        let container = format!("jobs-{:032x}", SystemEntropy.bits());
        create_container(&url, &container).await;
        Self {
            address: format!("az://{container}/log"),
            env: vec![("AZURE_STORAGE_USE_EMULATOR", "true".to_owned())],
        }
    }

    /// A server on an empty disk, which follows or leads the log, and takes over after two seconds:
    /// Google overwrites an object once a second.
    pub fn server(&self) -> Setup {
        let server = server_of_log(&self.address).without_env(TAKEOVER).env(TAKEOVER, "2");
        self.env.iter().fold(server, |server, (name, value)| server.env(name, value))
    }

    /// The clients of the log, as a server has them.
    pub fn connect(&self) -> BucketClients {
        let address = BucketAddress::parse(&self.address.parse().unwrap()).unwrap();
        address.connect_with(&self.env).unwrap()
    }

    /// Reads all of the log: it is as it was written.
    pub fn is_intact(&self) {
        let (code, text) = log_command_with(&self.env, &self.address, &["verify"]);
        assert!(code == 0 && text.contains("is intact"), "{text}");
    }
}

/// Creates a container in the Azurite at `url`.
async fn create_container(url: &str, container: &str) {
    let now = DateTime::from_timestamp_millis(SystemClock.now().millis()).unwrap();
    let date = now.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    // The verb and eleven headers, which the request does not have.
    let signed = format!(
        "PUT{}x-ms-date:{date}\nx-ms-version:{AZURE_VERSION}\n\
         /{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container",
        "\n".repeat(12)
    );
    let mut mac = Hmac::<Sha256>::new_from_slice(&BASE64.decode(ACCOUNT_KEY).unwrap()).unwrap();
    mac.update(signed.as_bytes());
    let signature = BASE64.encode(mac.finalize().into_bytes());
    let made = reqwest::Client::new()
        .put(format!("{url}/{ACCOUNT}/{container}?restype=container"))
        .header("x-ms-date", date)
        .header("x-ms-version", AZURE_VERSION)
        .header("authorization", format!("SharedKey {ACCOUNT}:{signature}"))
        .send();
    let made = made.await.unwrap();
    let status = made.status();
    assert_eq!(status, 201, "{}", made.text().await.unwrap());
}

#[tokio::test]
async fn a_lost_machine_is_restored_from_google_storage() {
    let store = StandIn::start(Conditions::Obeyed);
    let log = CloudLog::google(&store);
    a_lost_machine_is_restored(|| log.server()).await;
    log.is_intact();
    let doctor = log.server().start().await.cli(&["doctor", "--all"]).await.ok();
    assert!(doctor.contains("a probe was put, read, listed and removed"), "{doctor}");
}

#[tokio::test]
#[ignore = "needs Azurite; tests/azurite/check starts it"]
async fn on_azurite_a_lost_machine_is_restored() {
    let log = CloudLog::azurite().await;
    a_lost_machine_is_restored(|| log.server()).await;
    log.is_intact();
    let doctor = log.server().start().await.cli(&["doctor", "--all"]).await.ok();
    assert!(doctor.contains("a probe was put, read, listed and removed"), "{doctor}");
}

#[tokio::test]
async fn a_cloud_that_ignores_conditions_is_refused() {
    let store = StandIn::start(Conditions::Ignored);
    for log in [CloudLog::google(&store), CloudLog::azure(&store)] {
        let (status, said) = log.server().refused().await;
        let address = &log.address;
        assert!(!status.success() && said.contains("it overwrites an object"), "{address}: {said}");
        assert!(said.contains(&format!("log: {address} cannot have a log")), "{said}");
    }
}
