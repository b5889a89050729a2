//! The files that are open, and whether they are still those at their paths.
//!
//! SQLite notices neither that the database was moved, deleted or replaced while it is
//! open, nor that one of the two files beside it was: whatever is written then is in
//! files that nobody finds any more, or in two write-ahead logs of one database. So each
//! operation first compares what was opened with what is there.
//!
//! The files are looked at and never opened here: to close a file releases every lock
//! that the process has on it, SQLite's too.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long connections that are being closed may take for it.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// Which file something is, whatever it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// None where there is nothing, or nothing that may be looked at.
    #[cfg(unix)]
    fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let found = fs::metadata(path).ok()?;
        Some(Self { device: found.dev(), inode: found.ino() })
    }

    /// Elsewhere the system keeps a file from being deleted while it is open.
    #[cfg(not(unix))]
    fn of(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().map(|_| Self { device: 0, inode: 0 })
    }
}

impl Identity {
    /// Whether what is at a path now is the file that was there and is open. Some file
    /// systems give a file another number while it is open, which then shows in what is
    /// open too.
    fn is_still(self, there: Self) -> bool {
        if self == there {
            return true;
        }
        let open = Self::of_open_files();
        open.contains(&there) && !open.contains(&self)
    }

    /// Of all files that this process has open. Where the system does not list them, none.
    fn of_open_files() -> Vec<Self> {
        let Ok(open) = fs::read_dir("/dev/fd") else { return Vec::new() };
        open.flatten().filter_map(|file| Self::of(&file.path())).collect()
    }
}

/// A file beside the database.
pub(super) fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The database and the files beside it, as they were opened. While a connection that
/// has read is open, SQLite replaces none of them.
#[derive(Debug, Clone)]
pub(super) struct Opened {
    database: (PathBuf, Identity),
    beside: Vec<(PathBuf, Identity)>,
}

/// What became of a file that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// The database is not at its path.
    Gone,
    /// Another file is.
    Replaced,
    /// The database is in its place, and a file beside it is not.
    Beside(PathBuf),
}

impl Change {
    /// In words, of the database at this path.
    pub(super) fn told(&self, database: &Path) -> String {
        let database = database.display();
        match self {
            Self::Gone => format!("{database} was moved or deleted while it was open"),
            Self::Replaced => {
                format!("{database} was open, and another file is in its place now")
            }
            Self::Beside(file) => format!(
                "{} was moved or deleted while {database} was open, which holds only a part of the data without it",
                file.display()
            ),
        }
    }
}

impl Opened {
    /// Looks at the files of a database that a connection has open and has read. None
    /// if one of them is not there.
    pub(super) fn look(database: &Path) -> Option<Self> {
        let there = |path: PathBuf| Identity::of(&path).map(|identity| (path, identity));
        Some(Self {
            database: there(database.to_owned())?,
            beside: vec![there(beside(database, "-wal"))?, there(beside(database, "-shm"))?],
        })
    }

    /// What has become of them, if anything has.
    pub(super) fn change(&self) -> Option<Change> {
        let (path, identity) = &self.database;
        match Identity::of(path) {
            None => return Some(Change::Gone),
            Some(there) if !identity.is_still(there) => return Some(Change::Replaced),
            Some(_) => {}
        }
        let is_there = |(path, identity): &(PathBuf, Identity)| {
            Identity::of(path).is_some_and(|there| identity.is_still(there))
        };
        let missing = self.beside.iter().find(|file| !is_there(file))?;
        Some(Change::Beside(missing.0.clone()))
    }

