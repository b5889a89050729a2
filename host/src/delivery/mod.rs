//! The heart: what is handed to a handler, in which order, how often, and what
//! is recorded of it.
//!
//! Nothing here knows SQL or wasmtime. [`group`] is the loop of one group;
//! [`settlement`], [`ordering`] and [`breaker`] are pure; [`state`] reads what
//! is committed of a group's state, [`admission`] says which attempt may run, and
//! [`replay_component`] chooses the component of a replay that names one. A handler is whatever implements
//! [`Handler`](crate::handler::Handler), a database whatever implements [`crate::store::DeliveryStore`].

pub mod admission;
pub mod breaker;
pub mod group;
pub mod ordering;
pub mod replay_component;
pub mod settlement;
pub mod state;
