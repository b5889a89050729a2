//! What runs between the component's export and the handler.

use crate::bindings::event_host::handler::types as raw;
use crate::{Event, Failure};

/// Calls the handler.
///
/// # Errors
/// The handler's failure.
pub fn handle(
    event: raw::Event,
    handler: fn(Event) -> Result<(), Failure>,
) -> Result<(), raw::Failure> {
    #[cfg(all(target_family = "wasm", target_os = "unknown"))]
    panics::go_to_the_log();
    handler(event.into()).map_err(raw::Failure::from)
}

/// Calls the handler of batches. Gives its failures.
pub fn handle_batch(
    events: Vec<raw::Event>,
    handler: fn(Vec<Event>) -> Vec<Result<(), Failure>>,
) -> Vec<Result<(), raw::Failure>> {
    #[cfg(all(target_family = "wasm", target_os = "unknown"))]
    panics::go_to_the_log();
    let results = handler(events.into_iter().map(Event::from).collect());
    results.into_iter().map(|result| result.map_err(raw::Failure::from)).collect()
}

/// With WASI a panic's message goes to stderr, which the host reads. Without,
/// there is no stderr, and the trap alone would not say what happened.
#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod panics {
    use std::sync::Once;

    use crate::log::{Level, write};

    pub(super) fn go_to_the_log() {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            std::panic::set_hook(Box::new(|panic| write(Level::Error, &panic.to_string())));
        });
    }
}
