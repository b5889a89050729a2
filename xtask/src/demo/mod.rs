//! `cargo xtask demo`: hosts at work, as a user would type it.
//!
//! A demonstration works on a copy of an example in a folder of its own, prints each
//! command before it runs, and fails if a command does not do what the words say.

mod platform;
mod webhooks;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::{run, stdout_of};

pub(crate) use self::platform::platform;
pub(crate) use self::webhooks::webhooks;

/// How long the host may take for what takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where a demonstration happens.
struct Stage {
    /// The folder of the copy, in the repository.
    name: &'static str,
    folder: PathBuf,
    host: PathBuf,
}

impl Stage {
    /// An empty folder, and a host to show there.
    fn empty(root: &Path, name: &'static str, host: PathBuf) -> Result<Self> {
        let folder = root.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        Ok(Self { name, folder, host })
    }

    /// Copies the files of a folder of an example, but for databases.
    fn copy(&self, example: &Path, folder: &str) -> Result<()> {
        let (from, to) = (example.join(folder), self.folder.join(folder));
        fs::create_dir_all(&to).with_context(|| format!("cannot create {}", to.display()))?;
        let unreadable = || format!("cannot read {}", from.display());
        for entry in fs::read_dir(&from).with_context(unreadable)? {
            let path = entry.with_context(unreadable)?.path();
            let database = path.to_string_lossy().contains(".db");
            if let Some(name) = path.file_name().filter(|_| path.is_file() && !database) {
                fs::copy(&path, to.join(name))
                    .with_context(|| format!("cannot copy {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Writes a file into the folder.
    fn write(&self, file: &str, text: &str) -> Result<()> {
        let file = self.folder.join(file);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Reads a file of the folder.
    fn read(&self, file: &str) -> Result<String> {
        let file = self.folder.join(file);
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    }

    /// Shows a command, and starts it with what `with` adds.
    fn start(&self, arguments: &[&str], with: impl FnOnce(&mut Command)) -> Result<Running> {
        say(&format!("\n$ host {} &", typed(arguments)));
        let mut command = self.command(arguments);
        with(&mut command);
        let child = command.stdin(Stdio::null()).spawn();
        Ok(Running(child.context("cannot start the host")?))
    }

    /// Shows a command, runs it, and fails unless it succeeds.
    fn host(&self, arguments: &[&str]) -> Result<()> {
        say(&format!("\n$ host {}", typed(arguments)));
        run(&mut self.command(arguments))
    }

    /// Runs a command behind the scenes, for what it says in JSON.
    fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = stdout_of(&mut self.command(arguments))?;
        serde_json::from_str(&text)
            .with_context(|| format!("host {} printed no JSON: {text}", arguments.join(" ")))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.host);
        command.args(arguments).current_dir(&self.folder);
        // A user's own choice of what to log is not what is shown here.
        command.env_remove("HOST_LOG");
        command
    }
}

/// A host that runs. It is stopped with this, whatever happens.
struct Running(Child);

impl Running {
    /// Asks it to stop, and waits for that.
    fn stop(&mut self) -> Result<()> {
        let pid = self.0.id().to_string();
        run(Command::new("kill").args(["-TERM", &pid]))?;
        let status = self.0.wait()?;
        ensure!(status.success(), "the host ended with {status}");
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Where it has ended already, there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where the host can listen: its usual address, or another port if that is taken.
fn free_address() -> Result<SocketAddr> {
    let usual = TcpListener::bind(("127.0.0.1", 8480));
    let listener = usual.or_else(|_| TcpListener::bind(("127.0.0.1", 0)))?;
    Ok(listener.local_addr()?)
}

/// Looks again and again until there is something.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(begun.elapsed() < PATIENCE, "not within {} s: {what}", PATIENCE.as_secs());
        thread::sleep(Duration::from_millis(50));
    }
}

fn say(words: &str) {
    println!("{words}");
}

/// Arguments as one types them.
fn typed(arguments: &[&str]) -> String {
    let quoted: Vec<String> = arguments.iter().map(|argument| quoted(argument)).collect();
    quoted.join(" ")
}

/// An argument as a shell wants it.
fn quoted(argument: &str) -> String {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '=' | ',');
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

fn count(object: &Value, field: &str) -> Result<u64> {
    object[field].as_u64().with_context(|| format!("no number `{field}` in {object}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_shown_as_a_shell_takes_them() {
        assert_eq!(quoted("--file"), "--file");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted(r#"{"a":"it's"}"#), r#"'{"a":"it'\''s"}'"#);
    }
}
