//! What is being compiled, for those who say it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::watch;

use super::Job;

/// A component that is being compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiling {
    /// No other compilation of the host has this number.
    pub number: u64,
    /// The handler that it is loaded for, if it is known.
    pub handler: Option<String>,
    /// What messages call the component: its file, or its version.
    pub origin: String,
    /// The size of its file, in bytes.
    pub bytes: u64,
    /// When it began.
    pub since: Instant,
}

/// What is being compiled. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    list: Arc<watch::Sender<Vec<Compiling>>>,
    last: Arc<AtomicU64>,
}

/// A compilation that is in the list until this is dropped.
#[derive(Debug)]
pub(super) struct ProgressEntry {
    list: Arc<watch::Sender<Vec<Compiling>>>,
    number: u64,
}

impl Progress {
    pub(super) fn follow(&self) -> watch::Receiver<Vec<Compiling>> {
        self.list.subscribe()
    }

    pub(super) fn begin(&self, job: &Job, since: Instant) -> ProgressEntry {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let compiling = Compiling {
            number,
            handler: job.handler.clone(),
            origin: job.origin.clone(),
            bytes: job.source.len() as u64,
            since,
        };
        self.list.send_modify(|list| list.push(compiling));
        ProgressEntry { list: Arc::clone(&self.list), number }
    }
}

impl Drop for ProgressEntry {
    fn drop(&mut self) {
        self.list.send_modify(|list| list.retain(|one| one.number != self.number));
    }
}
