//! The SDKs, embedded in the host.
//!
//! No registry has them, so the host writes the SDK of a handler's language into the
//! handler's folder, where it is checked in with the handler. A file of it,
//! [`RECORD`], says of which version of the host it is. What was written is never
//! changed: the project, not the host that happens to build it, says which SDK it uses.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::language::Language;
use event_host_core::digest::Digest;

/// The folder of the SDK in the folder of a handler.
pub const FOLDER: &str = "event-host";

/// The file in an SDK's folder that says where the folder comes from.
pub const RECORD: &str = "sdk.toml";

/// Has git take the SDK whole, whatever the project ignores, such as `*.o` or `build/`.
const GITIGNORE: &str = "!*\n__pycache__/\n.zig-cache/\nzig-out/\ntarget/\n";

/// The contract, in WIT.
pub const WIT: &str = include_str!("../../wit/handler.wit");

/// The version of the SDKs, which is the host's own.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A file of an SDK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SdkFile {
    /// Where it is in the SDK's folder.
    pub path: &'static str,
    /// What is in it.
    pub bytes: &'static [u8],
}

// Written by build.rs.
include!(concat!(env!("OUT_DIR"), "/sdks.rs"));

/// The SDK that a handler's folder has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// None.
    Missing,
    /// The one that this host has.
    Same,
    /// The one of another host, of this version.
    Other(String),
    /// A folder without [`RECORD`], or with one that says nothing.
    Unknown,
}

/// Something that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}: {why}", path.display())]
pub struct SdkError {
    doing: &'static str,
    path: PathBuf,
    why: io::Error,
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SdkError {
    let path = path.to_owned();
    move |why| SdkError { doing, path, why }
}

/// The files of a language's SDK; none for WAT, which needs none.
#[must_use]
pub const fn files(language: Language) -> &'static [SdkFile] {
    match language {
        Language::Rust => RUST,
        Language::Js | Language::Ts => JS,
        Language::Python => PYTHON,
        Language::Go => GO,
        Language::C | Language::Cpp => C,
        Language::Zig => ZIG,
        Language::Wat => &[],
    }
}

/// The digest over the names and the bytes of a language's SDK.
fn digest(language: Language) -> Digest {
    let mut all = Vec::new();
    for SdkFile { path, bytes } in files(language) {
        for part in [path.as_bytes(), bytes] {
            all.extend((part.len() as u64).to_le_bytes());
            all.extend(part);
        }
    }
    Digest::of(&all)
}

/// What [`RECORD`] says.
#[derive(Debug, Deserialize)]
struct Record {
    version: String,
    digest: String,
}

/// Looks at the SDK in `folder`, which is usually [`FOLDER`] in a handler's folder.
///
/// # Errors
/// When it is there and cannot be read.
pub fn look(language: Language, folder: &Path) -> Result<Found, SdkError> {
    let record = folder.join(RECORD);
    let text = match fs::read_to_string(&record) {
        Ok(text) => text,
        Err(why) if why.kind() == ErrorKind::InvalidData => return Ok(Found::Unknown),
        Err(why) if why.kind() == ErrorKind::NotFound => {
            let exists = fs::exists(folder).map_err(failed("look at", folder))?;
            return Ok(if exists { Found::Unknown } else { Found::Missing });
        }
        Err(why) => return Err(failed("read", &record)(why)),
    };
    Ok(match toml::from_str::<Record>(&text) {
        Ok(record) if record.digest == digest(language).as_str() => Found::Same,
        Ok(record) => Found::Other(record.version),
        Err(_) => Found::Unknown,
    })
}

