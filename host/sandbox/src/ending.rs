//! How attempts end other than well: from an error of wasmtime to a kind of
//! failure and a sentence.
//!
//! Host functions and limiters end an attempt by raising an [`Abort`], which
//! travels through the guest as a trap and is found again here. Everything
//! else is a trap of the guest, an answer that cannot be read, or a fault of
//! the host, which never counts against the handler.

use std::fmt::Write as _;

use bytesize::ByteSize;
use wasmtime::{OutOfMemory, PoolConcurrencyLimitError, Trap, WasmBacktrace};
use wasmtime_wasi::{I32Exit, ResourceTableError};

use super::settings::{COMPONENT_HANDLES, Limits, OPEN_RESOURCES, names};
use event_host_core::failure::{Failure, FailureKind};
use event_host_core::handler::Outcome;

/// Frames of the guest's stack that a trap's text shows.
const FRAMES_SHOWN: usize = 8;

/// Bytes of one function's name that a trap's text shows.
const FRAME_BYTES: usize = 160;

/// Why the host ended an attempt from within.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Abort {
    /// The guest went over a limit, or over time.
    #[error("{text}")]
    Limit { kind: FailureKind, text: String },
    /// Something failed that is not the guest's.
    #[error("{0}")]
    NotRun(String),
}

impl Abort {
    /// The error that ends the attempt with this kind of failure.
    #[cold]
    pub(super) fn limit(kind: FailureKind, text: String) -> wasmtime::Error {
        Self::Limit { kind, text }.into()
    }

    /// The error that ends the attempt without counting it.
    #[cold]
    pub(super) fn not_run(text: String) -> wasmtime::Error {
        Self::NotRun(text).into()
    }

    /// How the attempt ended.
    #[cold]
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Limit { kind, text } => Outcome::Failure(Failure::new(*kind, text)),
            Self::NotRun(text) => Outcome::NotRun(text.clone()),
        }
    }

    /// The error of an attempt that takes too long.
    #[cold]
    pub(super) fn timeout(limits: &Limits) -> wasmtime::Error {
        Self::limit(FailureKind::Timeout, timeout_text(limits))
    }
}

pub(super) fn timeout_text(limits: &Limits) -> String {
    format!("took longer than {}, {:?}", names::TIMEOUT, limits.timeout)
}

/// A number of bytes as people read it.
pub(super) fn size(bytes: usize) -> String {
    ByteSize::b(bytes as u64).display().iec().to_string()
}

/// What the guest was doing when the error came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its instance was being made; start functions ran.
    Start,
    /// It handled an event.
    Call,
}

/// Tells what an error means for the attempt of a guest with these limits, and a stack of
/// `stack_bytes`.
#[cold]
pub(super) fn outcome(
    error: &wasmtime::Error,
    phase: Phase,
    limits: &Limits,
    stack_bytes: usize,
) -> Outcome {
    let failed = |kind, text: &str| Outcome::Failure(Failure::new(kind, text));

    if let Some(ending) = error.downcast_ref::<Abort>() {
        return ending.outcome();
    }
    if let Some(I32Exit(status)) = error.downcast_ref() {
        return failed(
            FailureKind::Exit,
            &format!("called exit with status {status}; a handler returns instead"),
        );
    }
    if let Some(full) = error.downcast_ref::<PoolConcurrencyLimitError>() {
        return Outcome::NotRun(format!("no room for another instance: {full}"));
    }
    if error.is::<OutOfMemory>() {
        return Outcome::NotRun(format!("the host is out of memory: {error}"));
    }
    if let Some(ResourceTableError::Full) = error.downcast_ref() {
        return failed(
            FailureKind::HostCallLimit,
            &format!("wanted more than {OPEN_RESOURCES} open WASI resources"),
        );
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::StackOverflow) => {
            let text = format!("used up its stack of {}", size(stack_bytes));
            return failed(FailureKind::StackLimit, &with_frames(&text, error));
        }
        Some(Trap::OutOfFuel) => {
            let fuel = limits.fuel.unwrap_or_default();
            return failed(
                FailureKind::Fuel,
                &format!("used up its fuel, {} is {fuel}", names::FUEL),
            );
        }
        Some(trap) => {
            let trap = trap.to_string();
            let trap = trap.strip_prefix("wasm trap: ").unwrap_or(&trap);
            return failed(FailureKind::Trap, &with_frames(trap, error));
        }
        None => {}
    }

    // wasmtime keeps the types of these to itself.
    let root = error.root_cause().to_string();
    if root.contains("fuel allocated for hostcalls has been exhausted") {
        return failed(
            FailureKind::HostCallLimit,
            &format!(
                "handed the host more than {} in one call, {}",
                names::HOST_CALL,
                size(limits.host_call_bytes)
            ),
        );
    }
    if root.contains("store handle limit exceeded") {
        return failed(
            FailureKind::HostCallLimit,
            &format!("wanted more than {COMPONENT_HANDLES} open handles"),
        );
    }
    if root.starts_with("resource limit exceeded") {
        let kind = if root.contains("table count") {
            FailureKind::TableLimit
        } else {
            FailureKind::MemoryLimit
        };
        return failed(kind, &root);
    }

    if error.is::<WasmBacktrace>() {
        // A host function refused what it was given.
        return failed(FailureKind::Trap, &with_frames(&root, error));
    }
    match phase {
        // Nothing of the guest is on the stack: its answer was being read.
        Phase::Call => failed(FailureKind::BadAnswer, &chain(error)),
        Phase::Start => Outcome::NotRun(format!("no instance could be made: {}", chain(error))),
    }
}

/// With what the attempt last wrote to stderr or as an error, where the guest gave up by
/// itself: there its runtime says why.
#[cold]
pub(super) fn with_last_words(outcome: Outcome, last: &[u8]) -> Outcome {
    let Outcome::Failure(Failure {
        kind: kind @ (FailureKind::Trap | FailureKind::Exit | FailureKind::NoAnswer),
        text,
        ..
    }) = &outcome
    else {
        return outcome;
    };
    let last = String::from_utf8_lossy(last);
    let mut lines = last.lines().map(str::trim_end).filter(|line| !line.is_empty()).peekable();
    if lines.peek().is_none() {
        return outcome;
    }
    let mut text = format!("{text}\n  it last wrote:");
    for line in lines {
        text.push_str("\n    ");
        text.push_str(line);
    }
    Outcome::Failure(Failure::new(*kind, &text))
}

/// An error with its causes, in one line.
pub(super) fn chain(error: &wasmtime::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

/// The text with the guest's innermost functions, each on a line of its own.
fn with_frames(text: &str, error: &wasmtime::Error) -> String {
    let mut text = text.to_owned();
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else { return text };
    let frames = backtrace.frames();
    for frame in frames.iter().take(FRAMES_SHOWN) {
        text.push_str("\n  in ");
        match frame.func_name() {
            Some(name) => {
                let name = format!("{:#}", rustc_demangle::demangle(name)).replace('\n', " ");
                text.push_str(&event_host_core::failure::storable(
                    &event_host_core::foreign::one_line(&name),
                    FRAME_BYTES,
                ));
            }
            None => {
                // Writing to a string cannot fail.
                let _ = write!(text, "function {}", frame.func_index());
            }
        }
    }
    if frames.len() > FRAMES_SHOWN {
        text.push_str("\n  in further functions");
    }
    text
}
