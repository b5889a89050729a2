//! Compiling in a process of its own: the host's side.
//!
//! A few kilobytes of WebAssembly can keep a compiler busy for hours and make it
//! take gigabytes. So another run of this program does it, which is limited in time
//! and memory, can reach neither files nor the network, and answers on its stdout. It
//! has the host's own priority until handlers run, and a lower one from then on.
//!
//! This fails closed. Whether the machine can start such a process at all is found
//! out once, when the host starts; from then on one that does not start makes its
//! component wait, and none is compiled without limits.

use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command as AsyncCommand;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use wasmtime::Engine;

use super::Job;
use super::output::{self, CODE_BYTES, Compiled, HEAD_BYTES, UNABLE, fingerprint};
use crate::ending::size;
use crate::engine::{Allocation, Code, EngineSettings};
use crate::load_error::LoadReason;
use crate::source::TextForm;
use event_host_core::failure::storable;

/// For how long, and how often, it is tried again at once to start a process.
const AT_ONCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(100);

/// How much longer than its time of processors it may take by the clock, because it may
/// have to give way to handlers and to other programs.
const BY_THE_CLOCK: u32 = 10;

/// How many steps of `nice` a process that gives way is below the host.
#[cfg(unix)]
const LOWER: i32 = 10;

/// The lowest priority that there is.
#[cfg(unix)]
const LOWEST: i32 = 19;

/// Bytes of what the process says that are kept.
const SAID_BYTES: usize = 4 << 10;

/// Starts processes that compile.
#[derive(Debug)]
pub(super) struct Processes {
    program: PathBuf,
    patience: Duration,
    memory_bytes: u64,
    threads: usize,
    /// Whether they can be kept from files and the network here.
    confined: bool,
}

impl Processes {
    /// Starts one that only finds out whether it could compile.
    ///
    /// # Errors
    /// Why there can be none on this machine. That there can be none now, because
    /// there are too many processes or open files, is no such reason.
    pub(super) fn find_out(
        program: PathBuf,
        settings: &EngineSettings,
        engine: &Engine,
        allocation: Allocation,
    ) -> Result<Self, String> {
        let mut processes = Self {
            program,
            patience: settings.compile_timeout,
            memory_bytes: settings.compile_memory_bytes,
            threads: super::threads(),
            confined: true,
        };
        let mut command = processes.command(engine, Code::Optimized, allocation);
        command.arg("--only-start").stdin(Stdio::null());
        let output = match command.output() {
            Ok(output) => output,
            Err(error) if is_passing(&error) => {
                tracing::warn!("no process that compiles can be started now: {error}");
                return Ok(processes);
            }
            Err(error) => return Err(error.to_string()),
        };
        let said = said(&output.stderr);
        match output.status.code() {
            Some(0) if said.is_empty() => {}
            Some(0) => {
                processes.confined = false;
                tracing::warn!(
                    "the processes that compile components are limited in time and memory, and not in what they could reach if a component broke the compiler: {said}"
                );
            }
            Some(code) if code == i32::from(UNABLE) => return Err(said),
            // It may have been ended by somebody who was short of memory. What there is to
            // compile will say it again.
            _ => tracing::warn!("a process that compiles was tried, and ended: {}", output.status),
        }
        Ok(processes)
    }

    fn command(&self, engine: &Engine, code: Code, allocation: Allocation) -> Command {
        let seconds = self.patience.as_secs().max(1);
        let mut command = Command::new(&self.program);
        own_group(&mut command);
        command
            // Nothing that is secret is a part of the work.
            .env_clear()
            .env("RAYON_NUM_THREADS", self.threads.to_string())
            .env("MALLOC_ARENA_MAX", "2")
            // It holds no folder that somebody may want to unmount.
            .current_dir("/")
            .arg("compile-component")
            .args(["--engine", &fingerprint(engine).to_string()])
            .args(["--seconds", &seconds.to_string()])
            .args(["--memory", &self.memory_bytes.to_string()])
            .args((code == Code::Metered).then_some("--fuel"))
            .args((code == Code::Baseline).then_some("--baseline"))
            .args((allocation == Allocation::Compact).then_some("--compact"))
            .args((!self.confined).then_some("--unconfined"));
        command
    }

