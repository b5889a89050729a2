//! The compile cache: native code on disk, by what it was made from and with.
//!
//! Whoever can write an entry can run code as the host's user. So the folder and
//! everything above it may be changed by that user and root alone (`folder`), and
//! each entry carries a MAC of a key that only this folder has (`key`): what
//! somebody else put there, moved, or damaged is not run, and compiled again. A
//! cache that cannot be used costs the time to compile at each start, and nothing
//! else.
//!
//! A volume of a container belongs to root and may be changed by every user of the container,
//! which has one. Nothing shows that it has no other: so whoever starts the host says it, and
//! names the volume in [`VOUCHED`].

mod folder;
mod key;

use std::cmp::Reverse;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::engine::CacheSettings;
use folder::Above;
use key::{Key, MAC_BYTES};

/// The environment variable that names the folder to keep the code in, in place of the user's
/// cache folder. What that folder lies in is not looked at.
const VOUCHED: &str = "HOST_CACHE";

/// Bytes on disk; beyond, the entries that were used longest ago go.
const CACHE_BYTES: u64 = 1 << 30;

/// How the names of files begin that are being written.
const UNFINISHED: &str = ".new-";

/// A file that is still being written after so long was left by a host that died.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The compiled code of components.
#[derive(Debug)]
pub(super) struct Cache {
    /// The folder of the entries.
    entries: PathBuf,
    key: Key,
}

