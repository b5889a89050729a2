//! What a handler may use and reach: the settings of one component.

use std::collections::BTreeMap;
use std::time::Duration;

/// What one instance or one attempt may use. Exceeding any of them ends the
/// attempt with the failure kind that is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// All linear memories of the instance together, in bytes (`memory-limit`).
    pub memory_bytes: usize,
    /// Wall-clock time of an attempt (`timeout`).
    pub timeout: Duration,
    /// Elements of all tables together (`table-limit`).
    pub table_elements: usize,
    /// Bytes that one host call may carry from guest to host, and resources that
    /// may be open at once (`host-call-limit`).
    pub host_call_bytes: usize,
    /// Bytes of log lines an attempt, `stdout` and `stderr` included
    /// (`log-limit`).
    pub log_bytes: usize,
    /// Emits an attempt (`emit-limit`).
    pub emits: usize,
    /// Bytes of data of one emit (`emit-limit`).
    pub emit_bytes: usize,
    /// Bytes of data of all emits of an attempt together (`emit-limit`).
    pub emit_total_bytes: usize,
    /// Bytes of one state value (`state-limit`).
    pub state_value_bytes: usize,
    /// State writes an attempt (`state-limit`).
    pub state_writes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 128 << 20,
            timeout: Duration::from_secs(10),
            table_elements: 100_000,
            host_call_bytes: 16 << 20,
            log_bytes: 64 << 10,
            emits: 1_000,
            emit_bytes: 1 << 20,
            emit_total_bytes: 8 << 20,
            state_value_bytes: 1 << 20,
            state_writes: 1_000,
        }
    }
}

/// How long an instance lives. Any failure ends it earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reuse {
    /// One batch.
    #[default]
    Batch,
    /// One event.
    Event,
    /// So many events, across batches. At least 1.
    Events(u32),
}

/// What the handler may reach. Nothing by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grants {
    /// Environment variables that the guest sees.
    pub env: BTreeMap<String, String>,
}
