//! A handler of single events.

use event_host_sdk::{Event, Failure, handler};

#[handler]
fn single(event: Event) -> Result<(), Failure> {
    conformance_orders::handle(&event)
}
