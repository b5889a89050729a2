//! Does nothing, successfully: what a call costs when the handler costs nothing. It has the
//! name of the export.

use event_host_sdk::{Event, Failure, handler};

#[handler]
fn handle(_event: Event) -> Result<(), Failure> {
    Ok(())
}