    /// Compiles one component. Gives way to handlers from when it is told that they run.
    pub(super) async fn compile(
        &self,
        job: &Job,
        gives_way: watch::Receiver<bool>,
    ) -> Result<Compiled, LoadReason> {
        let mut command = self.command(&job.engine, job.code, job.allocation);
        command.args((job.text == TextForm::Refused).then_some("--binary"));
        self.run(command, &job.source, gives_way).await.map_err(|reason| match reason {
            LoadReason::CompilerDied(how) => LoadReason::CompilerDied(format!(
                "{how} (`compile_memory` is {})",
                size(usize::try_from(self.memory_bytes).unwrap_or(usize::MAX))
            )),
            other => other,
        })
    }

    /// Runs the process to its end, or to the end of patience.
    async fn run(
        &self,
        command: Command,
        source: &[u8],
        mut gives_way: watch::Receiver<bool>,
    ) -> Result<Compiled, LoadReason> {
        let mut command = AsyncCommand::from(command);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // It never outlives its use.
            .kill_on_drop(true);
        let by_the_clock = self.patience.saturating_mul(BY_THE_CLOCK);
        let cannot = |error: io::Error| {
            LoadReason::CompilerUnavailable(format!("the process that compiles: {error}"))
        };
        let mut child = start(&mut command).await.map_err(cannot)?;
        let id = child.id();
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let give = async move {
            let Some(mut stdin) = stdin else { return Ok(()) };
            match stdin.write_all(source).await {
                // One that ends early says why.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
                _ => Ok(()),
            }
        };
        let talk = async {
            tokio::try_join!(give, read(stdout, HEAD_BYTES + CODE_BYTES), read(stderr, SAID_BYTES))
        };
        let all = async {
            let ((), answer, errors) = talk.await?;
            Ok((answer, errors, child.wait().await?))
        };
        let all = async {
            let lower = async {
                // On an error the sender is gone: the priority stays as it is.
                if gives_way.wait_for(|gives_way| *gives_way).await.is_ok() {
                    give_way(id);
                }
                std::future::pending().await
            };
            tokio::select! {
                ended = all => ended,
                never = lower => never,
            }
        };
        let (answer, errors, status) = timeout(by_the_clock, all)
            .await
            .map_err(|_| {
                LoadReason::CompilerUnavailable(format!(
                    "the processors were busy with other work: it did not end within {by_the_clock:.0?}"
                ))
            })?
            .map_err(cannot)?;
        self.answer(&answer, &said(&errors), status)
    }

    fn answer(
        &self,
        answer: &[u8],
        said: &str,
        status: ExitStatus,
    ) -> Result<Compiled, LoadReason> {
        match status.code() {
            Some(0) => output::from_bytes(answer).unwrap_or_else(|why| {
                Err(LoadReason::CompilerDied(format!("an answer that cannot be read: {why}")))
            }),
            Some(code) if code == i32::from(UNABLE) => {
                Err(LoadReason::CompilerUnavailable(said.to_owned()))
            }
            _ if is_out_of_time(status) => Err(LoadReason::SlowCompilation(self.patience)),
            _ if said.is_empty() => Err(LoadReason::CompilerDied(status.to_string())),
            _ => Err(LoadReason::CompilerDied(format!("{status}: {said}"))),
        }
    }
}

/// Puts a process into a group of its own: its priority is that of its group, with all
/// its threads, and a terminal's Ctrl-C is for the host, which ends it.
#[cfg(unix)]
fn own_group(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
    command.process_group(0);
}

#[cfg(not(unix))]
fn own_group(_: &mut Command) {}

/// Has a process, which is a group of its own, go behind those that run handlers.
#[cfg(unix)]
fn give_way(id: Option<u32>) {
    use rustix::process::{Pid, getpriority_process, setpriority_pgrp};
    let Some(group) = id.and_then(|id| Pid::from_raw(id.cast_signed())) else { return };
    let lower = |priority: i32| (priority + LOWER).min(LOWEST);
    let lowered = getpriority_process(None)
        .and_then(|priority| setpriority_pgrp(Some(group), lower(priority)));
    if let Err(error) = lowered {
        tracing::debug!("compiling at the priority of everything else: {error}");
    }
}

#[cfg(not(unix))]
fn give_way(_: Option<u32>) {}

/// Starts a process, and tries again for a while where it does not start.
async fn start(command: &mut AsyncCommand) -> io::Result<tokio::process::Child> {
    let deadline = Instant::now() + AT_ONCE;
    loop {
        match command.spawn() {
            Err(error) if Instant::now() < deadline => {
                tracing::debug!("no process that compiles can be started now: {error}");
                sleep(AGAIN).await;
            }
            other => return other,
        }
    }
}

