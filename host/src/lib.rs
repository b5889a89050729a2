//! The application behind the `host` program: its command line, its settings, and what
//! makes a host that runs out of them.
//!
//! What it puts together is in crates of their own, beside this one: `core`, `store` with its
//! two databases, `delivery` and `sandbox`. An event flows straight: `store` fetch,
//! `delivery`, `sandbox` call, settlement, `store` settle. `cli` calls `app`, and nothing
//! else calls `cli`; ARCHITECTURE.md says who may import whom.

pub(crate) mod app;
#[cfg(feature = "build")]
pub mod build;
pub mod cli;
pub mod config;
pub mod language;
mod nearest;
#[cfg(feature = "build")]
pub mod project;
pub mod runtime;
#[cfg(feature = "build")]
pub mod sdk;
pub mod telemetry;
