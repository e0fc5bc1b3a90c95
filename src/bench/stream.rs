//! `stream`: what a thousand readers of `GET /v1/stream` cost while jobs are enqueued.

use std::net::SocketAddr;

use anyhow::ensure;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use super::{
    BenchPlan,
    figure::Figure,
    process::Process,
    single::{self, Run},
};

/// Readers: half of them get every change, the others none.
const READERS: usize = 1000;
/// The most that all readers may add to the processor time of an enqueue.
const MOST: f64 = 1.05;
/// The name of the baseline.
const WITHOUT: &str = "without readers";
/// How often each is measured.
const TURNS: u32 = 3;

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let place = plan.new_place()?;
    let server = Process::serve(&place).await?;
    let (mut without, mut with) = (Run::default(), Run::default());
    for _ in 0..TURNS {
        without.add(single::run(&server, plan.window / TURNS).await?);
    }
    let mut readers = JoinSet::new();
    for number in 0..READERS {
        let query = if number % 2 == 0 { "" } else { "?queue=none" };
        readers.spawn(read(open(server.address, query).await?));
    }
    for _ in 0..TURNS {
        with.add(single::run(&server, plan.window / TURNS).await?);
    }
    ensure!(readers.try_join_next().is_none(), "a stream has ended early");
    readers.shutdown().await;
    server.stop().await?;
    let others = with.others_cores();
    // The readers themselves share the machine with the server, so the rates say little.
    let what = format!("enqueue with {READERS} streams: server's processor per job");
    Ok(vec![
        Figure::cost(what, "us", with.micros())
            .share(WITHOUT, without.micros(), MOST)
            .among(others),
        Figure::rate(format!("enqueue with {READERS} streams read here"), "jobs/s", with.rate())
            .baseline(WITHOUT, without.rate())
            .among(others),
    ])
}

/// A stream of changes, once the server has answered.
async fn open(address: SocketAddr, query: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /v1/stream{query} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).await?;
    ensure!(status.ends_with(b" 200"), "a stream is refused: {}", String::from_utf8_lossy(&status));
    Ok(stream)
}

/// Reads and drops what comes.
async fn read(mut stream: TcpStream) {
    let mut space = [0; 16 << 10];
    while stream.read(&mut space).await.is_ok_and(|read| read > 0) {}
}
