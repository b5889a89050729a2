//! Small durable values of the consumer group.
//!
//! Reads see the writes of the same call. Writes are kept when, and only when,
//! the call succeeds, together with the fact that the event is done: a counter
//! kept here is exact, however often an event is tried.
//!
//! ```
//! use event_host_sdk::{Event, Failure, handler, state};
//!
//! #[handler]
//! fn count(event: Event) -> Result<(), Failure> {
//!     let key = format!("count/{}", event.event_type());
//!     let seen: u64 = state::get(&key)?.unwrap_or(0);
//!     state::set(&key, &(seen + 1))?;
//!     Ok(())
//! }
//! # let event = || Event::for_test(event_host_sdk::Message::new("t"));
//! # count(event())?;
//! # count(event())?;
//! # assert_eq!(state::get("count/t")?, Some(2));
//! # Ok::<(), Failure>(())
//! ```

use std::error::Error;
use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bindings::event_host::handler::state as raw;
use crate::host;

/// The value of a key, decoded from JSON, or `None` if the key has none.
///
/// # Errors
/// The key is not allowed, or its value is not what `T` wants.
pub fn get<T: DeserializeOwned>(key: &str) -> Result<Option<T>, StateError> {
    let Some(bytes) = get_bytes(key)? else {
        return Ok(None);
    };
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(Some(value)),
        Err(error) => Err(StateError::Decode { key: key.to_owned(), error }),
    }
}

/// Gives a key a value, as JSON.
///
/// # Errors
/// The key is not allowed, or the value has no JSON form. A value over the
/// limit is no error that returns: it ends the attempt.
pub fn set<T: Serialize + ?Sized>(key: &str, value: &T) -> Result<(), StateError> {
    match serde_json::to_vec(value) {
        Ok(bytes) => set_bytes(key, &bytes),
        Err(error) => Err(StateError::Encode { key: key.to_owned(), error }),
    }
}

/// The value of a key as the bytes that were set.
///
/// # Errors
/// The key is not allowed.
pub fn get_bytes(key: &str) -> Result<Option<Vec<u8>>, StateError> {
    Ok(host::state_get(key)?)
}

/// Gives a key a value of bytes.
///
/// # Errors
/// The key is not allowed.
pub fn set_bytes(key: &str, value: &[u8]) -> Result<(), StateError> {
    Ok(host::state_set(key, value)?)
}

/// Removes a key; one that is absent is no error.
///
/// # Errors
/// The key is not allowed.
pub fn delete(key: &str) -> Result<(), StateError> {
    Ok(host::state_delete(key)?)
}

/// The first `limit` keys that start with `prefix`, sorted by their bytes.
///
/// # Errors
/// The host refuses; it says why.
pub fn keys(prefix: &str, limit: u32) -> Result<Vec<String>, StateError> {
    Ok(host::state_keys(prefix, limit)?)
}

/// Why a state operation failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum StateError {
    /// The key is empty or too long; the text says which.
    InvalidKey(String),
    /// The stored value is not what the handler wants.
    Decode {
        /// The key.
        key: String,
        /// What does not fit.
        error: serde_json::Error,
    },
    /// The new value has no JSON form.
    Encode {
        /// The key.
        key: String,
        /// What has none.
        error: serde_json::Error,
    },
    /// Anything else that the host says.
    Other(String),
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidKey(text) => write!(f, "not a key of the state: {text}"),
            Self::Decode { key, .. } => {
                write!(f, "the state's `{key}` is not the JSON that this handler takes")
            }
            Self::Encode { key, .. } => {
                write!(f, "the new value of the state's `{key}` has no JSON form")
            }
            Self::Other(text) => write!(f, "the state is not available: {text}"),
        }
    }
}

impl Error for StateError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Decode { error, .. } | Self::Encode { error, .. } => Some(error),
            Self::InvalidKey(_) | Self::Other(_) => None,
        }
    }
}

impl From<raw::StateError> for StateError {
    fn from(error: raw::StateError) -> Self {
        match error {
            raw::StateError::InvalidKey(text) => Self::InvalidKey(text),
            raw::StateError::Other(text) => Self::Other(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Failure;

    #[test]
    fn values_come_back_as_they_were_set_until_they_are_deleted() {
        set("a/1", &vec![1, 2]).unwrap();
        set("a/2", "text").unwrap();
        set_bytes("b", &[0xff]).unwrap();
        assert_eq!(get("a/1").unwrap(), Some(vec![1, 2]));
        assert_eq!(get("a/2").unwrap(), Some("text".to_owned()));
        assert_eq!(get_bytes("b").unwrap(), Some(vec![0xff]));
        assert_eq!(keys("a/", 10).unwrap(), ["a/1", "a/2"]);
        assert_eq!(keys("", 2).unwrap(), ["a/1", "a/2"]);
        delete("a/1").unwrap();
        delete("a/1").unwrap();
        assert_eq!(get::<u8>("a/1").unwrap(), None);
    }

    #[test]
    fn a_value_of_another_form_is_a_retry_not_a_rejection_of_the_event() {
        set("n", "text").unwrap();
        let failure = Failure::from(get::<u64>("n").unwrap_err());
        assert!(failure.is_retry());
        assert!(failure.reason().starts_with("the state's `n` is not the JSON"), "{failure}");
        assert!(matches!(get::<u64>(""), Err(StateError::InvalidKey(_))));
    }
}
