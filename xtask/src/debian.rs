//! Debian's packages, installed where that may be done without asking.

use std::process::Command;

use anyhow::{Result, bail};

use crate::command::{probe, run};

/// Installs those of `packages` that are missing, with a line that says so and
/// begins with `topic`; or fails and says what to run as root.
pub(crate) fn install(topic: &str, packages: &[&str]) -> Result<()> {
    let missing = missing(packages);
    if missing.is_empty() {
        return Ok(());
    }
    if !is_here() {
        bail!("not a Debian system (no apt-get)");
    }
    if !we_are_root() {
        let install = format!("apt-get update && apt-get install -y {}", missing.join(" "));
        bail!("packages are missing; as root, run: {install}");
    }
    println!("{topic}: installing {}", missing.join(", "));
    run(Command::new("apt-get").args(["update", "-qq"]))?;
    run(Command::new("apt-get")
        .args(["install", "-y", "-qq", "--no-install-recommends"])
        .args(&missing)
        .env("DEBIAN_FRONTEND", "noninteractive"))
}

/// Those of `packages` that are not installed.
pub(crate) fn missing<'a>(packages: &[&'a str]) -> Vec<&'a str> {
    packages.iter().copied().filter(|package| !is_installed(package)).collect()
}

/// Whether this is Debian, or something made of it.
pub(crate) fn is_here() -> bool {
    probe(Command::new("apt-get").arg("--version")).is_some()
}

pub(crate) fn we_are_root() -> bool {
    probe(Command::new("id").arg("-u")).is_some_and(|output| output.stdout.trim_ascii() == b"0")
}

fn is_installed(package: &str) -> bool {
    probe(Command::new("dpkg-query").args(["-W", "-f=${db:Status-Status}", package]))
        .is_some_and(|output| output.status.success() && output.stdout == b"installed")
}
