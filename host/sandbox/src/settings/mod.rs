//! What a handler may use and reach: the settings of one component.

mod address;
mod http_path;
mod http_policy;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

pub use http_path::{HttpPath, InvalidHttpPath};
pub use http_policy::{HttpPolicy, HttpRule, InvalidRule};
pub(super) use http_policy::{Scheme, Target, TargetHost};

use event_host_core::subscription::Subscription;

/// What one instance or one attempt may use. Exceeding one that names a failure kind ends
/// the attempt with it; the others say what happens instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// All linear memories of the instance together, in bytes (`memory-limit`).
    pub memory_bytes: usize,
    /// Wall-clock time of an attempt (`timeout`).
    pub timeout: Duration,
    /// Instructions that an attempt may execute, as wasmtime counts them; not
    /// counted if absent, because counting costs about a quarter of the speed
    /// (`fuel`).
    pub fuel: Option<u64>,
    /// Elements of all tables together (`table-limit`).
    pub table_elements: usize,
    /// Bytes that one host call may carry from guest to host
    /// (`host-call-limit`).
    pub host_call_bytes: usize,
    /// Bytes of log lines an attempt, with what the host writes before each,
    /// `stdout` and `stderr` included (`log-limit`).
    pub log_bytes: usize,
    /// Lines that the handler may write to the host's log in a second, over all its
    /// attempts; further ones are dropped, and counted.
    pub log_lines_per_second: u32,
    /// Emits an attempt (`emit-limit`).
    pub emits: usize,
    /// Bytes of data and attributes of one emit (`emit-limit`).
    pub emit_bytes: usize,
    /// Bytes of data and attributes of all emits of an attempt together
    /// (`emit-limit`).
    pub emit_total_bytes: usize,
    /// Bytes of one state value (`state-limit`).
    pub state_value_bytes: usize,
    /// Bytes of keys and values of all state writes of an attempt together
    /// (`state-limit`).
    pub state_total_bytes: usize,
    /// State writes an attempt (`state-limit`).
    pub state_writes: usize,
    /// Keys in the state of the handler's group, over all its scopes
    /// (`state-keys-limit`).
    pub state_keys: u64,
    /// HTTP requests an attempt, those that are denied included
    /// (`http-request-limit`).
    pub http_requests: usize,
    /// Bytes of all HTTP requests of an attempt and their answers together: heads,
    /// bodies and trailers (`http-byte-limit`).
    pub http_bytes: usize,
    /// Connections that the handler may have open at once on a host, over all its
    /// attempts; a request that would be one more waits (`http-timeout`).
    pub http_connections: usize,
    /// Wall-clock time of one HTTP request, from waiting for its connection to the end
    /// of its answer (`http-timeout`).
    pub http_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 128 << 20,
            timeout: Duration::from_secs(10),
            fuel: None,
            table_elements: 100_000,
            host_call_bytes: 16 << 20,
            log_bytes: 64 << 10,
            log_lines_per_second: 1_000,
            emits: 1_000,
            emit_bytes: 1 << 20,
            emit_total_bytes: 8 << 20,
            state_value_bytes: 1 << 20,
            state_total_bytes: 8 << 20,
            state_writes: 1_000,
            state_keys: 1_000_000,
            http_requests: 100,
            http_bytes: 16 << 20,
            http_connections: 100,
            http_timeout: Duration::from_secs(5),
        }
    }
}

/// Resources of WASI, such as streams and pollables, that an instance may hold
/// open at once.
pub(super) const OPEN_RESOURCES: usize = 1_000;

/// Handles in the component model's own tables that an instance may hold; the
/// guest's own resources count too.
pub(super) const COMPONENT_HANDLES: usize = 10_000;

