//! The plans of all statements: none reads a whole table, however few rows the tables have when it
//! is made, or how many: `TIDEGATE_POSTGRES_ROWS` is the largest number of rows.

use super::server::{self, RUNTIME, store};
use crate::postgres::{
    arrivals, connect::Link, counts, due, inbox, list, movable, names, overdue, partitions, purge,
    read, single, statements,
};
use tidegate_core::{
    job::{Event, Revision},
    port::job_store::{JobStore, Write},
};
use tidegate_engine::testkit::builders::job;

/// Fills every table with `{n}` rows, and looks at them.
const FILL: &str = "
    TRUNCATE jobs, ended, keys, heads, batches, items, records, bodies, counts, inbox;
    INSERT INTO jobs SELECT 'j' || n, n % 7, n % 5, n % 2, false, 0, 100, 4, 1, n,
        CASE WHEN n % 9 = 0 THEN n END, n, 'p' || n % 11, '', '', '' FROM generate_series(1, {n}) n;
    INSERT INTO ended SELECT 'e' || n, n % 7, n % 5, 2 + n % 4, 0, 4, 1, n, 2592000000, NULL,
        '', '', '' FROM generate_series(1, {n}) n;
    INSERT INTO keys SELECT 0, n % 5, 'k' || n, 'j' || n FROM generate_series(1, {n}) n;
    INSERT INTO heads SELECT n, 0, '' FROM generate_series(1, {n}) n;
    INSERT INTO batches SELECT n / 5, n, 1, '' FROM generate_series(1, {n}) n;
    INSERT INTO items SELECT 'queue', 'q' || n, 1, '' FROM generate_series(1, {n}) n;
    INSERT INTO records SELECT 'log', 'q' || n, 1, '' FROM generate_series(1, {n}) n;
    INSERT INTO bodies SELECT 'j' || n, 1, '' FROM generate_series(1, {n}) n;
    INSERT INTO inbox OVERRIDING SYSTEM VALUE SELECT n, 'j' || n, 't', '[]', 4, '[]', NULL, NULL, now(), 'c'
        FROM generate_series(1, {n}) n;
    INSERT INTO counts SELECT n % 7, 1, 1, 1 FROM generate_series(1, {n}) n;
    ANALYZE";

/// The statements that look up rows by all columns of their keys.
const BY_KEY: [&str; 16] = [
    statements::SET_HEADS,
    statements::DELETE_BATCHES,
    single::SINGLE,
    statements::look::HEADS,
    statements::look::NEWEST_HEADS,
    read::LEDGER,
    read::LEDGER_BATCHES,
    read::KEYS,
    statements::REQUIRE,
    statements::SET_ITEMS,
    statements::look::ITEMS,
    statements::look::CHANGED_ITEMS,
    statements::SWAP_RECORDS,
    statements::DELETE_RECORDS,
    statements::look::RECORDS,
    statements::look::KEYS,
];

/// The lines of the plan that every execution of `sql` has.
fn plan(link: &Link, sql: &str) -> Vec<String> {
    let statement = RUNTIME.block_on(link.client.prepare(sql)).unwrap();
    let params = vec!["NULL"; statement.params().len()].join(", ");
    let params = if params.is_empty() { params } else { format!("({params})") };
    let explain =
        format!("PREPARE p AS {sql}; EXPLAIN (COSTS off) EXECUTE p{params}; DEALLOCATE p");
    let answer = RUNTIME.block_on(link.client.simple_query(&explain)).unwrap();
    let line = |message: &tokio_postgres::SimpleQueryMessage| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    answer.iter().filter_map(line).collect()
}

/// The first line that reads a whole table or index. `item_changes` has one row. A limit of one row
/// stops a scan at once.
fn whole_scan(plan: &[String]) -> Option<&String> {
    let is_first_row = |index: usize| index > 0 && plan[index - 1].contains("Limit");
    let is_whole = |index: usize| {
        let is_index =
            plan[index].contains("Index Scan") || plan[index].contains("Index Only Scan");
        let has_bounds = plan.get(index + 1).is_some_and(|line| line.contains("Index Cond"));
        plan[index].contains("Seq Scan") || (is_index && !has_bounds)
    };
    let is_bad = |index: &usize| {
        is_whole(*index) && !is_first_row(*index) && !plan[*index].contains("on item_changes")
    };
    (0..plan.len()).find(is_bad).map(|index| &plan[index])
}

