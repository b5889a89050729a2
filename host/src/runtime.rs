//! The runtime: the threads that read, settle and watch; and the limit on open files.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};
use tracing::warn;

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

/// Lets the process have as many files open as the system allows it at most. The limit
/// that it begins with is for programs that cannot tell more than 1,024 apart.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!("the limit on open files stays at {:?}: {error}", limit.current);
    }
}
