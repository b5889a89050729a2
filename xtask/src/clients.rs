//! `cargo xtask clients`: the clients that people send CloudEvents with, unmodified, send to a
//! host in all three modes, and every event is there once.
//!
//! A client whose tools are not here is left out, with a line that says what installs them.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::{probe, run, stdout_of};
use crate::{host, root};

/// Where `--install` puts what npm and PyPI have, in the repository.
const TOOLS: &str = "target/tools/clients";

/// The packages, each at the version that was tried.
const PYPI: [&str; 2] = ["cloudevents==2.2.0", "requests==2.34.2"];
const NPM: &str = "cloudevents@10.0.0";

/// How many events each client sends.
const EVENTS: usize = 10_000;

/// How long the host may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A host that serves, which ends with this value.
struct Serving {
    process: Child,
    address: SocketAddr,
    token: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn clients(arguments: &[&str]) -> Result<()> {
    let root = root()?;
    let (install, program) = host::installing(&root, arguments)?;
    let tools = root.join(TOOLS);
    if install {
        install_into(&tools);
    }
    let folder = root.join("target/clients");
    if folder.exists() {
        fs::remove_dir_all(&folder).context("cannot empty target/clients")?;
    }
    fs::create_dir_all(&folder).context("cannot make target/clients")?;
    let serving = serve(&program, &folder)?;
    let url = format!("http://{}/v1/events", serving.address);
    let mut sent = 0;
    let python = tools.join("python/bin/python");
    let has_python = probe(Command::new(&python).args(["-c", "import cloudevents, requests"]));
    if has_python.is_some_and(|output| output.status.success()) {
        let mut command = Command::new(&python);
        command.arg(root.join("tests/clients/send.py"));
        sent +=
            timed("PyPI cloudevents", command.args([&url, &serving.token, &EVENTS.to_string()]))?;
    } else {
        println!(
            "clients: leaves out PyPI's cloudevents: cargo xtask clients --install, which takes python3 with venv"
        );
    }
    let has_node = probe(Command::new("node").arg("--version")).is_some();
    if has_node && tools.join("node_modules/cloudevents").is_dir() {
        let mut command = Command::new("node");
        command.arg(root.join("tests/clients/send.mjs")).args([&url, &serving.token]);
        sent += timed("npm cloudevents", command.arg(EVENTS.to_string()).arg(&tools))?;
    } else {
        println!(
            "clients: leaves out npm's cloudevents: cargo xtask clients --install, which takes node and npm"
        );
    }
    if probe(Command::new("curl").arg("--version")).is_some() {
        sent += curl(&url, &serving.token)?;
    } else {
        println!("clients: leaves out curl: on Debian, apt-get install curl");
    }
    let status = stdout_of(Command::new(&program).args(["status", "--json"]).current_dir(&folder))?;
    let status: Value = serde_json::from_str(&status).context("`host status --json` is no JSON")?;
    ensure!(
        status["events"] == sent,
        "{sent} events were sent and answered, and the log has {}",
        status["events"]
    );
    println!("clients: {sent} events were sent, and each is in the log once");
    Ok(())
}

/// Brings what is missing; what cannot be had is said when it is looked for.
fn install_into(tools: &Path) {
    let python = tools.join("python");
    let mut venv = Command::new("python3");
    let mut pip = Command::new(python.join("bin/pip"));
    let mut npm = Command::new("npm");
    venv.args(["-m", "venv"]).arg(&python);
    pip.args(["install", "--quiet"]).args(PYPI);
    npm.args(["install", "--silent", "--save-exact", "--prefix"]).arg(tools).arg(NPM);
    for command in [&mut venv, &mut pip, &mut npm] {
        if let Err(why) = run(command) {
            println!("clients: {why:#}");
        }
    }
}

/// Starts a host that takes events in, with a token.
fn serve(program: &Path, folder: &Path) -> Result<Serving> {
    let command = |arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder);
        command
    };
    let made = ["token", "new", "--name", "clients", "--roles", "publish", "--json"];
    let made: Value = serde_json::from_str(&stdout_of(&mut command(&made))?)
        .context("`host token new --json` is no JSON")?;
    let token = made["token"].as_str().context("`host token new` made no token")?.to_owned();
    // Nobody else listens there yet.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr())?;
    fs::write(
        folder.join("handlers.toml"),
        format!(
            "[listen.local]\naddress = \"{address}\"\nserve = [\"ingest\"]\n\n\
             [tokens.clients]\nsha256 = {}\nroles = [\"publish\"]\n",
            made["sha256"]
        ),
    )?;
    run(command(&["migrate", "--database", "sqlite:host.db"]).stdout(std::process::Stdio::null()))?;
    let process = command(&["serve"]).spawn().context("cannot start `host serve`")?;
    let serving = Serving { process, address, token };
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() {
        ensure!(begun.elapsed() < PATIENCE, "`host serve` does not listen within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(serving)
}

fn timed(client: &str, command: &mut Command) -> Result<usize> {
    let begun = Instant::now();
    run(command).with_context(|| format!("{client} failed"))?;
    let seconds = begun.elapsed().as_secs_f64();
    println!("clients: {client} has sent {EVENTS} events in {seconds:.1} s");
    Ok(EVENTS)
}

/// One request in each mode, and one that is packed.
fn curl(url: &str, token: &str) -> Result<usize> {
    let event = |id: &str| {
        format!(
            r#"{{"specversion":"1.0","id":"curl {id}","source":"/clients/curl","type":"client.event","data":{{}}}}"#
        )
    };
    let structured = event("structured");
    let batched = format!("[{},{}]", event("1"), event("2"));
    let requests: [(&[&str], &str, usize); 3] = [
        (
            &[
                "ce-specversion: 1.0",
                "ce-id: curl%20binary",
                "ce-source: /clients/curl",
                "ce-type: client.event",
                "content-type: application/json",
            ],
            "{}",
            1,
        ),
        (&["content-type: application/cloudevents+json"], &structured, 1),
        (&["content-type: application/cloudevents-batch+json"], &batched, 2),
    ];
    let mut sent = 0;
    for (headers, body, events) in requests {
        let mut command = Command::new("curl");
        command.args([
            "--silent",
            "--show-error",
            "--output",
            "-",
            "--write-out",
            "%{http_code}",
            url,
        ]);
        command.args([
            "--header",
            &format!("authorization: Bearer {token}"),
            "--data-binary",
            body,
        ]);
        for header in headers {
            command.args(["--header", header]);
        }
        let answer = stdout_of(&mut command)?;
        ensure!(answer.ends_with("202"), "curl was answered: {answer}");
        sent += events;
    }
    println!("clients: curl has sent {sent} events");
    Ok(sent)
}
