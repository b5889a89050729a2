//! Whom a server runs as: PostgreSQL refuses to run as root.

use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Somebody other than root, by numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// Whom to become to run a server; `None` when there is no need.
    pub(crate) fn needed() -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let known = ["postgres", "nobody"].into_iter().find_map(Self::named);
        known.map(Some).context("PostgreSQL does not run as root, and there is no other user")
    }

    fn named(name: &str) -> Option<Self> {
        let ask = |what: &str| -> Option<u32> {
            let output = Command::new("id").args([what, name]).output().ok()?;
            let number = String::from_utf8(output.stdout).ok()?;
            output.status.success().then(|| number.trim().parse().ok())?
        };
        Some(Self { uid: ask("-u")?, gid: ask("-g")? })
    }

    /// Gives a file or folder to this user.
    pub(crate) fn own(self, path: &Path) -> Result<()> {
        chown(path, Some(self.uid), Some(self.gid))
            .with_context(|| format!("cannot give {} to uid {}", path.display(), self.uid))
    }

    /// Lets a command run as this user, in no group but its own: the standard
    /// library drops root's other groups together with root.
    pub(crate) fn run(self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }
}

/// Where everybody may put temporary files.
const SHARED: &str = "/tmp";

/// The longest name of a folder, in bytes, in which a server can have a folder with its
/// socket: systems take 104 bytes for all of its path, the smallest.
const LONGEST: usize = 60;

/// A folder for temporary files that `user` reaches, and whose name is short enough.
pub(crate) fn temporary_folder(user: Option<User>) -> Result<PathBuf> {
    let shared = Path::new(SHARED);
    let usual = std::env::temp_dir();
    if usual.as_os_str().len() > LONGEST && everybody_reaches(shared) {
        return Ok(shared.to_owned());
    }
    if user.is_none() { Ok(usual) } else { folder_for_everybody() }
}

/// A folder for temporary files that every user reaches.
///
/// # Errors
/// When there is none.
pub fn folder_for_everybody() -> Result<PathBuf> {
    let usual = std::env::temp_dir();
    if everybody_reaches(&usual) {
        return Ok(usual);
    }
    let shared = Path::new(SHARED);
    if everybody_reaches(shared) {
        return Ok(shared.to_owned());
    }
    bail!("{} is closed to other users: set TMPDIR to one that is not", usual.display())
}

fn everybody_reaches(folder: &Path) -> bool {
    const SEARCHABLE_BY_OTHERS: u32 = 0o001;
    folder.canonicalize().is_ok_and(|folder| {
        folder.ancestors().all(|ancestor| {
            ancestor.metadata().is_ok_and(|found| found.mode() & SEARCHABLE_BY_OTHERS != 0)
        })
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_below_a_closed_one_is_out_of_reach() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("inner");
        create_dir(&inner).unwrap();
        set_permissions(&inner, Permissions::from_mode(0o777)).unwrap();
        set_permissions(outer.path(), Permissions::from_mode(0o700)).unwrap();
        assert!(!everybody_reaches(&inner));
        set_permissions(outer.path(), Permissions::from_mode(0o711)).unwrap();
        assert_eq!(everybody_reaches(&inner), everybody_reaches(&std::env::temp_dir()));
    }
}
