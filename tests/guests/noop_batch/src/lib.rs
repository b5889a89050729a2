//! Does nothing with batches, successfully: what an event costs when the handler
//! costs nothing and the call is shared.

use event_host_sdk::{Event, Failure, batch_handler};

#[batch_handler]
fn noop_batch(events: Vec<Event>) -> Vec<Result<(), Failure>> {
    events.iter().map(|_| Ok(())).collect()
}
