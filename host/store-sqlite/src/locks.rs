//! Who leads a group: file locks beside the database.
//!
//! Each group has a file `<database>-locks/<group>.lock`, and whoever leads the
//! group holds the system's lock on it. The system lets go of it when the
//! process ends, however it ends. A lock belongs to the opened file and not to
//! the process, so two hosts in one process exclude each other as well.
//!
//! These files are made on demand and never deleted: between the opening of a
//! file and its locking another process could delete it and make a new one, and
//! then two would hold "the" lock. (The files of `Share` are deleted: each has one owner.)

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tracing::error;

use super::connection::Connections;
use super::files::beside;
use super::modes;
use event_host_core::event::GroupName;
use event_host_store::{HostIdentity, LockSession, StoreError};

/// The folder of a database's lock files.
pub(super) fn folder(database: &Path) -> PathBuf {
    beside(database, "-locks")
}

/// Makes the folder of the lock files. Done when a database is opened, because
/// it also tells whether SQLite will be able to keep files beside the database.
pub(super) fn make_folder(database: &Path) -> Result<(), StoreError> {
    let folder = folder(database);
    // That alone: where the folder of the database is gone, it is not made again.
    match modes::make_lock_folder(&folder, database) {
        Err(_) if folder.is_dir() => Ok(()),
        made => made,
    }
    .map_err(|error| {
        StoreError::Unusable(format!(
            "cannot make the folder {} ({error}): event-host keeps its locks, and SQLite its write-ahead log, beside the database",
            folder.display()
        ))
    })
}

fn lock_file(database: &Path, group: &GroupName) -> PathBuf {
    // A group's name is safe as a file name by its own rules.
    folder(database).join(format!("{group}.lock"))
}

/// Why a lock could not be asked for; as opposed to being held by another.
fn broken(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Unavailable(format!("cannot lock {}: {error}", path.display()))
}

/// Takes a group's lock, if nobody has it.
fn take(database: &Path, group: &GroupName) -> Result<Option<File>, StoreError> {
    let path = lock_file(database, group);
    let open = || modes::open_lock(&path, database);
    let file = match open() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make_folder(database)?;
            open()
        }
        opened => opened,
    }
    .map_err(|error| broken(&path, &error))?;
    match file.try_lock() {
        Ok(()) if is_still(&file, &path) => Ok(Some(file)),
        // The file was replaced between its opening and its locking: the lock is on neither.
        Ok(()) => Ok(None),
        // Another holds it.
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(broken(&path, &error)),
    }
}

/// Whether the path still leads to the file that is held.
#[cfg(unix)]
fn is_still(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(held), Ok(there)) => held.ino() == there.ino() && held.dev() == there.dev(),
        _ => false,
    }
}

/// Elsewhere the system keeps a file from being deleted while it is open.
#[cfg(not(unix))]
fn is_still(_: &File, _: &Path) -> bool {
    true
}

/// Whether somebody leads the group at this moment.
///
/// Asks for a shared lock and lets go of it at once: two who ask do not take
/// each other for a leader, and a host that wants to lead at that very moment
/// is refused once and tries again, as hosts do.
pub(super) fn is_held(database: &Path, group: &GroupName) -> Result<bool, StoreError> {
    is_locked(&lock_file(database, group))
}

/// Whether somebody holds a file's lock at this moment.
fn is_locked(path: &Path) -> Result<bool, StoreError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(broken(path, &error)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(broken(path, &error)),
    }
}

/// Keeps a group without a leader for as long as it lives.
pub(super) struct Vacancy {
    _file: File,
}

impl Vacancy {
    /// Nothing if somebody leads one of them.
    pub(super) async fn of_all(
        database: &Path,
        groups: &[GroupName],
    ) -> Result<Option<Vec<Self>>, StoreError> {
        let mut vacancies = Vec::with_capacity(groups.len());
        // Each once: a lock that is held here already would be refused.
        let groups: BTreeSet<&GroupName> = groups.iter().collect();
        for group in groups {
            match Self::take(database, group).await? {
                Some(vacancy) => vacancies.push(vacancy),
                None => return Ok(None),
            }
        }
        Ok(Some(vacancies))
    }

