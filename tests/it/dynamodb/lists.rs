//! What a page of a list reads, and in which order it has the jobs.

use std::{collections::BTreeSet, time::Duration};

use tidegate_core::{
    job::{Event, Job, TypeName},
    port::{
        JobStore,
        job_store::{JobFilter, ListPage, ListQuery, StateFilter},
        listing::Cursor,
    },
    time::Timestamp,
};
use tidegate_engine::testkit::builders::name;

use super::streams::{Shop, letter, letter_with};

async fn page(shop: &Shop, query: &ListQuery) -> (ListPage, f64) {
    let before = shop.table.bill();
    let page = shop.store.list(query).await.unwrap();
    (page, (shop.table.bill() - before).reads)
}

/// All jobs of a list, with its pages and the units of the most expensive one.
async fn all(shop: &Shop, query: ListQuery) -> (Vec<Job>, usize, f64) {
    let (mut query, mut jobs, mut pages, mut most) = (query, Vec::new(), 0, 0.0_f64);
    loop {
        let (page, reads) = page(shop, &query).await;
        jobs.extend(page.jobs);
        (pages, most) = (pages + 1, most.max(reads));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return (jobs, pages, most);
        }
    }
}

fn of(limit: u32) -> ListQuery {
    ListQuery { limit, ..ListQuery::default() }
}

/// `count` jobs, one each second from `first` on.
async fn fill(shop: &Shop, first: usize, count: usize) -> Vec<Job> {
    let letters =
        (first..first + count).map(|n| letter(shop, n, 100, Duration::from_secs(n as u64)));
    shop.add(letters.collect()).await
}

#[tokio::test]
async fn a_page_of_a_list_reads_about_as_many_rows_as_it_has() {
    let shop = Shop::new();
    fill(&shop, 0, 10_000).await;
    // In the middle: about half are due later.
    shop.clock.advance(Duration::from_secs(5_000));
    let (first, reads) = page(&shop, &of(50)).await;
    assert_eq!(first.jobs.len(), 50);
    let rows = shop.table.table().items().into_iter().filter(|item| item.key.p.starts_with("B#"));
    let row = rows.map(|item| item.size()).max().unwrap();
    let most = 54.0 * row as f64 / 4096.0 + 4.0;
    assert!(reads <= most, "{reads} units for 50 rows of {row} bytes, at most {most}");
    let (jobs, _, dearest) = all(&shop, of(50)).await;
    assert_eq!(jobs.iter().map(|job| &job.id).collect::<BTreeSet<_>>().len(), 10_000);
    assert_eq!(jobs.len(), 10_000, "each job is on one page");
    assert!(dearest <= 2.0 * most, "{dearest}");
    let due = |job: &Job| job.life.run_at().unwrap();
    let (past, later) = jobs.split_at(jobs.partition_point(|job| due(job) <= shop.now()));
    assert!(past.is_sorted_by_key(|job| std::cmp::Reverse(due(job))), "back from the present");
    assert!(later.is_sorted_by_key(due), "then the soonest first");
    assert_eq!((past.len(), later.len()), (5_001, 4_999));
}

#[tokio::test]
async fn a_filter_that_matches_little_reads_a_bounded_page() {
    let shop = Shop::new();
    let jobs = fill(&shop, 0, 6_000).await;
    shop.clock.advance(Duration::from_mins(100));
    shop.apply(&jobs[10], Event::Cancel { force: true }).await;
    let states = vec![StateFilter::from(
        &shop.apply(&jobs[20], Event::Cancel { force: true }).await.life.state,
    )];
    let query = ListQuery { filter: JobFilter { states, ..JobFilter::default() }, ..of(50) };
    let (first, reads) = page(&shop, &query).await;
    assert!(first.jobs.is_empty() && first.next_cursor.is_some(), "it goes on");
    assert!(reads <= 300.0, "{reads} units for an empty page");
    let (found, pages, dearest) = all(&shop, query.clone()).await;
    assert_eq!(found.iter().map(|job| &job.id).collect::<Vec<_>>(), [&jobs[20].id, &jobs[10].id]);
    assert!((6..=12).contains(&pages), "{pages} pages");
    assert!(dearest <= 300.0, "{dearest}");
    // A page that is full reads no further.
    let (_, _, dearest) = all(&shop, ListQuery { limit: 1, ..query }).await;
    assert!(dearest <= 300.0, "{dearest}");
    let (jobs, reads) = page(&shop, &of(1)).await;
    assert!(jobs.jobs.len() == 1 && reads <= 16.0, "{reads} units for one job");
}

