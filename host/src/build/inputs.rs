//! The files that a component is made of, and whether they changed.
//!
//! A file counts if it matches a pattern, git does not ignore it, and it is not made by a
//! build: nothing below [`NEVER`], no component. What counts is its content: a file that
//! is written anew with the same bytes, as a generator does, is no change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use globset::{Glob, GlobSet, GlobSetBuilder};
use ignore::WalkBuilder;

use super::{BuildError, Job, WORK, plain};
use crate::config::{BuildBy, BuildSettings};
use crate::language::Language;
use crate::sdk;
use event_host_core::digest::Digest;

/// Folders in which nothing counts: what tools install and make.
const NEVER: &[&str] =
    &[WORK, sdk::FOLDER, "node_modules", ".venv", "target", "__pycache__", "zig-out", ".git"];

/// The patterns of a language's sources, in the folder of a handler.
const fn patterns(language: Language) -> &'static [&'static str] {
    match language {
        Language::Rust => &["**/*.rs", "**/Cargo.toml"],
        Language::Js => &["**/*.{js,mjs,cjs,json}"],
        Language::Ts => &["**/*.{ts,mts,tsx,js,mjs,cjs,json}"],
        Language::Python => &["**/*.py"],
        Language::Go => &["**/*.go", "**/go.mod", "**/go.sum"],
        Language::C | Language::Cpp => &["**/*.{c,h,cc,cpp,cxx,hh,hpp,hxx}"],
        Language::Zig => &["**/*.{zig,zon,c,h}"],
        Language::Wat => &["**/*.wat"],
    }
}

/// Which files one handler's component is made of.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// The folders that have them.
    folders: BTreeSet<PathBuf>,
    patterns: GlobSet,
    /// What builds make.
    made: BTreeSet<PathBuf>,
}

/// What the files were when they were looked at.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Look {
    files: BTreeMap<PathBuf, Seen>,
    /// The folders that hold them, or may.
    folders: BTreeSet<PathBuf>,
    newest: Option<SystemTime>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    /// Tells cheaply that the content cannot have changed.
    stamp: (u64, u64, i64, i64, i64, i64),
    content: Option<Digest>,
}

impl Inputs {
    /// The inputs of a handler; `None` of a command whose table does not say what to
    /// watch. `made` are the components of all handlers.
    ///
    /// # Errors
    /// When a pattern is none.
    pub fn of(
        job: &Job,
        build: &BuildSettings,
        made: impl IntoIterator<Item = PathBuf>,
    ) -> Result<Option<Self>, BuildError> {
        let given: Vec<PathBuf> = match (&build.watch, &build.by) {
            (Some(watch), _) => watch.iter().map(|pattern| job.root.join(pattern)).collect(),
            (None, BuildBy::Recipe(language)) => {
                patterns(*language).iter().map(|pattern| job.folder.join(pattern)).collect()
            }
            (None, BuildBy::Command(_)) => return Ok(None),
        };
        let mut set = GlobSetBuilder::new();
        let mut folders = BTreeSet::new();
        for (at, pattern) in given.iter().enumerate() {
            let (folder, rest) = literal(pattern);
            // The folder's own name may have characters that mean something in a pattern.
            let whole = format!("{}/{rest}", globset::escape(&folder.to_string_lossy()));
            let glob = Glob::new(&whole).map_err(|why| BuildError::Pattern {
                pattern: match &build.watch {
                    Some(watch) => watch.get(at).cloned().unwrap_or_default(),
                    None => whole.clone(),
                },
                why: why.kind().to_string(),
            })?;
            set.add(glob);
            folders.insert(folder);
        }
        let patterns = set.build().map_err(|why| BuildError::Pattern {
            pattern: build.watch.clone().unwrap_or_default().join(", "),
            why: why.to_string(),
        })?;
        let mut made: BTreeSet<PathBuf> = made.into_iter().map(|file| plain(&file)).collect();
        made.insert(plain(&job.component));
        made.insert(plain(&job.command_output()));
        Ok(Some(Self { folders, patterns, made }))
    }

    /// Whether a file of this name counts, wherever git has its ignored ones.
    pub fn matches(&self, file: &Path) -> bool {
        !self.made.contains(file)
            && self.patterns.is_match(file)
            && !self.folders.iter().any(|folder| {
                let below = file.strip_prefix(folder).unwrap_or(Path::new(""));
                below.iter().any(|part| NEVER.iter().any(|never| part == *never))
            })
    }

    /// Looks at all files. Reads those that may have changed since `before`.
    #[must_use]
    pub fn look(&self, before: &Look) -> Look {
        let mut look = Look::default();
        for folder in &self.folders {
            let mut walk = WalkBuilder::new(folder);
            // A project need not be in git for its .gitignore to count; and hidden files
            // may be sources.
            walk.require_git(false).hidden(false).follow_links(true);
            walk.filter_entry(|entry| !NEVER.iter().any(|never| entry.file_name() == *never));
            // What cannot be read, or is gone by now, is not there.
            for entry in walk.build().flatten() {
                let path = entry.path();
                let Ok(metadata) = fs::metadata(path) else { continue };
                if metadata.is_dir() {
                    look.folders.insert(path.to_owned());
                } else if metadata.is_file() && self.matches(path) {
                    look.newest = look.newest.max(metadata.modified().ok());
                    look.files.insert(path.to_owned(), seen(path, &metadata, before));
                }
            }
        }
        look
    }
}

