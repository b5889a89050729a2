//! What the host promises, held against the real program: its own processes,
//! a database on disk, and real components.
//!
//! The numbers in the comments are those of the design's list of promises.

// A test says what it expects by failing, also outside the function that is
// marked as a test.
#![allow(clippy::expect_used, clippy::panic)]

mod architecture;
mod batches;
mod building;
mod commands;
mod compiling;
mod connections;
mod containers;
mod crash;
mod delayed;
mod delivery;
mod deploy;
mod documentation;
mod embedded;
mod exposure;
mod faults;
mod fire;
mod first_load;
mod foreign;
mod grants;
mod health;
mod host_memory;
mod http_handlers;
mod ingest;
mod innocent;
mod languages;
mod leadership;
mod local_users;
mod logs;
mod metrics;
mod network;
mod new;
mod odd;
mod operation;
mod ordering;
mod output;
mod partitions;
mod platform;
mod pooler;
mod postgres;
mod refused;
mod replay;
mod replay_digest;
mod reproduce;
mod retention;
mod sandbox;
mod schedules;
mod swap;
mod tenants;
mod waiting;
mod watch;
mod webhooks;
