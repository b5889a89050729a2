//! The contract in Rust, made from `wit/` by wasmtime's macro.
//!
//! What goes to the guest is borrowed, so that an event is copied once: into
//! the guest's memory. What comes from the guest is owned, because it outlives
//! the call.

// The macro's code is not ours: it has no docs, and calls wasmtime's unsafe
// constructors of typed functions, for which it has checked the types.
#![allow(missing_docs, unsafe_code, unreachable_pub, unused_qualifications, clippy::all)]

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "event-handler",
    ownership: Borrowing { duplicate_if_necessary: true },
    imports: {
        "event-host:handler/state.get": async | trappable,
        "event-host:handler/state.keys": async | trappable,
        default: trappable,
    },
    exports: { default: async },
});

/// The world of handlers of batches, with the imports of the other.
pub mod batch {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "batch-event-handler",
        ownership: Borrowing { duplicate_if_necessary: true },
        exports: { default: async },
        with: {
            "event-host:handler/types": super::event_host::handler::types,
            "event-host:handler/outbox": super::event_host::handler::outbox,
            "event-host:handler/state": super::event_host::handler::state,
            "event-host:handler/log": super::event_host::handler::log,
            "event-host:handler/context": super::event_host::handler::context,
        },
    });
}

pub use self::batch::{BatchEventHandler, BatchEventHandlerPre};

use self::event_host::handler::types::{Event, Failure};
use wasmtime::component::TypedFunc;

/// The function that handles an event, as one that takes the event by
/// reference: by value, each of the futures that a call is made of would hold a
/// copy of the record, and they are allocated for every event.
pub fn handle<'a>(handler: &EventHandler) -> TypedFunc<(&'a Event<'a>,), (Result<(), Failure>,)> {
    let handle = handler.event_host_handler_handler().func_handle();
    // SAFETY: the types of `handle` were checked when the instance was made,
    // and a reference lowers as what it refers to.
    unsafe { TypedFunc::new_unchecked(*handle.func()) }
}
