//! What one instance may use of the host, counted while it runs.
//!
//! wasmtime's own limiter looks at each memory by itself, so that two memories
//! get twice the limit; [`InstanceLimits`] sums. What the host keeps for the guest
//! counts for the same limit: the resources that the guest made with their bytes
//! (`resource_memory`), its emits and its writes. A refused growth ends the
//! attempt instead of answering -1: most guests would only trap on it, in a
//! place that says nothing of memory, and an operator needs to see which limit
//! to raise. A growth that the memory's own type forbids is the guest's own
//! business and answers -1, as the specification says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wasmtime::component::ResourceTable;

use super::ending::{Abort, size};
use super::settings::{Limits, OPEN_RESOURCES, names};
use event_host_core::failure::FailureKind;

/// Memories and tables an instance may have; each one costs address space, and
/// time when it is made.
pub(super) const OBJECTS: usize = 1_000;

/// Counts the memories and tables of one instance, and what the host keeps for it.
#[derive(Debug)]
pub(super) struct InstanceLimits {
    memory_bytes: usize,
    /// What the host keeps for the attempt under way.
    pub(super) attempt_bytes: usize,
    /// What the host keeps in the table of resources; never less than it is.
    pub(super) resource_bytes: usize,
    /// What the host keeps of an HTTP answer, which is read beside the guest.
    answer_bytes: Arc<AtomicUsize>,
    memory_limit: usize,
    table_elements: usize,
    table_limit: usize,
}

impl InstanceLimits {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            memory_bytes: 0,
            attempt_bytes: 0,
            resource_bytes: 0,
            answer_bytes: Arc::default(),
            memory_limit: limits.memory_bytes,
            table_elements: 0,
            table_limit: limits.table_elements,
        }
    }

    /// All memories together.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Everything that the host keeps for the instance besides.
    fn kept_bytes(&self) -> usize {
        let answer_bytes = self.answer_bytes.load(Ordering::Relaxed);
        self.attempt_bytes.saturating_add(self.resource_bytes).saturating_add(answer_bytes)
    }

    /// Where it is counted what the host keeps of the answer of this attempt.
    pub(super) fn answer(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.answer_bytes)
    }

    /// A new attempt begins: the host keeps nothing for it.
    pub(super) fn begin(&mut self) {
        self.attempt_bytes = 0;
        self.answer_bytes.store(0, Ordering::Relaxed);
    }

    /// Whether memories of `memory_bytes` bytes fit, with what the host keeps.
    pub(super) fn has_room_for(&self, memory_bytes: usize) -> bool {
        memory_bytes.saturating_add(self.kept_bytes()) <= self.memory_limit
    }

    /// The end of an attempt that wanted memories of `memory_bytes` bytes, with what the host
    /// keeps.
    #[cold]
    pub(super) fn refusal(&self, memory_bytes: usize) -> wasmtime::Error {
        let kept = match self.kept_bytes() {
            0 => String::new(),
            kept => format!(" and had the host keep {}", size(kept)),
        };
        let (wanted, limit) = (size(memory_bytes), size(self.memory_limit));
        let text = format!("wanted {wanted}{kept}, {} is {limit}", names::MEMORY);
        Abort::limit(FailureKind::MemoryLimit, text)
    }

    pub(super) fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let wanted = self.memory_after(current, desired);
        if !self.has_room_for(wanted) {
            return Err(self.refusal(wanted));
        }
        // The memory's own maximum, or in a memory of 64 bits the engine's 4 GiB.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.memory_bytes = wanted;
        Ok(true)
    }

    /// All memories together, once one of them has grown.
    pub(super) fn memory_after(&self, current: usize, desired: usize) -> usize {
        self.memory_bytes.saturating_sub(current).saturating_add(desired)
    }

    pub(super) fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let wanted = self.table_elements.saturating_sub(current).saturating_add(desired);
        if wanted > self.table_limit {
            return Err(Abort::limit(
                FailureKind::TableLimit,
                format!(
                    "wanted {wanted} table elements, {} is {}",
                    names::TABLE_ELEMENTS,
                    self.table_limit
                ),
            ));
        }
        // Loading refuses limits above the allocator's, so this maximum is the
        // table's own, and refusing is what the specification wants.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.table_elements = wanted;
        Ok(true)
    }
}

/// A table for WASI's resources that refuses to grow without end.
pub(super) fn resource_table() -> ResourceTable {
    let mut table = ResourceTable::new();
    table.set_max_capacity(OPEN_RESOURCES);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(memory_bytes: usize, table_elements: usize) -> InstanceLimits {
        InstanceLimits::new(&Limits { memory_bytes, table_elements, ..Limits::default() })
    }

    #[test]
    fn memories_count_together_and_the_refusal_names_the_limit() {
        let mut limits = limits(1 << 20, 10);
        assert!(limits.memory_growing(0, 512 << 10, None).unwrap());
        assert!(limits.memory_growing(0, 448 << 10, None).unwrap());
        assert_eq!(limits.memory_bytes(), 960 << 10);
        let refused = limits.memory_growing(448 << 10, 640 << 10, None).unwrap_err();
        assert_eq!(refused.to_string(), "wanted 1.1 MiB, limits.memory is 1.0 MiB");
        assert_eq!(limits.memory_bytes(), 960 << 10, "a refused growth takes nothing");
    }

    #[test]
    fn a_growth_beyond_all_arithmetic_is_refused_like_any_other() {
        let mut limits = limits(1 << 20, 10);
        assert!(limits.memory_growing(0, 65_536, None).unwrap());
        assert!(limits.memory_growing(0, usize::MAX, None).is_err());
        assert!(limits.table_growing(0, 5, None).unwrap());
        assert!(limits.table_growing(0, usize::MAX, None).is_err());
    }

    #[test]
    fn a_types_own_maximum_is_not_our_limit() {
        let mut limits = limits(1 << 20, 10);
        assert!(!limits.memory_growing(0, 131_072, Some(65_536)).unwrap());
        assert_eq!(limits.memory_bytes(), 0);
        assert!(!limits.table_growing(0, 5, Some(4)).unwrap());
        assert!(limits.table_growing(0, 10, Some(10)).unwrap());
        let refused = limits.table_growing(0, 1, None).unwrap_err();
        assert_eq!(refused.to_string(), "wanted 11 table elements, limits.table_elements is 10");
    }
}