/// Writes the SDK of a language into `folder`, which is usually [`FOLDER`] in a
/// handler's folder: all of it, or nothing. Its parent is created if it is missing.
/// For WAT, which needs no SDK, nothing is written.
///
/// # Errors
/// When `folder` exists and is not empty, or cannot be written.
pub fn write(language: Language, folder: &Path) -> Result<(), SdkError> {
    let files = files(language);
    if files.is_empty() {
        return Ok(());
    }
    let parent = match folder.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent).map_err(failed("create", parent))?;
    // Beside the folder, so that one rename puts it in place.
    let whole = tempfile::Builder::new()
        .prefix(".event-host-")
        .tempdir_in(parent)
        .map_err(failed("write to", parent))?;
    let top = whole.path().join("sdk");
    fs::create_dir(&top).map_err(failed("create", &top))?;
    let record = format!(
        "# The {} SDK of event-host, written by `host`. Check it in; `host build` uses it, and\n\
         # never changes it. Without this folder `host build` writes the SDK of its own version.\n\
         version = \"{VERSION}\"\n\
         digest = \"{}\"\n",
        language.title(),
        digest(language),
    );
    let listed = files.iter().map(|file| (file.path, file.bytes));
    let own = [(RECORD, record.as_bytes()), (".gitignore", GITIGNORE.as_bytes())];
    for (path, bytes) in listed.chain(own) {
        let file = top.join(path);
        let place = file.parent().unwrap_or(&top);
        fs::create_dir_all(place).map_err(failed("create", place))?;
        fs::write(&file, bytes).map_err(failed("write", &file))?;
    }
    fs::rename(&top, folder).map_err(failed("create", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sdk_of_each_language_is_written_whole_and_found_again() {
        for language in Language::ALL {
            let project = tempfile::tempdir().unwrap();
            let folder = project.path().join("orders").join(FOLDER);
            assert_eq!(look(language, &folder).unwrap(), Found::Missing);
            write(language, &folder).unwrap();
            if language == Language::Wat {
                assert!(!folder.exists());
                continue;
            }
            assert_eq!(look(language, &folder).unwrap(), Found::Same);
            for file in files(language) {
                assert_eq!(fs::read(folder.join(file.path)).unwrap(), file.bytes, "{}", file.path);
            }
            // Nothing of how it was written is left beside it.
            assert_eq!(fs::read_dir(project.path().join("orders")).unwrap().count(), 1);
            write(language, &folder).unwrap_err();
        }
    }

    #[test]
    fn an_sdk_of_another_host_is_told_apart() {
        let project = tempfile::tempdir().unwrap();
        let folder = project.path().join(FOLDER);
        write(Language::Go, &folder).unwrap();
        // TypeScript's is not Go's.
        assert_eq!(look(Language::Ts, &folder).unwrap(), Found::Other(VERSION.to_owned()));
        fs::write(folder.join(RECORD), "version = \"0.0.9\"\ndigest = \"sha256:0\"").unwrap();
        assert_eq!(look(Language::Go, &folder).unwrap(), Found::Other("0.0.9".to_owned()));
        for nothing in ["", "what?", "\u{0}"] {
            fs::write(folder.join(RECORD), nothing).unwrap();
            assert_eq!(look(Language::Go, &folder).unwrap(), Found::Unknown);
        }
        fs::remove_file(folder.join(RECORD)).unwrap();
        assert_eq!(look(Language::Go, &folder).unwrap(), Found::Unknown);
    }

    #[test]
    fn the_sdks_have_what_projects_need_and_nothing_of_the_workspace() {
        for (language, wanted) in [
            (Language::Rust, "macros/Cargo.toml"),
            (Language::Rust, "wit/handler.wit"),
            (Language::Js, "src/index.d.ts"),
            (Language::Ts, "wit/handler.wit"),
            (Language::Python, "event_host/wit/handler.wit"),
            (Language::Go, "cmd/build/metadata/event.bin"),
            (Language::C, "bindings/event/host_bindings_component_type.o"),
            (Language::Cpp, "include/host.hpp"),
            (Language::Zig, "bindings/batch.o"),
        ] {
            assert!(files(language).iter().any(|file| file.path == wanted), "{language}: {wanted}");
        }
        for file in files(Language::Rust).iter().filter(|file| file.path.ends_with("Cargo.toml")) {
            let text = str::from_utf8(file.bytes).unwrap();
            assert!(!text.contains("workspace"), "{}: {text}", file.path);
            let package: toml::Table = toml::from_str(text).unwrap();
            assert_eq!(package["package"]["version"].as_str(), Some(VERSION));
        }
        for language in Language::ALL {
            for file in files(language) {
                let is_left_behind = ["__pycache__", "node_modules", "_test.go", "/target/"];
                assert!(
                    !is_left_behind.iter().any(|part| file.path.contains(part)),
                    "{}",
                    file.path
                );
            }
        }
    }
}
