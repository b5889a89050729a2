//! `cargo xtask demo`: webhooks that come in by HTTP, with one failure that passes and one
//! that stays.

use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Stage, count, free_address, say, wait_for};
use crate::github::GitHub;
use crate::samples::Delivery;
use crate::{guests, host, root, samples};

/// The file with the secret of the webhooks.
const SECRET: &str = "github.secret";

/// Where the demonstration happens, in the repository.
const FOLDER: &str = "target/demo";

/// Builds everything and shows it.
pub(crate) fn webhooks() -> Result<()> {
    let root = root()?;
    guests::build(&[guests::WEBHOOKS], None)?;
    let stage = Stage::empty(&root, FOLDER, host::build(&root)?)?;
    let example = root.join("examples/webhooks");
    stage.copy(&example, "")?;
    stage.copy(&example, "components")?;
    Webhooks { stage }.show()
}

/// The demonstration.
struct Webhooks {
    stage: Stage,
}

impl Webhooks {
    fn show(&self) -> Result<()> {
        let folder = self.stage.name;
        say(&format!("\nA copy of examples/webhooks is in {folder}; all commands run there."));

        let address = free_address()?;
        say("\nThe secret of the webhooks, which both sides know, and a host that listens:");
        self.stage.write(SECRET, "it lies under the third plank\n")?;
        let mut running = self.stage.start(&["run", &format!("--http={address}")], |_| ())?;
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
        self.stage.host(&["status"])?;
        let before = self.stage.json(&["status", "--json"])?;
        expect_settled(&before, 1)?;

        self.stage.host(&["dlq", "list"])?;
        let letters = self.stage.json(&["dlq", "list", "--json"])?;
        let letter = only(&letters)?;
        ensure!(letter["group"] == "notifier", "not the notifier's dead letter: {letter}");
        ensure!(letter["event"]["id"] == samples::MALFORMED, "another event: {letter}");
        ensure!(letter["failure"]["kind"] == "reject", "not a rejection: {letter}");

        say("\nNothing of it is lost, and it says why:");
        let id = letter["id"].to_string();
        self.stage.host(&["dlq", "show", &id])?;

        say("\nGive it back to the notifier, and to it alone, with the payload put right:");
        let data = samples::corrected(letter["event"]["data"].clone()).to_string();
        self.stage.host(&["dlq", "replay", &id, "--data", &data])?;
        self.stage.host(&["run", "--drain"])?;
        self.stage.host(&["status"])?;
        let after = self.stage.json(&["status", "--json"])?;
        expect_settled(&after, 0)?;
        let new = count(&after, "events")?.saturating_sub(count(&before, "events")?);
        ensure!(new == 2, "a replay and its notice are 2 events, and not {new}");

        say(&format!(
            "\nDone. The database is {folder}/webhooks.db; go on there:\n\n  \
             cd {folder}; alias host=$PWD/../debug/host\n  \
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
        let secret = self.stage.read(SECRET)?;
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
            let status = self.stage.json(&["status", "--json"])?;
            let is_settled =
                count(&status, "events")? >= events && expect_settled(&status, 1).is_ok();
            Ok(is_settled.then_some(()))
        })
    }
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

fn only(list: &Value) -> Result<&Value> {
    match list.as_array().map(Vec::as_slice) {
        Some([one]) => Ok(one),
        _ => Err(anyhow::anyhow!("one entry was expected: {list}")),
    }
}
