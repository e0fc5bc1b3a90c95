//! The history of a deployment on a table: what its sweeps counted, minute by minute, and the day.

use std::{sync::Arc, time::Duration};

use tidegate_api::{History, HistoryPoint, HistoryRange};
use tidegate_backends::dynamodb::{DynamoStore, memory::MemoryTable};
use tidegate_core::{
    job::type_config::TypeConfig,
    port::{Clock as _, job_store::SharedStore},
    queue::QueueConfig,
    target::{Push, TargetConfig},
    time::Timestamp,
};
use tidegate_engine::{memory::SeededEntropy, testkit::builders::name};

use super::{
    model::{Cloud, job},
    time::Virtual,
};

const MINUTE: Duration = Duration::from_mins(1);
const JOBS_PER_MINUTE: usize = 5;

fn finished(points: &[HistoryPoint]) -> u64 {
    points.iter().map(|point| point.finished).sum()
}

/// The points of the steps that began from the first instant on and before the second.
fn within(history: &History, from: Timestamp, to: Timestamp) -> Vec<HistoryPoint> {
    let is_within = |point: &&HistoryPoint| from <= point.at && point.at < to;
    history.points.iter().filter(is_within).copied().collect()
}

#[test]
fn the_day_of_a_table_is_the_sum_of_its_sweeps() {
    let time = Virtual::new();
    let table = Arc::new(MemoryTable::new());
    let store = |seed| -> SharedStore {
        let (table, clock) = (Arc::clone(&table), Arc::clone(&time));
        Arc::new(DynamoStore::new(table, clock as _, Arc::new(SeededEntropy::new(seed))))
    };
    let cloud = Cloud::on(7, Arc::clone(&time), store(7));
    cloud.now(cloud.server.put_queue(&name("q"), QueueConfig::default(), None)).unwrap();
    let target = TargetConfig::Push(Box::new(Push::to("http://worker.example/t")));
    let config = TypeConfig { queue: name("q"), target: Some(target), ..TypeConfig::default() };
    cloud.now(cloud.server.put_type(&name("t"), config, None)).unwrap();
    let start = time.now();
    for minute in 0..20 {
        for number in 0..JOBS_PER_MINUTE {
            let at = start + MINUTE * minute + Duration::from_secs(10 * number as u64);
            cloud.enqueue_at(at, job("t", minute as usize * JOBS_PER_MINUTE + number));
        }
    }
    time.run(start + MINUTE * 32);
    // A process that has counted nothing itself.
    let other = cloud.process(store(8), 8);
    let history = |range| {
        let of_queue = cloud.now(other.queue_history(&name("q"), range)).unwrap();
        let of_type = cloud.now(other.type_history(&name("t"), range)).unwrap();
        let ends = |history: &History| -> Vec<(Timestamp, u64)> {
            history.points.iter().map(|point| (point.at, point.finished)).collect()
        };
        assert_eq!(ends(&of_queue), ends(&of_type), "the queue has one type");
        of_queue
    };
    let (hour, day) = (history(HistoryRange::Hour), history(HistoryRange::Day));
    assert_eq!((hour.step_seconds, day.step_seconds), (60, 300));
    // What had ended at the first sweep is in no difference.
    let all = (20 * JOBS_PER_MINUTE) as u64;
    let counted = finished(&hour.points);
    assert!(counted <= all && counted + 2 * JOBS_PER_MINUTE as u64 >= all, "{counted} of {all}");
    assert!(day.points.len() >= 4, "{:?}", day.points);
    let mut compared = 0;
    for step in &day.points {
        let sweeps = within(&hour, step.at, step.at + MINUTE * 5);
        assert_eq!(step.finished, finished(&sweeps), "{:?}", step.at);
        let last = sweeps.last().unwrap();
        assert_eq!((step.ready, step.running), (last.ready, last.running));
        assert!(step.enqueued.is_none() && step.started.is_none());
        compared += step.finished;
    }
    assert!(compared > all / 2, "{compared} of {all}");
}
