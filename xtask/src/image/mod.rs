//! `cargo xtask image-check`: runs the host as its container does, on a machine that cannot
//! build the image.
//!
//! What the Containerfile puts into the image goes into an empty folder: the program, the
//! libraries that it is linked to, and the certificates of the authorities. There the host runs
//! as process 1 and user 65532 in namespaces of its own, with that folder as its read-only root,
//! once for each folder of manifests in contrib/kubernetes: with its settings, and with volumes
//! that have the modes which Kubernetes gives them. It migrates, starts, compiles a component in
//! its child process, takes an event in, handles it, says that it is well, and stops in order. A
//! line in its log that is a warning fails the check.

mod pod;
mod postgres;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::command::stdout_of;
use crate::{host, root};
use pod::Pod;

/// The folders that a container may write to. `cargo xtask kubernetes` holds the manifests to
/// them; the Containerfile has the first two as volumes.
pub(crate) const WRITABLE: [&str; 3] = ["/cache", "/data", "/tmp"];

/// The user of the image.
pub(crate) const USER: u32 = 65_532;

/// The libraries that the base of the image has: Debian's C library, and libgcc.
const IN_THE_BASE: [&str; 8] = [
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
];

const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// How long the host may take to start, compiling its component, and to handle an event.
const PATIENCE: Duration = Duration::from_secs(60);

/// Within this the host must have stopped: `drain_delay` and `grace` of the settings, and 10 s.
const STOPS_WITHIN: Duration = Duration::from_secs(45);

/// Checks what the image needs.
///
/// # Errors
/// When the host does not run in it.
pub(crate) fn check(arguments: &[&str]) -> Result<()> {
    let root = root()?;
    let program = match arguments {
        [] => host::build(&root)?,
        ["--host", file] => root.join(file),
        other => bail!("`{}`: `image-check` takes `--host FILE` and nothing else", other.join(" ")),
    };
    if let Err(why) = pod::is_possible() {
        println!("image-check: leaves out the host in its image: {why}");
        return Ok(());
    }
    let containerfile = Containerfile::read(&root)?;
    let folder = root.join("target/image");
    if folder.exists() {
        fs::remove_dir_all(&folder).context("cannot empty target/image")?;
    }
    let image = folder.join("root");
    fill(&image, &program)?;
    let variant = |name: &str| -> Result<(Tried, Pod)> {
        let tried = Tried::prepare(&root.join("contrib/kubernetes").join(name), &image, &program)?;
        // The manifests on PostgreSQL have no volume for the database.
        let folders = WRITABLE.into_iter().filter(|folder| name == "sqlite" || *folder != "/data");
        let volumes = folder.join(name);
        Ok((tried, Pod::new(image.clone(), volumes, folders, containerfile.environment.clone())?))
    };
    let (tried, pod) = variant("sqlite")?;
    println!("image-check: with the settings of contrib/kubernetes/sqlite");
    println!("image-check: host migrate: {}", pod.finish(&["/host", "migrate"])?.trim());
    tried.run(&pod, &containerfile.command)?;
    let (tried, mut pod) = variant("postgres")?;
    println!("image-check: with the settings of contrib/kubernetes/postgres");
    let Some(database) = postgres::Database::start()? else { return Ok(()) };
    database.migrate(&mut pod)?;
    tried.run(&pod, &containerfile.command)
}

/// What the image says of how the host is started.
struct Containerfile {
    environment: Vec<String>,
    command: Vec<String>,
}

impl Containerfile {
    /// Reads the last stage.
    fn read(root: &Path) -> Result<Self> {
        let text = fs::read_to_string(root.join("Containerfile")).context("no Containerfile")?;
        let last = |instruction: &str| {
            text.lines().filter_map(|line| line.strip_prefix(instruction)).next_back()
        };
        let list = |instruction: &str| -> Result<Vec<String>> {
            let words = last(instruction).with_context(|| format!("no `{instruction}`"))?;
            serde_json::from_str(words).with_context(|| format!("`{instruction}` is no list"))
        };
        let mut command = list("ENTRYPOINT ")?;
        command.extend(list("CMD ")?);
        let environment =
            text.lines().filter_map(|line| line.strip_prefix("ENV ")).map(str::to_owned).collect();
        Ok(Self { environment, command })
    }
}

/// Puts into an empty folder what the image has.
fn fill(image: &Path, program: &Path) -> Result<()> {
    let copy = |from: &Path, to: &Path| -> Result<u64> {
        let to = image.join(to.strip_prefix("/").unwrap_or(to));
        let folder = to.parent().context("a file is in a folder")?;
        fs::create_dir_all(folder)?;
        fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))
    };
    let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
    let size = copy(program, Path::new("/host"))?;
    println!("image-check: /host, {} MB", megabytes(size));
    let linked = stdout_of(Command::new("ldd").arg(program))?;
    for library in libraries(&linked) {
        let name = library.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        ensure!(
            IN_THE_BASE.contains(&name),
            "the host is linked to {}, which the base of the image does not have: add it to the Containerfile, or build the host without it",
            library.display()
        );
        copy(&library, &library)?;
        println!("image-check: {}", library.display());
    }
    let size = copy(Path::new(CERTIFICATES), Path::new(CERTIFICATES))
        .context("on Debian: apt-get install ca-certificates")?;
    println!("image-check: {CERTIFICATES}, {} kB", size.div_ceil(1_000));
    Ok(())
}

