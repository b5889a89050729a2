//! HTTP: listeners, who may do what, the table of routes, and answers that say what is wrong.
//!
//! [`Server`] opens the listeners that [`Settings`] name, and answers by the table in
//! [`routes`], whose head says how to add a route. Before a handler sees a request, the host
//! has looked at its name, its path and method, its token, the roles of that, and its tenant.
//! What handlers do is not known here: they are given by whoever puts the host together.
//!
//! It knows no database and no settings file.

mod body;
mod call;
mod checks;
mod failures;
mod listener;
mod peer;
pub mod problem;
pub mod routes;
mod service;
mod settings;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod token;

/// The body of an answer.
pub use axum_core::body::Body as Answer;
pub use body::{BODY_RATE, BODY_TIME, Body, BodyError};
pub use call::{Call, Caller};
pub use listener::{CannotListen, Inherited, Refused, Server};
pub use peer::Peer;
pub use problem::{Kind, Problem};
pub use routes::hooks::{Hook, Hooks};
pub use routes::{Access, Exposition, Health, Routes, Spec};
pub use settings::{Address, InvalidAddress, Listener, Part, Proxy, Settings, TlsFiles};
