//! Who leads a group: file locks beside the database.
//!
//! Each group has a file `<database>-locks/<group>.lock`, and whoever leads the
//! group holds the system's lock on it; a duty has `<database>-locks/#<duty>.lock`. The system lets go of it when the
//! process ends, however it ends. A lock belongs to the opened file and not to
//! the process, so two hosts in one process exclude each other as well.
//!
//! These files are made on demand and never deleted: between the opening of a
//! file and its locking another process could delete it and make a new one, and
//! then two would hold "the" lock. (The files of `Share` are deleted: each has one owner.)

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tracing::{error, warn};

use super::connection::{Connections, on_reader, on_writer};
use super::error::SqliteError;
use super::files::beside;
use super::leadership_row::{begin_leaderships, end_leaderships, leaders};
use super::modes;
use event_host_core::event::{Epoch, GroupName};
use event_host_store::{
    Claim, Duty, HostIdentity, Leadership, LockSession, Release, Roster, Runners, StoreError,
};

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

fn duty_file(database: &Path, duty: Duty) -> PathBuf {
    // No group's name begins so.
    folder(database).join(format!("#{}.lock", duty.name()))
}

/// Why a lock could not be asked for; as opposed to being held by another.
fn broken(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Unavailable(format!("cannot lock {}: {error}", path.display()))
}

/// Takes the lock of a file, if nobody has it.
fn take(database: &Path, path: &Path) -> Result<Option<File>, StoreError> {
    let open = || modes::open_lock(path, database);
    let file = match open() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make_folder(database)?;
            open()
        }
        opened => opened,
    }
    .map_err(|error| broken(path, &error))?;
    match file.try_lock() {
        Ok(()) if is_still(&file, path) => Ok(Some(file)),
        // The file was replaced between its opening and its locking: the lock is on neither.
        Ok(()) => Ok(None),
        // Another holds it.
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(broken(path, &error)),
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
            if let Some(file) = take(database, &lock_file(database, group))? {
                return Ok(Some(Self { _file: file }));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(None)
    }
}

/// Separates group and host in the name of a share file: `GROUP@HOST` says that the host
/// takes a share of the group's partitions. No group's name has it.
const SHARES: char = '@';

