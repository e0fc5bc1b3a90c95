//! The plans of all statements: none reads a whole table, and none is compiled.

use super::server::{RUNTIME, store};
use crate::postgres::{counts, due, list, read, statements};
use tidegate_core::{
    job::{Event, Revision},
    port::job_store::{JobStore, Write},
};
use tidegate_engine::testkit::builders::job;

/// What a plan may read as a whole: one row.
const SMALL: &str = "Seq Scan on item_changes";

#[test]
fn no_statement_reads_a_whole_table() {
    let store = store();
    // A partition of ended jobs, and the statistics of an empty database.
    let one = job("one").build();
    let ended = one.apply(Event::Cancel { force: false }, super::server::NOW).unwrap();
    let end = Write::SetJob { job: ended, was: Revision(1), all: false };
    RUNTIME.block_on(store.commit(vec![vec![Write::AddJob(one)], vec![end]])).unwrap();
    let link = RUNTIME.block_on(async { store.readers.link().await.unwrap() });
    for analyzed in [false, true] {
        if analyzed {
            let fill = "INSERT INTO jobs SELECT 'j' || n, n % 7, n % 5, n % 2, false, 0, 100, 4, \
                 1, n, CASE WHEN n % 9 = 0 THEN n END, n, 'p' || n % 11, '', '', '' \
                 FROM generate_series(1, 20000) n; \
                 INSERT INTO ended SELECT 'e' || n, n % 7, n % 5, 2 + n % 4, 0, 4, 1, n, \
                 2592000000, NULL, '', '', '' FROM generate_series(1, 20000) n; \
                 INSERT INTO keys SELECT 0, n % 5, 'k' || n, 'j' || n \
                 FROM generate_series(1, 5000) n; ANALYZE";
            RUNTIME.block_on(link.client.batch_execute(fill)).unwrap();
        }
        for (n, sql) in statements::ALL
            .iter()
            .chain(&read::ALL)
            .chain(&due::ALL)
            .chain(&list::ALL)
            .chain(&counts::ALL)
            .enumerate()
        {
            let statement = RUNTIME.block_on(link.client.prepare(sql)).unwrap();
            let params = vec!["NULL"; statement.params().len()].join(", ");
            let params = if params.is_empty() { params } else { format!("({params})") };
            let name = format!("p_{analyzed}_{n}");
            let explain = format!(
                "SET plan_cache_mode = force_generic_plan; PREPARE {name} AS {sql}; \
                 EXPLAIN EXECUTE {name}{params}"
            );
            let answer = RUNTIME.block_on(link.client.simple_query(&explain)).unwrap();
            let plan: Vec<String> = answer
                .iter()
                .filter_map(|message| match message {
                    tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                    _ => None,
                })
                .collect();
            let reads = |line: &&String| line.contains("Seq Scan") && !line.contains(SMALL);
            let is_bad = plan.iter().find(reads).is_some()
                || plan.iter().any(|line| line.contains("JIT") || line.contains("Hash Join"));
            assert!(!is_bad, "{sql}\n{}", plan.join("\n"));
            assert!(!plan.is_empty(), "{sql}");
        }
    }
}
