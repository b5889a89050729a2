//! `cargo xtask demo platform`: three tenants on one host. One is quiet, one floods the
//! host, one has its handler do all that no handler should; and the quiet one notices
//! nothing. Every figure that proves it has a bound, and one that is out of it fails the
//! demonstration.

mod ceilings;
mod figures;
mod report;
mod scrape;
mod tenants;

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use test_postgres::{Binaries, Server};

use self::figures::Latencies;
use self::report::{Figures, Peaks, Refusal};
use self::scrape::Operator;
use self::tenants::{Quiet, Sender, be_hostile, be_noisy, event, joined};
use super::{Running, Stage, count, free_address, say, wait_for};
use crate::http::Http;
use crate::{guests, host, root, sdks};

/// Where the demonstration happens, in the repository.
const FOLDER: &str = "target/demo-platform";

/// Where the host's log goes there.
const LOG: &str = "host.log";

/// How many events of the quiet tenant are measured, one a second: alone, and beside the
/// others.
const ALONE: usize = 15;
const BESIDE: usize = 30;

/// Builds everything and shows it.
pub(crate) fn platform(arguments: &[&str]) -> Result<()> {
    let on_sqlite = match arguments {
        [] => false,
        ["--sqlite"] => true,
        other => bail!("`{}`: `demo platform` takes `--sqlite` and nothing else", other.join(" ")),
    };
    let root = root()?;
    guests::build(&[guests::PLATFORM], None)?;
    let stage = Stage::empty(&root, FOLDER, host::build(&root)?)?;
    let server = if on_sqlite { None } else { server()? };
    let platform = Platform { stage, root: &root };
    platform.lay_out(server.as_ref())?;
    platform.show(server.is_some())
}

/// A PostgreSQL server of the demonstration's own, if its programs are here.
fn server() -> Result<Option<Server>> {
    match Binaries::find() {
        Ok(binaries) => {
            println!("PostgreSQL {}, for the demonstration", binaries.version()?);
            // What is committed is on the disk, as with a server in earnest.
            Ok(Some(Server::start_from(binaries, &[("fsync", "on")])?))
        }
        Err(missing) => {
            println!("PostgreSQL is not here, so SQLite shows it ({missing})");
            Ok(None)
        }
    }
}

/// The tokens, each with who has it.
struct Tokens {
    quiet: String,
    noisy: String,
    hostile: String,
    operator: String,
}

struct Platform<'a> {
    stage: Stage,
    root: &'a Path,
}

