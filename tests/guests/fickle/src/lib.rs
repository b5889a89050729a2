//! Fails until the attempt that its event's data says, `{"attempt": 3}`, and then
//! emits a `seen` event. It imports no state, so that it runs without an order.

use event_host_sdk::{Event, Failure, Message, emit, handler};
use serde_json::{Value, json};

#[handler]
fn fickle(event: Event) -> Result<(), Failure> {
    let data: Value = event.json()?;
    let attempt = data["attempt"].as_u64().unwrap_or(1);
    if u64::from(event.attempt()) < attempt {
        return Err(Failure::retry(format!("attempt {} fails", event.attempt())));
    }
    let place = json!({ "id": event.id(), "position": event.position() });
    emit(Message::new("seen").subject(event.id()).json(&place)?)?;
    Ok(())
}
