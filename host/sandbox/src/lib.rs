//! The sandbox: everything that knows wasmtime.
//!
//! [`Sandbox::load`] turns a file into a [`LoadedHandler`], which delivery
//! knows as a [`Handler`](event_host_core::handler::Handler). It promises that a handler
//! that loops, allocates, recurses, floods logs or emits, traps, or answers
//! rubbish costs one attempt of one event, with a kind of failure that names
//! the limit, and that no other group notices; and that a handler reaches
//! nothing that its settings do not grant.
//!
//! It leaves to others how often an event is tried and what becomes of what a
//! handler emits or writes; how many instances there may be at once is the
//! engine's, and who gets one first is the supervisor's.

mod bindings;
mod cache;
mod call_input;
mod call_result;
mod compiler;
mod component;
mod contract;
mod ending;
mod engine;
mod entry_point;
mod fair_semaphore;
mod guest_event;
mod guest_log;
mod http;
mod imports;
mod incoming;
mod instance_pool;
mod limits;
mod load_error;
mod producers;
mod program;
mod resource_memory;
mod runtime;
pub mod settings;
mod source;
#[cfg(test)]
mod tests;
mod ticker;
mod worker;
mod world_metadata;

pub use compiler::{Compiling, Order as CompileOrder, obey as compile};
pub use component::Sandbox;
pub use contract::Interface;
pub use engine::{Allocation, CacheSettings, EngineError, EngineSettings, PoolSettings};
pub use guest_log::{GuestLine, LineOrigin, LogSink};
pub use load_error::{Does, LoadError, LoadReason, Names};
pub use producers::{Producer, ProducerKind};
pub use program::Inspection;
pub use source::{Form, Source};
pub use worker::LoadedHandler;
