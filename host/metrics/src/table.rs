//! The metrics of one registry, in the order in which they are told.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::family::{Family, Source};
use crate::metric::Metric;
use crate::values::Value;

/// Every metric, in the order of the table.
#[derive(Default)]
pub(crate) struct Table(Vec<Box<dyn Source>>);

impl Table {
    /// Adds a family, and gives it back.
    pub(crate) fn add<V: Value>(&mut self, family: Family<V>) -> Family<V> {
        self.0.push(Box::new(family.clone()));
        family
    }

    /// What each of them is.
    pub(crate) fn metrics(&self) -> Vec<&'static Metric> {
        self.0.iter().map(|source| source.metric()).collect()
    }

    /// Adds what is no family.
    pub(crate) fn add_source(&mut self, source: Box<dyn Source>) {
        self.0.push(source);
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|source| source.metric().name)).finish()
    }
}

impl Collector for Table {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|source| source.encode(&mut encoder))
    }
}
