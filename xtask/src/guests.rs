//! Building guests: the test handlers and the examples' handlers.
//!
//! Each set is a cargo workspace of its own, because another compiler than the
//! host's may have to build it. Both share one target folder, so that a standard
//! library that is built from source is built once; therefore the crates of all
//! sets have different names.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{artifacts, cargo, run, stdout_of};
use crate::root;
use crate::toolchain::{self, Way};

/// Where cargo builds all sets, in the repository.
pub(crate) const TARGET_FOLDER: &str = "target/guests-build";

/// A workspace of guests, and where its modules go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GuestSet {
    /// The workspace's folder, in the repository.
    workspace: &'static str,
    /// What the names of its libraries begin with and those of the files do not.
    prefix: &'static str,
    /// The folder that receives `NAME.wasm`, in the repository.
    output: &'static str,
}

/// The handlers of the test suite.
pub(crate) const TESTS: GuestSet =
    GuestSet { workspace: "tests/guests", prefix: "", output: "target/guests" };

/// The handlers of the example of webhooks.
pub(crate) const WEBHOOKS: GuestSet = GuestSet {
    workspace: "examples/webhooks/handlers",
    prefix: "webhooks_",
    output: "examples/webhooks/components",
};

/// The Rust one among the handlers of the example of a platform.
pub(crate) const PLATFORM: GuestSet = GuestSet {
    workspace: "examples/platform/handlers/miner",
    prefix: "platform_",
    output: "examples/platform/components",
};

/// The Rust ones among the handlers that every language has.
pub(crate) const CONFORMANCE: GuestSet = GuestSet {
    workspace: "guest-sdk/conformance/rust",
    prefix: "conformance_",
    output: "target/sdks",
};

/// Every set that the tests of the workspace and the examples need.
pub(crate) const ALL: &[GuestSet] = &[TESTS, WEBHOOKS, PLATFORM];

/// Builds the sets and copies what changed to where it is used.
pub(crate) fn build(sets: &[GuestSet], forced: Option<Way>) -> Result<()> {
    build_by(toolchain::find(forced, &root()?.join(TARGET_FOLDER).join("way"))?, sets)
}

/// The same on a way that is ready.
pub(crate) fn build_by(way: Way, sets: &[GuestSet]) -> Result<()> {
    let root = root()?;
    let target = root.join(TARGET_FOLDER);
    for set in sets {
        for module in build_set(&root, &target, *set, way)? {
            let file = file_name(&module, set.prefix)?;
            let output = root.join(set.output).join(&file);
            let changed = copy_if_changed(&module, &output)?;
            let note = if changed { "" } else { " (unchanged)" };
            println!("guests: {}/{file}{note}", set.output);
        }
    }
    Ok(())
}

/// Builds one workspace and gives the modules that cargo made of it.
fn build_set(root: &Path, target: &Path, set: GuestSet, way: Way) -> Result<Vec<PathBuf>> {
    let mut command = way.cargo_build();
    command
        .arg("--manifest-path")
        .arg(root.join(set.workspace).join("Cargo.toml"))
        .arg("--message-format=json-render-diagnostics")
        .env("CARGO_TARGET_DIR", target)
        .current_dir(root)
        .stdin(Stdio::null());
    let messages = stdout_of(&mut command)?;
    let mut modules = Vec::new();
    for artifact in artifacts(&messages)? {
        let files = artifact["filenames"].as_array().into_iter().flatten();
        let files = files.filter_map(Value::as_str).map(PathBuf::from);
        modules.extend(files.filter(|file| file.extension().is_some_and(|e| e == "wasm")));
    }
    if modules.is_empty() {
        bail!("cargo built no module in {}", set.workspace);
    }
    Ok(modules)
}

/// Runs the unit tests of a workspace on this machine, where the SDK has a
/// stand-in for the host.
pub(crate) fn test_natively(root: &Path, set: GuestSet) -> Result<()> {
    // In the profile that the modules are built in, so that the macros, which
    // take the longest, are there already.
    run(cargo()
        .args(["test", "--release", "--locked", "--manifest-path"])
        .arg(root.join(set.workspace).join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", root.join(TARGET_FOLDER))
        .current_dir(root))
}

fn file_name(module: &Path, prefix: &str) -> Result<String> {
    let name = module.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| format!("{} has no name", module.display()))?;
    match name.strip_prefix(prefix) {
        Some(name) => Ok(name.to_owned()),
        None => bail!("{name} should begin with {prefix}: guests share one target folder"),
    }
}

/// Copies a file so that nobody ever sees half of it, and not at all if it is
/// the same: a running host that watches its components would load it again.
fn copy_if_changed(from: &Path, to: &Path) -> Result<bool> {
    let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    if fs::read(to).is_ok_and(|present| present == content) {
        return Ok(false);
    }
    let folder = to.parent().with_context(|| format!("{} is in no folder", to.display()))?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let unfinished = to.with_extension("wasm.new");
    fs::write(&unfinished, content)
        .and_then(|()| fs::rename(&unfinished, to))
        .with_context(|| format!("cannot write {}", to.display()))?;
    Ok(true)
}
