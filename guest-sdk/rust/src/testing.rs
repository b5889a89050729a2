//! A stand-in for the host, where the crate is not built for wasm.
//!
//! Each thread has its own, and `cargo test` gives each test a thread. State
//! lives as long as the thread, log lines go to stderr, and emitted events wait
//! for [`emitted`]. It takes back nothing when a handler fails, and knows no
//! limits: what a failure or a limit does is the host's to promise.
//!
//! ```
//! use event_host_sdk::{Event, Failure, Message, emit, handler, testing};
//!
//! #[handler]
//! fn greet(event: Event) -> Result<(), Failure> {
//!     emit(Message::new("greeting").text(format!("Hello, {}!", event.text()?)))?;
//!     Ok(())
//! }
//!
//! greet(Event::for_test(Message::new("arrival").text("Ada")))?;
//! assert_eq!(testing::emitted()[0].text()?, "Hello, Ada!");
//! # Ok::<(), Failure>(())
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::{Event, Message};

/// The events that were emitted on this thread since the last call.
#[must_use]
pub fn emitted() -> Vec<Event> {
    HOST.with_borrow_mut(|host| std::mem::take(&mut host.emitted))
        .into_iter()
        .map(Event::for_test)
        .collect()
}

/// Forgets this thread's state and emitted events.
pub fn reset() {
    HOST.with_borrow_mut(|host| *host = Host::default());
}

#[derive(Default)]
struct Host {
    emitted: Vec<Message>,
    state: BTreeMap<String, Vec<u8>>,
}

thread_local! {
    static HOST: RefCell<Host> = RefCell::default();
}

/// The functions of [`crate::host`].
pub(crate) mod stand_in {
    use super::HOST;
    use crate::Message;
    use crate::bindings::event_host::handler::log::Level;
    use crate::bindings::event_host::handler::outbox::{EmitError, Message as RawMessage};
    use crate::bindings::event_host::handler::state::StateError;

    pub(crate) fn emit(message: &RawMessage) -> Result<(), EmitError> {
        if message.type_.is_empty() {
            return Err(EmitError::Invalid("`type` is empty".to_owned()));
        }
        HOST.with_borrow_mut(|host| host.emitted.push(Message::from_raw(message.clone())));
        Ok(())
    }

    pub(crate) fn state_get(key: &str) -> Result<Option<Vec<u8>>, StateError> {
        check(key)?;
        Ok(HOST.with_borrow(|host| host.state.get(key).cloned()))
    }

    pub(crate) fn state_set(key: &str, value: &[u8]) -> Result<(), StateError> {
        check(key)?;
        HOST.with_borrow_mut(|host| host.state.insert(key.to_owned(), value.to_owned()));
        Ok(())
    }

    pub(crate) fn state_delete(key: &str) -> Result<(), StateError> {
        check(key)?;
        HOST.with_borrow_mut(|host| host.state.remove(key));
        Ok(())
    }

    pub(crate) fn state_keys(prefix: &str, limit: u32) -> Result<Vec<String>, StateError> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(HOST.with_borrow(|host| {
            let keys = host.state.keys().filter(|key| key.starts_with(prefix));
            keys.take(limit).cloned().collect()
        }))
    }

    fn check(key: &str) -> Result<(), StateError> {
        match key.len() {
            0 => Err(StateError::InvalidKey("it is empty".to_owned())),
            1..=1024 => Ok(()),
            length => Err(StateError::InvalidKey(format!("it has {length} bytes, over 1,024"))),
        }
    }

    pub(crate) fn log(level: Level, message: &str) {
        eprintln!("{level:?}: {message}");
    }

    pub(crate) fn group() -> String {
        "test".to_owned()
    }

    pub(crate) fn tenant() -> String {
        String::new()
    }

    pub(crate) fn remaining_ms() -> u64 {
        10_000
    }

    pub(crate) fn is_replay() -> bool {
        false
    }

    pub(crate) fn is_late() -> bool {
        false
    }
}