#[tokio::test]
async fn idle_hours_and_queues_make_short_pages() {
    let shop = Shop::new();
    let letters = (0..300).map(|n| {
        let queue = format!("queue-{:02}", n % 75);
        letter_with(&shop, n, Duration::from_hours(n as u64), |job| job.queue(&queue))
    });
    let jobs = shop.add(letters.collect()).await;
    shop.clock.advance(Duration::from_hours(150));
    let (found, pages, dearest) = all(&shop, of(1000)).await;
    let ids = |jobs: &[Job]| jobs.iter().map(|job| job.id.clone()).collect::<BTreeSet<_>>();
    assert_eq!((found.len(), ids(&found)), (300, ids(&jobs)));
    assert!(pages > 1 && dearest <= 250.0, "{pages} pages of at most {dearest} units");
    // One queue alone is one page.
    let (found, pages, _) = all(
        &shop,
        ListQuery {
            filter: JobFilter { queue: Some(name("queue-07")), ..JobFilter::default() },
            ..of(10)
        },
    )
    .await;
    assert_eq!((found.len(), pages), (4, 1));
}

#[tokio::test]
async fn jobs_of_one_instant_and_several_types_are_listed_once() {
    let shop = Shop::new();
    let kinds: [TypeName; 3] = ["letter", "parcel", "card"].map(name);
    let letters = (0..2_400).map(|n| {
        letter_with(&shop, n, Duration::ZERO, |job| {
            job.of_type(kinds[n % 3].as_str()).priority(n as i32 % 20)
        })
    });
    let jobs = shop.add(letters.collect()).await;
    for limit in [7, 1000] {
        let (found, ..) = all(&shop, of(limit)).await;
        let found: BTreeSet<_> = found.into_iter().map(|job| job.id).collect();
        assert_eq!(found, jobs.iter().map(|job| job.id.clone()).collect());
        if limit == 7 {
            continue;
        }
        // A caller with bounds: no page ends at a job that it does not see.
        let within = ListQuery { within_types: Some([kinds[1].clone()].into()), ..of(limit) };
        let (found, pages, _) = all(&shop, within).await;
        assert_eq!(found.len(), 800);
        assert!((2..=4).contains(&pages), "{pages} pages of whole instants");
    }
}

#[tokio::test]
async fn a_new_bucket_hides_no_job_of_a_list() {
    let shop = Shop::new();
    let old = fill(&shop, 0, 300).await;
    shop.clock.advance(Duration::from_secs(150));
    let mut query = of(40);
    let mut found = BTreeSet::new();
    for number in 1000.. {
        let (page, _) = page(&shop, &query).await;
        for job in page.jobs {
            assert!(found.insert(job.id.clone()), "{} is listed twice", job.id);
        }
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            break;
        }
        // Other types of this hour, another hour, and another queue.
        let hours = Duration::from_hours(number as u64 % 2);
        let new = letter_with(&shop, number, hours, |job| {
            job.of_type(&format!("type-{number}")).queue(&format!("queue-{}", number % 5))
        });
        let same = letter_with(&shop, number + 5000, hours, |job| job.priority(number as i32));
        shop.add(vec![new, same]).await;
    }
    assert!(old.iter().all(|job| found.contains(&job.id)));
}

#[tokio::test]
async fn a_cursor_of_an_earlier_release_begins_the_list_again() {
    let shop = Shop::new();
    let jobs = fill(&shop, 0, 10).await;
    shop.clock.advance(Duration::from_mins(1));
    let old = Cursor { created_at: shop.now(), tie: jobs[3].id.to_string() };
    let query = ListQuery { cursor: Some(old.to_string()), ..of(100) };
    assert_eq!(page(&shop, &query).await.0.jobs.len(), 10);
    // An earlier release takes the cursor of this one as one before all jobs.
    let cursor = page(&shop, &of(4)).await.0.next_cursor.unwrap();
    assert!(cursor.parse::<Cursor>().unwrap().created_at > Timestamp::MAX);
}

#[tokio::test]
async fn whether_a_type_has_live_jobs_takes_no_scan() {
    let shop = Shop::new();
    let jobs = fill(&shop, 0, 3_000).await;
    shop.clock.advance(Duration::from_hours(3));
    for job in &jobs {
        shop.apply(job, Event::Cancel { force: true }).await;
    }
    shop.due(&shop.query(super::streams::ORDERS[0], 10)).await;
    shop.clock.advance(Duration::from_secs(30));
    shop.due(&shop.query(super::streams::ORDERS[0], 10)).await;
    let before = shop.table.bill();
    let (letter, mail) = (name("letter"), name("mail"));
    assert!(shop.store.live_job(Some(&letter), None).await.unwrap().is_none());
    assert!(shop.store.live_job(None, Some(&mail)).await.unwrap().is_none());
    let reads = (shop.table.bill() - before).reads;
    assert!(reads <= 10.0, "{reads} units for 3000 ended jobs");
    fill(&shop, 9_000, 2_000).await;
    let before = shop.table.bill();
    assert!(shop.store.live_job(Some(&letter), None).await.unwrap().is_some());
    let reads = (shop.table.bill() - before).reads;
    assert!(reads <= 6.0, "{reads} units to find one of 2000");
}
