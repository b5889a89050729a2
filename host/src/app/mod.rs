//! The application: from settings to a host that runs.
//!
//! Opens the store, loads components, puts together the groups that the supervisor runs,
//! and loads them again when the settings, the files, the sources or the deployments change.
//! It promises that what is refused leaves everything that runs in place.
//!
//! It knows no command line and prints nothing: what is to be said to the person who
//! started a command goes to a [`Say`], and everything else is logged. So the command line
//! and another surface can both call it.

pub(crate) mod asking;
pub(crate) mod attempt;
#[cfg(feature = "build")]
pub(crate) mod build;
pub(crate) mod database;
mod deployments;
pub(crate) mod engine;
mod health;
pub(crate) mod host;
pub(crate) mod http;
pub(crate) mod loading;
pub(crate) mod loads;
pub(crate) mod named_component;
mod notes;
mod overview;
mod parts;
pub(crate) mod permissions;
mod plan;
mod problems;
#[cfg(feature = "build")]
pub(crate) mod rebuild;
mod reload;
mod running;
pub(crate) mod secrets;
pub(crate) mod serve;
mod service_manager;
mod starting;
mod wanted;
mod watch;

use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;

use event_host_sandbox::Sandbox;

/// Says a line to the person who started the command, such as why a handler is refused.
pub(crate) type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// Begins to show what a sandbox compiles, until its answer is dropped.
pub(crate) type Show = fn(&Sandbox) -> AbortOnDropHandle<()>;