/// What handlers.toml calls the limits, for messages that name one.
pub mod names {
    /// [`Limits::memory_bytes`](super::Limits::memory_bytes).
    pub const MEMORY: &str = "limits.memory";
    /// [`Limits::timeout`](super::Limits::timeout).
    pub const TIMEOUT: &str = "limits.timeout";
    /// [`Limits::fuel`](super::Limits::fuel).
    pub const FUEL: &str = "limits.fuel";
    /// [`Limits::table_elements`](super::Limits::table_elements).
    pub const TABLE_ELEMENTS: &str = "limits.table_elements";
    /// [`Limits::host_call_bytes`](super::Limits::host_call_bytes).
    pub const HOST_CALL: &str = "limits.host_call";
    /// [`Limits::log_bytes`](super::Limits::log_bytes).
    pub const LOG: &str = "limits.log";
    /// [`Limits::log_lines_per_second`](super::Limits::log_lines_per_second).
    pub const LOG_LINES: &str = "limits.log_lines_per_second";
    /// [`Limits::emits`](super::Limits::emits).
    pub const EMITS: &str = "limits.emits";
    /// [`Limits::emit_bytes`](super::Limits::emit_bytes).
    pub const EMIT: &str = "limits.emit";
    /// [`Limits::emit_total_bytes`](super::Limits::emit_total_bytes).
    pub const EMIT_TOTAL: &str = "limits.emit_total";
    /// [`Limits::state_value_bytes`](super::Limits::state_value_bytes).
    pub const STATE_VALUE: &str = "limits.state_value";
    /// [`Limits::state_total_bytes`](super::Limits::state_total_bytes).
    pub const STATE_TOTAL: &str = "limits.state_total";
    /// [`Limits::state_writes`](super::Limits::state_writes).
    pub const STATE_WRITES: &str = "limits.state_writes";
    /// [`Limits::state_keys`](super::Limits::state_keys).
    pub const STATE_KEYS: &str = "limits.state_keys";
    /// [`Limits::http_requests`](super::Limits::http_requests).
    pub const HTTP_REQUESTS: &str = "limits.http_requests";
    /// [`Limits::http_bytes`](super::Limits::http_bytes).
    pub const HTTP_BYTES: &str = "limits.http_bytes";
    /// [`Limits::http_connections`](super::Limits::http_connections).
    pub const HTTP_CONNECTIONS: &str = "limits.http_connections";
    /// [`Limits::http_timeout`](super::Limits::http_timeout).
    pub const HTTP_TIMEOUT: &str = "limits.http_timeout";
    /// All of them.
    pub const ALL: [&str; 18] = [
        MEMORY,
        TIMEOUT,
        FUEL,
        TABLE_ELEMENTS,
        HOST_CALL,
        LOG,
        LOG_LINES,
        EMITS,
        EMIT,
        EMIT_TOTAL,
        STATE_VALUE,
        STATE_TOTAL,
        STATE_WRITES,
        STATE_KEYS,
        HTTP_REQUESTS,
        HTTP_BYTES,
        HTTP_CONNECTIONS,
        HTTP_TIMEOUT,
    ];
}

/// How long an instance lives. Any failure ends it earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reuse {
    /// [`Event`](Self::Event) for handlers that are called with HTTP requests, because code
    /// of servers may expect an instance for each; else [`Batch`](Self::Batch).
    #[default]
    Usual,
    /// One batch.
    Batch,
    /// One event.
    Event,
    /// This number of events, across batches. At least 1.
    Events(u32),
}

/// What the handler may reach. By default nothing outside of its group, whose
/// events it may add to and whose state it may use.
#[derive(Clone, PartialEq, Eq)]
pub struct Grants {
    /// Environment variables that the guest sees.
    pub env: BTreeMap<String, String>,
    /// The HTTP requests that it may make.
    pub http: HttpPolicy,
    /// The events that it may emit.
    pub emit: EmitPolicy,
    /// Whether it may use its group's state.
    pub state: bool,
    /// What it reads through `wasi:config`.
    pub config: BTreeMap<String, String>,
    /// How exactly it is told the time.
    pub clocks: Clocks,
}

impl Default for Grants {
    fn default() -> Self {
        Self {
            env: BTreeMap::new(),
            http: HttpPolicy::default(),
            emit: EmitPolicy::Any,
            state: true,
            config: BTreeMap::new(),
            clocks: Clocks::default(),
        }
    }
}

/// Which events a handler may emit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum EmitPolicy {
    /// Every type.
    #[default]
    Any,
    /// None at all.
    Nothing,
    /// The types that match.
    Types(Subscription),
}

/// How exactly a handler is told the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clocks {
    /// To the millisecond: enough for everything but measuring what other
    /// handlers do.
    #[default]
    Coarse,
    /// As exactly as the host knows it.
    Fine,
}

/// A text that names no [`Clocks`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("write \"coarse\" or \"fine\"")]
pub struct InvalidClocks;

impl FromStr for Clocks {
    type Err = InvalidClocks;

    fn from_str(text: &str) -> Result<Self, InvalidClocks> {
        match text {
            "coarse" => Ok(Self::Coarse),
            "fine" => Ok(Self::Fine),
            _ => Err(InvalidClocks),
        }
    }
}

impl EmitPolicy {
    /// Whether an event of this type may be emitted.
    #[must_use]
    pub fn allows(&self, event_type: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Nothing => false,
            Self::Types(types) => types.matches(event_type),
        }
    }
}

impl std::fmt::Debug for Grants {
    /// Names only: values are often secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grants")
            .field("env", &self.env.keys())
            .field("http", &self.http)
            .field("emit", &self.emit)
            .field("state", &self.state)
            .field("config", &self.config.keys())
            .field("clocks", &self.clocks)
            .finish()
    }
}
