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
