//! Changes of files, for `host run --watch`.
//!
//! Folders are watched rather than files: what is renamed over a file is
//! another file, and an editor may save that way. What changed is for the
//! reader to find out by the files' content.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{debug, error};

/// A file that is being written is looked at once nothing happened for so long.
const QUIET: Duration = Duration::from_millis(100);

/// But not later than this after its first change.
const LATEST: Duration = Duration::from_secs(2);

/// Tells of changes in the folders of some files.
pub(super) struct Watch {
    watcher: RecommendedWatcher,
    folders: BTreeSet<PathBuf>,
    /// Folders that cannot be watched, so that it is said once.
    unwatched: BTreeSet<PathBuf>,
    happened: Arc<Notify>,
    /// Something happened that was not told yet: who waits may stop waiting at
    /// any moment, and ask again.
    untold: bool,
}

impl Watch {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// When the system has no more watches to give.
    pub(super) fn new() -> notify::Result<Self> {
        let happened = Arc::new(Notify::new());
        let happening = Arc::clone(&happened);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            match event {
                // Reading a file is no change of it.
                Ok(event) if event.kind.is_access() => {}
                Ok(event) => {
                    debug!(?event.kind, paths = ?event.paths, "changed on disk");
                    happening.notify_one();
                }
                // What was missed is unknown, so everything is looked at.
                Err(why) => {
                    error!("cannot watch the files: {why}");
                    happening.notify_one();
                }
            }
        })?;
        let (folders, unwatched) = (BTreeSet::new(), BTreeSet::new());
        Ok(Self { watcher, folders, unwatched, happened, untold: false })
    }

    /// Watches the folders of these files, and no others. What cannot be watched
    /// is said once.
    pub(super) fn follow<'a>(&mut self, files: impl Iterator<Item = &'a Path>) {
        let wanted: BTreeSet<PathBuf> = files.map(folder).collect();
        for folder in self.folders.difference(&wanted) {
            // It fails only where the folder is gone.
            let _ = self.watcher.unwatch(folder);
        }
        self.folders.retain(|folder| wanted.contains(folder));
        self.unwatched.retain(|folder| wanted.contains(folder));
        for folder in wanted {
            if self.folders.contains(&folder) {
                continue;
            }
            match self.watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.unwatched.remove(&folder);
                    self.folders.insert(folder);
                }
                Err(why) => {
                    if self.unwatched.insert(folder.clone()) {
                        error!("cannot watch {}: {why}; send SIGHUP instead", folder.display());
                    }
                }
            }
        }
    }

    /// Waits for a change, and then for the end of the changes that come with it.
    pub(super) async fn changed(&mut self) {
        if !self.untold {
            self.happened.notified().await;
            self.untold = true;
        }
        let latest = Instant::now() + LATEST;
        while Instant::now() < latest {
            if tokio::time::timeout(QUIET, self.happened.notified()).await.is_err() {
                break;
            }
        }
        self.untold = false;
    }
}

/// Where a file is.
fn folder(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}
