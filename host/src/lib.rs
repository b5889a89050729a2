//! The library behind the `host` program.
//!
//! An event flows straight: [`store`] fetch, [`delivery`], [`sandbox`] call,
//! settlement, [`store`] settle. Dependencies point one way: `cli` to
//! `app` to [`supervisor`] to [`delivery`] to the traits of [`store`] and
//! [`handler::Handler`]; SQL stays in `store`, wasmtime in `sandbox`. What all of them
//! share is in `core`, and is named from here, as [`event`]. The test `architecture` of
//! `tests/promises` holds who may import whom.

pub(crate) mod app;
#[cfg(feature = "build")]
pub mod build;
pub mod cli;
pub mod config;
mod core;
pub mod delivery;
pub mod language;
pub mod leadership;
mod nearest;
#[cfg(feature = "build")]
pub mod project;
pub mod runtime;
pub mod sandbox;
#[cfg(feature = "build")]
pub mod sdk;
pub mod store;
pub mod supervisor;
pub mod telemetry;

#[cfg(any(test, feature = "suite"))]
pub(crate) use crate::core::fuzz;
pub use crate::core::{
    clock, digest, event, failure, foreign, handler, leadership_proof, repeats, restart, retry,
    subscription, troubles,
};
