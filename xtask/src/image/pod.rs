//! A container out of namespaces: what a container runtime does for one process, by the
//! commands of util-linux.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{PATIENCE, USER};
use crate::command::{probe, shown, stdout_of};
use crate::debian;

/// Mounts the root and the volumes, and becomes the program: as process 1 of its namespace, and
/// as a user that can gain no rights. `$1` is the root, `$2` the folder of the volumes, and then
/// come the environment and the command.
const ENTER: &str = r#"
set -eu
root=$1 volumes=$2
shift 2
mount --bind "$root" "$root"
for volume in "$volumes"/*; do
    mount --bind "$volume" "$root/${volume##*/}"
done
mount -t proc proc "$root/proc"
for device in null zero full random urandom; do
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount -o remount,bind,ro "$root"
exec env -i "$@"
"#;

/// How often what is waited for is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// What a container is made of.
pub(super) struct Pod {
    root: PathBuf,
    volumes: PathBuf,
    environment: Vec<String>,
}

/// A container whose program runs. Dropping it kills that.
pub(super) struct Running {
    process: Child,
    log: PathBuf,
    environment: Vec<String>,
}

/// Whether this machine allows namespaces.
///
/// # Errors
/// With what is missing.
pub(super) fn is_possible() -> Result<(), String> {
    if !debian::we_are_root() {
        return Err("namespaces and other users take root: run it as root".to_owned());
    }
    for program in ["unshare", "nsenter", "setpriv", "mount"] {
        if probe(Command::new(program).arg("--version")).is_none() {
            return Err(format!(
                "{program} is missing: on Debian, apt-get install util-linux mount"
            ));
        }
    }
    let mut tried = Command::new("unshare");
    tried.args(["--mount", "--pid", "--ipc", "--uts", "--fork", "--mount-proc", "true"]);
    match probe(&mut tried) {
        Some(output) if output.status.success() => Ok(()),
        Some(output) => {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(format!("this machine allows no namespaces: {why}"))
        }
        None => Err("unshare cannot be started".to_owned()),
    }
}

impl Pod {
    /// Makes the places where things are mounted, and volumes with the modes of Kubernetes': an
    /// `emptyDir` belongs to root, and everybody may change it; a claimed volume belongs to
    /// root and the group of the pod.
    pub(super) fn new<'a>(
        root: PathBuf,
        volumes: PathBuf,
        writable: impl Iterator<Item = &'a str>,
        environment: Vec<String>,
    ) -> Result<Self> {
        for folder in ["proc", "dev"] {
            fs::create_dir_all(root.join(folder))?;
        }
        for device in ["null", "zero", "full", "random", "urandom"] {
            fs::write(root.join("dev").join(device), "")?;
        }
        for folder in writable.map(|folder| folder.trim_start_matches('/')) {
            fs::create_dir_all(root.join(folder))?;
            let volume = volumes.join(folder);
            fs::create_dir_all(&volume)?;
            let is_claimed = folder == "data";
            chown(&volume, Some(0), Some(if is_claimed { USER } else { 0 }))?;
            let mode = if is_claimed { 0o2775 } else { 0o777 };
            fs::set_permissions(&volume, fs::Permissions::from_mode(mode))?;
        }
        Ok(Self { root, volumes, environment })
    }

    /// Has its containers started with this in place of what they had of that name.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        let begins = format!("{name}=");
        self.environment.retain(|variable| !variable.starts_with(&begins));
        self.environment.push(begins + value);
    }

    /// A command in a container of its own.
    fn command(&self, command: &[&str]) -> Command {
        let user = USER.to_string();
        let mut container = Command::new("unshare");
        container
            .args(["--mount", "--pid", "--ipc", "--uts", "--fork"])
            .args(["--propagation", "private", "sh", "-c", ENTER, "sh"])
            .args([&self.root, &self.volumes])
            .args(&self.environment)
            .args(["setpriv", "--no-new-privs", "unshare"])
            .arg(format!("--root={}", self.root.display()))
            .args(["--wd=/etc/host", "--setgid", &user, "--setuid", &user])
            .args(command)
            .stdin(Stdio::null());
        container
    }

    /// Runs a command to its good end, and gives what it printed.
    pub(super) fn finish(&self, command: &[&str]) -> Result<String> {
        stdout_of(&mut self.command(command))
    }

    /// Starts the program of a container, whose log goes to a file of this name.
    pub(super) fn start(&self, command: &[&str], name: &str) -> Result<Running> {
        let log = self.volumes.with_extension(format!("{name}.log"));
        let file = fs::File::create(&log)?;
        let mut command = self.command(command);
        let process = command.stdout(Stdio::null()).stderr(file).spawn();
        let process = process.with_context(|| format!("cannot start {}", shown(&command)))?;
        Ok(Running { process, log, environment: self.environment.clone() })
    }

    /// How many files a folder of a volume has.
    pub(super) fn files_in(&self, folder: &str) -> Result<usize> {
        let folder = self.volumes.join(folder.trim_start_matches('/'));
        let files = fs::read_dir(&folder);
        Ok(files.with_context(|| format!("no {}", folder.display()))?.count())
    }

    /// Whether anything was written to a volume.
    pub(super) fn is_used(&self, volume: &str) -> bool {
        self.files_in(volume).is_ok_and(|files| files > 0)
    }
}

