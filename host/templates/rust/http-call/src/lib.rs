//! Sends each order to a web service, and emits what the service says.

use std::time::Duration;

use event_host_sdk::{Event, Failure, InvalidEvent, Message, emit, handler, log};
use wstd::http::{Body, Client, Request};

/// Where orders go. `allow.http` in the settings lets requests to it out, and to no other.
const SERVICE: &str = "http://localhost:8080/orders";

#[derive(serde::Deserialize)]
struct Order {
    id: u64,
}

/// What the service answered.
struct Answer {
    status: u16,
    body: Vec<u8>,
}

#[handler]
fn handle(event: Event) -> Result<(), Failure> {
    forward(&event, |order| wstd::runtime::block_on(post(order)))
}

/// Forwards an order by `send`, which a test replaces.
fn forward(
    event: &Event,
    send: impl FnOnce(Vec<u8>) -> Result<Answer, Failure>,
) -> Result<(), Failure> {
    let order: Order = event.json()?;
    let answer = send(event.data().to_vec())?;
    log::info!("order {}: the service says {}", order.id, answer.status);
    match answer.status {
        200..=299 => {
            let said = Message::new("order.forwarded").data(answer.body, "application/json");
            Ok(emit(said.subject(order.id.to_string()))?)
        }
        // It may take the order later.
        408 | 425 | 429 | 500.. => {
            let failure = Failure::retry(format!("the service says {}", answer.status));
            Err(failure.after(Duration::from_secs(5)))
        }
        refused => Err(InvalidEvent::new(format!("the service says {refused}")).into()),
    }
}

/// Sends it. The host gives each attempt for an event the same `Idempotency-Key`.
async fn post(order: Vec<u8>) -> Result<Answer, Failure> {
    let request = Request::post(SERVICE).header("content-type", "application/json");
    let request = request.body(Body::from(order)).map_err(Failure::of)?;
    let failed = |why| Failure::retry(format!("{SERVICE}: {why}"));
    let response = Client::new().send(request).await.map_err(failed)?;
    let status = response.status().as_u16();
    let mut body = response.into_body();
    let body = body.contents().await.map_err(failed)?.to_vec();
    Ok(Answer { status, body })
}

#[cfg(test)]
mod tests {
    use event_host_sdk::testing;

    use super::*;

    fn placed() -> Event {
        Event::for_test(Message::new("order.placed").data(r#"{"id": 7}"#, "application/json"))
    }

    fn answer(status: u16) -> Result<Answer, Failure> {
        Ok(Answer { status, body: br#"{"place": 3}"#.to_vec() })
    }

    #[test]
    fn what_the_service_says_is_emitted() {
        forward(&placed(), |order| {
            assert_eq!(order, br#"{"id": 7}"#);
            answer(200)
        })
        .unwrap();
        let emitted = testing::emitted();
        assert_eq!(emitted[0].event_type(), "order.forwarded");
        assert_eq!(emitted[0].subject(), Some("7"));
        assert_eq!(emitted[0].text().unwrap(), r#"{"place": 3}"#);
    }

    #[test]
    fn an_order_comes_again_if_the_service_is_busy_and_not_if_it_refuses() {
        assert!(forward(&placed(), |_| answer(503)).unwrap_err().is_retry());
        let refused = forward(&placed(), |_| answer(422)).unwrap_err();
        assert!(!refused.is_retry());
        assert!(testing::emitted().is_empty());
    }
}