impl Platform<'_> {
    /// Copies the example, for the database that it is to be shown on.
    fn lay_out(&self, server: Option<&Server>) -> Result<()> {
        let example = self.root.join("examples/platform");
        for folder in ["", "components", "handlers/readings", "handlers/orders"] {
            self.stage.copy(&example, folder)?;
        }
        if let Some(server) = server {
            let settings = self.stage.read("handlers.toml")?;
            let url = format!("database = \"{}\"", server.url("postgres"));
            let changed = settings.replace("database = \"sqlite:platform.db\"", &url);
            ensure!(changed != settings, "handlers.toml names another database than it did");
            self.stage.write("handlers.toml", &changed)?;
        }
        Ok(())
    }

    fn show(&self, on_postgres: bool) -> Result<()> {
        let store = if on_postgres { "PostgreSQL" } else { "SQLite" };
        say(&format!(
            "\nA copy of examples/platform is in {}, on {store}; all commands run there.",
            self.stage.name
        ));
        let tokens = self.tokens()?;
        self.deploy()?;
        let address = free_address()?;
        say(&format!("\nThe host, whose log goes to {LOG}:"));
        let log = File::create(self.stage.folder.join(LOG)).context("cannot make the log")?;
        let running = ["run", &format!("--http={address}"), "--log-format", "json"];
        let mut running = self.stage.start(&running, |command: &mut Command| {
            command.stderr(log);
        })?;
        let measured = self.measure(address, &tokens, &mut running);
        say("\nThe host is asked to stop, which it does in order.");
        let stopped = running.stop();
        let mut figures = measured.with_context(|| {
            format!("the host's log is {}", self.stage.folder.join(LOG).display())
        })?;
        stopped?;
        figures.log_lines = guest_lines(&self.stage.read(LOG)?, "miner");
        say(&figures.shown()?);
        let checks = figures.checks()?;
        say(&checks.shown());
        checks.conclude()?;
        say(&format!(
            "\nDone: every figure is within its bound. The folder {} has the host's log{}.",
            self.stage.name,
            if on_postgres { "" } else { " and the database" },
        ));
        Ok(())
    }

    /// Makes the tokens, and the files with their hashes.
    fn tokens(&self) -> Result<Tokens> {
        say("\nA token for each tenant, and one for the operator, such as:");
        say("\n$ host token new --name quiet --roles publish --tenant quiet");
        let token = |name: &str, role: &str, tenant: &str| -> Result<String> {
            let new = ["token", "new", "--name", name, "--roles", role, "--tenant", tenant];
            let made = self.stage.json(&[&new[..], &["--json"]].concat())?;
            let text = |key: &str| -> Result<String> {
                let text = made[key].as_str();
                Ok(text.with_context(|| format!("host token new gave no {key}"))?.to_owned())
            };
            self.stage.write(&format!("{name}.sha256"), &text("sha256")?)?;
            text("token")
        };
        Ok(Tokens {
            quiet: token("quiet", "publish", "quiet")?,
            noisy: token("noisy", "publish", "noisy")?,
            hostile: token("hostile", "publish", "hostile")?,
            operator: token("operator", "metrics", "*")?,
        })
    }

    /// Builds the handlers that are not built yet, and puts all into the database.
    fn deploy(&self) -> Result<()> {
        say("\nA handler of each tenant: of `quiet` in WebAssembly's text format,");
        self.stage.host(&["build", "-c", "build.toml", "readings"])?;
        let orders = self.orders()?;
        say("\nand of `hostile` in Rust, built already. They reach the host by its database:");
        self.stage.host(&["migrate"])?;
        self.stage.host(&["deploy", "readings", "components/readings.wasm"])?;
        self.stage.host(&["deploy", "orders", orders])?;
        self.stage.host(&["deploy", "miner", "components/miner.wasm"])?;
        self.stage.host(&["check"])
    }

    /// Builds the handler of `noisy`, and gives its component: that of `quiet` where there
    /// is no compiler of C for WebAssembly.
    fn orders(&self) -> Result<&'static str> {
        say("\nof `noisy` in C,\n\n$ host build -c build.toml orders");
        let mut build = self.stage.command(&["build", "-c", "build.toml", "orders"]);
        sdks::name_c_compiler_to(&mut build, self.root)?;
        let output = build.output().context("cannot start the host")?;
        std::io::stdout().write_all(&output.stdout)?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return Ok("components/orders.wasm");
        }
        let missing = said.lines().find(|line| line.contains("install it with: "));
        let Some(missing) = missing else {
            bail!("the handler of `noisy` could not be built: {said}");
        };
        say(&format!(
            "{missing}\n\nSo the C handler is LEFT OUT: `noisy` gets a copy of the handler of `quiet`, which counts events of any type."
        ));
        Ok("components/readings.wasm")
    }

    /// Has the tenants do what they do, and measures it.
    fn measure(
        &self,
        address: SocketAddr,
        tokens: &Tokens,
        running: &mut Running,
    ) -> Result<Figures> {
        let mut operator = wait_for("the host listens", || {
            running.must_run()?;
            Ok(Operator::connect(address, &tokens.operator).ok())
        })?;
        wait_for("the handlers are loaded", || {
            running.must_run()?;
            let loaded = operator.scrape()?.count("event_host_component_info", &[])?;
            Ok((loaded == 3).then_some(()))
        })?;
        let mut quiet = Quiet::new(Sender::connect(address, &tokens.quiet)?, operator);
        // The first event finds nothing ready: no connection, no page of the database.
        quiet.reading()?;

        say(&format!("\nFor {ALONE} s the quiet tenant is alone, with an event a second."));
        let alone = Latencies::of(quiet.readings(ALONE, |_| Ok(()))?)?;
        let refusals = trespasses(address, tokens)?;

        say(&format!(
            "\nFor {BESIDE} s more it is not: `noisy` sends {} events a second, and `hostile` has its handler\n\
             trap, spin, wait, allocate, recurse, flood and reach for addresses.",
            tenants::FLOOD
        ));
        // Nobody is to come here, though the hostile handler asks for it.
        let inside = TcpListener::bind("127.0.0.1:0")?;
        let targets = targets(&inside, address)?;
        let stop = AtomicBool::new(false);
        let begun = Instant::now();
        let mut peaks = Peaks::from(begun);
        let (beside, noisy, hostile) = thread::scope(|scope| {
            let noisy = scope.spawn(|| be_noisy(address, &tokens.noisy, &stop));
            let hostile = scope.spawn(|| be_hostile(address, &tokens.hostile, &targets, &stop));
            let beside = quiet.readings(BESIDE, |scrape| peaks.see(scrape));
            stop.store(true, Ordering::Relaxed);
            (beside, joined(noisy), joined(hostile))
        });
        let beside = Latencies::of(beside?)?;

        say(
            "\nThey stop. What the hostile tenant has left is handled until it may keep no more dead letters.",
        );
        let status = wait_for("the hostile tenant's group is paused", || {
            running.must_run()?;
            let status = self.stage.json(&["status", "--json"])?;
            Ok((report::group(&status, "miner")?["state"] == "paused").then_some(status))
        })?;
        let scrape = quiet.scrape()?;
        let lasted = begun.elapsed();
        let visitors = visitors(&inside)?;
        let health = Http::connect(address)?.get("/livez", &[])?.status;
        self.stage.host(&["status"])?;
        let letters =
            self.stage.json(&["dlq", "list", "--group", "miner", "--limit", "1000", "--json"])?;
        Ok(Figures {
            published: quiet.published,
            alone,
            beside,
            refusals,
            noisy: noisy?,
            hostile: hostile?,
            lasted,
            peaks,
            visitors,
            health,
            status,
            scrape,
            letters,
            log_lines: 0,
        })
    }
}