/// The first line that reads an index by some columns of the key alone, and so also what was deleted under
/// other keys while an old transaction is open.
fn wide_scan(plan: &[String]) -> Option<&String> {
    let is_wide = |lines: &&[String]| {
        let columns: &[&str] = match &lines[0] {
            line if line.contains("_pkey on heads") => &["(version "],
            line if line.contains("_pkey on batches") => &["(id "],
            line if line.contains("_pkey on items") => &["(name "],
            line if line.contains("_pkey on records") => &["(name "],
            line if line.contains("_by_time on records") => &["(until ", "(name "],
            line if line.contains("_pkey on keys") => &["(type ", "(key "],
            _ => return false,
        };
        let has = |column: &&str| lines[1].contains(*column);
        !(lines[1].contains("Index Cond") && columns.iter().all(has))
    };
    plan.windows(2).find(is_wide).map(|lines| &lines[0])
}

/// The first line that reads an index without its first column, and so all of it. Indexes of a partition are
/// named after their columns.
fn unbounded_scan(plan: &[String]) -> Option<&String> {
    let is_unbounded = |lines: &&[String]| {
        let first = match &lines[0] {
            line if line.contains("jobs_latest on") => "(type ",
            line if line.contains("_type_created_at_id_idx on") => "(type ",
            line if line.contains("_state_created_at_id_idx on") => "(state ",
            _ => return false,
        };
        !lines[1].contains(first)
    };
    plan.windows(2).find(is_unbounded).map(|lines| &lines[0])
}

#[test]
fn no_statement_reads_a_whole_table() {
    let store = store();
    // A partition of ended jobs.
    let one = job("one").build();
    let ended = one.apply(Event::Cancel { force: false }, server::NOW).unwrap();
    let end = Write::SetJob { job: ended, was: Revision(1), all: false };
    RUNTIME.block_on(store.commit(vec![vec![Write::AddJob(one)], vec![end]])).unwrap();
    let link = RUNTIME.block_on(async { store.readers.link().await.unwrap() });
    let partition = RUNTIME.block_on(link.query(partitions::TABLES, &[])).unwrap();
    let of_partition = partitions::statements(partition[0].get(0));
    // Many rows take longer than a statement of a server may.
    RUNTIME.block_on(link.client.batch_execute("SET statement_timeout = 0")).unwrap();
    let most = server::number("TIDEGATE_POSTGRES_ROWS", 5000);
    for rows in [None, Some(0), Some(1), Some(50), Some(most)] {
        if let Some(rows) = rows {
            let fill = FILL.replace("{n}", &rows.to_string());
            RUNTIME.block_on(link.client.batch_execute(&fill)).unwrap();
        }
        let all = statements::ALL.iter().chain(&read::ALL).chain(&due::ALL).chain(&list::ALL);
        let all = all.chain(&inbox::ALL).chain(&counts::ALL).chain(&names::ALL);
        let all = all.chain(&movable::ALL).chain(&arrivals::ALL).chain(&overdue::ALL);
        let all = all.chain(&single::ALL).chain(&purge::ALL).copied();
        for sql in all.chain(of_partition.iter().map(|sql| &sql[..])) {
            let plan = plan(&link, sql);
            assert!(!plan.is_empty(), "{sql}");
            // The sum of the counts reads all of them, and a server reads all names.
            let is_all = counts::ALL.contains(&sql) || names::ALL.contains(&sql);
            assert!(is_all || whole_scan(&plan).is_none(), "{rows:?}\n{sql}\n{}", plan.join("\n"));
            let is_wide = BY_KEY.contains(&sql) && wide_scan(&plan).is_some();
            assert!(!is_wide, "{rows:?}\n{sql}\n{}", plan.join("\n"));
            // The upkeep of a partition is planned at each execution, by the size of its indexes.
            let is_upkeep = of_partition.iter().any(|upkeep| upkeep == sql);
            let is_unbounded = !is_upkeep && unbounded_scan(&plan).is_some();
            assert!(!is_unbounded, "{rows:?}\n{sql}\n{}", plan.join("\n"));
            // Rows must come in the order of an index, in which every server locks them.
            let bad =
                |line: &String| ["JIT", "Bitmap", "Parallel"].iter().any(|it| line.contains(it));
            assert!(!plan.iter().any(bad), "{sql}\n{}", plan.join("\n"));
        }
    }
}

/// A generic plan is made once. Otherwise each execution would plan, and the test above would check
/// other plans than those in use.
#[test]
fn a_statement_is_planned_once() {
    let store = store();
    let made = RUNTIME.block_on(async {
        let sql = "SELECT generic_plans, custom_plans FROM pg_prepared_statements \
             WHERE statement LIKE '%FROM jobs j WHERE j.id = ANY%'";
        for _ in 0..20 {
            store.get(&[tidegate_engine::testkit::builders::name("one")]).await.unwrap();
        }
        let link = store.readers.link().await.unwrap();
        link.client.query(sql, &[]).await.unwrap()
    });
    assert_eq!((made[0].get::<_, i64>(0), made[0].get::<_, i64>(1)), (20, 0));
}
