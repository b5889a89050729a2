//! The sandbox: everything that knows wasmtime.

pub mod settings;
