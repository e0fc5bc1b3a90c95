//! A DynamoDB on this machine: `dynoxide`, which `./test` installs into `target/tools`. It starts
//! in some twenty milliseconds, so every test has a process of its own, which ends with it.

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
};

use async_trait::async_trait;
use aws_sdk_dynamodb::{
    Client,
    config::{BehaviorVersion, Credentials, Region},
};
use parking_lot::Mutex;
use tidegate_backends::{
    aws::Calls,
    dynamodb::{
        Key,
        sdk::{Consumed, SdkTable},
        table::{Change, Exchange, Item, Page, PageQuery, Table},
    },
};
use tidegate_core::port::StoreError;
use tokio::runtime::Runtime;

/// The path where `./test` installed it, or that of the `PATH`.
fn program() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/dynoxide");
    if here.exists() { here } else { "dynoxide".into() }
}

/// A process that ends when this value is dropped. It also ends when the test is killed: a shell
/// watches its input, which closes with the test. Only the program holds the output, so its end is
/// noticed.
struct Process(Child);

const WATCHED: &str = r#""$0" serve --port "$1" <&- & exec 2>&-; cat; kill $!"#;

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Starts it, and waits until it says where it listens.
fn start() -> (Process, u16) {
    for _ in 0..5 {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("sh");
        command.args(["-c", WATCHED]).arg(program()).arg(port.to_string());
        let child =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("a shell: {error}"));
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let ready = lines.by_ref().map_while(Result::ok).any(|line| line.contains("listening"));
        let process = Process(child);
        if ready {
            std::thread::spawn(move || lines.for_each(drop));
            return (process, port);
        }
    }
    panic!("{} does not start; ./test installs it", program().display());
}

/// A new, empty table. Its requests run on threads of their own.
pub struct EmulatedTable {
    runtime: Option<Runtime>,
    table: Arc<SdkTable>,
    consumed: Arc<Mutex<Consumed>>,
    port: u16,
    _process: Process,
}

impl EmulatedTable {
    pub fn new() -> Self {
        let (process, port) = start();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::from_static("us-east-1"))
            .credentials_provider(Credentials::new("test", "test", None, None, "test"))
            .endpoint_url(format!("http://127.0.0.1:{port}"))
            .http_client(Calls::new().unwrap())
            .build();
        let consumed = Arc::new(Mutex::new(Consumed::default()));
        let table = Arc::new(
            SdkTable::new(Client::from_conf(config), "tidegate").counted(Arc::clone(&consumed)),
        );
        let (made, is_made) = mpsc::channel();
        let new = Arc::clone(&table);
        runtime.spawn(async move { made.send(new.create().await) });
        is_made.recv().unwrap().unwrap();
        Self { runtime: Some(runtime), table, consumed, port, _process: process }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What the emulator says was used up so far.
    pub fn consumed(&self) -> Consumed {
        *self.consumed.lock()
    }

    async fn on_its_threads<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.runtime.as_ref().expect("it is there until it is dropped").spawn(call).await.unwrap()
    }
}

impl Drop for EmulatedTable {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[async_trait]
impl Table for EmulatedTable {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        let (table, keys) = (Arc::clone(&self.table), keys.to_vec());
        self.on_its_threads(async move { table.get(&keys).await }).await
    }

    async fn query(&self, ask: &PageQuery) -> Result<Page, StoreError> {
        let (table, ask) = (Arc::clone(&self.table), ask.clone());
        self.on_its_threads(async move { table.query(&ask).await }).await
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        let (table, prefix, after) = (Arc::clone(&self.table), prefix.to_owned(), after.cloned());
        self.on_its_threads(async move { table.scan(&prefix, after.as_ref(), limit).await }).await
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        let (table, changes) = (Arc::clone(&self.table), changes.to_vec());
        self.on_its_threads(async move { table.write(&changes).await }).await
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        let (table, changes) = (Arc::clone(&self.table), changes.to_vec());
        self.on_its_threads(async move { table.together(&changes).await }).await
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        let (table, exchange) = (Arc::clone(&self.table), exchange.clone());
        self.on_its_threads(async move { table.exchange(&exchange).await }).await
    }
}
