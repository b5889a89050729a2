//! What wit-bindgen makes of the contract in `wit/`.

#![allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    unused_qualifications,
    clippy::all,
    clippy::unwrap_used,
    clippy::panic,
    reason = "generated code, which calls across the component boundary"
)]

wit_bindgen::generate!({
    path: "wit",
    world: "event-handler",
    pub_export_macro: true,
});

/// The world of handlers of batches, with the imports of the other.
pub mod batch {
    wit_bindgen::generate!({
        path: "wit",
        world: "batch-event-handler",
        pub_export_macro: true,
        export_macro_name: "export_batch",
        with: {
            "event-host:handler/types@0.1.0": super::event_host::handler::types,
            "event-host:handler/outbox@0.1.0": super::event_host::handler::outbox,
            "event-host:handler/state@0.1.0": super::event_host::handler::state,
            "event-host:handler/log@0.1.0": super::event_host::handler::log,
            "event-host:handler/context@0.1.0": super::event_host::handler::context,
        },
    });
}
