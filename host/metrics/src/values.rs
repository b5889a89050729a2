//! Counters, gauges and histograms. Each is a handle: clones count together.
//!
//! The histogram is ours because that of `prometheus-client` takes a lock for each
//! observation, which all attempts of a group would share.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prometheus_client::encoding::{MetricEncoder, NoLabelSet};

/// What can be written into an answer to Prometheus.
pub(crate) trait Value: Clone + Send + Sync + 'static {
    /// Writes the value behind the name and the labels.
    fn encode(&self, encoder: MetricEncoder<'_>) -> std::fmt::Result;

    /// Whether it has nothing to tell yet, and is left out.
    fn is_unset(&self) -> bool {
        false
    }
}

/// A number of things that only grows.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Counts one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Counts several.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    /// Counts as many as there are of something in memory.
    #[inline]
    pub fn add_len(&self, count: usize) {
        self.add(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// How many there were.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Value for Counter {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        encoder.encode_counter::<NoLabelSet, _, u64>(&self.get(), None)
    }
}

/// A time that only grows, in seconds.
#[derive(Debug, Clone, Default)]
pub struct Seconds(Arc<AtomicU64>);

impl Seconds {
    /// Adds a time.
    #[inline]
    pub fn add(&self, time: Duration) {
        self.0.fetch_add(nanoseconds(time), Relaxed);
    }
}

impl Value for Seconds {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        let seconds = as_float(self.0.load(Relaxed)) / NANOS;
        encoder.encode_counter::<NoLabelSet, _, f64>(&seconds, None)
    }
}

/// A measured number, whole or not.
#[derive(Debug, Clone)]
pub struct Gauge(Arc<AtomicU64>);

/// Bits of a number that nobody sets: a gauge that has it is left out.
const UNSET: u64 = u64::MAX;

impl Default for Gauge {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(UNSET)))
    }
}

impl Gauge {
    /// Sets it.
    pub fn set(&self, value: f64) {
        let bits = value.to_bits();
        self.0.store(if bits == UNSET { f64::NAN.to_bits() } else { bits }, Relaxed);
    }

    /// Sets it to a number of things or bytes.
    pub fn set_count(&self, value: u64) {
        self.set(as_float(value));
    }

    /// Leaves it out from now on.
    pub fn unset(&self) {
        self.0.store(UNSET, Relaxed);
    }
}

impl Value for Gauge {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        encoder.encode_gauge(&f64::from_bits(self.0.load(Relaxed)))
    }

    fn is_unset(&self) -> bool {
        self.0.load(Relaxed) == UNSET
    }
}

/// How many of something there are now, counted up and down.
#[derive(Debug, Clone, Default)]
pub struct Level(Arc<AtomicI64>);

impl Level {
    /// There are so many more.
    pub fn add(&self, count: i64) {
        self.0.fetch_add(count, Relaxed);
    }

    /// There are so many fewer.
    pub fn sub(&self, count: i64) {
        self.0.fetch_sub(count, Relaxed);
    }

    /// How many there are.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

impl Value for Level {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        encoder.encode_gauge(&self.get())
    }
}

/// The upper bounds of a histogram's buckets, whole numbers in a unit that is small enough.
#[derive(Debug, Clone, Copy)]
pub struct Buckets {
    bounds: &'static [u64],
    /// How many of the small unit are one of what is exported.
    per_unit: f64,
}

impl Buckets {
    /// Times, exported in seconds; the bounds are in microseconds.
    pub(crate) const fn times(microseconds: &'static [u64]) -> Self {
        Self { bounds: microseconds, per_unit: 1e6 }
    }

    /// Numbers of things or bytes.
    pub(crate) const fn counts(bounds: &'static [u64]) -> Self {
        Self { bounds, per_unit: 1.0 }
    }
}

#[derive(Debug)]
struct Observed {
    buckets: Buckets,
    /// One for each bound, and one for what is above all of them. Each has what is above the
    /// bound before it; they are summed up when they are read.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// Counts by size.
#[derive(Debug, Clone)]
pub struct Histogram(Arc<Observed>);

impl Histogram {
    /// An empty one.
    #[must_use]
    pub(crate) fn new(buckets: Buckets) -> Self {
        let counts = (0..=buckets.bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Observed { buckets, counts, sum: AtomicU64::new(0) }))
    }

    /// Observes a time. Two atomic additions.
    #[inline]
    pub fn observe(&self, time: Duration) {
        self.observe_value(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// Observes a number of things or bytes.
    #[inline]
    pub fn observe_len(&self, count: usize) {
        self.observe_value(u64::try_from(count).unwrap_or(u64::MAX));
    }

    #[inline]
    fn observe_value(&self, value: u64) {
        let Observed { buckets, counts, sum } = &*self.0;
        let place = buckets.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = counts.get(place) {
            count.fetch_add(1, Relaxed);
        }
        sum.fetch_add(value, Relaxed);
    }

    /// How many were observed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.counts.iter().map(|count| count.load(Relaxed)).sum()
    }
}

impl Value for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        let Observed { buckets, counts, sum } = &*self.0;
        let bounds = buckets.bounds.iter().map(|bound| as_float(*bound) / buckets.per_unit);
        let bounds = bounds.chain([f64::INFINITY]);
        let buckets_of: Vec<(f64, u64)> =
            bounds.zip(counts).map(|(bound, count)| (bound, count.load(Relaxed))).collect();
        // As the buckets have it, so that the two never differ.
        let count = buckets_of.iter().map(|(_, count)| count).sum();
        let sum = as_float(sum.load(Relaxed)) / buckets.per_unit;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets_of, None)
    }

    /// Of a thousand groups of which ten run, ten have their buckets shown.
    fn is_unset(&self) -> bool {
        self.count() == 0
    }
}

const NANOS: f64 = 1e9;

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, which no count reaches")]
pub(crate) fn as_float(number: u64) -> f64 {
    number as f64
}
