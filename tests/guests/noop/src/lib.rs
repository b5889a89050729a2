//! Does nothing, successfully: what a call costs when the handler costs nothing.

use event_host_sdk::{Event, Failure, handler};

#[handler]
fn noop(_event: Event) -> Result<(), Failure> {
    Ok(())
}
