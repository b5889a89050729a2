//! Does what a platform's worst customer might: the handler of the tenant `hostile`.
//!
//! The type of an event says what. None of it ends by itself but the requests: the host
//! has to end the attempt, by one of its limits.

mod requests;

use std::hint::black_box;

use event_host_sdk::{EmitError, Event, Failure, Message, emit, handler, log, state};
use serde::Deserialize;

/// The data of `job.reach` and `job.requests`.
#[derive(Deserialize)]
struct Targets {
    urls: Vec<String>,
}

#[handler]
fn mine(event: Event) -> Result<(), Failure> {
    match event.event_type() {
        "job.trap" => std::process::abort(),
        "job.spin" => spin(),
        "job.wait" => requests::wait_for_ever(),
        "job.allocate" => allocate(),
        "job.recurse" => {
            black_box(deeper(black_box(0)));
            Ok(())
        }
        "job.log" => flood_log(),
        "job.emit" => Ok(flood_emits()?),
        "job.state" => Ok(flood_state()?),
        "job.reach" => reach(&event.json::<Targets>()?.urls),
        "job.requests" => loop {
            // That each is denied is no reason to stop.
            let _ = reach(&event.json::<Targets>()?.urls);
        },
        other => Err(Failure::reject(format!("nobody mines by `{other}`"))),
    }
}

/// Computes for ever.
fn spin() -> ! {
    let mut turns = 0_u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

/// Takes memory until it is refused, which aborts.
fn allocate() -> ! {
    let mut held = Vec::new();
    loop {
        held.push(black_box(vec![1_u8; 1 << 20]));
    }
}

/// Fills the stack with calls that cannot become a loop.
#[inline(never)]
fn deeper(depth: u64) -> u64 {
    if depth == u64::MAX {
        return depth;
    }
    deeper(depth + 1).rotate_left(1) ^ depth
}

fn flood_log() -> ! {
    loop {
        log::info!("mine, mine, mine");
    }
}

fn flood_emits() -> Result<(), EmitError> {
    loop {
        emit(Message::new("coin.found"))?;
    }
}

fn flood_state() -> Result<(), state::StateError> {
    for number in 0_u64.. {
        state::set(&format!("coin/{number}"), &number)?;
    }
    Ok(())
}

/// Asks for each of these addresses, and says what came of it. That somebody answered is
/// worth an event; where nobody did, the job is rejected.
fn reach(urls: &[String]) -> Result<(), Failure> {
    let mut said = Vec::new();
    for url in urls {
        match requests::get(url) {
            Ok(status) => emit(Message::new("address.reached").text(format!("{url}: {status}")))?,
            Err(why) => said.push(format!("{url}: {why}")),
        }
    }
    if said.is_empty() { Ok(()) } else { Err(Failure::reject(said.join("; "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_is_unknown_is_rejected() {
        let failure = mine(Event::for_test(Message::new("job.rest"))).unwrap_err();
        assert!(!failure.is_retry());
    }
}
