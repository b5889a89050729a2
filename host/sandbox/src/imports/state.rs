//! `state`: the group's durable values, as one attempt sees them.

use std::sync::Arc;
use std::time::Instant;

use super::HostState;
use crate::bindings::event_host::handler::state::{Host, StateError};
use crate::ending::{Abort, size};
use crate::settings::names;
use event_host_core::failure::FailureKind;
use event_host_core::handler::state::{AttemptState, StateUnreadable};
use event_host_metrics::Denied;

/// The longest key, in bytes: the contract says so.
const KEY_BYTES: usize = 1_024;

/// What the host keeps of each write besides its key and value, in bytes.
const WRITE_BYTES: usize = 256;

/// The most keys that one call lists.
const KEYS_LISTED: usize = 10_000;

type Answer<T> = wasmtime::Result<Result<T, StateError>>;

impl Host for HostState {
    async fn get(&mut self, key: String) -> Answer<Option<Vec<u8>>> {
        if let Err(error) = self.granted().and_then(|()| checked_key(&key)) {
            return Ok(Err(error));
        }
        let attempt = self.running()?;
        let state = Arc::clone(&attempt.state);
        attempt.store_asked = Some(Instant::now());
        let value = state.get(&key).await;
        attempt.store_asked = None;
        value.map(Ok).map_err(unreadable)
    }

    fn set(&mut self, key: String, value: Vec<u8>) -> Answer<()> {
        if let Err(error) = self.granted().and_then(|()| checked_key(&key)) {
            return Ok(Err(error));
        }
        let limit = self.profile.limits.state_value_bytes;
        if value.len() > limit {
            return Err(Abort::limit(
                FailureKind::StateLimit,
                format!(
                    "wanted to keep a value of {}, {} is {}",
                    size(value.len()),
                    names::STATE_VALUE,
                    size(limit)
                ),
            ));
        }
        self.count_write(key.len() + value.len())?.set(key, value);
        Ok(Ok(()))
    }

    fn delete(&mut self, key: String) -> Answer<()> {
        if let Err(error) = self.granted().and_then(|()| checked_key(&key)) {
            return Ok(Err(error));
        }
        self.count_write(key.len())?.delete(key);
        Ok(Ok(()))
    }

    async fn keys(&mut self, prefix: String, limit: u32) -> Answer<Vec<String>> {
        if let Err(error) = self.granted() {
            return Ok(Err(error));
        }
        if prefix.contains('\0') {
            return Ok(Err(has_nul()));
        }
        let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
        let attempt = self.running()?;
        let state = Arc::clone(&attempt.state);
        attempt.store_asked = Some(Instant::now());
        // One more than is allowed tells whether there are more than that.
        let keys = state.keys(&prefix, wanted.min(KEYS_LISTED + 1)).await;
        attempt.store_asked = None;
        let keys = keys.map_err(unreadable)?;
        if keys.len() > KEYS_LISTED {
            return Err(Abort::limit(
                FailureKind::StateLimit,
                format!(
                    "asked for {limit} keys and there are more than {KEYS_LISTED}, which is what one call lists"
                ),
            ));
        }
        Ok(Ok(keys))
    }
}

impl HostState {
    fn granted(&self) -> Result<(), StateError> {
        if self.profile.grants.state {
            return Ok(());
        }
        self.profile.metrics.denied(Denied::State);
        self.log.denied("the state", "state", "true");
        Err(StateError::Other("the handler may not use its state".to_owned()))
    }

    /// Counts a write against the limits before it is taken.
    fn count_write(&mut self, bytes: usize) -> wasmtime::Result<&AttemptState> {
        let (attempt, limits) = self.limited()?;
        attempt.state_writes += 1;
        attempt.state_bytes = attempt.state_bytes.saturating_add(bytes);
        if attempt.state_writes > limits.state_writes {
            return Err(Abort::limit(
                FailureKind::StateLimit,
                format!("wanted more than {} writes, {}", limits.state_writes, names::STATE_WRITES),
            ));
        }
        if attempt.state_bytes > limits.state_total_bytes {
            return Err(Abort::limit(
                FailureKind::StateLimit,
                format!(
                    "wanted to write {} in all, {} is {}",
                    size(attempt.state_bytes),
                    names::STATE_TOTAL,
                    size(limits.state_total_bytes)
                ),
            ));
        }
        self.charge(bytes.saturating_add(WRITE_BYTES))?;
        Ok(&self.running()?.state)
    }
}

fn checked_key(key: &str) -> Result<(), StateError> {
    if key.is_empty() {
        return Err(StateError::InvalidKey("the key is empty".to_owned()));
    }
    if key.len() > KEY_BYTES {
        return Err(StateError::InvalidKey(format!(
            "the key has {} bytes; the longest has {KEY_BYTES}",
            key.len()
        )));
    }
    if key.contains('\0') {
        return Err(has_nul());
    }
    Ok(())
}

/// PostgreSQL's text cannot hold it, and what one store takes the other must.
fn has_nul() -> StateError {
    StateError::InvalidKey("the key holds a NUL character, which no store can keep".to_owned())
}

#[cold]
fn unreadable(error: StateUnreadable) -> wasmtime::Error {
    Abort::not_run(format!("the state could not be read: {error}"))
}
