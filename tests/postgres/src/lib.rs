//! PostgreSQL servers of a test's own, from the installed programs.
//!
//! A [`Server`] has its own data, port and sockets, and may be stopped, crashed
//! and restarted without disturbing anybody. It does not outlive the process
//! that started it, however that ends.
//!
//! Databases on a server that several tests share are the matter of the crate
//! `test-databases`; this one speaks to no server, so that it compiles fast.

mod binaries;
mod guard;
mod server;
mod user;

pub use binaries::{Binaries, Missing};
pub use server::{Server, Stop};
pub use user::folder_for_everybody;
