//! `cargo xtask dist`: the program as it is shipped, and its debug information in a file
//! beside it.
//!
//! The program keeps its table of symbols, so that a backtrace names functions; with
//! `host.debug` in the same folder it names files and lines too.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{cargo, run};
use crate::root;

/// Where the two files go, in the repository.
const FOLDER: &str = "target/dist";

/// The debug information, which the program names.
const DEBUG: &str = "host.debug";

/// Builds the program for release and separates it from its debug information.
pub(crate) fn dist() -> Result<()> {
    let root = root()?;
    println!("host: building it for release (a quarter of an hour on two cores)");
    run(cargo()
        .args(["build", "--release", "--locked", "--package", "event-host", "--bin", "host"])
        .env("CARGO_PROFILE_RELEASE_STRIP", "none")
        .current_dir(&root))?;
    let built = root.join("target/release/host");
    let folder = root.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // objcopy makes the file that it is told to link to part of the link: by name, and by a
    // checksum of what is there now.
    objcopy(&folder, &["--only-keep-debug"], &built, DEBUG)?;
    objcopy(&folder, &["--strip-debug", "--add-gnu-debuglink=host.debug"], &built, "host")?;
    for name in ["host", DEBUG] {
        let file = folder.join(name);
        let size = fs::metadata(&file).with_context(|| format!("no {}", file.display()))?.len();
        println!("dist: {FOLDER}/{name}, {} MB", size / 1_000_000);
    }
    Ok(())
}

/// Runs objcopy, which comes with every linker of Debian's.
fn objcopy(folder: &Path, options: &[&str], from: &Path, to: &str) -> Result<()> {
    let mut command = Command::new("objcopy");
    command.args(options).arg(from).arg(to).current_dir(folder);
    run(&mut command).context("objcopy comes with binutils: apt-get install binutils")
}
