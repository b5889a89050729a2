//! The values of one metric, by their labels.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabel, EncodeLabelSet, LabelSetEncoder, MetricEncoder,
};

use crate::metric::Metric;
use crate::values::{Buckets, Histogram, Value};

/// The values of labels, in the order of the metric's names.
type Labels = Box<[Cow<'static, str>]>;

/// The values of one metric, by the values of its labels. A handle: clones are the same
/// family.
pub struct Family<V> {
    metric: &'static Metric,
    /// Sorted, so that an answer is the same as long as nothing is counted.
    series: Arc<RwLock<BTreeMap<Labels, V>>>,
    make: Make<V>,
}

/// How a value begins.
enum Make<V> {
    Default(fn() -> V),
    Histogram(Buckets, fn(Buckets) -> V),
}

impl<V> Clone for Make<V> {
    fn clone(&self) -> Self {
        match self {
            Self::Default(make) => Self::Default(*make),
            Self::Histogram(buckets, make) => Self::Histogram(*buckets, *make),
        }
    }
}

impl<V> Clone for Family<V> {
    fn clone(&self) -> Self {
        let Self { metric, series, make } = self;
        Self { metric, series: Arc::clone(series), make: make.clone() }
    }
}

impl<V> fmt::Debug for Family<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Family").field("metric", &self.metric.name).finish_non_exhaustive()
    }
}

impl<V: Default> Family<V> {
    pub(crate) fn new(metric: &'static Metric) -> Self {
        Self { metric, series: Arc::default(), make: Make::Default(V::default) }
    }
}

impl Family<Histogram> {
    pub(crate) fn of(metric: &'static Metric, buckets: Buckets) -> Self {
        let make = Make::Histogram(buckets, Histogram::new);
        Self { metric, series: Arc::default(), make }
    }
}

impl<V: Clone> Family<V> {
    /// The value with these labels, in the order of the metric's names; made if it is not
    /// there. Takes a lock: to be called once, and its handle kept. Only values out of a
    /// closed list, or that the settings bound, may be given.
    ///
    /// # Panics
    /// In builds with debug assertions, when the number of labels is another than the
    /// metric's.
    pub fn with(&self, labels: &[&str]) -> V {
        debug_assert_eq!(labels.len(), self.metric.labels.len(), "{}", self.metric.name);
        let labels: Labels = labels.iter().map(|label| Cow::Owned((*label).to_owned())).collect();
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        let make = || match &self.make {
            Make::Default(make) => make(),
            Make::Histogram(buckets, make) => make(*buckets),
        };
        series.entry(labels).or_insert_with(make).clone()
    }

    /// Forgets every value whose labels are not to be kept, which is asked with the labels
    /// in the order of the metric's names.
    pub fn retain(&self, keep: impl Fn(&[Cow<'static, str>]) -> bool) {
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        series.retain(|labels, _| keep(labels));
    }
}

/// What stands in a registry: a metric that can write all of its values.
pub(crate) trait Source: Send + Sync + 'static {
    fn metric(&self) -> &'static Metric;

    /// Writes the metric, or nothing while it has no value.
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result;
}

impl<V: Value> Source for Family<V> {
    fn metric(&self) -> &'static Metric {
        self.metric
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
        let mut set = series.iter().filter(|(_, value)| !value.is_unset()).peekable();
        if set.peek().is_none() {
            return Ok(());
        }
        describe(encoder, self.metric, |encoder| {
            for (labels, value) in set {
                let labels = Named { names: self.metric.labels, values: labels };
                value.encode(encoder.encode_family(&labels)?)?;
            }
            Ok(())
        })
    }
}

/// Writes what is said of a metric before its values, and then these.
pub(crate) fn describe(
    encoder: &mut DescriptorEncoder<'_>,
    metric: &Metric,
    values: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
) -> fmt::Result {
    let (name, unit) = metric.split_unit();
    let kind = metric.kind.encoded();
    values(&mut encoder.encode_descriptor(name, metric.help, unit.as_ref(), kind)?)
}

/// Labels with their names. One with an empty value is left out.
#[derive(Debug)]
pub(crate) struct Named<'a, T> {
    pub(crate) names: &'static [&'static str],
    pub(crate) values: &'a [T],
}

impl<T: AsRef<str>> EncodeLabelSet for Named<'_, T> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        for (name, value) in self.names.iter().zip(self.values) {
            if !value.as_ref().is_empty() {
                (*name, value.as_ref()).encode(encoder.encode_label())?;
            }
        }
        Ok(())
    }
}
