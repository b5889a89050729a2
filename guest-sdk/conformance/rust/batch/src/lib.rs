//! A handler of batches.

use event_host_sdk::{Event, Failure, batch_handler, log};

#[batch_handler]
fn batch(events: Vec<Event>) -> Vec<Result<(), Failure>> {
    log::info!("batch of {}", events.len());
    events.iter().map(conformance_orders::handle).collect()
}
