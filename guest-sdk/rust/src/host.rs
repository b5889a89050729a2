//! The one door to the host: its imports in a component, and elsewhere a
//! stand-in, so that a handler runs in ordinary tests.

#[cfg(target_family = "wasm")]
mod imports {
    use crate::bindings::event_host::handler::{context, log, outbox, state};

    pub(crate) use context::{group, is_late, is_replay, remaining_ms, tenant};
    pub(crate) use log::log;
    pub(crate) use outbox::emit;
    pub(crate) use state::{
        delete as state_delete, get as state_get, keys as state_keys, set as state_set,
    };
}

#[cfg(target_family = "wasm")]
pub(crate) use imports::*;

#[cfg(not(target_family = "wasm"))]
pub(crate) use crate::testing::stand_in::*;
