//! Changes of files, for `host run --watch`.
//!
//! A path is followed step by step, through every link, as the system does. The system
//! tells of changes in the folder of each file and of each link on the way: folders
//! rather than files, because what is renamed over a file is another file, and an editor
//! may save that way. Only the names that matter count there: a database, or a log, in
//! such a folder changes all the time. Beside that all steps of all paths are looked at
//! once a second, so that a folder that was replaced, a network's file system, and
//! whatever else the system does not tell of are found too.
//!
//! What changed is for the reader to find out by the files' content.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{debug, warn};

/// A file that is being written is looked at once nothing happened for so long.
const QUIET: Duration = Duration::from_millis(100);

/// But not later than this after its first change.
const LATEST: Duration = Duration::from_secs(2);

/// How often all files are looked at, whatever the system tells.
const POLL: Duration = Duration::from_secs(1);

/// Maximum number of links that are followed on one path: as Linux has it.
const MOST_LINKS: usize = 40;

/// What is at one step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Missing(ErrorKind),
    Link(PathBuf),
    Folder(Identity),
    File { identity: Identity, bytes: u64, modified: (i64, i64), changed: (i64, i64) },
}

/// A file or folder, whatever its name: the device and the number there.
type Identity = (u64, u64);

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

/// The names that matter, by their folders.
type Names = BTreeMap<PathBuf, BTreeSet<OsString>>;

/// What is at every step of some paths.
#[derive(Debug, Default, PartialEq, Eq)]
struct Look {
    steps: BTreeMap<PathBuf, Step>,
    /// Of the files, and of the links on the way to them.
    names: Names,
}

impl Look {
    fn at(files: &BTreeSet<PathBuf>) -> Self {
        let mut look = Self::default();
        for file in files {
            look.follow(file);
        }
        look
    }

    /// Follows a path to its end, or to where it breaks off.
    fn follow(&mut self, file: &Path) {
        let mut left: VecDeque<OsString> = steps(file).collect();
        let mut real = PathBuf::new();
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            if name == ".." {
                real.pop();
                continue;
            }
            let at = real.join(&name);
            if name == "/" {
                real = at;
                continue;
            }
            let step = self.steps.entry(at.clone()).or_insert_with(|| look_at(&at));
            match step {
                Step::Folder(_) if !left.is_empty() => {
                    real = at;
                    continue;
                }
                Step::Link(target) => {
                    let target: Vec<OsString> = steps(target).collect();
                    self.names.entry(real.clone()).or_default().insert(name);
                    links += 1;
                    if links > MOST_LINKS {
                        return;
                    }
                    target.into_iter().rev().for_each(|step| left.push_front(step));
                }
                Step::Folder(_) | Step::Missing(_) | Step::File { .. } => {
                    self.names.entry(real).or_default().insert(name);
                    return;
                }
            }
        }
    }
}

fn steps(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().map(|step| step.as_os_str().to_owned()).filter(|step| step != ".")
}

fn look_at(path: &Path) -> Step {
    let missing = |why: std::io::Error| Step::Missing(why.kind());
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(why) => return missing(why),
    };
    if metadata.is_symlink() {
        return fs::read_link(path).map_or_else(missing, Step::Link);
    }
    let identity = identity(&metadata);
    if metadata.is_dir() {
        return Step::Folder(identity);
    }
    Step::File {
        identity,
        bytes: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }
}

/// Tells of changes of some files.
pub(crate) struct Watch {
    /// Without, they are only looked at.
    watcher: Option<RecommendedWatcher>,
    /// By absolute paths.
    files: BTreeSet<PathBuf>,
    /// What the reader has seen, or something older.
    seen: Look,
    /// Folders of which the system tells, and which they were.
    told_of: BTreeMap<PathBuf, Option<Identity>>,
    names: Arc<Mutex<Names>>,
    happened: Arc<Notify>,
    /// Something happened that was not told yet: who waits may stop waiting at
    /// any moment, and ask again.
    untold: bool,
}

