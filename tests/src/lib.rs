//! What the black-box tests stand on: a folder with settings and a database of
//! its own for each test, and the real host program, run in it.
//!
//! Everything here waits for what it waits for, with a deadline, and panics
//! with what it saw instead.

// A library of tests: it says what it expects by failing, as a test does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod database;
#[cfg(test)]
mod echo;
mod guests;
mod handlers;
mod http;
mod namespace;
mod pooler;
mod process;
mod proxy;
mod rig;

use std::time::{Duration, Instant};

pub use database::{Client, Store};
pub use guests::{guest_of_text, guest_that_compiles_slowly};
pub use handlers::{Handler, Settings, guest_file, version_of_guest};
pub use http::{Answer, Http, get};
pub use namespace::Namespace;
pub use pooler::{Pooler, Pooling};
pub use process::{Finished, Running};
pub use proxy::{Connection, Proxy, Traffic};
pub use rig::{Rig, event, with};

/// How long a test waits for something that should take far less.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How often something is looked at that cannot be waited for.
const LOOK: Duration = Duration::from_millis(10);

/// Looks again and again until `look` finds something, and gives that.
///
/// # Panics
/// When it finds nothing within `deadline`.
pub fn wait_for<T>(what: &str, deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < deadline, "not within {deadline:?}: {what}");
        std::thread::sleep(LOOK);
    }
}

/// Looks again and again until `look` is true.
///
/// # Panics
/// When it is not within `deadline`.
pub fn wait_until(what: &str, deadline: Duration, mut look: impl FnMut() -> bool) {
    wait_for(what, deadline, || look().then_some(()));
}