/// Reads to the end, or up to a number of bytes; a child that writes more finds its pipe
/// closed.
async fn read(from: Option<impl AsyncRead + Unpin>, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(most as u64).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

fn said(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SAID_BYTES)]);
    storable(text.trim(), SAID_BYTES)
}

/// Whether the system can do later what it cannot do now.
fn is_passing(error: &io::Error) -> bool {
    let passing = [Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR];
    Errno::from_io_error(error).is_some_and(|errno| passing.contains(&errno))
}

#[cfg(unix)]
fn is_out_of_time(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt as _;
    status.signal() == Some(rustix::process::Signal::XCPU.as_raw())
}

#[cfg(not(unix))]
fn is_out_of_time(_: ExitStatus) -> bool {
    false
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    fn processes(patience: Duration) -> Processes {
        let program = PathBuf::from("sh");
        Processes { program, patience, memory_bytes: 1 << 30, threads: 1, confined: true }
    }

    /// No handler runs.
    fn alone() -> watch::Receiver<bool> {
        watch::Sender::new(false).subscribe()
    }

    async fn shell(script: &str, patience: Duration) -> Result<Compiled, LoadReason> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        processes(patience).run(command, &[b'x'; 1 << 20], alone()).await
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_process_that_refuses_says_why_on_its_stdout() {
        let refusal = output::to_bytes(Err(&LoadReason::NoMetadata)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("answer");
        std::fs::write(&file, refusal).unwrap();
        for listens in ["cat > /dev/null; ", ""] {
            let script = format!("{listens}cat {}", file.display());
            let refused = shell(&script, LONG).await.unwrap_err();
            assert!(matches!(refused, LoadReason::NoMetadata), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_process_that_answers_rubbish_has_compiled_nothing() {
        for script in ["exit 0", "cat", "head -c 2 /dev/zero"] {
            let refused = shell(script, LONG).await.unwrap_err();
            assert!(matches!(refused, LoadReason::CompilerDied(_)), "{script}: {refused}");
        }
    }

    #[tokio::test]
    async fn a_process_that_cannot_compile_now_is_tried_again_and_not_done_without() {
        let command = Command::new("/nonexistent/program");
        let refused = processes(LONG).run(command, b"x", alone()).await.unwrap_err();
        assert!(refused.is_passing() && refused.to_string().contains("No such file"), "{refused}");
        let refused = shell("echo 'no \u{1b} threads' >&2; exit 4", LONG).await.unwrap_err();
        assert!(refused.is_passing() && refused.to_string().contains("no \u{fffd} threads"));
    }

    #[tokio::test]
    async fn a_process_that_dies_refuses_the_component() {
        for (script, how) in
            [("kill -9 $$", "signal: 9"), ("exit 1", "status: 1"), ("exit 101", "101")]
        {
            let refused = shell(script, LONG).await.unwrap_err();
            assert!(
                matches!(&refused, LoadReason::CompilerDied(said) if said.contains(how)),
                "{refused}"
            );
        }
    }

    #[tokio::test]
    async fn time_of_processors_counts_and_time_of_waiting_for_them_does_not() {
        let refused = shell("ulimit -S -t 1; while :; do :; done", LONG).await.unwrap_err();
        assert!(matches!(refused, LoadReason::SlowCompilation(_)), "{refused}");
        let started = Instant::now();
        let refused = shell("cat > /dev/null; exec sleep 60", Duration::from_millis(100)).await;
        let refused = refused.unwrap_err();
        assert!(refused.is_passing() && refused.to_string().contains("were busy"), "{refused}");
        assert!(started.elapsed() < LONG / 2);
    }

    #[test]
    fn only_a_machine_that_can_start_no_process_at_all_does_without() {
        for (raw, passing) in [
            (Errno::AGAIN, true),
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::NOMEM, true),
            (Errno::NOENT, false),
            (Errno::ACCESS, false),
            (Errno::NOSYS, false),
            (Errno::PERM, false),
        ] {
            assert_eq!(is_passing(&raw.into()), passing, "{raw}");
        }
        let find_out = |program: &str| {
            let settings = EngineSettings::default();
            Processes::find_out(program.into(), &settings, &Engine::default(), Allocation::OnDemand)
        };
        assert!(find_out("/nonexistent/program").is_err());
        // It does nothing, and ends well.
        assert!(find_out("true").unwrap().confined);
        // It dies, as one does that takes too much memory.
        assert!(find_out("false").is_ok());
    }
}
