//! `cargo xtask demo`: the whole thing at work, as a user would type it.
//!
//! It works on a copy of the example in a folder of its own, prints each command
//! before it runs, and fails if a command does not do what the words say.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::{run, stdout_of};
use crate::{guests, host, root, samples};

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

        say(&format!("\n{} webhooks go into the log:", samples::COUNT));
        self.host(&["publish", "--file", "events.jsonl"])?;

        say(
            "\nThree handlers work on them, each with a cursor of its own, until nothing is left\n\
             to do. One receiver is unavailable at first; one payload is malformed.",
        );
        self.host(&["run", "--drain"])?;

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
             host run                         keeps running: publish from another terminal\n  \
             host publish --type com.github.issues.opened --data '{{}}'\n                                   \
             a malformed event of your own\n  \
             host --help                      everything else\n\n\
             The handlers' code is in examples/webhooks/handlers."
        ));
        Ok(())
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
