//! The contract of [`JobStore`], as tests that every adapter must pass.
//!
//! ```ignore
//! tidegate::job_store_conformance!(memory, MemoryStore::new(), async |store, id|
//! store.damage_job(id));
//! ```
//!
//! The closure makes a job of the store unreadable, as damage of its record would.
//!
//! The macro makes one test per clause, each with its own store. It contains the list of clauses,
//! so no adapter can omit one. Random clauses draw from a fixed seed.

mod damage;
mod due;
mod hand_backs;
mod jobs;
mod lists;
mod records;
mod ticks;
mod work_queue;

pub use damage::*;
pub use due::*;
pub use hand_backs::*;
pub use jobs::*;
pub use lists::*;
pub use records::*;
pub use ticks::*;
pub use work_queue::*;

use tidegate_core::{
    job::{Event, Job, Token},
    port::job_store::{Committed, CurrentRecord, JobStore, Txn, Write},
    time::{Seconds, Timestamp},
};

/// Tests the store that the expression makes against the contract of [`JobStore`], in a module of
/// this name. Attributes before the name are those of each test.
#[macro_export]
macro_rules! job_store_conformance {
    ($(#[$attribute:meta])* $name:ident, $store:expr, $damage:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::job_store_conformance!(
                @each [$(#[$attribute])*] $store;
                an_added_job_is_read_back_as_it_was
                a_taken_id_is_refused_with_the_job_that_has_it
                a_job_is_replaced_only_at_the_revision_that_was_read
                a_change_of_life_keeps_everything_else
                data_of_every_size_comes_back_byte_for_byte
                a_large_body_follows_its_job
                a_removed_job_is_gone_with_its_body_and_its_keys
                a_refused_write_stops_its_transaction
                what_is_written_together_is_read_together
                each_transaction_of_a_commit_has_its_own_answer
                running_jobs_are_read_by_id
                overdue_jobs_come_earliest_first
                ended_jobs_are_overdue_while_they_name_objects
                due_jobs_come_in_every_order
                a_scan_finds_the_due_jobs_of_its_range
                due_reads_only_the_queue_and_types_of_its_query
                a_refused_change_leaves_no_job_behind
                a_job_that_is_handed_back_has_its_place_again
                due_jobs_are_counted_by_type_up_to_a_bound
                queues_with_jobs_are_active
                partitions_with_due_jobs_are_listed_in_pages
                waiting_jobs_are_counted_by_partition
                keys_are_compared_before_they_are_set
                a_ledger_comes_with_the_batches_that_it_names
                a_ledger_comes_with_its_throttlers_state
                a_ledger_is_replaced_only_at_its_version
                a_ticks_transaction_is_cut_between_any_two_of_its_steps
                a_changed_candidate_refuses_the_tick_that_claims_it
                items_are_compared_before_they_are_set
                the_items_version_covers_queues_types_plugins_triggers
                records_are_found_by_the_beginning_of_their_names
                a_record_takes_the_place_of_one_of_its_name
                a_purge_drops_what_is_over_and_what_is_too_much
                a_transient_record_is_replaced_and_dropped
                a_record_is_swapped_only_for_the_one_that_was_read
                the_records_of_a_group_are_found_by_its_name
                of_many_writers_each_increment_counts_once
                lists_are_newest_first_and_page_through_everything
                lists_keep_to_their_filters
                a_live_job_is_found_until_it_has_ended
                a_strange_cursor_lists_nothing
                depth_equals_a_recount
            );
            $crate::job_store_conformance!(
                @damaged [$(#[$attribute])*] $store, $damage;
                an_unreadable_job_is_missing_alone
                a_write_at_an_unreadable_job_is_refused_alone
                an_unreadable_job_counts_as_running
            );
        }
    };
    (@damaged $attributes:tt $store:expr, $damage:expr; $($clause:ident)*) => {
        $(
            $crate::job_store_conformance!(@test $attributes $clause {
                let store = $store;
                let clause = $crate::testkit::conformance::$clause(&store, $damage);
                $crate::testkit::conformance::run(clause);
            });
        )*
    };
    (@each $attributes:tt $store:expr; $($clause:ident)*) => {
        $(
            $crate::job_store_conformance!(@test $attributes $clause {
                let store = $store;
                $crate::testkit::conformance::run($crate::testkit::conformance::$clause(&store));
            });
        )*
    };
    (@test [$($attributes:tt)*] $clause:ident $body:block) => {
        $($attributes)*
        #[test]
        fn $clause() $body
    };
}

/// Runs a clause to its end.
pub fn run(clause: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made")
        .block_on(clause);
}

/// Commits one transaction and returns its answer.
async fn commit(store: &dyn JobStore, txn: Txn) -> Committed {
    let mut answers = store.commit(vec![txn]).await.expect("the store answers");
    assert_eq!(answers.len(), 1, "one answer per transaction");
    answers.remove(0)
}

/// Commits one transaction that must succeed.
async fn done(store: &dyn JobStore, txn: Txn) {
    let answer = commit(store, txn).await;
    assert!(matches!(answer, Committed::All), "{answer:?}");
}

/// Commits one transaction that must be refused. Returns the index of the refused write and the
/// current record.
async fn refused(store: &dyn JobStore, txn: Txn) -> (usize, CurrentRecord) {
    match commit(store, txn).await {
        Committed::Conflict { step, current } => (step, current),
        Committed::All => panic!("it should have been refused"),
    }
}

/// Commits transactions that must succeed, in their order and many in a call.
async fn all_done(store: &dyn JobStore, txns: &[Txn]) {
    for txns in txns.chunks(100) {
        let answers = store.commit(txns.to_vec()).await.expect("the store answers");
        assert_eq!(answers.len(), txns.len(), "one answer per transaction");
        for answer in answers {
            assert!(matches!(answer, Committed::All), "{answer:?}");
        }
    }
}

/// Adds jobs, each in its own transaction.
async fn add(store: &dyn JobStore, jobs: impl IntoIterator<Item = Job>) {
    let txns: Vec<Txn> = jobs.into_iter().map(|job| vec![Write::AddJob(job)]).collect();
    all_done(store, &txns).await;
}

/// The stored version of `job`, which must exist.
async fn get(store: &dyn JobStore, job: &Job) -> Job {
    let mut found = store.get(std::slice::from_ref(&job.id)).await.expect("the store answers");
    assert_eq!(found.len(), 1, "one answer per id");
    found.remove(0).expect("the job can be read").expect("the job is there")
}

/// The write that applies `event` to `job`, and the job after it.
fn step(job: &Job, event: Event, now: Timestamp) -> (Write, Job) {
    let next = job.apply(event, now).expect("the event may follow");
    (Write::SetJob { job: next.clone(), was: job.life.revision, all: false }, next)
}

/// A claim of `job` at its current version.
fn claim(job: &Job, granted: bool) -> Event {
    let lease = Seconds::new(30).duration();
    Event::Claim {
        version: job.life.version,
        token: Token::new(u128::MAX - 7),
        worker: None,
        lease,
        granted,
        decided_at: Timestamp::MAX,
    }
}
