//! The types that all crates of the host share: the event and its names, failures, digests,
//! the seam of handlers. Nothing here reads or writes a file, a socket or a database.

pub mod clock;
pub mod digest;
pub mod event;
pub mod failure;
pub mod foreign;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod handler;
pub mod leadership_proof;
pub mod pulse;
pub mod repeats;
pub mod restart;
pub mod retry;
pub mod subscription;
pub mod troubles;
