//! Whether there is room for events: on the disk, and in what the log may take.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use crate::refusal::{Reason, Refusal};
use crate::settings::Settings;

/// How old what is known of the disk may be.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A sender that is told to wait for room waits so long: somebody has to make it.
const WAIT: Duration = Duration::from_secs(60);

/// What is known of the room that there is.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Where the log lies, if it is on a disk of the host's.
    path: Option<PathBuf>,
    free: Mutex<Option<(Instant, u64)>>,
    /// What the log takes, as was last seen.
    log_bytes: AtomicU64,
}

impl Disk {
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        Self { path, free: Mutex::default(), log_bytes: AtomicU64::new(0) }
    }

    /// Takes note of what the log takes.
    pub(crate) fn log_takes(&self, bytes: u64) {
        self.log_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Refuses where there is no room.
    pub(crate) fn check(&self, settings: &Settings) -> Result<(), Refusal> {
        if let Some(most) = settings.max_log
            && self.log_bytes.load(Ordering::Relaxed) >= most
        {
            return Err(full(
                format!(
                    "the log takes as much as `max_log` in [ingest] allows, {most} bytes: it takes more events once old ones are gone"
                ),
                most,
            ));
        }
        let least = settings.min_free;
        if least > 0 && self.free().is_some_and(|free| free < least) {
            return Err(full(
                format!(
                    "the disk of the log has less than `min_free` in [ingest], {least} bytes: events are taken again once there is room"
                ),
                least,
            ));
        }
        Ok(())
    }

    /// What is free on the disk; `None` where that cannot be told.
    fn free(&self) -> Option<u64> {
        let path = self.path.as_ref()?;
        let mut known = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, free)) = *known
            && at.elapsed() < LOOK_EVERY
        {
            return Some(free);
        }
        match rustix::fs::statvfs(path) {
            Ok(found) => {
                let free = found.f_bavail.saturating_mul(found.f_frsize);
                *known = Some((Instant::now(), free));
                Some(free)
            }
            Err(error) => {
                debug!("what is free at {} is not known: {error}", path.display());
                None
            }
        }
    }
}

fn full(detail: String, limit: u64) -> Refusal {
    Refusal { limit: Some(limit), ..Refusal::new(Reason::Full, detail).retry_after(WAIT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_a_full_log_are_refused_with_their_settings() {
        let disk = Disk::new(Some(std::env::temp_dir()));
        disk.check(&Settings { min_free: 1, ..Settings::default() }).unwrap();
        let refused = disk.check(&Settings { min_free: u64::MAX, ..Settings::default() });
        let refused = refused.unwrap_err();
        assert_eq!(refused.reason, Reason::Full);
        assert!(refused.detail.contains("min_free"), "{refused}");
        assert_eq!(refused.retry_after, Some(WAIT));

        let log = Disk::new(None);
        let settings = Settings { min_free: u64::MAX, max_log: Some(100), ..Settings::default() };
        log.log_takes(99);
        log.check(&settings).unwrap();
        log.log_takes(100);
        assert!(log.check(&settings).unwrap_err().detail.contains("max_log"));
    }
}
