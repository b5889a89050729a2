//! For whoever writes a store: what databases have in common, such as how things are
//! written in columns, in which words they are refused, and how a backlog is counted.

pub mod backlog;
pub mod dead_letter_pages;
pub mod gone;
mod intact;
pub mod ledger;
pub mod migrations;
pub mod prefix;
pub mod redelivery;
pub mod refusals;
pub mod repartition;
pub mod stored;
pub mod unreadable;

pub use crate::retention::unpinned_reason;
pub use intact::intact;
