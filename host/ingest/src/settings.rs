//! What ingest is told by the settings.

use std::collections::BTreeMap;
use std::time::Duration;

use event_host_core::event::Tenant;

/// `[ingest]`. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The largest body, as sent and as it is unpacked.
    pub max_body: usize,
    /// The largest event, with all its attributes.
    pub max_event: usize,
    /// The most events of a request.
    pub max_events: usize,
    /// The bodies that are in the process at once, together.
    pub queue: usize,
    /// How long a request whose last byte has come waits for its answer.
    pub timeout: Duration,
    /// How long a commit waits for more requests; zero for not at all.
    pub linger: Duration,
    /// How many commits are under way at once, where the store allows it. At least 1.
    pub connections: usize,
    /// How long an event that is sent again is known; `None` for not at all.
    pub dedup: Option<Duration>,
    /// How many events are known at most.
    pub dedup_max: u64,
    /// Events a second, of all senders together.
    pub rate: Option<f64>,
    /// The same of single tenants.
    pub tenant_rates: BTreeMap<Tenant, f64>,
    /// Who may send, as the handshake of webhooks names them; `*` for anybody.
    pub origins: Vec<String>,
    /// A request must name one of them.
    pub require_origin: bool,
    /// What must be free where the log lies on a disk of the host's.
    pub min_free: u64,
    /// What the log may take on disk.
    pub max_log: Option<u64>,
    /// Each event is stamped with the name of who sent it.
    pub stamp: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_body: 16 << 20,
            max_event: 1 << 20,
            max_events: 1_000,
            queue: 64 << 20,
            timeout: Duration::from_secs(10),
            linger: Duration::ZERO,
            connections: 2,
            dedup: Some(Duration::from_secs(3_600)),
            dedup_max: 10_000_000,
            rate: None,
            tenant_rates: BTreeMap::new(),
            origins: Vec::new(),
            require_origin: false,
            min_free: 1 << 30,
            max_log: None,
            stamp: false,
        }
    }
}
