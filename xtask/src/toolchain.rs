//! The ways to a compiler for `wasm32-unknown-unknown`.
//!
//! Most machines have rustup, which has the target or fetches it. Where rustup
//! is missing or cannot fetch, Debian's packages bring a compiler with the
//! source of the standard library, and cargo builds that first.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use crate::command::{cargo, run, stdout_of};
use crate::debian;

/// What the guests are built for: the host makes components of core modules
/// itself, so no linker for components is needed.
pub(crate) const TARGET: &str = "wasm32-unknown-unknown";

const DEBIAN_PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", "lld-19"];

/// A way to a compiler for [`TARGET`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The compiler in use already has the target.
    Installed,
    /// `rustup target add` brings it.
    Rustup,
    /// Debian's compiler, with the standard library built from source.
    Debian,
}

impl FromStr for Way {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "installed" => Ok(Self::Installed),
            "rustup" => Ok(Self::Rustup),
            "debian" => Ok(Self::Debian),
            _ => bail!("`{name}` is not a way to a wasm target: use installed, rustup or debian"),
        }
    }
}

impl Way {
    /// What `--via` calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Installed => "installed",
            Self::Rustup => "rustup",
            Self::Debian => "debian",
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Installed => "the target that this Rust toolchain has",
            Self::Rustup => "the target that `rustup target add` brought",
            Self::Debian => {
                "Debian's rustc-web, building the standard library too (minutes the first time)"
            }
        }
    }

    /// Makes this way ready, or says why it cannot be.
    fn prepare(self) -> Result<()> {
        match self {
            Self::Installed => toolchain_has_target(),
            Self::Rustup => run(Command::new("rustup").args(["target", "add", TARGET])),
            Self::Debian => debian::install("guests", &DEBIAN_PACKAGES)
                .context("install rustup, or Debian's packages"),
        }
    }

    /// A `cargo build --release` for [`TARGET`] on this way.
    pub(crate) fn cargo_build(self) -> Command {
        let mut command = match self {
            Self::Installed | Self::Rustup => cargo(),
            Self::Debian => Command::new("/usr/bin/cargo"),
        };
        command.args(["build", "--release", "--locked", "--target", TARGET]);
        // Flags meant for this machine's own processor are wrong for wasm.
        for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
            command.env_remove(name);
        }
        if self == Self::Debian {
            command.arg("-Zbuild-std=std,panic_abort");
            command.env("RUSTC", "/usr/bin/rustc");
            command.env("RUSTC_BOOTSTRAP", "1");
            command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", "wasm-ld-19");
            // rustup's proxies set these for the toolchain that runs us.
            for name in ["RUSTUP_TOOLCHAIN", "RUSTDOC", "CARGO", "LD_LIBRARY_PATH"] {
                command.env_remove(name);
            }
        }
        command
    }
}

/// Makes the first way ready that can be, or `forced` alone, and says which.
///
/// `memory` is a file that remembers Debian's way between runs, so that a
/// machine without rustup's server does not ask for it each time.
pub(crate) fn find(forced: Option<Way>, memory: &Path) -> Result<Way> {
    let debian_before = fs::read_to_string(memory).is_ok_and(|way| way == Way::Debian.name());
    let ways: &[Way] = match &forced {
        Some(way) => std::slice::from_ref(way),
        None if debian_before => &[Way::Installed, Way::Debian, Way::Rustup],
        None => &[Way::Installed, Way::Rustup, Way::Debian],
    };
    let mut failures = Vec::new();
    for &way in ways {
        match way.prepare() {
            Ok(()) => {
                println!("guests: {TARGET} by {}", way.describe());
                remember(way, memory)?;
                return Ok(way);
            }
            Err(error) => failures.push(format!("\n  {}: {error:#}", way.name())),
        }
    }
    bail!("found no way to build for {TARGET}:{}", failures.concat());
}

/// The first way that is ready, with nothing installed for it.
pub(crate) fn ready() -> Result<Way> {
    match toolchain_has_target() {
        Ok(()) => Ok(Way::Installed),
        Err(_) if debian::missing(&DEBIAN_PACKAGES).is_empty() => Ok(Way::Debian),
        Err(error) => Err(error),
    }
}

fn remember(way: Way, memory: &Path) -> Result<()> {
    if let Some(folder) = memory.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::write(memory, way.name()).with_context(|| format!("cannot write {}", memory.display()))
}

/// Asks the compiler, not rustup, so that toolchains from elsewhere count too.
fn toolchain_has_target() -> Result<()> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let libraries =
        stdout_of(Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]))?;
    let has_std = fs::read_dir(libraries.trim()).is_ok_and(|mut entries| {
        entries.any(|entry| {
            entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("libstd-"))
        })
    });
    if !has_std {
        bail!("this Rust toolchain lacks the target");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_is_named_as_it_is_asked_for() {
        for way in [Way::Installed, Way::Rustup, Way::Debian] {
            assert_eq!(way.name().parse::<Way>().ok(), Some(way));
        }
        assert!("brew".parse::<Way>().is_err());
    }
}
