//! The compile cache: native code on disk, by what it was made from and with.
//!
//! wasmtime keeps it, bounds it and names its files by digest. Here it is only
//! decided where it is, and whether that place can be trusted. A cache that
//! cannot be used costs the time to compile at each start, and nothing else.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use wasmtime::{Cache, CacheConfig};

use super::engine::CacheSettings;

/// Bytes on disk; beyond, the files that were used longest ago go.
const CACHE_BYTES: u64 = 1 << 30;

/// Opens the cache, and gives it with its folder; `None`, with a line in the log,
/// where there can be none.
pub(super) fn open(settings: &CacheSettings) -> Option<(Cache, PathBuf)> {
    let directory = match settings {
        CacheSettings::Off => return None,
        CacheSettings::Directory(directory) => directory.clone(),
        CacheSettings::UserDefault => {
            let Some(directory) = user_directory() else {
                tracing::info!(
                    "components are compiled at each start: neither XDG_CACHE_HOME nor HOME says where to keep the code"
                );
                return None;
            };
            directory
        }
    };
    match try_open(&directory) {
        Ok(cache) => Some(cache),
        Err(error) => {
            tracing::warn!(
                "components are compiled at each start: the code cannot be kept in {}: {error}",
                directory.display()
            );
            None
        }
    }
}

/// Opens the cache in a folder that [`open`] gave to another process.
pub(super) fn reopen(directory: &Path) -> Option<Cache> {
    try_open(directory).ok().map(|(cache, _)| cache)
}

fn user_directory() -> Option<PathBuf> {
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|caches| caches.join("event-host"))
}

fn try_open(directory: &Path) -> io::Result<(Cache, PathBuf)> {
    create_private(directory)?;
    // wasmtime wants an absolute path.
    let directory = directory.canonicalize()?;
    trusted(&directory)?;
    let mut config = CacheConfig::new();
    // wasmtime removes from its folder what is not its own.
    config.with_directory(directory.join("code")).with_files_total_size_soft_limit(CACHE_BYTES);
    let cache = Cache::new(config).map_err(|error| io::Error::other(format!("{error:#}")))?;
    Ok((cache, directory))
}

#[cfg(unix)]
fn create_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

#[cfg(not(unix))]
fn create_private(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)
}

/// Whoever can write here can run code as this user.
#[cfg(unix)]
fn trusted(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(directory)?;
    let us = rustix::process::geteuid().as_raw();
    if metadata.uid() != us {
        return Err(io::Error::other(format!(
            "it belongs to user {}, and this is user {us}",
            metadata.uid()
        )));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other("other users can write to it (chmod go-w)"));
    }
    Ok(())
}

#[cfg(not(unix))]
fn trusted(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_that_others_can_write_to_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        assert!(open(&CacheSettings::Directory(cache.clone())).is_some());
        fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(open(&CacheSettings::Directory(cache)).is_none());
    }

    #[test]
    fn a_cache_that_is_a_file_stops_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(open(&CacheSettings::Directory(file.path().to_owned())).is_none());
    }
}