/// The files of the libraries that `ldd` names. What the kernel brings has none.
fn libraries(linked: &str) -> BTreeSet<PathBuf> {
    let words = linked.lines().flat_map(str::split_whitespace);
    words.filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// What is asked of a host that runs with the settings of some manifests.
struct Tried {
    /// The listeners `edge` and `private`.
    ports: [u16; 2],
    token: String,
}

impl Tried {
    /// Puts the settings of the manifests into the image, with ports that are free here and a
    /// token. Also a schedule: the image has no files of time zones.
    fn prepare(manifests: &Path, image: &Path, program: &Path) -> Result<Self> {
        let folder = image.join("etc/host");
        fs::create_dir_all(&folder)?;
        fs::copy(manifests.join("hello.wat"), folder.join("hello.wat"))?;
        let made = ["token", "new", "--name", "image-check", "--roles", "publish", "--json"];
        let made: Value = serde_json::from_str(&stdout_of(Command::new(program).args(made))?)
            .context("`host token new --json` is no JSON")?;
        let mut text = fs::read_to_string(manifests.join("handlers.toml"))?;
        let ports = [free_port()?, free_port()?];
        for (port, free) in ["0.0.0.0:8480", "0.0.0.0:8481"].iter().zip(ports) {
            ensure!(text.contains(port), "the settings have no listener at {port}");
            text = text.replace(port, &format!("0.0.0.0:{free}"));
        }
        text += &format!(
            "\n[tokens.image-check]\nsha256 = {}\nroles = [\"publish\"]\n\n\
             [schedules.yearly]\ncron = \"0 0 1 1 *\"\ntimezone = \"Europe/Berlin\"\ntype = \"year.begins\"\n",
            made["sha256"]
        );
        fs::write(folder.join("handlers.toml"), text)?;
        let token = made["token"].as_str().context("`host token new` made no token")?.to_owned();
        Ok(Self { ports, token })
    }

    /// Has the host do in the image what it is for.
    fn run(&self, pod: &Pod, command: &[String]) -> Result<()> {
        let begun = Instant::now();
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let mut running = pod.start(&command, "host")?;
        let [edge, private] = self.ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        running.wait("the host listens", || Ok(TcpStream::connect(edge).is_ok()))?;
        running.wait("the host is ready", || Ok(ask(private, "/readyz", "")?.0 == 200))?;
        println!("image-check: it is ready after {:.1} s", begun.elapsed().as_secs_f64());
        let (status, answer) = send(edge, &self.token)?;
        ensure!(status == 202, "the event was answered with {status}: {answer}");
        running.wait("the event is handled", || {
            let status: Value =
                serde_json::from_str(&running.execute(&["/host", "status", "--json"])?)
                    .context("`host status --json` is no JSON")?;
            Ok(status["groups"][0]["handled_events"] == 1)
        })?;
        println!("image-check: an event came in by HTTP, and was handled");
        warns_of_nothing(&running.log()?)?;
        for asked in [&["/host", "health"][..], &["/host", "health", "--ready"]] {
            println!("image-check: {}: {}", asked.join(" "), running.execute(asked)?.trim());
        }
        let compiled = pod.files_in("/cache/event-host/components")?;
        ensure!(compiled == 1, "{compiled} components are in the cache, not 1");
        let memory = running.memory()?;
        let stopping = Instant::now();
        running.terminate()?;
        let (code, log) = running.end(STOPS_WITHIN)?;
        ensure!(code == Some(0), "the host ended with {code:?}:\n{log}");
        let took = stopping.elapsed().as_secs_f64();
        println!("image-check: it stopped in order, within {took:.1} s; it had {memory}");
        warns_of_nothing(&log)?;
        let written: BTreeSet<&str> =
            WRITABLE.into_iter().filter(|folder| pod.is_used(folder)).collect();
        println!("image-check: all is well. It wrote into {}", Vec::from_iter(written).join(", "));
        Ok(())
    }
}

/// A port that nobody else listens at yet.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// What is missing in the image is a warning in the host's log.
fn warns_of_nothing(log: &str) -> Result<()> {
    for line in log.lines() {
        let line: Value = serde_json::from_str(line)
            .with_context(|| format!("a line of the log is no JSON: {line}"))?;
        let is_well = matches!(line["level"].as_str(), Some("INFO" | "DEBUG" | "TRACE"));
        ensure!(is_well, "the host warns, for something is missing in the image: {line}");
    }
    Ok(())
}

/// Sends an event, and gives the status and the body of the answer.
fn send(edge: SocketAddr, token: &str) -> Result<(u16, String)> {
    let body = r#"{"customer":"Ada"}"#;
    let more = format!(
        "Authorization: Bearer {token}\r\nce-specversion: 1.0\r\nce-id: 1\r\n\
         ce-source: /image-check\r\nce-type: order.placed\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    ask(edge, "/v1/events", &more)
}

/// Asks for a path, or sends something to it: `more` is headers and a body. Gives the status
/// and the body of the answer.
fn ask(address: SocketAddr, path: &str, more: &str) -> Result<(u16, String)> {
    let method = if more.is_empty() { "GET" } else { "POST" };
    let more = if more.is_empty() { "\r\n" } else { more };
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    stream.write_all((head + more).as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer of HTTP")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.with_context(|| format!("no status: {head}"))?, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_are_the_files_that_ldd_names() {
        let linked = "\tlinux-vdso.so.1 (0x00007f2100)\n\
            \tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f2100)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f2100)\n";
        let files = ["/lib/x86_64-linux-gnu/libgcc_s.so.1", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(libraries(linked), files.map(PathBuf::from).into());
    }

    #[test]
    fn the_image_says_how_it_starts() {
        let containerfile = Containerfile::read(&root().unwrap()).unwrap();
        assert_eq!(containerfile.command[..2], ["/host", "run"]);
        assert_eq!(containerfile.environment, ["HOST_CACHE=/cache"]);
    }
}
