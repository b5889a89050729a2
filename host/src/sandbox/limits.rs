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

use wasmtime::ResourceLimiter;
use wasmtime::component::ResourceTable;

use super::ending::{Abort, size};
use super::imports::HostState;
use super::resource_memory;
use super::settings::{Limits, names};
use crate::failure::FailureKind;

/// Resources of WASI, such as streams and pollables, that an instance may hold
/// open at once.
pub(super) const OPEN_RESOURCES: usize = 1_000;

/// Handles in the component model's own tables that an instance may hold; the
/// guest's own resources count too.
pub(super) const COMPONENT_HANDLES: usize = 10_000;

/// Memories and tables an instance may have; each one costs address space, and
/// time when it is made.
const OBJECTS: usize = 1_000;

/// Counts the memories and tables of one instance, and what the host keeps for it.
#[derive(Debug)]
pub(super) struct InstanceLimits {
    memory_bytes: usize,
    /// What the host keeps for the attempt under way.
    attempt_bytes: usize,
    /// What the host keeps in the table of resources; never less than it is.
    resource_bytes: usize,
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
    fn has_room_for(&self, memory_bytes: usize) -> bool {
        memory_bytes.saturating_add(self.kept_bytes()) <= self.memory_limit
    }

    /// The end of an attempt that wanted memories of `memory_bytes` bytes, with what the host
    /// keeps.
    #[cold]
    fn refusal(&self, memory_bytes: usize) -> wasmtime::Error {
        let kept = match self.kept_bytes() {
            0 => String::new(),
            kept => format!(" and had the host keep {}", size(kept)),
        };
        let (wanted, limit) = (size(memory_bytes), size(self.memory_limit));
        let text = format!("wanted {wanted}{kept}, {} is {limit}", names::MEMORY);
        Abort::limit(FailureKind::MemoryLimit, text)
    }

    fn memory_growing(
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
    fn memory_after(&self, current: usize, desired: usize) -> usize {
        self.memory_bytes.saturating_sub(current).saturating_add(desired)
    }

    fn table_growing(
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

impl HostState {
    /// Charges bytes that the host keeps until the attempt ends.
    pub(super) fn charge(&mut self, bytes: usize) -> wasmtime::Result<()> {
        self.limiter.attempt_bytes = self.limiter.attempt_bytes.saturating_add(bytes);
        self.within_memory()
    }

    /// Charges the most that one call may have added to the table of resources.
    pub(super) fn charge_resources(&mut self, bytes: usize) {
        self.limiter.resource_bytes = self.limiter.resource_bytes.saturating_add(bytes);
    }

    /// Whether the instance keeps within its memory, with what the host keeps for it.
    pub(super) fn within_memory(&mut self) -> wasmtime::Result<()> {
        self.recount_for(self.limiter.memory_bytes);
        if self.limiter.has_room_for(self.limiter.memory_bytes) {
            return Ok(());
        }
        Err(self.limiter.refusal(self.limiter.memory_bytes))
    }

    /// Counts the bytes of the table of resources again where the estimate would exceed the
    /// limit.
    fn recount_for(&mut self, memory_bytes: usize) {
        if !self.limiter.has_room_for(memory_bytes) {
            self.limiter.resource_bytes = resource_memory::bytes(&mut self.resources);
        }
    }
}

impl ResourceLimiter for HostState {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.recount_for(self.limiter.memory_after(current, desired));
        self.limiter.memory_growing(current, desired, maximum)
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        // Only the operating system's refusals are I/O errors; the rest is the
        // memory's own type, which the guest may handle. What was counted for
        // the growth stays counted: a failure is also told of growths that were
        // never asked for here, so taking it back would lose count.
        if error.is::<std::io::Error>() {
            return Err(Abort::not_run(format!("the host could not grow a memory: {error}")));
        }
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.limiter.table_growing(current, desired, maximum)
    }

    fn memories(&self) -> usize {
        OBJECTS
    }

    fn tables(&self) -> usize {
        OBJECTS
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
