//! The threads that read, settle and watch.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// Starts the runtime of a host, with a thread for each core.
///
/// Nothing that runs on it computes for long: handlers have threads of their own, as many
/// again, which make way for these. With more of these, work goes from one to another that
/// sleeps, and the handlers' threads lose their cores to both. With fewer, what is due
/// waits behind other groups' reads: on two cores, one of these drained a log by a tenth
/// faster, and had the slowest hundredth of a light tenant's events wait twice as long
/// beside tenants that saturate the machine.
///
/// # Errors
/// When the system gives no threads.
pub fn start() -> io::Result<Runtime> {
    Builder::new_multi_thread().enable_all().build()
}