impl Watch {
    /// Watches nothing yet.
    pub(crate) fn new() -> Self {
        let (happened, names) = (Arc::new(Notify::new()), Arc::new(Mutex::new(Names::new())));
        let (happening, wanted) = (Arc::clone(&happened), Arc::clone(&names));
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            match event {
                Ok(event) if !matters(&event, &locked(&wanted)) => {}
                Ok(event) => {
                    debug!(?event.kind, paths = ?event.paths, "changed on disk");
                    happening.notify_one();
                }
                // What was missed is unknown, so everything is looked at.
                Err(why) => {
                    debug!("the system does not tell of a change: {why}");
                    happening.notify_one();
                }
            }
        });
        let watcher = watcher
            .inspect_err(|why| {
                warn!(
                    "the system tells of no changes, so files are looked at once a second: {why}"
                );
            })
            .ok();
        let (files, seen, told_of) = (BTreeSet::new(), Look::default(), BTreeMap::new());
        Self { watcher, files, seen, told_of, names, happened, untold: false }
    }

    /// Watches these files, and no others. To be called before they are read: what
    /// changes from now on is told of, and so is what changed since the last time in
    /// those that were watched already.
    pub(crate) async fn follow<'a>(&mut self, files: impl Iterator<Item = &'a Path>) {
        // Where it cannot be known it stays as it is: there is nothing to be found then.
        self.files = files
            .map(|file| std::path::absolute(file).unwrap_or_else(|_| file.to_owned()))
            .collect();
        let Look { mut steps, names } = self.look().await;
        for (step, seen) in std::mem::take(&mut self.seen.steps) {
            steps.entry(step).and_modify(|now| *now = seen);
        }
        let is_same = |(folder, before): (&PathBuf, &Option<Identity>)| {
            before.is_none() || *before == identity_of(folder)
        };
        let is_told = names.keys().eq(self.told_of.keys()) && self.told_of.iter().all(is_same);
        self.seen = Look { steps, names };
        if is_told {
            locked(&self.names).clone_from(&self.seen.names);
        } else {
            self.be_told();
        }
    }

    /// Waits for a change, and then for the end of the changes that come with it.
    pub(crate) async fn changed(&mut self) {
        while !self.untold {
            tokio::select! {
                () = self.happened.notified() => self.untold = true,
                () = tokio::time::sleep(POLL) => {
                    self.untold = self.look().await.steps != self.seen.steps;
                }
            }
        }
        let latest = Instant::now() + LATEST;
        let mut last = self.look().await;
        while Instant::now() < latest {
            let happens = tokio::time::timeout(QUIET, self.happened.notified()).await.is_ok();
            let now = self.look().await;
            if !happens && now == last {
                break;
            }
            last = now;
        }
        self.seen = last;
        // Anew in any case: a folder may have been replaced by one with its number.
        self.be_told();
        self.untold = false;
    }

    /// Looks at all files, on a thread of its own: a file system may not answer.
    async fn look(&self) -> Look {
        let files = self.files.clone();
        let look = tokio::task::spawn_blocking(move || Look::at(&files)).await;
        // It does not panic; and a runtime that goes down needs no answer.
        look.unwrap_or_default()
    }

    /// Has the system tell of changes in the folders that matter now.
    fn be_told(&mut self) {
        locked(&self.names).clone_from(&self.seen.names);
        let Some(watcher) = &mut self.watcher else { return };
        for folder in std::mem::take(&mut self.told_of).into_keys() {
            // It fails only where the folder is gone.
            let _ = watcher.unwatch(&folder);
        }
        for folder in self.seen.names.keys() {
            let identity = identity_of(folder);
            let told = watcher.watch(folder, RecursiveMode::NonRecursive);
            if let Err(why) = &told {
                debug!("looking at {} once a second: {why}", folder.display());
            }
            self.told_of.insert(folder.clone(), identity.filter(|_| told.is_ok()));
        }
    }
}

fn identity_of(folder: &Path) -> Option<Identity> {
    fs::symlink_metadata(folder).ok().as_ref().map(identity)
}

/// Whether something happened to a name that matters, or to a folder of one.
fn matters(event: &notify::Event, names: &Names) -> bool {
    // Reading a file is no change of it.
    let is_read = event.kind.is_access()
        && event.kind != EventKind::Access(AccessKind::Close(AccessMode::Write));
    let is_wanted = |path: &PathBuf| {
        let of_folder = || names.get(path.parent()?)?.get::<OsStr>(path.file_name()?);
        names.contains_key(path) || of_folder().is_some()
    };
    event.need_rescan() || !is_read && event.paths.iter().any(is_wanted)
}

fn locked(names: &Mutex<Names>) -> MutexGuard<'_, Names> {
    // Every change of it is whole, even if the thread panicked after it.
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_is_followed_through_every_link_and_what_stands_on_the_way_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        fs::create_dir_all(at("releases/1/bin")).unwrap();
        fs::write(at("releases/1/bin/real.wasm"), "1").unwrap();
        symlink("real.wasm", at("releases/1/bin/a.wasm")).unwrap();
        symlink("releases/1", at("current")).unwrap();
        let files = BTreeSet::from([at("releases/../current/bin/a.wasm"), at("no/such/file")]);
        let look = Look::at(&files);
        let names = |folder: &str| -> Vec<&str> {
            look.names[&at(folder)].iter().map(|name| name.to_str().unwrap()).collect()
        };
        assert_eq!(look.names.len(), 2, "{look:?}");
        assert_eq!(names(""), ["current", "no"]);
        assert_eq!(names("releases/1/bin"), ["a.wasm", "real.wasm"]);
        assert_eq!(look.steps[&at("current")], Step::Link("releases/1".into()));
        assert_eq!(look.steps[&at("no")], Step::Missing(ErrorKind::NotFound));
        assert!(matches!(look.steps[&at("releases/1/bin/real.wasm")], Step::File { .. }));
        assert_eq!(Look::at(&files), look);

        symlink(at("loop"), at("loop")).unwrap();
        Look::at(&BTreeSet::from([at("loop/x")]));
    }

    #[test]
    fn only_the_names_that_matter_count_and_reading_them_does_not() {
        let names = Names::from([("/f".into(), BTreeSet::from(["a.wasm".into()]))]);
        let modified = EventKind::Modify(notify::event::ModifyKind::Any);
        let read = EventKind::Access(AccessKind::Close(AccessMode::Read));
        let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
        for (kind, path, counts) in [
            (modified, "/f/a.wasm", true),
            (written, "/f/a.wasm", true),
            (read, "/f/a.wasm", false),
            (modified, "/f/host.db-wal", false),
            (modified, "/f/a.wasm/x", false),
            (EventKind::Remove(notify::event::RemoveKind::Folder), "/f", true),
            (modified, "/", false),
        ] {
            let event = notify::Event::new(kind).add_path(path.into());
            assert_eq!(matters(&event, &names), counts, "{event:?}");
        }
    }
}
