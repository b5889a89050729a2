//! The key of a cache: 32 random bytes in a file that only the host's user reads.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::Path;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Bytes of a MAC: HMAC-SHA256, RFC 2104.
pub(super) const MAC_BYTES: usize = 32;

const KEY_BYTES: usize = 32;

/// What entries are for, so that no MAC counts for anything else.
const PURPOSE: &[u8] = b"event-host compiled component 1\0";

/// Signs entries.
pub(super) struct Key(Hmac<Sha256>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Opens the key of a cache, and makes one where there is none.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join("key");
        let bytes = match read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(folder, &path)?;
                // That of the host which was first, if several make one.
                read(&path)?
            }
            other => other?,
        };
        Hmac::new_from_slice(&bytes).map(Self).map_err(io::Error::other)
    }

    /// The MAC of an entry under its name.
    pub(super) fn sign(&self, name: &str, entry: &[u8]) -> [u8; MAC_BYTES] {
        self.over(name, entry).finalize().into_bytes().into()
    }

    /// Whether this is the MAC of an entry under its name.
    pub(super) fn has_signed(&self, mac: &[u8; MAC_BYTES], name: &str, entry: &[u8]) -> bool {
        self.over(name, entry).verify_slice(mac).is_ok()
    }

    fn over(&self, name: &str, entry: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(PURPOSE);
        // Names hold no NUL, so that name and entry cannot be divided otherwise.
        mac.update(name.as_bytes());
        mac.update(b"\0");
        mac.update(entry);
        mac
    }
}

fn make(folder: &Path, path: &Path) -> io::Result<()> {
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(|error| io::Error::other(error.to_string()))?;
    let mut file = tempfile::Builder::new().prefix(".key-").tempfile_in(folder)?;
    file.write_all(&key)?;
    // Whole or not at all, and never in the place of one that is there.
    match file.persist_noclobber(path) {
        Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    check(&file, path)?;
    let mut key = Vec::new();
    Read::by_ref(&mut file).take(KEY_BYTES as u64 + 1).read_to_end(&mut key)?;
    if key.len() != KEY_BYTES {
        return Err(io::Error::other(format!(
            "the key {} has {} bytes and not {KEY_BYTES}: delete the folder",
            path.display(),
            key.len()
        )));
    }
    Ok(key)
}

#[cfg(unix)]
fn check(file: &File, path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let metadata = file.metadata()?;
    let us = rustix::process::geteuid().as_raw();
    if metadata.uid() != us || metadata.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!(
            "the key {} is not this user's alone (user {}, mode {:03o}, not 600), so others may have made what is there: delete the folder",
            path.display(),
            metadata.uid(),
            metadata.mode() & 0o777
        )));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check(_: &File, _: &Path) -> io::Result<()> {
    Ok(())
}
