//! Sorted lists: pages follow one another, whatever comes in between, and have a bound.

use std::{cmp::Reverse, time::Duration};

use tidegate_core::{
    job::{Job, JobSort, sort::SortField},
    port::job_store::{JobFilter, ListQuery, Write},
};
use tidegate_engine::{
    Error,
    jobs::sorted::{Compared, MAX_SORTED_JOBS, SortedPage},
    testkit::builders::{job, name},
};

use crate::cases::harness::{Harness, every_store, every_store_and_table, work};

fn by(field: SortField, is_descending: bool) -> JobSort {
    JobSort { field, is_descending }
}

async fn page(harness: &Harness, sort: JobSort, limit: u32, cursor: Option<String>) -> SortedPage {
    let query = ListQuery { limit, cursor, now: harness.now(), ..ListQuery::default() };
    harness.engine.list_sorted(&query, sort).await.unwrap()
}

/// The ids of all pages of three jobs; `between` runs after each.
async fn ids(harness: &Harness, sort: JobSort, between: impl AsyncFn()) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), None);
    loop {
        let SortedPage { page, compared } = page(harness, sort, 3, cursor).await;
        assert!(compared.is_none_or(|compared| compared.is_complete), "{compared:?}");
        ids.extend(page.jobs.iter().map(|job| job.id.to_string()));
        between().await;
        cursor = page.next_cursor;
        if cursor.is_none() {
            return ids;
        }
    }
}

/// Eleven jobs: three have ended, two run, the others wait.
async fn with_jobs(harness: &mut Harness) -> Vec<Job> {
    harness.with_limit(10).await;
    let mut jobs = Vec::new();
    for (number, priority) in [3, 1, 2, 3, 1, 0, 2, 2, 1, 0, 3].into_iter().enumerate() {
        harness.wait(1);
        let mut new = work();
        new.options.priority = Some(priority);
        new.run_at =
            (number >= 5).then(|| harness.now() + Duration::from_secs(1000 - 10 * number as u64));
        jobs.push(harness.enqueue(new).await);
    }
    let running = harness.lease(5).await;
    for (ended, seconds) in running[..3].iter().zip([9, 1, 4]) {
        harness.wait(seconds);
        harness.succeed(std::slice::from_ref(ended)).await;
    }
    harness.wait(3);
    let mut now = Vec::new();
    for job in jobs {
        now.push(harness.job(&job.id).await);
    }
    now
}

#[tokio::test]
async fn each_order_lists_every_job_once_over_its_pages() {
    for mut harness in every_store() {
        let jobs = with_jobs(&mut harness).await;
        for field in SortField::ALL {
            for is_descending in [false, true] {
                let sort = by(field, is_descending);
                let mut expected = jobs.clone();
                let now = harness.now();
                expected.sort_by_key(|job| sort.place(job, now));
                let expected: Vec<String> = expected.iter().map(|job| job.id.to_string()).collect();
                assert_eq!(ids(&harness, sort, async || ()).await, expected, "{sort}");
            }
        }
    }
}

#[tokio::test]
async fn jobs_without_the_value_are_last_and_equals_newest_first() {
    for mut harness in every_store_and_table() {
        let jobs = with_jobs(&mut harness).await;
        let waiting = |ids: &[String]| {
            ids[5..]
                .iter()
                .all(|id| jobs.iter().any(|job| job.id.as_str() == id && job.is_scheduled()))
        };
        for is_descending in [false, true] {
            let listed = ids(&harness, by(SortField::Started, is_descending), async || ()).await;
            assert!(listed.len() == 11 && waiting(&listed), "{listed:?}");
        }
        let mut expected: Vec<&Job> = jobs.iter().collect();
        expected.sort_by_key(|job| (Reverse(job.spec.priority), Reverse(job.spec.created_at)));
        let expected: Vec<&str> = expected.iter().map(|job| job.id.as_str()).collect();
        let listed = ids(&harness, by(SortField::Priority, true), async || ()).await;
        assert_eq!(listed, expected);
    }
}

#[tokio::test]
async fn jobs_that_come_between_two_pages_are_on_none() {
    for mut harness in every_store_and_table() {
        let jobs = with_jobs(&mut harness).await;
        let listed = ids(&harness, by(SortField::Priority, true), async || {
            harness.wait(1);
            let mut new = work();
            new.options.priority = Some(2);
            harness.enqueue(new).await;
        });
        let listed = listed.await;
        assert_eq!(listed.len(), jobs.len());
        assert!(jobs.iter().all(|job| listed.iter().any(|id| id == job.id.as_str())));
    }
}

#[tokio::test]
async fn the_cursor_of_another_list_is_refused() {
    for mut harness in every_store_and_table() {
        with_jobs(&mut harness).await;
        let sort = by(SortField::Duration, true);
        let cursor = page(&harness, sort, 3, None).await.page.next_cursor;
        assert!(page(&harness, sort, 3, cursor.clone()).await.page.jobs.len() == 3);
        let plain = ListQuery { limit: 3, now: harness.now(), ..ListQuery::default() };
        let of_plain = harness.engine.list(&plain).await.unwrap().next_cursor;
        for (sort, cursor) in [
            (by(SortField::Duration, false), cursor),
            (sort, of_plain),
            (sort, Some("9_duration:0".into())),
        ] {
            let query = ListQuery { cursor, ..plain.clone() };
            let refused = harness.engine.list_sorted(&query, sort).await;
            assert!(
                matches!(&refused, Err(Error::Invalid { field, .. }) if field == "cursor"),
                "{refused:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_sorted_list_compares_a_bounded_number_of_jobs() {
    for harness in every_store() {
        let added = MAX_SORTED_JOBS + 5;
        let jobs = (0..added).map(|number| {
            let id = format!("job-{number}");
            let created = i64::try_from(number).unwrap();
            job(&id).queue(if number % 2 == 0 { "even" } else { "odd" }).created(created).build()
        });
        let writes = jobs.map(|job| vec![Write::AddJob(job)]).collect();
        harness.store.commit(writes).await.unwrap();
        harness.wait(100);
        let oldest = by(SortField::Created, false);
        let first = page(&harness, oldest, 2, None).await;
        let of = |page: &SortedPage| -> Vec<String> {
            page.page.jobs.iter().map(|job| job.id.to_string()).collect()
        };
        // Of the newest, those that were created first.
        assert_eq!(of(&first), ["job-5", "job-6"]);
        let most = MAX_SORTED_JOBS as u64;
        assert_eq!(first.compared, Some(Compared { jobs: most, is_complete: false }));
        let second = page(&harness, oldest, 2, first.page.next_cursor).await;
        assert_eq!(of(&second), ["job-7", "job-8"]);
        let query = ListQuery {
            filter: JobFilter { queue: Some(name("even")), ..JobFilter::default() },
            limit: 2,
            now: harness.now(),
            ..ListQuery::default()
        };
        let of_queue = harness.engine.list_sorted(&query, oldest).await.unwrap();
        assert_eq!(of(&of_queue), ["job-0", "job-2"]);
        let expected = Compared { jobs: added.div_ceil(2) as u64, is_complete: true };
        assert_eq!(of_queue.compared, Some(expected));
        // The order of the store has no bound.
        let newest = page(&harness, by(SortField::Created, true), 2, None).await;
        assert_eq!(
            (of(&newest), newest.compared),
            (vec!["job-10004".into(), "job-10003".into()], None)
        );
    }
}
