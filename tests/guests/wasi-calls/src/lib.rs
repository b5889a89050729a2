//! The few WASI functions that test guests call.
//!
//! The guests are built for `wasm32-unknown-unknown`, whose standard library
//! knows nothing of WASI, so they call it through bindings of their own.

mod bindings {
    wit_bindgen::generate!({ path: "wit", generate_all });
}

pub mod clocks;
pub mod hoard;
pub mod http;
pub mod ways_out;

use std::time::Duration;

use bindings::wasi::cli::{environment, exit as wasi_exit, stderr, stdout};
use bindings::wasi::clocks::monotonic_clock;
use bindings::wasi::io::streams::OutputStream;

/// Where [`print`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// `wasi:cli/stdout`.
    Stdout,
    /// `wasi:cli/stderr`.
    Stderr,
}

/// Blocks in the host for so long.
pub fn sleep(duration: Duration) {
    subscribe(duration).block();
}

/// Leaves `count` resources open in the host for as long as the instance lives.
pub fn leak_resources(count: u64) {
    for _ in 0..count {
        std::mem::forget(subscribe(Duration::from_secs(3600)));
    }
}

fn subscribe(duration: Duration) -> monotonic_clock::Pollable {
    let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    monotonic_clock::subscribe_duration(nanoseconds)
}

/// The value of an environment variable.
pub fn variable(name: &str) -> Option<String> {
    environment::get_environment()
        .into_iter()
        .find_map(|(own, value)| (own == name).then_some(value))
}

/// Writes a text, in the pieces that WASI allows.
///
/// # Errors
/// The stream is closed or failed.
pub fn print(stream: Stream, text: &str) -> Result<(), String> {
    const MOST_AT_ONCE: usize = 4096;
    let stream: OutputStream = match stream {
        Stream::Stdout => stdout::get_stdout(),
        Stream::Stderr => stderr::get_stderr(),
    };
    for piece in text.as_bytes().chunks(MOST_AT_ONCE) {
        stream.blocking_write_and_flush(piece).map_err(|error| format!("printing: {error:?}"))?;
    }
    Ok(())
}

/// Ends the program, as WASI calls it.
pub fn exit(successfully: bool) {
    wasi_exit::exit(if successfully { Ok(()) } else { Err(()) });
}
