//! Running other programs so that a failure says which one failed and how.

use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The cargo that runs us, or the one on the path.
///
/// It does not learn which package we are, as cargo tells a program that it
/// runs: build scripts that watch those variables (ring's does) would run again,
/// and half of the host be built anew, whenever the same is built without us.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let ours = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_")
        });
        if ours {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command with our own output and fails unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs a command, fails unless it succeeds, and gives what it printed on
/// stdout; stderr stays ours.
pub(crate) fn stdout_of(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        bail!("{} failed: {}", shown(command), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("{} printed no text", shown(command)))
}

/// What cargo built, or found built, by what it printed with `--message-format=json`.
pub(crate) fn artifacts(messages: &str) -> Result<Vec<Value>> {
    let mut artifacts = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line)
            .with_context(|| format!("cargo printed something else than JSON: {line}"))?;
        if message["reason"] == "compiler-artifact" {
            artifacts.push(message);
        }
    }
    Ok(artifacts)
}

/// Runs a command quietly; `None` if it cannot be started.
pub(crate) fn probe(command: &mut Command) -> Option<Output> {
    command.stdin(Stdio::null()).output().ok()
}

/// The command as one would type it, near enough for a message.
pub(crate) fn shown(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}