    /// Nothing if somebody leads the group.
    async fn take(database: &Path, group: &GroupName) -> Result<Option<Self>, StoreError> {
        // Somebody who only asks whether the lock is held has it for an instant.
        for _ in 0..5 {
            if let Some(file) = take(database, group)? {
                return Ok(Some(Self { _file: file }));
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        Ok(None)
    }
}

/// Separates group and host in the name of a share file: `GROUP@HOST` says that the host
/// takes a share of the group's partitions. No group's name has it.
const SHARES: char = '@';

/// The ids of the other hosts that have a share file of the group and live. Files that dead
/// ones have left are deleted.
fn others_who_share(
    database: &Path,
    group: &GroupName,
    own: &Path,
) -> Result<Vec<String>, StoreError> {
    let folder = folder(database);
    let cannot = |error: std::io::Error| broken(&folder, &error);
    let prefix = format!("{group}{SHARES}");
    let mut others = Vec::new();
    for entry in fs::read_dir(&folder).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let path = entry.path();
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(|name| name.strip_prefix(&prefix)) else { continue };
        if path == own {
            continue;
        }
        if is_locked(&path)? {
            others.push(id.to_owned());
        } else {
            // Another host may have deleted it first. Its name was one process's, so it is
            // never locked again.
            drop(fs::remove_file(&path));
        }
    }
    Ok(others)
}

/// The share file of this host and a group. It goes with the host, if that ends in order.
struct Share {
    file: File,
    path: PathBuf,
}

impl Drop for Share {
    fn drop(&mut self) {
        // Another host deletes it, if this fails.
        drop(fs::remove_file(&self.path));
    }
}

/// The locks of one host.
pub(super) struct FileLocks {
    connections: Arc<Connections>,
    database: PathBuf,
    /// The host's id.
    host: String,
    /// The files, locked, that say of whose partitions it takes a share.
    shares: HashMap<GroupName, Share>,
    held: HashMap<GroupName, File>,
    /// Groups whose locks cannot be asked for, which was said.
    unaskable: HashSet<GroupName>,
}

impl FileLocks {
    pub(super) fn new(connections: Arc<Connections>, host: &HostIdentity) -> Self {
        Self {
            database: connections.path().to_owned(),
            connections,
            host: host.id.clone(),
            shares: HashMap::new(),
            held: HashMap::new(),
            unaskable: HashSet::new(),
        }
    }

    /// Says that this host takes a share, if it has not yet, and finds who else does.
    fn share(&mut self, group: &GroupName) -> Result<Vec<String>, StoreError> {
        let name = format!("{group}{SHARES}{}", self.host);
        let path = folder(&self.database).join(name);
        if !self.shares.get(group).is_some_and(|share| is_still(&share.file, &share.path)) {
            // Under another name until it is locked, or it would be taken for one that
            // a dead host has left.
            let not_yet = folder(&self.database).join(format!("new-{}", self.host));
            let lock = || {
                let file = modes::open_lock(&not_yet, &self.database)?;
                file.lock()?;
                fs::rename(&not_yet, &path)?;
                Ok(file)
            };
            let file = lock().map_err(|error| broken(&path, &error))?;
            self.shares.insert(group.clone(), Share { file, path: path.clone() });
        }
        others_who_share(&self.database, group, &path)
    }

    /// A lock that cannot be asked for is not had, and that is said here: it is
    /// no trouble of the other groups.
    fn try_lock(&mut self, group: &GroupName) -> bool {
        if self.held.contains_key(group) {
            return true;
        }
        match take(&self.database, group) {
            Ok(taken) => {
                self.unaskable.remove(group);
                let got = taken.is_some();
                self.held.extend(taken.map(|file| (group.clone(), file)));
                got
            }
            Err(why) => {
                if self.unaskable.insert(group.clone()) {
                    error!(%group, "nobody can lead the group here: {why}; trying again");
                }
                false
            }
        }
    }
}

#[async_trait]
impl LockSession for FileLocks {
    async fn try_locks(&mut self, groups: &[GroupName]) -> Result<Vec<bool>, StoreError> {
        self.connections.check_files()?;
        Ok(groups.iter().map(|group| self.try_lock(group)).collect())
    }

    async fn unlock(&mut self, group: &GroupName) -> Result<(), StoreError> {
        // Closing the file releases its lock.
        drop(self.held.remove(group));
        Ok(())
    }

    async fn sharers(&mut self, groups: &[GroupName]) -> Result<Vec<Vec<String>>, StoreError> {
        self.connections.check_files()?;
        self.shares.retain(|group, _| groups.contains(group));
        groups.iter().map(|group| self.share(group)).collect()
    }

    /// A lock that is held stays so while its file is open. What can go wrong is
    /// that the file is deleted: then others lock a new one. Or the database is: then
    /// what this host commits is in a file that nobody finds.
    ///
    /// The groups that this host stands by for are not recorded: all hosts of the file are on
    /// this machine.
    async fn heartbeat(&mut self, _: &[GroupName]) -> Result<(), StoreError> {
        self.connections.check_files()?;
        for (group, file) in &self.held {
            let path = lock_file(&self.database, group);
            if !is_still(file, &path) {
                return Err(StoreError::Unavailable(format!(
                    "the lock file {} was moved or deleted, so that another host may lead group `{group}` too",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}
