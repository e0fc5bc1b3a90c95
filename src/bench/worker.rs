//! A pull worker over HTTP that reports and leases in one call.

use std::net::SocketAddr;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    http::{self, Connection},
    process::Process,
};

/// A worker with a connection of its own.
pub(super) struct Worker {
    connection: Connection,
    selector: String,
    reports: Vec<String>,
}

/// A leased job.
#[derive(Debug, Deserialize)]
pub(super) struct Lease {
    /// The job.
    pub job: LeasedJob,
    attempt: u16,
}

/// The fields of a job that a worker reads.
#[derive(Debug, Deserialize)]
pub(super) struct LeasedJob {
    id: String,
    /// Its data.
    pub data: Box<RawValue>,
}

#[derive(Deserialize)]
struct Leases {
    leases: Vec<Lease>,
    reports: Vec<Reported>,
}

#[derive(Deserialize)]
struct Reported {
    status: u16,
}

impl Worker {
    /// A worker for `queue`.
    pub(super) async fn open(
        address: SocketAddr,
        number: usize,
        queue: &str,
    ) -> anyhow::Result<Self> {
        let selector = format!(r#""queue":"{queue}","worker":"bench-{number}","#);
        Ok(Self { connection: Connection::open(address).await?, selector, reports: Vec::new() })
    }

    /// As many workers for `queue`, connected to all servers in turn.
    pub(super) async fn open_all(
        servers: &[Process],
        workers: usize,
        queue: &str,
    ) -> anyhow::Result<Vec<Self>> {
        let mut open = Vec::with_capacity(workers);
        for (number, server) in (0..workers).zip(servers.iter().cycle()) {
            open.push(Self::open(server.address, number, queue).await?);
        }
        Ok(open)
    }

    /// Leases at most `max` jobs, waiting for the first, and sends the reports so far.
    ///
    /// # Errors
    ///
    /// The server rejects the call or a report.
    pub(super) async fn lease(
        &mut self,
        max: usize,
        wait_seconds: f64,
    ) -> anyhow::Result<Vec<Lease>> {
        let Self { selector, reports, connection } = self;
        let body = format!(
            r#"{{{selector}"max":{max},"wait_seconds":{wait_seconds},"reports":[{}]}}"#,
            reports.join(",")
        );
        reports.clear();
        let answer = connection.send(&http::request("POST", "/v1/leases", &body)).await?;
        let leases: Leases = serde_json::from_slice(answer.ok()?)?;
        anyhow::ensure!(
            leases.reports.iter().all(|report| report.status == 200),
            "a report was refused"
        );
        Ok(leases.leases)
    }

    /// Records the success of a job. The next lease request reports it.
    pub(super) fn succeeded(&mut self, lease: &Lease) {
        let Lease { job, attempt } = lease;
        self.reports
            .push(format!(r#"{{"id":"{}","attempt":{attempt},"status":"succeeded"}}"#, job.id));
    }
}
