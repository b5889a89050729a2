//! Why a component is not loaded, in sentences that say what was found and what
//! is wanted.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use event_host_core::event::quoted;

/// A component that is not loaded, with where it came from.
#[derive(Debug, thiserror::Error)]
#[error("{origin}: {reason}")]
pub struct LoadError {
    /// The file's path, or the name that was given to bytes.
    pub origin: String,
    /// Why.
    pub reason: LoadReason,
}

/// Why a component is not loaded. The process that compiles says it to the host.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LoadReason {
    /// There is no such file.
    #[error("there is no such file")]
    Missing,
    /// A directory was named.
    #[error("this is a directory; a handler is one .wasm file")]
    Directory,
    /// A pipe, a device or the like was named.
    #[error("this is not a regular file")]
    NotAFile,
    /// The file cannot be read.
    #[error("the file cannot be read: {0}")]
    // It is the host that reads it.
    #[serde(skip)]
    Unreadable(io::Error),
    /// The file is empty.
    #[error("the file is empty")]
    Empty,
    /// The file is larger than the engine reads.
    #[error("the file has {bytes} bytes; the largest that is read has {limit}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The engine's limit.
        limit: u64,
    },
    /// It is something else.
    #[error(
        "this is not WebAssembly: it begins with {0}; a handler is a component, or a core module"
    )]
    NotWasm(String),
    /// It is a part of a WebAssembly file.
    #[error("the file is cut short: it ends in the middle of its contents, at byte {0}")]
    Truncated(u64),
    /// It is WebAssembly that this version of the format's tools cannot read.
    #[error("this is no WebAssembly that can be run here: {0}")]
    Invalid(String),
    /// It is text that does not parse.
    #[error("this WebAssembly text does not parse: {0}")]
    Text(String),
    /// It is text that is larger than any that is parsed.
    #[error(
        "this is WebAssembly text of {bytes} bytes; the largest that is parsed has {limit}: make a binary of it with `wasm-tools parse`"
    )]
    TextTooLarge {
        /// Its size.
        bytes: usize,
        /// The most.
        limit: usize,
    },
    /// It is text, where only a binary is taken.
    #[error(
        "this is WebAssembly text, and only binaries are deployed: make one of it with `wasm-tools parse`"
    )]
    TextDeployed,
    /// It is native code, which is never taken from users.
    #[error(
        "this is code that was compiled for a machine ahead of time, which could do anything; give the .wasm file that it was made from"
    )]
    Precompiled,
    /// It is a core module that does not export a function of the contract, and that no
    /// bindings generator has marked.
    #[error(
        "this is a core module without component metadata, and it exports neither `event-host:handler/handler@0.1.0#handle` nor `event-host:handler/batch-handler@0.1.0#handle-batch`; build it with an SDK or with wit-bindgen, or name the function that handles events so"
    )]
    NoMetadata,
    /// It is a core module that cannot be made into a component.
    #[error("this core module cannot be made into a component: {0}")]
    NotEncodable(String),
    /// It exports no handler interface.
    #[error(
        "it exports {found}; wanted is one of `event-host:handler/handler@0.1.0`, `event-host:handler/batch-handler@0.1.0` and `wasi:http/incoming-handler@0.2.x`"
    )]
    NoHandler {
        /// What it exports instead.
        found: Names,
    },
    /// It exports more than one handler interface.
    #[error(
        "it exports both {} and {}; wanted is one of them, so that it is clear how it is called",
        quoted(one),
        quoted(other)
    )]
    SeveralHandlers {
        /// The first export.
        one: String,
        /// Another one.
        other: String,
    },
    /// It was made for another version of the contract.
    #[error(
        "it {does} `{name}`, and this host has version {host} of `{package}`; build it with bindings of that version"
    )]
    OtherVersion {
        /// What it does with them.
        does: Does,
        /// The whole name.
        name: String,
        /// Its package.
        package: String,
        /// The host's version.
        host: Cow<'static, str>,
    },
    /// It imports or exports more than any handler does.
    #[error("it {does} {found}; the most is {limit}")]
    TooManyNames {
        /// What it does with them.
        does: Does,
        /// How many names, or how many bytes of them.
        found: String,
        /// The most, in the same unit.
        limit: String,
    },
    /// It imports something that the host does not have.
    #[error("it imports `{name}`, which this host does not have; {hint}")]
    UnknownImport {
        /// The import.
        name: String,
        /// What the host has that is near to it.
        hint: String,
    },
    /// What it imports has another type than what the host has.
    #[error("its import does not fit what the host has: {0}")]
    ImportType(String),
    /// What it exports has another type than what the host calls.
    #[error("its export `{name}` does not fit what the host calls: {detail}")]
    ExportType {
        /// The export.
        name: String,
        /// What differs.
        detail: String,
    },
    /// It cannot run within the limits it was given.
    #[error("{0}")]
    OverLimit(String),
    /// It takes too long to compile.
    #[error(
        "it takes more than {0:?} of processor time to compile, which is what `compile_timeout` allows"
    )]
    SlowCompilation(Duration),
    /// Its code is larger than any that is run.
    #[error("its compiled code has {bytes} bytes; the most is {limit}")]
    CodeTooLarge {
        /// The size.
        bytes: usize,
        /// The most.
        limit: usize,
    },
    /// The process that compiled it died.
    #[error("compiling it ended with {0}")]
    CompilerDied(String),
    /// Others are being compiled in the host itself, and take too long.
    #[error(
        "it waited for {waited:?} to be compiled, and this host compiles one component at a time: {whom}; try again later"
    )]
    CompilerBusy {
        /// How long it waited.
        waited: Duration,
        /// Whom for.
        whom: String,
    },
    /// No process that compiles can be had now.
    #[error("it cannot be compiled now, and is to be tried again later: {0}")]
    CompilerUnavailable(String),
    /// A fault of the host itself.
    #[error("loading broke off: {0}")]
    Internal(String),
}

impl LoadReason {
    /// Whether the process that compiled was ended, for the time or the memory that it took.
    pub(super) fn was_killed(&self) -> bool {
        matches!(self, Self::SlowCompilation(_) | Self::CompilerDied(_))
    }

    /// Whether it says nothing of the component, and may be over when it is tried again.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::CompilerBusy { .. } | Self::CompilerUnavailable(_) => true,
            Self::Unreadable(error) => {
                let passing = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN];
                Errno::from_io_error(error).is_some_and(|errno| passing.contains(&errno))
            }
            _ => false,
        }
    }
}

/// What a component does with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Does {
    /// It wants it from the host.
    Imports,
    /// It has it for the host.
    Exports,
}

impl fmt::Display for Does {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Imports => "imports",
            Self::Exports => "exports",
        })
    }
}

/// Names in a sentence: quoted, with commas, shortened when there are many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names(pub Vec<String>);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 5;
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        for (i, name) in self.0.iter().take(SHOWN).enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(
                f,
                "`{}`",
                event_host_core::failure::storable(&event_host_core::foreign::one_line(name), 200)
            )?;
        }
        if self.0.len() > SHOWN {
            write!(f, " and {} more", self.0.len() - SHOWN)?;
        }
        Ok(())
    }
}
