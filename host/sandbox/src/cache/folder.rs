//! Folders that only the host's user and root can change.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What is known of the folders above one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Above {
    /// Nothing: they are looked at.
    Unknown,
    /// Whoever started the host says that nobody else changes them.
    Vouched,
}

/// Makes a folder of this user alone, with those above it that are not there, and
/// gives its path without links. Refuses one that others can read or change, and
/// one below a folder that others can change, unless that is vouched for.
#[cfg(unix)]
pub(super) fn private(directory: &Path, above: Above) -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let directory = directory.canonicalize()?;
    check_own(&directory)?;
    if above == Above::Unknown {
        for above in directory.ancestors().skip(1) {
            check_above(above)?;
        }
    }
    Ok(directory)
}

#[cfg(not(unix))]
pub(super) fn private(directory: &Path, _: Above) -> io::Result<PathBuf> {
    fs::create_dir_all(directory)?;
    directory.canonicalize()
}

#[cfg(unix)]
fn check_own(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(directory)?;
    let us = rustix::process::geteuid().as_raw();
    if metadata.uid() != us {
        return Err(belongs(directory, metadata.uid(), us));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!(
            "other users can look into {0} or change it (mode {1:03o}, not 700): delete the folder, or, if you know all that is in it, run `chmod -R go= {0}`",
            directory.display(),
            metadata.mode() & 0o777
        )));
    }
    Ok(())
}

/// Whoever can change a folder can put another one in the place of what is in it;
/// where it is sticky, as `/tmp` is, only in the place of what is their own.
#[cfg(unix)]
fn check_above(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    const STICKY: u32 = 0o1000;
    let metadata = fs::metadata(directory)?;
    let us = rustix::process::geteuid().as_raw();
    if metadata.uid() != us && metadata.uid() != 0 {
        return Err(belongs(directory, metadata.uid(), us));
    }
    if metadata.mode() & 0o022 != 0 && metadata.mode() & STICKY == 0 {
        return Err(io::Error::other(format!(
            "other users can change {0}, which it lies in (mode {1:03o}): run `chmod go-w {0}`, and delete what others may have put there; in a container that has no other users, name a folder with HOST_CACHE",
            directory.display(),
            metadata.mode() & 0o777
        )));
    }
    Ok(())
}

#[cfg(unix)]
fn belongs(directory: &Path, owner: u32, us: u32) -> io::Error {
    io::Error::other(format!(
        "{} belongs to user {owner}, and this is user {us}: delete it, or name another folder with XDG_CACHE_HOME",
        directory.display()
    ))
}
