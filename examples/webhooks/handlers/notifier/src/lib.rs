//! Tells people what they should know of.
//!
//! Takes new pull requests, published releases, and what the other two handlers
//! emit, and makes a notice of each: one line of text and a link. The notice is
//! a `notice.sent` event, for whatever posts it to a chat.
//!
//! A receiver can be out of order. Here the payload says so: with
//! `"receiver": { "unavailable_until_attempt": 3 }` the first two attempts ask
//! for another one, as they would for an answer of 503.

mod notice;

use std::time::Duration;

use event_host_sdk::{Event, Failure, InvalidEvent, Message, emit, handler, log};
use serde::Deserialize;

use crate::notice::Notice;

#[derive(Deserialize)]
struct Delivery {
    receiver: Option<Receiver>,
}

#[derive(Deserialize)]
struct Receiver {
    unavailable_until_attempt: u32,
}

#[handler]
fn notify(event: Event) -> Result<(), Failure> {
    let notice = Notice::of(&event)?;
    let delivery: Delivery = event.json()?;
    if let Some(Receiver { unavailable_until_attempt: attempt }) = delivery.receiver
        && event.attempt() < attempt
    {
        log::warn!("attempt {}: the receiver is unavailable", event.attempt());
        let failure = Failure::retry("the receiver is unavailable (503)");
        return Err(failure.after(Duration::from_millis(100)));
    }
    log::debug!("{}", notice.text);
    emit(Message::new("notice.sent").subject(event.id()).json(&notice)?)?;
    Ok(())
}

impl Notice {
    /// The notice of an event.
    fn of(event: &Event) -> Result<Self, InvalidEvent> {
        match event.event_type() {
            "com.github.pull_request.opened" => {
                Ok(event.json::<notice::PullRequestOpened>()?.into())
            }
            "com.github.release.published" => Ok(event.json::<notice::ReleasePublished>()?.into()),
            "triage.labelled" => Ok(event.json::<notice::Labelled>()?.into()),
            "tally.milestone" => Ok(event.json::<notice::Milestone>()?.into()),
            other => Err(InvalidEvent::new(format!("there is no notice for `{other}`"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use event_host_sdk::testing;
    use serde_json::{Value, json};

    fn pull_request(data: &Value) -> Event {
        Event::for_test(Message::new("com.github.pull_request.opened").json(data).unwrap())
    }

    fn sound() -> Value {
        json!({
            "pull_request": { "number": 3, "title": "Add a crane", "body": null },
            "repository": { "full_name": "harbour/dock" },
            "sender": { "login": "ada" },
        })
    }

    #[test]
    fn a_notice_is_sent_for_a_sound_payload() {
        notify(pull_request(&sound())).unwrap();
        let sent: Value = testing::emitted()[0].json().unwrap();
        assert_eq!(sent["text"], "harbour/dock#3: ada opened “Add a crane”");
        assert_eq!(sent["url"], Value::Null);
    }

    #[test]
    fn an_unavailable_receiver_is_tried_again_until_it_is_there() {
        let mut data = sound();
        data["receiver"] = json!({ "unavailable_until_attempt": 3 });
        for attempt in 1..3 {
            let failure = notify(pull_request(&data).on_attempt(attempt)).unwrap_err();
            assert!(failure.is_retry());
            assert_eq!(failure.delay(), Some(Duration::from_millis(100)));
        }
        assert!(testing::emitted().is_empty());
        notify(pull_request(&data).on_attempt(3)).unwrap();
        assert_eq!(testing::emitted().len(), 1);
    }

    #[test]
    fn a_malformed_payload_is_rejected_at_once() {
        let mut data = sound();
        data["pull_request"] = Value::Null;
        let failure = notify(pull_request(&data)).unwrap_err();
        assert!(!failure.is_retry());
        assert!(failure.reason().contains("invalid type: null"), "{failure}");
    }

    #[test]
    fn what_has_no_notice_is_rejected_by_name() {
        let event = Event::for_test(Message::new("com.github.push"));
        let failure = notify(event).unwrap_err();
        assert_eq!(failure, Failure::reject("there is no notice for `com.github.push`"));
    }
}
