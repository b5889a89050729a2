//! Write `event-host` handlers in Rust.
//!
//! A handler is a plain function. The host calls it with one event at a time;
//! whatever it emits or writes to its state is kept when, and only when, it
//! returns `Ok`, in the same transaction that marks the event as done.
//!
//! ```
//! use event_host_sdk::{Event, Failure, Message, emit, handler};
//!
//! #[derive(serde::Deserialize)]
//! struct Order {
//!     id: u64,
//!     total: f64,
//! }
//!
//! #[handler]
//! fn review(event: Event) -> Result<(), Failure> {
//!     let order: Order = event.json()?;
//!     if order.total > 1_000.0 {
//!         emit(Message::new("order.review").subject(order.id.to_string()))?;
//!     }
//!     Ok(())
//! }
//! # review(Event::for_test(Message::new("order.placed").json(&serde_json::json!({"id": 7, "total": 1e6}))?))?;
//! # assert_eq!(event_host_sdk::testing::emitted().len(), 1);
//! # Ok::<(), Failure>(())
//! ```
//!
//! # Batches
//!
//! Where many events in one call are cheaper than each by itself, as for one request
//! or one write to the state for all of them, [`batch_handler`] takes a `Vec` of them
//! and returns a result for each. The host calls it with up to `batch.size` events
//! at a time: of one `partitionkey` with `ordering = "key"`.
//!
//! ```
//! use event_host_sdk::{Event, Failure, batch_handler, state};
//!
//! #[batch_handler]
//! fn total(events: Vec<Event>) -> Vec<Result<(), Failure>> {
//!     let amounts: Vec<Result<u64, _>> = events.iter().map(Event::json).collect();
//!     let sum: u64 = amounts.iter().flatten().sum();
//!     if let Err(error) = add(sum) {
//!         return events.iter().map(|_| Err(error.clone())).collect();
//!     }
//!     amounts.into_iter().map(|amount| Ok(amount.map(drop)?)).collect()
//! }
//!
//! fn add(sum: u64) -> Result<(), Failure> {
//!     let before: u64 = state::get("total")?.unwrap_or(0);
//!     Ok(state::set("total", &(before + sum))?)
//! }
//! # use event_host_sdk::Message;
//! # let amount = |text: &str| Event::for_test(Message::new("paid").text(text));
//! # assert_eq!(total(vec![amount("1"), amount("2")]), [Ok(()), Ok(())]);
//! # assert_eq!(state::get::<u64>("total").unwrap(), Some(3));
//! # assert!(total(vec![amount("x")])[0].is_err());
//! ```
//!
//! What is emitted and written in a call belongs to all its events together. It is
//! kept when every result is `Ok`. Else, and after a panic, nothing of the call
//! counts, and the same events come again one by one, each in a call of its own.
//! So one bad event costs its neighbours a second call, and nothing else; what the
//! first call did outside of the host, it did.
//!
//! # Building
//!
//! ```toml
//! [lib]
//! crate-type = ["cdylib"]
//! ```
//!
//! `cargo build --release --target wasm32-unknown-unknown` makes a module that
//! the host takes as it is. `wasm32-wasip2` makes a component with WASI, for
//! handlers that use what their settings grant: environment variables, a clock.
//! On `wasm32-unknown-unknown` the standard library has neither, and
//! `SystemTime::now` panics.
//!
//! # Failing
//!
//! | returned | what the host does |
//! | --- | --- |
//! | `Ok(())` | the event is done |
//! | [`Failure::retry`] | calls again later, with backoff; after the last attempt the event becomes a dead letter |
//! | [`Failure::reject`] | makes the event a dead letter at once |
//! | an [`InvalidEvent`], from [`Event::json`] and the like | like a rejection: the event will not get better |
//! | any other error | like a retry, with the error and its causes as the reason |
//! | a panic | like a retry; the message goes to the host's log, and into the dead letter |
//!
//! `?` does the right thing in a function that returns `Result<(), Failure>`,
//! and so it does in one that returns `anyhow::Result<()>` or
//! `Result<(), Box<dyn Error>>`. To give a [`Failure`] of your own in one of
//! those, see [`Failure::into_error`].
//!
//! # Testing
//!
//! Built for anything but wasm, the crate has a stand-in for the host: see
//! [`testing`]. A handler can be called like any other function.
#![deny(missing_docs)]

#[doc(hidden)]
pub mod bindings;
pub mod context;
mod event;
mod failure;
mod host;
pub mod log;
mod outbox;
mod runtime;
pub mod state;
#[cfg(not(target_family = "wasm"))]
pub mod testing;

pub use event::{Event, ExtensionValue, FromExtension, InvalidEvent};
pub use event_host_sdk_macros::{batch_handler, handler};
pub use failure::{Failure, FailureError, IntoFailure};
pub use outbox::{EmitError, Message, emit};

/// What `#[handler]` and `#[batch_handler]` expand to. No part of the public interface.
#[doc(hidden)]
pub mod __private {
    pub use crate::bindings;
    pub use crate::bindings::batch::export_batch;
    pub use crate::bindings::batch::exports::event_host::handler::batch_handler::Guest as BatchGuest;
    pub use crate::bindings::event_host::handler::types::{Event, Failure};
    pub use crate::bindings::export;
    pub use crate::bindings::exports::event_host::handler::handler::Guest;
    pub use crate::failure::{into_failure, into_failures};
    pub use crate::runtime::{handle, handle_batch};
}

/// The handler in the project's README, so that it compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