/// Of each of these groups, the ids of the other hosts that have a share file of it and live,
/// in their order. Files that dead ones have left are deleted.
fn others_who_share(
    database: &Path,
    own: &HashMap<GroupName, Share>,
) -> Result<BTreeMap<GroupName, BTreeSet<String>>, StoreError> {
    let folder = folder(database);
    let cannot = |error: std::io::Error| broken(&folder, &error);
    let mut others = BTreeMap::new();
    for entry in fs::read_dir(&folder).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let (path, name) = (entry.path(), entry.file_name());
        let Some((group, id)) = name.to_str().and_then(|name| name.split_once(SHARES)) else {
            continue;
        };
        let Some((group, share)) = group.parse().ok().and_then(|group| own.get_key_value(&group))
        else {
            continue;
        };
        if path == share.path {
            continue;
        }
        if is_locked(&path)? {
            others.entry(group.clone()).or_insert_with(BTreeSet::new).insert(id.to_owned());
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
///
/// Hosts share the partitions of a group, and say of which by files. A group that is not
/// split is led by whoever has its lock first: the hosts are on one machine.
pub(super) struct FileLocks {
    connections: Arc<Connections>,
    database: PathBuf,
    host: HostIdentity,
    /// The groups that it leads or would lead.
    announced: Vec<GroupName>,
    /// The files, locked, that say of whose partitions it takes a share.
    shares: HashMap<GroupName, Share>,
    held: HashMap<GroupName, File>,
    duties: HashMap<Duty, File>,
    /// The files whose locks cannot be asked for, which was said.
    unaskable: HashSet<PathBuf>,
}

impl FileLocks {
    pub(super) fn new(connections: Arc<Connections>, host: &HostIdentity) -> Self {
        Self {
            database: connections.path().to_owned(),
            connections,
            host: host.clone(),
            announced: Vec::new(),
            shares: HashMap::new(),
            held: HashMap::new(),
            duties: HashMap::new(),
            unaskable: HashSet::new(),
        }
    }

    /// Says that this host takes a share, if it has not yet.
    fn share(&mut self, group: &GroupName) -> Result<(), StoreError> {
        let name = format!("{group}{SHARES}{}", self.host.id);
        let path = folder(&self.database).join(name);
        if !self.shares.get(group).is_some_and(|share| is_still(&share.file, &share.path)) {
            // Under another name until it is locked, or it would be taken for one that
            // a dead host has left.
            let not_yet = folder(&self.database).join(format!("new-{}", self.host.id));
            let lock = || {
                let file = modes::open_lock(&not_yet, &self.database)?;
                file.lock()?;
                fs::rename(&not_yet, &path)?;
                Ok(file)
            };
            let file = lock().map_err(|error| broken(&path, &error))?;
            self.shares.insert(group.clone(), Share { file, path: path.clone() });
        }
        Ok(())
    }

    /// Says of whose partitions this host takes a share.
    fn share_all(&mut self) -> Result<(), StoreError> {
        self.connections.check_files()?;
        let split = self.announced.iter().filter(|group| group.partition_number().is_some());
        let split: BTreeSet<GroupName> = split.map(GroupName::group).collect();
        self.shares.retain(|group, _| split.contains(group));
        split.iter().try_for_each(|group| self.share(group))
    }

    fn try_lock(&mut self, group: &GroupName) -> bool {
        if !self.held.contains_key(group) {
            let file = self.take(lock_file(&self.database, group), || {
                format!("nobody can lead the group `{group}` here")
            });
            self.held.extend(file.map(|file| (group.clone(), file)));
        }
        self.held.contains_key(group)
    }

    /// A lock that cannot be asked for is not had, and that is said here: it is
    /// no trouble of the other groups.
    fn take(&mut self, path: PathBuf, what: impl FnOnce() -> String) -> Option<File> {
        match take(&self.database, &path) {
            Ok(taken) => {
                self.unaskable.remove(&path);
                taken
            }
            Err(why) => {
                if self.unaskable.insert(path) {
                    error!("{}: {why}; trying again", what());
                }
                None
            }
        }
    }
}

/// What came of the claim of a group whose lock is held.
fn claim(begun: Option<Result<Leadership, SqliteError>>) -> Claim {
    match begun {
        Some(Ok(leadership)) => Claim::Led(Box::new(leadership)),
        Some(Err(why)) => Claim::Unavailable(why.to_string()),
        None => Claim::Missing,
    }
}

#[async_trait]
impl LockSession for FileLocks {
    /// The lock first, and then what is under it. The lock of a group that cannot be led all
    /// the same is given back.
    async fn claim(&mut self, groups: &[GroupName]) -> Result<Vec<Claim>, StoreError> {
        self.connections.check_files()?;
        let had: HashSet<GroupName> = self.held.keys().cloned().collect();
        let locked: Vec<GroupName> =
            groups.iter().filter(|group| self.try_lock(group)).cloned().collect();
        if locked.is_empty() {
            return Ok(vec![Claim::LedElsewhere; groups.len()]);
        }
        let begun = on_writer!(self.connections, "lead groups", |c| {
            begin_leaderships(c, &locked, &self.host)
        });
        let mut claims: HashMap<GroupName, Claim> = match begun {
            Ok(begun) => locked.into_iter().zip(begun.into_iter().map(claim)).collect(),
            // A disk that is full, for example: what is led goes on.
            Err(why) => {
                let unavailable = Claim::Unavailable(why.to_string());
                locked.into_iter().map(|group| (group, unavailable.clone())).collect()
            }
        };
        self.held.retain(|group, _| {
            had.contains(group) || matches!(claims.get(group), Some(Claim::Led(_)))
        });
        Ok(groups.iter().map(|group| claims.remove(group).unwrap_or(Claim::LedElsewhere)).collect())
    }

    /// What ended is recorded while the lock is held still; closing the file releases it.
    async fn release(&mut self, groups: &[Release]) -> Result<Vec<GroupName>, StoreError> {
        let ended: Vec<(&GroupName, Epoch)> = groups
            .iter()
            .filter_map(|release| release.ended.map(|epoch| (&release.group, epoch)))
            .collect();
        if !ended.is_empty() {
            let recorded =
                on_writer!(self.connections, "end leaderships", |c| { end_leaderships(c, &ended) });
            // What ended cleanly and cannot say so is given back all the same: a crash that
            // is counted too much makes the next leader careful, and costs nothing else.
            if let Err(why) = recorded {
                warn!(groups = ended.len(), "cannot record the end of leaderships: {why}");
            }
        }
        for release in groups {
            self.held.remove(&release.group);
        }
        Ok(Vec::new())
    }

    async fn claim_duty(&mut self, duty: Duty) -> Result<bool, StoreError> {
        self.connections.check_files()?;
        if !self.duties.contains_key(&duty) {
            let file = self.take(duty_file(&self.database, duty), || {
                format!("nobody can have the duty `{}` here", duty.name())
            });
            self.duties.extend(file.map(|file| (duty, file)));
        }
        Ok(self.duties.contains_key(&duty))
    }

    async fn release_duty(&mut self, duty: Duty) -> Result<(), StoreError> {
        self.duties.remove(&duty);
        Ok(())
    }

    /// A lock that is held stays so while its file is open. What can go wrong is
    /// that the file is deleted: then others lock a new one. Or the database is: then
    /// what this host commits is in a file that nobody finds.
    ///
    /// Whether this host stands by is nothing to act upon: all hosts of the file are on this
    /// machine, and the system releases what dead ones held.
    async fn heartbeat(&mut self, _: bool) -> Result<(), StoreError> {
        self.connections.check_files()?;
        let gone = |path: &Path, of_another: String| {
            Err(StoreError::Unavailable(format!(
                "the lock file {} was moved or deleted, so that another host may {of_another} too",
                path.display()
            )))
        };
        for (group, file) in &self.held {
            let path = lock_file(&self.database, group);
            if !is_still(file, &path) {
                return gone(&path, format!("lead group `{group}`"));
            }
        }
        for (duty, file) in &self.duties {
            let path = duty_file(&self.database, *duty);
            if !is_still(file, &path) {
                return gone(&path, format!("have the duty `{}`", duty.name()));
            }
        }
        Ok(())
    }

    async fn announce(&mut self, groups: &[GroupName]) -> Result<(), StoreError> {
        self.announced = groups.to_vec();
        self.announced.sort();
        self.share_all()
    }

    /// Always told: nothing says that a lock came free.
    async fn roster(&mut self) -> Result<Option<Roster>, StoreError> {
        self.share_all()?;
        let split = self.announced.iter().filter(|group| group.partition_number().is_some());
        let split: Vec<GroupName> = split.cloned().collect();
        let (others, leaders) = if split.is_empty() {
            (BTreeMap::new(), BTreeMap::new())
        } else {
            let leaders = on_reader!(self.connections, "see who leads", |c| leaders(c, &split))?;
            (others_who_share(&self.database, &self.shares)?, leaders)
        };
        let others: BTreeMap<GroupName, Arc<[String]>> =
            others.into_iter().map(|(group, ids)| (group, ids.into_iter().collect())).collect();
        let nobody: Arc<[String]> = Arc::new([]);
        let groups = self.announced.iter().map(|group| {
            let others = group.partition_number().and_then(|_| others.get(&group.group()));
            let others = Arc::clone(others.unwrap_or(&nobody));
            let leader = leaders.get(group).cloned().flatten();
            let lives = |id: &String| *id == self.host.id || others.contains(id);
            let leader = leader.filter(lives);
            Runners { group: group.clone(), is_free: leader.is_none(), leader, others }
        });
        Ok(Some(Roster { groups: groups.collect() }))
    }
}