fn seen(path: &Path, metadata: &Metadata, before: &Look) -> Seen {
    let stamp = (
        metadata.ino(),
        metadata.size(),
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    );
    match before.files.get(path) {
        Some(seen) if seen.stamp == stamp => seen.clone(),
        _ => Seen { stamp, content: fs::read(path).ok().map(|bytes| Digest::of(&bytes)) },
    }
}

/// A pattern as the folder that it begins with, and the rest.
fn literal(pattern: &Path) -> (PathBuf, String) {
    let is_special = |part: &str| part.contains(['*', '?', '[', '{', '\\']);
    let parts: Vec<String> =
        pattern.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    // The last part names files, even where it is no pattern.
    let most = parts.len().saturating_sub(1);
    let end = parts.iter().position(|part| is_special(part)).unwrap_or(most).min(most);
    (parts.iter().take(end).collect(), parts.get(end..).unwrap_or_default().join("/"))
}

impl Look {
    /// The files whose content is another now, or that are new or gone; not if that
    /// cannot be told.
    #[must_use]
    pub fn changed(&self, now: &Self) -> Vec<PathBuf> {
        let content =
            |look: &Self, file: &PathBuf| look.files.get(file).map(|seen| seen.content.clone());
        let all: BTreeSet<&PathBuf> = self.files.keys().chain(now.files.keys()).collect();
        all.into_iter().filter(|file| content(self, file) != content(now, file)).cloned().collect()
    }

    /// Whether a file changed after this one was made, which may not be there.
    #[must_use]
    pub fn is_newer_than(&self, made: &Path) -> bool {
        match fs::metadata(made).and_then(|metadata| metadata.modified()) {
            Ok(made) => self.newest.is_some_and(|newest| newest > made),
            Err(_) => true,
        }
    }

    /// The folders in which files may change.
    pub fn folders(&self) -> &BTreeSet<PathBuf> {
        &self.folders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(root: &Path, by: BuildBy, watch: Option<&[&str]>) -> Inputs {
        let build = BuildSettings {
            by,
            folder: root.join("orders"),
            output: None,
            component: root.join("orders/orders.wasm"),
            watch: watch.map(|watch| watch.iter().map(|&pattern| pattern.to_owned()).collect()),
            root: root.to_owned(),
        };
        let job = Job::new(&"orders".parse().unwrap(), &build).unwrap();
        Inputs::of(&job, &build, [root.join("other.wasm")]).unwrap().unwrap()
    }

    fn write(file: &Path, text: &str) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn sources_count_and_what_tools_make_or_git_ignores_does_not() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join("orders").join(name);
        for name in [
            "app.py",
            "deep/er/more.py",
            ".venv/lib/x.py",
            "node_modules/x.py",
            ".host/x.py",
            "event-host/event_host/x.py",
            "__pycache__/x.py",
            "secret/x.py",
            "notes.txt",
        ] {
            write(&at(name), "");
        }
        write(&at(".gitignore"), "secret/\n");
        let inputs = inputs(root.path(), BuildBy::Recipe(Language::Python), None);
        let look = inputs.look(&Look::default());
        let files: Vec<_> = look.files.keys().cloned().collect();
        assert_eq!(files, [at("app.py"), at("deep/er/more.py")]);
        assert!(look.folders.contains(&at("deep")) && !look.folders.contains(&at(".venv")));
    }

    #[test]
    fn a_change_is_one_of_content_and_no_component_counts() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        write(&at("orders/a.c"), "1");
        write(&at("shared/b.h"), "1");
        let command = BuildBy::Command(vec!["make".to_owned()]);
        let inputs = inputs(root.path(), command, Some(&["orders/**", "shared/*.h"]));
        let first = inputs.look(&Look::default());
        assert_eq!(first.files.len(), 2, "{first:?}");
        write(&at("orders/a.c"), "1");
        write(&at("orders/orders.wasm"), "made");
        write(&at("other.wasm"), "made");
        let second = inputs.look(&first);
        assert!(first.changed(&second).is_empty(), "{second:?}");
        write(&at("shared/b.h"), "2");
        fs::rename(at("orders/a.c"), at("orders/c.c")).unwrap();
        let third = inputs.look(&second);
        let changed = ["orders/a.c", "orders/c.c", "shared/b.h"].map(at);
        assert_eq!(second.changed(&third), changed);
        assert!(third.is_newer_than(&at("missing.wasm")));
        write(&at("new.wasm"), "");
        assert!(!third.is_newer_than(&at("new.wasm")));
    }

    #[test]
    fn a_pattern_begins_with_a_folder_to_look_in() {
        for (pattern, folder, rest) in [
            ("/r/orders/**/*.py", "/r/orders", "**/*.py"),
            ("/r/a.[ch]", "/r", "a.[ch]"),
            ("/r/shared/b.h", "/r/shared", "b.h"),
            ("/r/{a,b}/c.py", "/r", "{a,b}/c.py"),
        ] {
            assert_eq!(literal(Path::new(pattern)), (folder.into(), rest.to_owned()));
        }
    }
}
