//! The contract in Rust, made from `wit/` by wasmtime's macro.
//!
//! What goes to the guest is borrowed, so that an event is copied once: into
//! the guest's memory. What comes from the guest is owned, because it outlives
//! the call.

// The macro's code is not ours: it has no docs, and calls wasmtime's unsafe
// constructors of typed functions, for which it has checked the types.
#![allow(missing_docs, unsafe_code, unreachable_pub, unused_qualifications, clippy::all)]

wasmtime::component::bindgen!({
    path: "../wit",
    world: "event-handler",
    ownership: Borrowing { duplicate_if_necessary: true },
    imports: {
        "event-host:handler/state.get": async | trappable,
        "event-host:handler/state.keys": async | trappable,
        default: trappable,
    },
    exports: { default: async },
});
