//! Builds a handlers.toml.

use std::fmt::Write as _;
use std::path::PathBuf;

/// The settings of a test's host.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    top: String,
    handlers: Vec<Handler>,
}

impl Settings {
    /// Settings with these handlers.
    pub fn of(handlers: impl IntoIterator<Item = Handler>) -> Self {
        Self { top: String::new(), handlers: handlers.into_iter().collect() }
    }

    /// A line at the top level, as it stands in the file.
    #[must_use]
    pub fn top(mut self, line: &str) -> Self {
        self.top.push_str(line);
        self.top.push('\n');
        self
    }

    /// The file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut toml = self.top.clone();
        for handler in &self.handlers {
            toml.push_str(&handler.toml);
        }
        toml
    }
}

/// One handler: a test guest and its settings.
#[derive(Debug, Clone)]
pub struct Handler {
    toml: String,
}

impl Handler {
    /// A handler of this name that runs a test guest, and receives every event
    /// that it does not emit itself by accident: give it a subscription.
    #[must_use]
    pub fn new(name: &str, guest: &str, subscribe: &[&str]) -> Self {
        Self::of_file(name, &guest_file(guest).to_string_lossy(), subscribe)
    }

    /// A handler of this name that runs a file.
    #[must_use]
    pub fn of_file(name: &str, component: &str, subscribe: &[&str]) -> Self {
        let toml =
            format!("\n[handlers.{name}]\ncomponent = {component:?}\nsubscribe = {subscribe:?}\n");
        Self { toml }
    }

    /// One more setting, as it stands in the file, such as
    /// `retry.max_attempts = 3`.
    #[must_use]
    pub fn set(mut self, line: &str) -> Self {
        writeln!(self.toml, "{line}").unwrap();
        self
    }

    /// So many attempts, a few milliseconds apart.
    #[must_use]
    pub fn attempts(self, attempts: u32) -> Self {
        self.set(&format!(
            "retry = {{ max_attempts = {attempts}, initial = \"5ms\", multiplier = 1, jitter = 0 }}"
        ))
    }
}

/// A built test guest.
///
/// # Panics
/// When it is not built.
#[must_use]
pub fn guest_file(name: &str) -> PathBuf {
    let folder = std::env::var_os("GUESTS_DIR").map_or_else(
        || {
            let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
            tests.parent().expect("the crate lies in the workspace").join("target/guests")
        },
        PathBuf::from,
    );
    let file = folder.join(format!("{name}.wasm"));
    assert!(file.is_file(), "no test guest at {}: run `cargo xtask test`", file.display());
    file
}

/// The bytes of one version of the test guest `versioned`.
///
/// # Panics
/// When the number has more than eight digits.
#[must_use]
pub fn version_of_guest(version: u32) -> Vec<u8> {
    const MARK: &[u8] = b"versioned-guest:";
    let mut bytes = std::fs::read(guest_file("versioned")).expect("the guest can be read");
    let digits = format!("{version:08}").into_bytes();
    assert_eq!(digits.len(), 8, "{version}");
    let marks: Vec<usize> = bytes
        .windows(MARK.len())
        .enumerate()
        .filter(|(_, part)| *part == MARK)
        .map(|(at, _)| at)
        .collect();
    let [mark] = marks[..] else { panic!("the guest has {} marks", marks.len()) };
    bytes[mark + MARK.len()..][..digits.len()].copy_from_slice(&digits);
    bytes
}
