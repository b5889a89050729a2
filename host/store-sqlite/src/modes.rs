//! Which users of the machine may touch the files.
//!
//! A database that the host makes is its user's alone, and SQLite gives what it keeps
//! beside it the same mode. Whoever may open a lock file may hold its lock, be it to read
//! alone, and so keep a group without a leader. So the locks are open to those who may
//! write the database, and to nobody else: where an operator shares a database with a
//! group of users, they share its locks. What is there already keeps its mode, which may
//! be on purpose; where it lets others in, that is said.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;

use tracing::warn;

use super::files::beside;

/// What a mode says of one class of users.
const READ: u32 = 0o4;
const WRITE: u32 = 0o2;
const SEARCH: u32 = 0o1;

/// The classes besides the owner: how their bits are written in `chmod`, and where they
/// stand.
const GROUP: (char, u32) = ('g', 3);
const OTHERS: (char, u32) = ('o', 0);

/// Makes the file of a database, which is its owner's alone.
pub(super) fn make_database(path: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).create_new(true).mode(0o600).open(path).map(drop)
}

/// Makes the folder of a database's locks.
pub(super) fn make_lock_folder(folder: &Path, database: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(folder)?;
    share_with_writers(folder, database, READ | WRITE | SEARCH)
}

/// Opens the file of a lock, and makes it if it is not there.
pub(super) fn open_lock(path: &Path, database: &Path) -> io::Result<File> {
    loop {
        match OpenOptions::new().append(true).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            opened => return opened,
        }
        match OpenOptions::new().append(true).create_new(true).mode(0o600).open(path) {
            // Somebody else was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(made) => {
                share_with_writers(path, database, READ | WRITE)?;
                return Ok(made);
            }
        }
    }
}

/// Opens what was made just now to the group and the others as far as they may write the
/// database. Root makes it the property of the database's owner, as SQLite does with its
/// files.
fn share_with_writers(made: &Path, database: &Path, bits: u32) -> io::Result<()> {
    let database = fs::metadata(database)?;
    let own = fs::metadata(made)?;
    if own.uid() != database.uid() && rustix::process::geteuid().is_root() {
        chown(made, Some(database.uid()), Some(database.gid()))?;
    }
    // A group that the database does not belong to gets nothing.
    let is_of_its_group =
        own.gid() == database.gid() || chown(made, None, Some(database.gid())).is_ok();
    let shared = |class: (char, u32)| if may_write(&database, class) { bits << class.1 } else { 0 };
    let group = if is_of_its_group { shared(GROUP) } else { 0 };
    let others = shared(OTHERS);
    if group | others == 0 {
        return Ok(());
    }
    // Of the folder above, it may have the bit that hands its group down.
    let mode = (fs::metadata(made)?.mode() & 0o7000) | (bits << 6) | group | others;
    fs::set_permissions(made, fs::Permissions::from_mode(mode))
}

fn has(found: &Metadata, (_, shift): (char, u32), bits: u32) -> bool {
    (found.mode() >> shift) & bits == bits
}

fn may_write(found: &Metadata, class: (char, u32)) -> bool {
    has(found, class, READ | WRITE)
}

/// Says of files that are there already whom they let in, and what mends it: others who
/// may read or write the database, and whoever may reach the locks and not write it.
pub(super) fn warn_of_others(database: &Path, lock_folder: &Path) {
    let parent = database.parent().and_then(|folder| fs::metadata(folder).ok());
    let Ok(found) = fs::metadata(database) else { return };
    let reaches = |class| parent.as_ref().is_none_or(|parent| has(parent, class, SEARCH));
    if reaches(OTHERS) {
        let is_open = |file: &Path| fs::metadata(file).is_ok_and(|found| found.mode() & 0o7 != 0);
        let beside = ["-wal", "-shm"].map(|suffix| beside(database, suffix));
        if is_open(database) || beside.iter().any(|file| is_open(file)) {
            let [wal, shm] = beside.map(|file| file.display().to_string());
            let database = database.display();
            warn!(
                "every user of this machine may open {database}, or {wal} and {shm} beside it, which hold all events and all state; to keep them out: `chmod o= {database}`, and the same for those beside it while they are there"
            );
        }
    }
    let Ok(locks) = fs::metadata(lock_folder) else { return };
    let lets_in = |class: &(char, u32)| {
        reaches(*class) && !may_write(&found, *class) && (locks.mode() >> class.1) & 0o7 != 0
    };
    let closed: Vec<String> = [GROUP, OTHERS]
        .into_iter()
        .filter(lets_in)
        .map(|(letter, _)| format!("{letter}="))
        .collect();
    if !closed.is_empty() {
        let folder = lock_folder.display();
        warn!(
            "users who may not write {} may hold the locks in {folder}, and so keep its groups from being led; to keep them out: `chmod -R {} {folder}`",
            database.display(),
            closed.join(",")
        );
    }
}
