//! `cargo xtask demo`: the whole thing at work, as a user would type it.
//!
//! It works on a copy of the example in a folder of its own, prints each command
//! before it runs, and fails if a command does not do what the words say.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::{run, stdout_of};
use crate::github::GitHub;
use crate::samples::Delivery;
use crate::{guests, host, root, samples};

/// How long the host may take for what takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// The file with the secret of the webhooks.
const SECRET: &str = "github.secret";

/// Where the demonstration happens, in the repository.
const FOLDER: &str = "target/demo";

/// Builds everything and shows it.
pub(crate) fn demo() -> Result<()> {
    let root = root()?;
    guests::build(&[guests::WEBHOOKS], None)?;
    let demo = Demo { folder: root.join(FOLDER), host: host::build(&root)? };
    demo.lay_out(&root.join("examples/webhooks"))?;
    demo.show()
}

struct Demo {
    folder: PathBuf,
    host: PathBuf,
}

impl Demo {
    /// Copies the example into an empty folder.
    fn lay_out(&self, example: &Path) -> Result<()> {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder)
                .with_context(|| format!("cannot empty {}", self.folder.display()))?;
        }
        copy_files(example, &self.folder)?;
        copy_files(&example.join("components"), &self.folder.join("components"))
    }

    fn show(&self) -> Result<()> {
        say(&format!("\nA copy of examples/webhooks is in {FOLDER}; all commands run there."));

        let address = free_address()?;
        say("\nThe secret of the webhooks, which both sides know, and a host that listens:");
        fs::write(self.folder.join(SECRET), "it lies under the third plank\n")?;
        let mut running = self.start(&["run", &format!("--http={address}")])?;
        let shown = self.deliver(address);
        let shown = shown.and_then(|()| {
            say(
                "\nThree handlers work on them, each with a cursor of its own, until nothing is left\n\
                 to do. One receiver is unavailable at first; one payload is malformed.",
            );
            self.wait_until_settled(u64::from(samples::COUNT))
        });
        say("\nThe host is asked to stop, which it does in order.");
        let stopped = running.stop();
        shown?;
        stopped?;

        say("\nEvery group is at the end of the log. The notifier gave up on one event:");
        self.host(&["status"])?;
        let before = self.json(&["status", "--json"])?;
        expect_settled(&before, 1)?;

        self.host(&["dlq", "list"])?;
        let letters = self.json(&["dlq", "list", "--json"])?;
        let letter = only(&letters)?;
        ensure!(letter["group"] == "notifier", "not the notifier's dead letter: {letter}");
        ensure!(letter["event"]["id"] == samples::MALFORMED, "another event: {letter}");
        ensure!(letter["failure"]["kind"] == "reject", "not a rejection: {letter}");

        say("\nNothing of it is lost, and it says why:");
        let id = letter["id"].to_string();
        self.host(&["dlq", "show", &id])?;

        say("\nGive it back to the notifier, and to it alone, with the payload put right:");
        let data = samples::corrected(letter["event"]["data"].clone()).to_string();
        self.host(&["dlq", "replay", &id, "--data", &data])?;
        self.host(&["run", "--drain"])?;
        self.host(&["status"])?;
        let after = self.json(&["status", "--json"])?;
        expect_settled(&after, 0)?;
        let new = count(&after, "events")?.saturating_sub(count(&before, "events")?);
        ensure!(new == 2, "a replay and its notice are 2 events, and not {new}");

        say(&format!(
            "\nDone. The database is {FOLDER}/webhooks.db; go on there:\n\n  \
             cd {FOLDER}; alias host=$PWD/../debug/host\n  \
             host groups list                 the three groups and their cursors\n  \
             host groups seek tally --to earliest && host run --drain\n                                   \
             hands the tally every event again\n  \
             host run --http                  keeps running, and takes webhooks\n  \
             host webhook sign github --file issue.json --header 'x-github-event: issues'\n                                   \
             a curl command that sends one\n  \
             host publish --type com.github.issues.opened --data '{{}}'\n                                   \
             a malformed event of your own\n  \
             host --help                      everything else\n\n\
             The handlers' code is in examples/webhooks/handlers."
        ));
        Ok(())
    }

    /// Sends the samples as GitHub would, and what nobody should take.
    fn deliver(&self, address: SocketAddr) -> Result<()> {
        let deliveries = samples::deliveries();
        wait_for("the host listens", || Ok(TcpStream::connect(address).ok()))?;
        say(&format!(
            "\n{} webhooks come in at http://{address}/hooks/github, signed as GitHub signs them.\n\
             Each is answered once it is in the log, such as the first:",
            deliveries.len()
        ));
        let secret = fs::read_to_string(self.folder.join(SECRET))?;
        let mut github = GitHub::connect(address, "github", secret.trim_end())?;
        for (index, delivery) in deliveries.iter().enumerate() {
            let (status, answer) = github.deliver(delivery)?;
            ensure!(status == 202, "{}: {status} {answer}", delivery.id);
            if index == 0 {
                say(&format!("\n  202 {answer}"));
            }
        }
        let first = deliveries.first().context("there are samples")?;
        let (status, answer) = github.deliver(first)?;
        say(&format!(
            "\nThe first comes again, as providers do it, and stays one event:\n\n  {status} {answer}"
        ));
        ensure!(status == 200, "a repetition is no new event");
        let captured = Delivery { id: "another-id".to_owned(), ..first.clone() };
        let (status, answer) = github.deliver(&captured)?;
        ensure!(status == 200, "a repetition is no new event: {answer}");
        let mut stranger = GitHub::connect(address, "github", "it lies under the fourth plank")?;
        let (status, answer) = stranger.deliver(first)?;
        let detail = answer["detail"].as_str().unwrap_or_default();
        say(&format!("\nSomebody without the secret is refused:\n\n  {status} {detail}"));
        ensure!(status == 401, "a wrong signature is refused");
        Ok(())
    }

    /// Waits until every group has handled everything.
    fn wait_until_settled(&self, events: u64) -> Result<()> {
        wait_for("every group is at the end of the log", || {
            let status = self.json(&["status", "--json"])?;
            let is_settled =
                count(&status, "events")? >= events && expect_settled(&status, 1).is_ok();
            Ok(is_settled.then_some(()))
        })
    }

    /// Shows a command, and starts it.
    fn start(&self, arguments: &[&str]) -> Result<Running> {
        say(&format!("\n$ host {} &", arguments.join(" ")));
        let child = self.command(arguments).stdin(Stdio::null()).spawn();
        Ok(Running(child.context("cannot start the host")?))
    }

    /// Shows a command, runs it, and fails unless it succeeds.
    fn host(&self, arguments: &[&str]) -> Result<()> {
        let typed: Vec<String> = arguments.iter().map(|argument| quoted(argument)).collect();
        say(&format!("\n$ host {}", typed.join(" ")));
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

/// An argument as a shell wants it.
fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':');
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let entries = fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?;
    for entry in entries {
        let path = entry?.path();
        let database = path.to_string_lossy().contains(".db");
        if let Some(name) = path.file_name().filter(|_| path.is_file() && !database) {
            fs::copy(&path, to.join(name))
                .with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}

/// All three groups have nothing left to do, and so many events are dead.
fn expect_settled(status: &Value, dead: u64) -> Result<()> {
    let groups = status["groups"].as_array().context("the status has no groups")?;
    ensure!(groups.len() == 3, "there should be three groups: {status}");
    let mut dead_letters = 0;
    for group in groups {
        for wanted_zero in ["lag_events", "retries_pending"] {
            ensure!(count(group, wanted_zero)? == 0, "{wanted_zero} should be 0: {group}");
        }
        dead_letters += count(group, "dead_letters")?;
    }
    ensure!(dead_letters == dead, "{dead} dead letters were expected: {status}");
    Ok(())
}

fn count(object: &Value, field: &str) -> Result<u64> {
    object[field].as_u64().with_context(|| format!("no number `{field}` in {object}"))
}

fn only(list: &Value) -> Result<&Value> {
    match list.as_array().map(Vec::as_slice) {
        Some([one]) => Ok(one),
        _ => Err(anyhow::anyhow!("one entry was expected: {list}")),
    }
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
