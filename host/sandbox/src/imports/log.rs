//! `log`: lines in the host's log.

use tracing::Level;

use super::HostState;
use crate::bindings::event_host::handler::log::{Host, Level as GuestLevel};

impl Host for HostState {
    fn log(&mut self, level: GuestLevel, message: String) -> wasmtime::Result<()> {
        let level = match level {
            GuestLevel::Trace => Level::TRACE,
            GuestLevel::Debug => Level::DEBUG,
            GuestLevel::Info => Level::INFO,
            GuestLevel::Warn => Level::WARN,
            GuestLevel::Error => Level::ERROR,
        };
        self.log.message(level, &message)
    }
}