impl Running {
    /// Waits until something is so.
    pub(super) fn wait(&self, what: &str, so: impl Fn() -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        loop {
            // Before it is, an attempt to see it may fail.
            let seen = so();
            if matches!(seen, Ok(true)) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                let log = self.log()?;
                let why = seen.err().map_or_else(String::new, |why| format!(": {why:#}"));
                bail!("not within {PATIENCE:?}: {what}{why}\n{log}");
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Runs a command in the container, as `kubectl exec` does.
    pub(super) fn execute(&self, command: &[&str]) -> Result<String> {
        let user = USER.to_string();
        let mut entered = Command::new("env");
        entered
            .arg("-i")
            .args(&self.environment)
            .arg("nsenter")
            .arg(format!("--target={}", self.program()?))
            .args(["--mount", "--pid", "--ipc", "--uts", "--root", "--wd"])
            .args(["--setgid", &user, "--setuid", &user])
            .args(command)
            .stdin(Stdio::null());
        stdout_of(&mut entered)
    }

    /// The number of the program outside of its namespace.
    fn program(&self) -> Result<u32> {
        let id = self.process.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
        children.trim().parse().with_context(|| format!("the container has ended: {children}"))
    }

    /// How much memory the program had at most, and has now.
    pub(super) fn memory(&self) -> Result<String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.program()?))?;
        let of = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            kilobytes.with_context(|| format!("no {name} in {status}"))
        };
        let (now, most) = (of("VmRSS:")? / 1024, of("VmHWM:")? / 1024);
        Ok(format!("{now} MiB of memory, and {most} MiB at most"))
    }

    /// Asks the program to stop.
    pub(super) fn terminate(&self) -> Result<()> {
        let id = self.program()?.to_string();
        let asked = Command::new("kill").args(["-TERM", &id]).status()?;
        ensure!(asked.success(), "the program cannot be asked to stop");
        Ok(())
    }

    /// What it has logged.
    pub(super) fn log(&self) -> Result<String> {
        fs::read_to_string(&self.log).context("no log")
    }

    /// Waits for its end, and gives its exit code and its log.
    pub(super) fn end(&mut self, within: Duration) -> Result<(Option<i32>, String)> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok((status.code(), self.log()?));
            }
            if begun.elapsed() > within {
                bail!("it has not stopped within {within:?}:\n{}", self.log()?);
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended; else its whole namespace does, with its process 1. That does not
        // end with `unshare`: the kernel forgets this wish when a process changes its user.
        if let Ok(program) = self.program() {
            let _ = Command::new("kill").args(["-KILL", &program.to_string()]).status();
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
