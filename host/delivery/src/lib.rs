//! The heart: what is handed to a handler, in which order, how often, and what
//! is recorded of it.
//!
//! Nothing here knows SQL or wasmtime. [`group`] is the loop of one group;
//! [`settlement`], [`ordering`] and [`breaker`] are pure; [`state`] reads what
//! is committed of a group's state, [`admission`] says which attempt may run,
//! [`replay_component`] chooses the component of a replay that names one,
//! [`leadership`] leads or stands by, and [`supervisor`] runs all groups of a host. A handler
//! is whatever implements [`Handler`](event_host_core::handler::Handler), a database whatever
//! implements [`event_host_store::DeliveryStore`].

pub mod admission;
pub mod breaker;
pub mod group;
pub mod leadership;
pub mod ordering;
pub mod replay_component;
pub mod settlement;
pub mod state;
pub mod supervisor;
