//! The memory and the processor of an environment, as far as its rows and bodies take them.
//!
//! A row is live until the call of the store that read it ends: a page is decoded, sorted and cut
//! before the engine gets it. A body is live, twice, while a target is called with it: as the job's
//! data and as the request.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use parking_lot::Mutex;
use tidegate_core::{port::Clock, time::Timestamp};

use crate::serverless::time::Virtual;

/// Bytes of a runtime that has read nothing.
pub const RUNTIME_BYTES: usize = 60 << 20;
/// Memory of a function that has one whole processor.
const WHOLE_PROCESSOR_MB: f64 = 1769.0;

/// The live bytes of an environment, and the time that its processor is busy.
pub struct Gauge {
    limit: usize,
    live: AtomicUsize,
    peak: AtomicUsize,
    reading: Mutex<Option<Arc<AtomicUsize>>>,
    /// The processor is busy until here, in microseconds.
    busy_until: Mutex<f64>,
    share: f64,
}

impl Gauge {
    pub fn new(memory_mb: f64, limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            live: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            reading: Mutex::default(),
            busy_until: Mutex::default(),
            share: (memory_mb / WHOLE_PROCESSOR_MB).min(1.0),
        })
    }

    /// The largest number of live bytes since the last call.
    pub fn take_peak(&self) -> usize {
        self.peak.swap(self.live.load(Ordering::Relaxed), Ordering::Relaxed)
    }

    /// Whether Lambda ends the process for lack of memory.
    pub fn is_over(&self) -> bool {
        self.peak.load(Ordering::Relaxed) > self.limit
    }

    fn add(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(live, Ordering::Relaxed);
    }

    /// Counts `bytes` until the guard is dropped.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        self.add(bytes);
        Held(Arc::clone(self), bytes)
    }

    /// Counts `bytes` until the present call of the store ends.
    pub fn read(&self, bytes: usize) {
        if let Some(reading) = &*self.reading.lock() {
            reading.fetch_add(bytes, Ordering::Relaxed);
            self.add(bytes);
        }
    }

    /// Counts what `call` reads until it ends.
    pub fn call<F: Future>(&self, call: F) -> Reading<'_, F> {
        Reading { gauge: self, read: Arc::default(), call: Box::pin(call) }
    }

    /// Waits until the processor has worked for so many microseconds of a whole one.
    pub async fn compute(&self, time: &Virtual, micros: f64) {
        let now = time.now().millis() as f64 * 1000.0;
        let until = {
            let mut busy = self.busy_until.lock();
            *busy = busy.max(now) + micros / self.share;
            *busy
        };
        time.sleep_until(Timestamp::from_millis((until / 1000.0) as i64)).await;
    }
}

/// Bytes that are live.
pub struct Held(Arc<Gauge>, usize);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.live.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// A call of the store.
pub struct Reading<'g, F> {
    gauge: &'g Gauge,
    read: Arc<AtomicUsize>,
    call: Pin<Box<F>>,
}

impl<F: Future> Future for Reading<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let outer = self.gauge.reading.lock().replace(Arc::clone(&self.read));
        let polled = pin!(&mut self.call).poll(context);
        *self.gauge.reading.lock() = outer;
        polled
    }
}

impl<F> Drop for Reading<'_, F> {
    fn drop(&mut self) {
        self.gauge.live.fetch_sub(self.read.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
