//! What no handler should do. None of these ends by itself, save a refused
//! allocation: the host has to end them.

use std::hint::black_box;

use event_host_sdk::{EmitError, Message, emit, log, state};

pub fn trap() {
    std::process::abort();
}

pub fn spin() {
    let mut turns = 0_u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

/// Fills the stack with calls that cannot become a loop.
pub fn recurse() {
    black_box(deeper(black_box(0), black_box(u64::MAX)));
}

/// Holds nothing whose address is taken, so that its frames lie on the stack
/// that the host limits and not on the one in the guest's memory.
#[inline(never)]
fn deeper(depth: u64, last: u64) -> u64 {
    if depth == last {
        return depth;
    }
    deeper(depth + 1, last).rotate_left(1) ^ depth
}

/// Takes memory until it has so much or is refused, which aborts.
pub fn allocate(mebibytes: usize) {
    let mut held = Vec::new();
    for _ in 0..mebibytes {
        held.push(black_box(vec![1_u8; 1 << 20]));
    }
}

pub fn flood_logs() {
    let line = "flood ".repeat(100);
    loop {
        log::write(log::Level::Info, &line);
    }
}

pub fn flood_emits() -> Result<(), EmitError> {
    loop {
        emit(Message::new("flood"))?;
    }
}

pub fn flood_state() -> Result<(), state::StateError> {
    for number in 0_u64.. {
        state::set(&format!("flood/{number}"), &number)?;
    }
    Ok(())
}
