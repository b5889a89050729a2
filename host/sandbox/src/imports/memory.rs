//! What an instance's memory holds the guest to: its own memories, and what the host keeps
//! for it besides.

use wasmtime::ResourceLimiter;

use super::HostState;
use crate::ending::Abort;
use crate::limits::OBJECTS;
use crate::resource_memory;

impl HostState {
    /// Charges bytes that the host keeps until the attempt ends.
    pub(crate) fn charge(&mut self, bytes: usize) -> wasmtime::Result<()> {
        self.limiter.attempt_bytes = self.limiter.attempt_bytes.saturating_add(bytes);
        self.within_memory()
    }

    /// Charges the most that one call may have added to the table of resources.
    pub(crate) fn charge_resources(&mut self, bytes: usize) {
        self.limiter.resource_bytes = self.limiter.resource_bytes.saturating_add(bytes);
    }

    /// Whether the instance keeps within its memory, with what the host keeps for it.
    pub(crate) fn within_memory(&mut self) -> wasmtime::Result<()> {
        self.recount_for(self.limiter.memory_bytes());
        if self.limiter.has_room_for(self.limiter.memory_bytes()) {
            return Ok(());
        }
        Err(self.limiter.refusal(self.limiter.memory_bytes()))
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
