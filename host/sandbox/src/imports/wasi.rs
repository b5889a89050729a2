//! WASI 0.2: all of it linked, all of it closed but what is granted.
//!
//! Components of several languages import files and sockets whatever they do,
//! so leaving an import out would refuse them. Here the calls are there and
//! find nothing: no directory, no socket, no name, no argument, an input that
//! has ended, and the granted variables alone. Random numbers are open to all,
//! and clocks that are coarse unless fine ones are granted.

use std::sync::Arc;

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

use super::clocks::{CoarseMonotonicClock, CoarseWallClock};
use super::{HandlerProfile, HostState};
use crate::guest_log::{GuestLog, LineOrigin};
use crate::resource_memory;
use crate::settings::Clocks;

/// What one write may carry; also bounds what `write-zeroes` makes the host
/// allocate.
const WRITE_BYTES: usize = 64 << 10;

impl WasiView for HostState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        // What the call makes is counted when the next one is.
        self.charge_resources(resource_memory::RESOURCE_BYTES);
        let ctx = self.wasi.get_or_insert_with(|| closed(&self.profile, &self.log));
        WasiCtxView { ctx, table: &mut self.resources }
    }
}

fn closed(profile: &HandlerProfile, log: &Arc<GuestLog>) -> WasiCtx {
    let mut builder = WasiCtxBuilder::new();
    let output = |origin| Output { log: Arc::clone(log), origin };
    builder
        .stdout(output(LineOrigin::Stdout))
        .stderr(output(LineOrigin::Stderr))
        .max_random_size(profile.limits.host_call_bytes as u64)
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false);
    if profile.grants.clocks == Clocks::Coarse {
        builder.wall_clock(CoarseWallClock).monotonic_clock(CoarseMonotonicClock::new());
    }
    for (name, value) in &profile.grants.env {
        builder.env(name, value);
    }
    builder.build()
}

/// One of the guest's output streams: its lines go to the log.
struct Output {
    log: Arc<GuestLog>,
    origin: LineOrigin,
}

impl IsTerminal for Output {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Output {
    /// Only later versions of WASI ask for it, which are not linked.
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(Self { log: Arc::clone(&self.log), origin: self.origin })
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Output {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl OutputStream for Output {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.log.bytes(self.origin, &bytes).map_err(StreamError::Trap)
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BYTES)
    }
}
