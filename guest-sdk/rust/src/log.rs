//! Writing lines to the host's log.
//!
//! The host adds the group, the handler, the event's id and the attempt. What a
//! call may write in all is limited; going over that limit ends the attempt.
//!
//! ```
//! use event_host_sdk::log;
//!
//! let labels = 3;
//! log::info!("set {labels} labels");
//! log::write(log::Level::Warn, "no rule fits");
//! ```

use crate::bindings::event_host::handler::log as raw;
use crate::host;

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Steps, for whoever debugs the handler.
    Trace,
    /// Details.
    Debug,
    /// What is worth knowing.
    Info,
    /// What may need a look.
    Warn,
    /// What does.
    Error,
}

/// Writes one line.
pub fn write(level: Level, message: &str) {
    let level = match level {
        Level::Trace => raw::Level::Trace,
        Level::Debug => raw::Level::Debug,
        Level::Info => raw::Level::Info,
        Level::Warn => raw::Level::Warn,
        Level::Error => raw::Level::Error,
    };
    host::log(level, message);
}

// A macro is exported at the crate's root whatever module it is written in;
// these names keep the root free of `info!` and the like, which many crates have.

#[doc(hidden)]
#[macro_export]
macro_rules! __trace {
    ($($line:tt)+) => { $crate::log::write($crate::log::Level::Trace, &::std::format!($($line)+)) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __debug {
    ($($line:tt)+) => { $crate::log::write($crate::log::Level::Debug, &::std::format!($($line)+)) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __info {
    ($($line:tt)+) => { $crate::log::write($crate::log::Level::Info, &::std::format!($($line)+)) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __warn {
    ($($line:tt)+) => { $crate::log::write($crate::log::Level::Warn, &::std::format!($($line)+)) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __error {
    ($($line:tt)+) => { $crate::log::write($crate::log::Level::Error, &::std::format!($($line)+)) };
}

/// Writes a line at [`Level::Trace`], with `format!`'s arguments.
#[doc(inline)]
pub use crate::__trace as trace;

/// Writes a line at [`Level::Debug`], with `format!`'s arguments.
#[doc(inline)]
pub use crate::__debug as debug;

/// Writes a line at [`Level::Info`], with `format!`'s arguments.
#[doc(inline)]
pub use crate::__info as info;

/// Writes a line at [`Level::Warn`], with `format!`'s arguments.
#[doc(inline)]
pub use crate::__warn as warn;

/// Writes a line at [`Level::Error`], with `format!`'s arguments.
#[doc(inline)]
pub use crate::__error as error;