impl Running {
    /// Fails if it has ended.
    fn must_run(&mut self) -> Result<()> {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the host ended by itself, with {status}"),
        }
    }
}

/// Asks once for each of a few things that a caller may not have.
fn trespasses(address: SocketAddr, tokens: &Tokens) -> Result<Vec<Refusal>> {
    let large = json!({ "text": "x".repeat(65 << 10) });
    let one = |tenant: &str, event_type: &str| vec![event(tenant, event_type, "1", json!({}))];
    let orders = "/v1/events";
    let requests = [
        (
            "noisy: an event of 65 KiB",
            &tokens.noisy,
            orders,
            vec![event("noisy", "order.placed", "large", large)],
        ),
        ("noisy: an event of another type", &tokens.noisy, orders, one("noisy", "job.spin")),
        (
            "noisy: an event for the quiet tenant",
            &tokens.noisy,
            "/v1/events?tenant=quiet",
            one("noisy", "order.placed"),
        ),
        ("somebody with a token of nobody", &"ehk_0".to_owned(), orders, one("x", "order.placed")),
    ];
    let mut refusals = Vec::new();
    for (what, token, path, events) in requests {
        let answer = Sender::connect(address, token)?.send(path, &events)?;
        refusals.push(Refusal::of(what, &answer)?);
    }
    let authorization = format!("Bearer {}", tokens.hostile);
    let answer = Http::connect(address)?.get("/metrics", &[("Authorization", &authorization)])?;
    refusals.push(Refusal::of("hostile: the metrics of all tenants", &answer)?);
    Ok(refusals)
}

/// What the hostile tenant's handler tries to reach: where clouds hand out the credentials
/// of their machines, the host itself, a service behind the platform, and the world.
fn targets(inside: &TcpListener, address: SocketAddr) -> Result<Vec<String>> {
    Ok(vec![
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        format!("http://{address}/metrics"),
        format!("http://{}/", inside.local_addr()?),
        "https://example.com/".to_owned(),
    ])
}

/// How many connections came to a listener that has accepted none.
fn visitors(inside: &TcpListener) -> Result<u64> {
    inside.set_nonblocking(true)?;
    let mut visitors = 0;
    loop {
        match inside.accept() {
            Ok(_) => visitors += 1,
            Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(visitors),
            Err(why) => return Err(why.into()),
        }
    }
}

/// How many lines of a group's handler are in the host's log. What is no JSON there, such as
/// a panic, is of no handler.
fn guest_lines(log: &str, group: &str) -> u64 {
    let records = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines =
        records.filter(|record| record["target"] == "guest" && record["span"]["group"] == group);
    lines.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handlers_lines_are_told_from_others() {
        let log = r#"{"message":"starting","target":"event_host::app"}
{"message":"mine","target":"guest","span":{"group":"miner"}}
{"message":"theirs","target":"guest","span":{"group":"orders"}}
thread 'main' panicked
{"message":"mine","target":"guest","span":{"group":"miner"}}"#;
        assert_eq!(guest_lines(log, "miner"), 2);
    }
}