/// Opens the cache; `None`, with a line in the log, where there can be none.
pub(super) fn open(settings: &CacheSettings) -> Option<Cache> {
    let (directory, above) = match settings {
        CacheSettings::Off => return None,
        CacheSettings::Directory(directory) => (directory.clone(), Above::Unknown),
        CacheSettings::UserDefault => user_directory(|name| env::var_os(name))
            .inspect_err(|why| tracing::info!("components are compiled at each start: {why}"))
            .ok()?,
    };
    match Cache::open(&directory, above) {
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

/// The folder that the environment names.
///
/// # Errors
/// When it names none.
fn user_directory(
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<(PathBuf, Above), &'static str> {
    let set =
        |name: &str| variable(name).map(PathBuf::from).filter(|dir| !dir.as_os_str().is_empty());
    let absolute = |name: &str| set(name).filter(|dir| dir.is_absolute());
    let caches = match set(VOUCHED) {
        Some(_) => absolute(VOUCHED)
            .map(|caches| (caches, Above::Vouched))
            .ok_or("HOST_CACHE is no absolute path: write one such as /cache")?,
        None => absolute("XDG_CACHE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
            .map(|caches| (caches, Above::Unknown))
            .ok_or("none of HOST_CACHE, XDG_CACHE_HOME and HOME says where to keep the code")?,
    };
    Ok((caches.0.join("event-host"), caches.1))
}

impl Cache {
    fn open(directory: &Path, above: Above) -> io::Result<Self> {
        let directory = folder::private(directory, above)?;
        let key = Key::open(&directory)?;
        let entries = folder::private(&directory.join("components"), above)?;
        Ok(Self { entries, key })
    }

    /// The entry of this name, if it is there and as it was put.
    pub(super) fn get(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.entries.join(name);
        match self.read(name, &path) {
            Ok(entry) => Some(entry),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(
                    "the compiled code in {} is not used, and made anew: {error}",
                    path.display()
                );
                None
            }
        }
    }

    /// Whether there is an entry of this name, whichever process put it there.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.entries.join(name).is_file()
    }

    fn read(&self, name: &str, path: &Path) -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let mut mac = [0; MAC_BYTES];
        file.read_exact(&mut mac)?;
        let mut entry = Vec::new();
        Read::by_ref(&mut file).take(CACHE_BYTES).read_to_end(&mut entry)?;
        if !self.key.has_signed(&mac, name, &entry) {
            return Err(io::Error::other("it is not what this cache's own hosts put there"));
        }
        // What was used lately stays; a time that cannot be set makes it go earlier.
        if let Err(error) = file.set_modified(SystemTime::now()) {
            tracing::debug!("{}: {error}", path.display());
        }
        Ok(entry)
    }

    /// Keeps an entry under a name, which is no path.
    pub(super) fn put(&self, name: &str, entry: &[u8]) -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.entries)?;
        file.write_all(&self.key.sign(name, entry))?;
        file.write_all(entry)?;
        // Whole or not at all, for those who read it meanwhile.
        file.persist(self.entries.join(name))?;
        self.sweep(CACHE_BYTES)
    }

    /// Removes what was used longest ago, until no more than these bytes are left.
    fn sweep(&self, most: u64) -> io::Result<()> {
        let now = SystemTime::now();
        let mut kept = Vec::new();
        for file in fs::read_dir(&self.entries)? {
            let file = file?;
            // Another host may have removed it.
            let Ok(metadata) = file.metadata() else { continue };
            let used = metadata.modified()?;
            let is_unfinished =
                file.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes());
            if !is_unfinished {
                kept.push((used, metadata.len(), file.path()));
            } else if now.duration_since(used).is_ok_and(|age| age > ABANDONED) {
                remove(&file.path())?;
            }
        }
        kept.sort_unstable_by_key(|file| Reverse(file.0));
        let mut bytes = 0_u64;
        for (_, size, path) in kept {
            bytes = bytes.saturating_add(size);
            if bytes > most {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

/// Removes a file that another host may have removed meanwhile.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_is_put_is_what_is_got_and_each_level_is_the_users_alone() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a/b");
        let cache = Cache::open(&place, Above::Unknown).unwrap();
        assert_eq!(cache.get("one"), None);
        cache.put("one", b"code").unwrap();
        assert_eq!(cache.get("one").unwrap(), b"code");
        assert_eq!(Cache::open(&place, Above::Unknown).unwrap().get("one").unwrap(), b"code");
        for folder in [dir.path().join("a"), place.clone(), place.join("components")] {
            assert_eq!(mode(&folder), 0o700, "{}", folder.display());
        }
        for file in [place.join("key"), place.join("components/one")] {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
        }
    }

    #[test]
    fn a_folder_at_any_level_that_others_can_change_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("home/cache/event-host");
        Cache::open(&place, Above::Unknown).unwrap();
        for lax in [
            place.join("components"),
            place.clone(),
            dir.path().join("home/cache"),
            dir.path().join("home"),
        ] {
            for bits in [0o770, 0o707, 0o720] {
                set_mode(&lax, bits);
                let refused = Cache::open(&place, Above::Unknown).unwrap_err().to_string();
                assert!(
                    refused.contains(&lax.display().to_string()) && refused.contains("chmod"),
                    "{refused}"
                );
                if lax.starts_with(&place) {
                    assert!(refused.contains("delete"), "what is in it was anybody's: {refused}");
                }
            }
            set_mode(&lax, 0o700);
            Cache::open(&place, Above::Unknown).unwrap();
        }
    }

    #[test]
    fn what_a_folder_lies_in_is_not_looked_at_where_that_is_vouched_for_and_it_is_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, place) = (dir.path().join("volume"), dir.path().join("volume/event-host"));
        fs::create_dir(&volume).unwrap();
        // As a volume of a container is.
        set_mode(&volume, 0o777);
        Cache::open(&place, Above::Unknown).unwrap_err();
        let cache = Cache::open(&place, Above::Vouched).unwrap();
        cache.put("one", b"code").unwrap();
        assert_eq!(Cache::open(&place, Above::Vouched).unwrap().get("one").unwrap(), b"code");
        for lax in [&place, &place.join("components")] {
            set_mode(lax, 0o770);
            let refused = Cache::open(&place, Above::Vouched).unwrap_err().to_string();
            assert!(refused.contains(&lax.display().to_string()), "{refused}");
            set_mode(lax, 0o700);
        }
    }

    #[test]
    fn the_environment_names_the_folder() {
        let of = |set: &[(&str, &str)]| {
            user_directory(|name| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            })
        };
        let (vouched, xdg, home) =
            (("HOST_CACHE", "/cache"), ("XDG_CACHE_HOME", "/xdg"), ("HOME", "/home/host"));
        for (set, folder, above) in [
            (&[vouched, xdg, home][..], "/cache/event-host", Above::Vouched),
            (&[("HOST_CACHE", ""), xdg, home], "/xdg/event-host", Above::Unknown),
            (&[("XDG_CACHE_HOME", "xdg"), home], "/home/host/.cache/event-host", Above::Unknown),
        ] {
            assert_eq!(of(set), Ok((folder.into(), above)), "{set:?}");
        }
        assert!(of(&[("HOST_CACHE", "cache"), xdg]).unwrap_err().contains("no absolute path"));
        assert!(of(&[]).unwrap_err().contains("HOME"));
    }

    #[test]
    fn a_folder_of_somebody_else_is_refused_at_any_level() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("home/cache");
        Cache::open(&place, Above::Unknown).unwrap();
        for theirs in [place.join("components"), place.clone(), dir.path().join("home")] {
            std::os::unix::fs::chown(&theirs, Some(12_345), None).unwrap();
            let refused = Cache::open(&place, Above::Unknown).unwrap_err().to_string();
            assert!(refused.contains("belongs to user 12345"), "{refused}");
            std::os::unix::fs::chown(&theirs, Some(0), None).unwrap();
        }
    }

    #[test]
    fn an_entry_that_was_not_put_here_is_not_given() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
        let (cache, other) = (
            Cache::open(&ours, Above::Unknown).unwrap(),
            Cache::open(&theirs, Above::Unknown).unwrap(),
        );
        cache.put("one", b"code").unwrap();
        other.put("one", b"evil").unwrap();
        let entry = ours.join("components/one");
        let good = fs::read(&entry).unwrap();
        let mut turned = good.clone();
        turned[MAC_BYTES] ^= 1;
        let foreign = fs::read(theirs.join("components/one")).unwrap();
        for bad in [turned, foreign, good[..good.len() - 1].to_vec(), b"rubbish".to_vec()] {
            fs::write(&entry, bad).unwrap();
            assert_eq!(cache.get("one"), None);
        }
        // Under another name it would be run for another component.
        fs::write(ours.join("components/two"), &good).unwrap();
        assert_eq!(cache.get("two"), None);
        fs::write(&entry, good).unwrap();
        assert_eq!(cache.get("one").unwrap(), b"code");
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("cache");
        Cache::open(&place, Above::Unknown).unwrap();
        set_mode(&place.join("key"), 0o644);
        let refused = Cache::open(&place, Above::Unknown).unwrap_err().to_string();
        assert!(refused.contains("key") && refused.contains("delete"), "{refused}");
        set_mode(&place.join("key"), 0o600);
        fs::write(place.join("key"), b"short").unwrap();
        let refused = Cache::open(&place, Above::Unknown).unwrap_err().to_string();
        assert!(refused.contains("5 bytes") && refused.contains("delete"), "{refused}");
    }

    #[test]
    fn hosts_that_open_a_cache_together_agree_on_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("cache");
        let caches: Vec<Cache> = std::thread::scope(|scope| {
            let opened: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| Cache::open(&place, Above::Unknown).unwrap()))
                .collect();
            opened.into_iter().map(|cache| cache.join().unwrap()).collect()
        });
        caches[0].put("one", b"code").unwrap();
        assert!(caches.iter().all(|cache| cache.get("one").is_some()));
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(&dir.path().join("cache"), Above::Unknown).unwrap();
        for name in ["one", "two", "three"] {
            cache.put(name, &[0; 1000]).unwrap();
        }
        let before = |name: &str, seconds| {
            let file = File::options().write(true).open(cache.entries.join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        before("one", 30);
        before("two", 20);
        before("three", 10);
        assert!(cache.get("one").is_some(), "now it was used last");
        fs::write(cache.entries.join(".new-abc"), b"").unwrap();
        cache.sweep(2 * (1000 + MAC_BYTES as u64)).unwrap();
        assert_eq!(cache.get("two"), None);
        assert!(cache.get("one").is_some() && cache.get("three").is_some());
        assert!(cache.entries.join(".new-abc").exists(), "somebody writes it");
        before(".new-abc", 7200);
        cache.sweep(CACHE_BYTES).unwrap();
        assert!(!cache.entries.join(".new-abc").exists(), "nobody does");
    }

    #[test]
    fn a_cache_that_is_a_file_stops_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(open(&CacheSettings::Directory(file.path().to_owned())).is_none());
    }
}
