//! `context`: what a handler may know of the call it is in.

use std::time::Instant;

use super::HostState;
use crate::bindings::event_host::handler::context::Host;

impl Host for HostState {
    fn group(&mut self) -> wasmtime::Result<String> {
        Ok(self.running()?.group.as_str().to_owned())
    }

    fn tenant(&mut self) -> wasmtime::Result<String> {
        Ok(self.running()?.tenant.as_str().to_owned())
    }

    fn remaining_ms(&mut self) -> wasmtime::Result<u64> {
        let left = self.running()?.deadline.saturating_duration_since(Instant::now());
        Ok(u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
    }

    fn is_replay(&mut self) -> wasmtime::Result<bool> {
        Ok(self.running()?.is_replay)
    }

    fn is_late(&mut self) -> wasmtime::Result<bool> {
        Ok(self.running()?.is_late)
    }
}
