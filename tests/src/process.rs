//! The host program as a process: started, watched, stopped and killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{LOOK, PATIENCE, wait_for, wait_until};

/// The host program.
///
/// # Panics
/// When it is not built.
pub(crate) fn binary() -> PathBuf {
    let file = std::env::var_os("HOST_BIN").map_or_else(
        || {
            // This program is target/PROFILE/deps/NAME.
            let tests = std::env::current_exe().expect("the test knows its own place");
            let profile = tests.parent().and_then(|deps| deps.parent());
            profile.expect("a test lies in target/PROFILE/deps").join("host")
        },
        PathBuf::from,
    );
    assert!(file.is_file(), "no host program at {}: run `cargo xtask test`", file.display());
    file
}

/// What a command answered.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Finished {
    /// The answer of a command that must have succeeded.
    ///
    /// # Panics
    /// When it did not.
    #[must_use]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// The complaint of a command that must have failed: on stderr, with
    /// nothing on stdout.
    ///
    /// # Panics
    /// When it did not fail with this code.
    #[must_use]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        self.stderr
    }
}

/// Runs a command to its end.
pub(crate) fn finish(command: &mut Command, stdin: Option<&[u8]>) -> Finished {
    command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the host program starts");
    let stdout = collect(child.stdout.take().expect("stdout is piped"));
    let stderr = collect(child.stderr.take().expect("stderr is piped"));
    if let Some(bytes) = stdin {
        let mut pipe = child.stdin.take().expect("stdin is piped");
        // A command may refuse its input before it has read it all.
        let _ = pipe.write_all(bytes);
    }
    let mut child = Killed(child);
    let code = wait_for(&format!("the end of {command:?}"), PATIENCE, || {
        child.0.try_wait().expect("the process can be waited for")
    })
    .code();
    let text = |bytes: std::thread::JoinHandle<Vec<u8>>| {
        String::from_utf8(bytes.join().expect("reading does not panic")).expect("output is UTF-8")
    };
    Finished { code, stdout: text(stdout), stderr: text(stderr) }
}

fn collect(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A pipe that breaks ends the output.
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// A process that does not outlive its test.
#[derive(Debug)]
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[derive(Debug, Default)]
struct Log {
    lines: Mutex<Vec<Value>>,
    more: Condvar,
    /// Nothing more comes.
    ended: AtomicBool,
}

/// A running `host run`, with its log. Dropping it kills it.
#[derive(Debug)]
pub struct Running {
    child: Killed,
    log: Arc<Log>,
}

impl Running {
    /// Starts a command that logs JSON.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the host program starts");
        let log = Arc::new(Log::default());
        let stderr = child.stderr.take().expect("stderr is piped");
        let sink = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                // An error at the end, and a panic, are no JSON.
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                sink.lines.lock().expect("no reader panicked").push(line);
                sink.more.notify_all();
            }
            sink.ended.store(true, Release);
        });
        Self { child: Killed(child), log }
    }

    /// Starts a command whose stderr is the test's own matter: it has no log here.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_with_stderr(command: &mut Command, stderr: Stdio) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn();
        let log = Arc::new(Log::default());
        log.ended.store(true, Release);
        Self { child: Killed(child.expect("the host program starts")), log }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Every log line so far: JSON objects.
    #[must_use]
    pub fn log(&self) -> Vec<Value> {
        self.log.lines.lock().expect("no reader panicked").clone()
    }

    /// Waits for a log line, old or new, and gives it.
    pub fn wait_for_log(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.wait_for_log_within(PATIENCE, what, wanted)
    }

    /// Waits so long for a log line, old or new, and gives it.
    ///
    /// # Panics
    /// When it does not come.
    pub fn wait_for_log_within(
        &self,
        patience: Duration,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        self.look_for_log_within(patience, wanted)
            .unwrap_or_else(|| panic!("no log line within {patience:?}: {what}\n{:#?}", self.log()))
    }

    /// Waits so long for a log line, old or new, and gives it if it comes.
    pub fn look_for_log_within(
        &self,
        patience: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Option<Value> {
        let begun = Instant::now();
        let mut lines = self.log.lines.lock().expect("no reader panicked");
        loop {
            if let Some(line) = lines.iter().find(|line| wanted(line)) {
                return Some(line.clone());
            }
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return None;
            }
            lines = self.log.more.wait_timeout(lines, left).expect("no reader panicked").0;
        }
    }

    /// Waits for a line with this message.
    pub fn wait_for_message(&self, message: &str) -> Value {
        self.wait_for_log(message, |line| line["message"] == message)
    }

    /// Waits until it leads a group.
    pub fn wait_until_leading(&self, group: &str) {
        self.wait_for_log(&format!("leading {group}"), |line| {
            line["message"] == "leading" && line["group"] == group
        });
    }

    /// How many lines have this message so far.
    #[must_use]
    pub fn count_messages(&self, message: &str) -> usize {
        self.log().iter().filter(|line| line["message"] == message).count()
    }

    /// Ends it as nothing can prevent, and waits until it is gone.
    pub fn kill9(mut self) {
        self.child.0.kill().expect("the process can be killed");
        self.child.0.wait().expect("the process can be waited for");
    }

    /// Asks it to stop.
    pub fn sigterm(&self) {
        self.send(Signal::TERM);
    }

    /// Asks it to stop as Ctrl-C does.
    pub fn interrupt(&self) {
        self.send(Signal::INT);
    }

    /// Asks it to read its settings again.
    pub fn hangup(&self) {
        self.send(Signal::HUP);
    }

    /// Stops it in its tracks, until [`Running::thaw`].
    pub fn freeze(&self) {
        self.send(Signal::STOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.send(Signal::CONT);
    }

    fn send(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), signal).expect("the process is there");
    }

    /// Whether it has ended, and how.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.0.try_wait().expect("the process can be waited for")
    }

    /// Waits for its end, and gives how it ended.
    pub fn wait(&mut self) -> ExitStatus {
        self.wait_within(PATIENCE)
    }

    /// Waits so long for its end, and gives how it ended. Its log is whole then.
    ///
    /// # Panics
    /// When it does not end.
    pub fn wait_within(&mut self, patience: Duration) -> ExitStatus {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.ended() {
                break status;
            }
            assert!(
                begun.elapsed() < patience,
                "it does not end within {patience:?}: {:#?}",
                self.log()
            );
            std::thread::sleep(LOOK);
        };
        // What it said last may be in the pipe still.
        wait_until("the end of its log", PATIENCE, || self.log.ended.load(Acquire));
        status
    }

    /// Asks it to stop, and expects that it does so well.
    ///
    /// # Panics
    /// When it does not exit with 0.
    pub fn stop(mut self) {
        self.sigterm();
        let status = self.wait();
        assert!(status.success(), "{status}: {:#?}", self.log());
    }
}
