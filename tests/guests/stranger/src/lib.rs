//! What somebody writes who knows the contract and has none of our SDKs: plain
//! `wit-bindgen` over `wit/`. It counts orders, retries one until attempt 3, and rejects
//! another.

use serde_json::{Value, json};

use self::event_host::handler::types::Retry;
use self::event_host::handler::{context, log, outbox, state};
use self::exports::event_host::handler::handler::{Event, Failure, Guest};

wit_bindgen::generate!({ path: "../../../wit", world: "event-handler" });

struct Stranger;

export!(Stranger);

fn retry(reason: impl ToString, after_ms: Option<u64>) -> Failure {
    Failure::Retry(Retry { reason: reason.to_string(), after_ms })
}

fn count() -> Result<i64, Failure> {
    let value = state::get("count").map_err(|error| retry(error, None))?;
    let Some(value) = value else { return Ok(0) };
    serde_json::from_slice(&value).map_err(|error| retry(error, None))
}

impl Guest for Stranger {
    fn handle(event: Event) -> Result<(), Failure> {
        let order: Value = serde_json::from_slice(&event.data)
            .map_err(|error| Failure::Reject(error.to_string()))?;
        let name = order["name"].as_str().unwrap_or_default();
        log::log(log::Level::Info, &format!("order {} of {}", order["id"], context::group()));
        match order["cmd"].as_str() {
            Some("retry") if event.attempt < 3 => {
                return Err(retry(format!("not yet: {}", event.attempt), Some(50)));
            }
            Some("reject") => return Err(Failure::Reject(format!("no: {name}"))),
            _ => {}
        }
        let count = count()? + 1;
        state::set("count", count.to_string().as_bytes()).map_err(|error| retry(error, None))?;
        let data =
            json!({ "id": order["id"], "name": name, "count": count, "attempt": event.attempt });
        outbox::emit(&outbox::Message {
            type_: "order.done".to_owned(),
            data: data.to_string().into_bytes(),
            id: None,
            source: None,
            subject: Some(order["id"].to_string()),
            time: None,
            datacontenttype: None,
            dataschema: None,
            partitionkey: None,
            extensions: event.extensions,
        })
        .map_err(|error| retry(error, None))
    }
}
