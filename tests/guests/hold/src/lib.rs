//! Waits in a WASI call for the milliseconds that the event's data says, so
//! that a test can hold a handler where it wants it.

use std::time::Duration;

use event_host_sdk::{Event, Failure, handler};

#[handler]
fn hold(event: Event) -> Result<(), Failure> {
    wasi_calls::sleep(Duration::from_millis(event.json()?));
    Ok(())
}
