//! Running the programs of a recipe.
//!
//! Each runs in a process group of its own, so that it ends with everything that it
//! started when the build is cancelled, and so that a Ctrl-C in the terminal reaches only
//! the host, which then ends it. Nothing is read from the terminal.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, setpriority_process};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use event_host_core::foreign;

/// How long the end of a program's output is waited for after the program ended: another
/// that it left running may hold the output open.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The priority of builds that give way to handlers.
const LOW_PRIORITY: i32 = 10;

/// Where the output of programs goes.
#[derive(Clone)]
pub enum Output {
    /// To the terminal, or wherever this process writes its errors: as it is.
    Inherited,
    /// To this function, line by line, without control characters. The programs have a
    /// low priority, because handlers run beside them.
    Lines(Arc<dyn Fn(&str) + Send + Sync>),
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inherited => "Inherited",
            Self::Lines(_) => "Lines",
        })
    }
}

/// Why a program did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is none.
    #[error(
        "cannot start `{program}`: there is no such program, neither on the PATH nor in the project's .venv or node_modules"
    )]
    NoProgram {
        /// As it was named.
        program: String,
    },
    /// It does not start.
    #[error("cannot start `{program}`: {why}")]
    NoStart {
        /// As it was named.
        program: String,
        /// What the system says.
        why: io::Error,
    },
    /// It failed, and has said why.
    #[error("`{program}` {}", ending(*status))]
    Failed {
        /// Its name.
        program: String,
        /// How it ended.
        status: ExitStatus,
    },
    /// The build was cancelled.
    #[error("cancelled")]
    Cancelled,
}

fn ending(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// How programs are run.
#[derive(Debug)]
pub(super) struct Runner<'a> {
    /// The folder in which they run.
    pub(super) folder: PathBuf,
    /// Their PATH.
    pub(super) path: OsString,
    /// Variables that all of them are given.
    pub(super) variables: Vec<(&'static str, OsString)>,
    pub(super) output: &'a Output,
    pub(super) cancelled: &'a CancellationToken,
}

impl Runner<'_> {
    /// Runs a program to its end.
    pub(super) async fn run(
        &self,
        words: &[OsString],
        variables: &[(&str, &OsStr)],
    ) -> Result<(), RunError> {
        self.call(words, variables, false).await.map(drop)
    }

    /// Runs a program to its end, and gives what it wrote to stdout.
    pub(super) async fn capture(&self, words: &[OsString]) -> Result<Vec<u8>, RunError> {
        self.call(words, &[], true).await
    }

    async fn call(
        &self,
        words: &[OsString],
        variables: &[(&str, &OsStr)],
        captures: bool,
    ) -> Result<Vec<u8>, RunError> {
        let (program, arguments) = words.split_first().unwrap_or((&self.path, &[]));
        let named = || {
            let name = Path::new(program).file_name().unwrap_or(program);
            name.to_string_lossy().into_owned()
        };
        let no_start = |why| RunError::NoStart { program: named(), why };
        if self.cancelled.is_cancelled() {
            return Err(RunError::Cancelled);
        }
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(&self.folder)
            .env("PATH", &self.path)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .process_group(0)
            .kill_on_drop(true);
        let (stdout, stderr) = match self.output {
            Output::Inherited => (own_stderr().map_err(no_start)?, own_stderr().map_err(no_start)?),
            Output::Lines(_) => (Stdio::piped(), Stdio::piped()),
        };
        command.stdout(if captures { Stdio::piped() } else { stdout }).stderr(stderr);
        let mut child = command.spawn().map_err(|why| match why.kind() {
            ErrorKind::NotFound if self.folder.is_dir() => {
                RunError::NoProgram { program: program.to_string_lossy().into_owned() }
            }
            _ => no_start(why),
        })?;
        let group = Group::of(&child);
        if let (Output::Lines(_), Some(group)) = (self.output, &group) {
            // It fails only if the program has ended.
            let _ = setpriority_process(Some(group.0), LOW_PRIORITY);
        }
        let captured = child.stdout.take_if(|_| captures).map(|pipe| spawned(read_all(pipe)));
        let told: Vec<_> = [
            child.stdout.take().map(|pipe| spawned(tell(pipe, self.output.clone()))),
            child.stderr.take().map(|pipe| spawned(tell(pipe, self.output.clone()))),
        ]
        .into_iter()
        .flatten()
        .collect();
        let status = tokio::select! {
            biased;
            status = child.wait() => status.map_err(no_start)?,
            () = self.cancelled.cancelled() => {
                if let Some(group) = &group {
                    group.kill();
                }
                // Waited for, so that the next build finds no other at work.
                let ended = child.wait().await;
                if let Some(group) = group {
                    group.has_ended();
                }
                ended.map_err(no_start)?;
                return Err(RunError::Cancelled);
            }
        };
        if let Some(group) = group {
            group.has_ended();
        }
        let mut all = Vec::new();
        let last_words = async {
            if let Some(captured) = captured {
                all = captured.await.unwrap_or_default();
            }
            for told in told {
                // It does not panic, and is aborted by nobody else.
                let _ = told.await;
            }
        };
        let _ = tokio::time::timeout(LAST_WORDS, last_words).await;
        if status.success() { Ok(all) } else { Err(RunError::Failed { program: named(), status }) }
    }
}

fn spawned<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> AbortOnDropHandle<T> {
    AbortOnDropHandle::new(tokio::spawn(task))
}

/// This process's stderr, for another: results alone go to stdout.
fn own_stderr() -> io::Result<Stdio> {
    io::stderr().as_fd().try_clone_to_owned().map(Stdio::from)
}

async fn read_all(mut pipe: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut all = Vec::new();
    // What cannot be read is missed by whoever parses it.
    let _ = pipe.read_to_end(&mut all).await;
    all
}

async fn tell(pipe: impl AsyncRead + Unpin, output: Output) {
    let Output::Lines(told) = output else { return };
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    while pipe.read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
        told(&foreign::clean(String::from_utf8_lossy(&line).trim_end()));
        line.clear();
    }
}

/// The groups of the programs that run.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<Pid>> {
    // Every change of it is whole, whoever panicked beside it.
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends every program that a build runs, before a process exits at once.
pub fn kill_all() {
    for group in running().iter() {
        // It fails only if it has ended.
        let _ = kill_process_group(*group, Signal::KILL);
    }
}

/// A process group that is ended when it is dropped, unless its program has ended.
struct Group(Pid);

impl Group {
    fn of(child: &Child) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(child.id()?).ok()?)?;
        running().push(pid);
        Some(Self(pid))
    }

    fn kill(&self) {
        // It fails only if it has ended.
        let _ = kill_process_group(self.0, Signal::KILL);
    }

    /// From now on the number may be another program's. What the program left running
    /// goes on, such as a server of a compiler.
    fn has_ended(self) {
        running().retain(|group| *group != self.0);
        std::mem::forget(self);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        running().retain(|group| *group != self.0);
    }
}
