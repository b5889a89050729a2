//! Says which version of it handled an event, so that a test can tell versions
//! apart: a test makes one by writing another number over the digits in the
//! built file.
//!
//! It counts each event in its state, and emits a `seen` event with the
//! version. From version 90000000 on it fails everything.

use event_host_sdk::{Event, Failure, Message, emit, handler, state};
use serde_json::json;

static VERSION: [u8; 24] = *b"versioned-guest:00000000";

#[handler]
fn versioned(event: Event) -> Result<(), Failure> {
    let version = version();
    if version >= 90_000_000 {
        return Err(Failure::retry(format!("version {version} fails everything")));
    }
    let seen: u64 = state::get("count")?.unwrap_or(0);
    state::set("count", &(seen + 1))?;
    let data = json!({ "id": event.id(), "version": version });
    emit(Message::new("seen").subject(event.id()).json(&data)?)?;
    Ok(())
}

fn version() -> u32 {
    // Read where it stands, or the compiler would keep the number it sees here.
    let digits = (16..24).map(|digit| {
        let digit = std::hint::black_box(&VERSION)[digit];
        u32::from(digit - b'0')
    });
    digits.fold(0, |version, digit| version * 10 + digit)
}