    /// Waits until this process has none of the files open any more: connections end on
    /// threads of their own. A new connection to the same file would share what the old
    /// ones have of the files beside it. Whether it came to that.
    pub(super) async fn until_closed(&self) -> bool {
        let begun = Instant::now();
        loop {
            if !self.is_open() {
                return true;
            }
            if begun.elapsed() >= CLOSED_WITHIN {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn is_open(&self) -> bool {
        let open = Identity::of_open_files();
        self.beside.iter().chain([&self.database]).any(|(_, identity)| open.contains(identity))
    }

    /// Puts aside what the database that was replaced has left beside the new one, which
    /// would take it for its own. Gives where it is now: it may hold what was written
    /// last.
    pub(super) fn put_aside(&self) -> std::io::Result<Vec<PathBuf>> {
        let mut aside = Vec::new();
        for (path, identity) in &self.beside {
            if Identity::of(path).is_none_or(|there| there != *identity) {
                continue;
            }
            let to = (1..).map(|n| beside(path, &format!(".replaced-{n}"))).find(|to| !to.exists());
            let Some(to) = to else { continue };
            match fs::rename(path, &to) {
                Ok(()) => aside.push(to),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(aside)
    }
}

/// The name of a network file system by the number that the system gives for its kind, as
/// in Linux's `magic.h` and the sources of its file systems. SQLite's write-ahead log
/// needs memory that all processes share, and its locks, which these do not have, or not
/// from one machine to another.
#[cfg(target_os = "linux")]
fn network_file_system(kind: i128) -> Option<&'static str> {
    match kind {
        0x6969 => Some("NFS"),
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => Some("SMB"),
        0x00c3_6400 => Some("Ceph"),
        0x5346_414f | 0x6b41_4653 => Some("AFS"),
        0x0bd0_0bd0 => Some("Lustre"),
        0x7375_7245 => Some("Coda"),
        0x564c => Some("NCP"),
        _ => None,
    }
}

/// The network file system that a folder is on, if it is on one.
#[cfg(target_os = "linux")]
pub(super) fn network_file_system_of(folder: &Path) -> Option<&'static str> {
    let found = rustix::fs::statfs(folder).ok()?;
    // A number of 32 bits; its type differs from one architecture to another.
    let kind: i128 = found.f_type.into();
    network_file_system(kind & 0xffff_ffff)
}

/// Elsewhere it is not known.
#[cfg(not(target_os = "linux"))]
pub(super) fn network_file_system_of(_: &Path) -> Option<&'static str> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn network_file_systems_are_known_by_name_and_others_are_let_be() {
        for (kind, name) in [
            (0x6969, Some("NFS")),
            (0xff53_4d42, Some("SMB")),
            (0xfe53_4d42, Some("SMB")),
            // ext4, XFS, Btrfs, tmpfs, overlayfs, ZFS, and 9P, which sandboxes have.
            (0xef53, None),
            (0x5846_5342, None),
            (0x9123_683e, None),
            (0x0102_1994, None),
            (0x794c_7630, None),
            (0x2fc1_2fc1, None),
            (0x0102_1997, None),
        ] {
            assert_eq!(network_file_system(kind), name, "{kind:#x}");
        }
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(network_file_system_of(folder.path()), None);
        assert_eq!(network_file_system_of(&folder.path().join("nowhere")), None);
    }

    #[test]
    fn a_file_that_is_open_is_known_whatever_becomes_of_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("a.db");
        let files = ["", "-wal", "-shm"].map(|suffix| beside(&database, suffix));
        let open = files.clone().map(|file| fs::File::create(file).unwrap());
        let opened = Opened::look(&database).unwrap();
        assert_eq!(opened.change(), None);
        assert!(opened.is_open());
        fs::rename(&files[1], folder.path().join("away")).unwrap();
        assert_eq!(opened.change(), Some(Change::Beside(files[1].clone())));
        fs::remove_file(&files[0]).unwrap();
        assert_eq!(opened.change(), Some(Change::Gone));
        fs::write(&files[0], "another").unwrap();
        assert_eq!(opened.change(), Some(Change::Replaced));
        assert!(opened.is_open());
        drop(open);
        assert!(!opened.is_open());
        let aside = opened.put_aside().unwrap();
        assert_eq!(aside, [beside(&files[2], ".replaced-1")]);
        assert!(files[0].exists() && !files[2].exists());
    }
}
