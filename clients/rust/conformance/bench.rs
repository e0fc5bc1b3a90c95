//! Compares this client's requests per second with those of plain reqwest.
//!
//! Both enqueue the same jobs with an `Idempotency-Key`, and take turns with each request. The
//! slowest twentieth of each is left out. The jobs are then run by a worker.

use std::{
    env,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tidegate_client::{Attempt, BoxError, Client, Handler, NewJob, Request, Worker, WorkerOptions};

/// The share of the plain client's requests per second that is required.
const LEAST: f64 = 0.8;
const JOBS: usize = 2000;

static NUMBER: AtomicU64 = AtomicU64::new(0);

fn data() -> Value {
    json!({ "to": "ann@example.com", "pages": 3 })
}

async fn plain(http: &reqwest::Client, url: &str, seed: u128) -> Result<(), BoxError> {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let answer = http
        .post(format!("{url}/v1/jobs"))
        .header("content-type", "application/json")
        .header("idempotency-key", format!("{seed:032x}{number}"))
        .body(serde_json::to_vec(&json!({ "type": "bench", "data": data() }))?)
        .send()
        .await?;
    let status = answer.status();
    let job: Value = serde_json::from_slice(&answer.bytes().await?)?;
    if status.as_u16() != 201 || !job["id"].is_string() {
        return Err(format!("{status}: {job}").into());
    }
    Ok(())
}

async fn ours(client: &Client) -> Result<(), BoxError> {
    let job = client.enqueue("bench", &data()).await?;
    if job.is_new() { Ok(()) } else { Err("the job is not new".into()) }
}

/// The requests per second of both, by the mean time of a request.
async fn rates(client: &Client, span: Duration, callers: usize) -> Result<[f64; 2], BoxError> {
    let end = Instant::now() + span;
    let took: Arc<Mutex<[Vec<Duration>; 2]>> = Arc::default();
    let http = reqwest::Client::new();
    let seed = rand::random();
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (client, http, took) = (client.clone(), http.clone(), Arc::clone(&took));
        running.spawn(async move {
            while Instant::now() < end {
                let began = Instant::now();
                plain(&http, client.url(), seed).await?;
                let between = Instant::now();
                ours(&client).await?;
                let spans = [between - began, between.elapsed()];
                let mut took = took.lock().expect("no panic");
                took.iter_mut().zip(spans).for_each(|(times, span)| times.push(span));
            }
            Ok::<_, BoxError>(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    let mut took = took.lock().expect("no panic");
    Ok(std::array::from_fn(|which| {
        let times = &mut took[which];
        times.sort_unstable();
        times.truncate(times.len() * 19 / 20);
        (callers * times.len()) as f64 / times.iter().sum::<Duration>().as_secs_f64()
    }))
}

async fn work(client: Client) -> Result<f64, BoxError> {
    client.request(Request::put("/v1/job-types/bench-run").json(&json!({}))).await?;
    client.enqueue_many(vec![NewJob::new("bench-run", &data()); JOBS], None).await?;
    let mut worker = Worker::with(client, WorkerOptions::default());
    let (left, stop) = (Arc::new(AtomicUsize::new(JOBS)), worker.stop_token());
    let run = move |_: Value, _: Attempt| {
        let (left, stop) = (Arc::clone(&left), stop.clone());
        async move {
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                stop.cancel();
            }
            Ok::<_, BoxError>(())
        }
    };
    worker.handle(Handler::new("bench-run", run).concurrency(50))?;
    let began = Instant::now();
    worker.run().await?;
    Ok(JOBS as f64 / began.elapsed().as_secs_f64())
}

/// Prints the comparison.
///
/// # Errors
///
/// The client has less than 80 % of the plain client's requests per second, or one failed.
pub async fn compare(client: Client) -> Result<(), BoxError> {
    let seconds = env::args().nth(2).map_or(Ok(8), |text| text.parse())?;
    client.request(Request::put("/v1/job-types/bench").json(&json!({}))).await?;
    let mut worst = 1.0_f64;
    for callers in [1, 8] {
        let [other, own] = rates(&client, Duration::from_secs(seconds), callers).await?;
        worst = worst.min(own / other);
        println!(
            "rust        {callers} callers: reqwest {other:.0}/s, tidegate {own:.0}/s, {:.0} %",
            100.0 * own / other
        );
    }
    println!("rust        worker: {:.0} jobs/s", work(client).await?);
    if worst < LEAST { Err("less than 80 %".into()) } else { Ok(()) }
}
