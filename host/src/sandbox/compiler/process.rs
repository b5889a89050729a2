//! Compiling in a process of its own, which can be ended and which can be given
//! only so much memory.
//!
//! A few kilobytes of WebAssembly can keep a compiler busy for hours and make it
//! take gigabytes. So what was never compiled here is first compiled by another
//! run of this program, which leaves the code in the cache and nothing else;
//! only then this process takes it from there. What has proved to compile is
//! remembered beside the cache, so that it costs another process once.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::digest::Digest;
use crate::failure::storable;
use crate::sandbox::cache;
use crate::sandbox::ending::{chain, size};
use crate::sandbox::engine::{self, Allocation, EngineSettings};
use crate::sandbox::load_error::LoadReason;
use crate::telemetry;

/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// What is remembered of components that compile; beyond, it is forgotten whole.
const REMEMBERED: usize = 100_000;

/// Bytes of what the process says that are kept.
const SAID_BYTES: u64 = 4 << 10;

/// Where other runs of this program compile to.
#[derive(Debug)]
pub(in crate::sandbox) struct Processes {
    program: PathBuf,
    /// The folder of the cache.
    cache: PathBuf,
    patience: Duration,
    memory_bytes: u64,
    threads: usize,
}

/// What the process is asked to do, beside the component on its stdin.
#[derive(Debug, Clone, clap::Args)]
pub struct Order {
    /// The folder of the cache
    #[arg(long)]
    cache: PathBuf,
    /// The settings that the code is for, as a digest
    #[arg(long)]
    engine: u64,
    /// Whether the code counts fuel
    #[arg(long)]
    fuel: bool,
    /// Whether the code checks bounds itself
    #[arg(long)]
    compact: bool,
    /// How much time of processors it may take
    #[arg(long)]
    seconds: u64,
    /// How many bytes of memory it may take
    #[arg(long)]
    memory: u64,
}

impl Processes {
    pub(in crate::sandbox) fn new(
        program: PathBuf,
        cache: PathBuf,
        settings: &EngineSettings,
    ) -> Self {
        Self {
            program,
            cache,
            patience: settings.compile_timeout,
            memory_bytes: settings.compile_memory_bytes,
            threads: super::threads(),
        }
    }

    /// Sees to it that this process can have the code of a component for this
    /// engine in a moment, unless that is known.
    pub(in crate::sandbox) fn prepare(
        &self,
        engine: &Engine,
        fuel: bool,
        allocation: Allocation,
        component: &[u8],
    ) -> Result<(), LoadReason> {
        let engine = fingerprint(engine);
        let known = self.known(engine, component);
        if known.exists() {
            return Ok(());
        }
        let seconds = self.patience.as_secs().saturating_add(1).saturating_mul(self.threads as u64);
        let mut command = Command::new(&self.program);
        command
            // Nothing that is secret is a part of the work.
            .env_clear()
            .env("RAYON_NUM_THREADS", self.threads.to_string())
            // Threads that have nothing to do there would take memory too.
            .env("TOKIO_WORKER_THREADS", "1")
            .env("MALLOC_ARENA_MAX", "2")
            .arg("compile-component")
            .arg("--cache")
            .arg(&self.cache)
            .args(["--engine", &engine.to_string(), "--seconds", &seconds.to_string()])
            .args(["--memory", &self.memory_bytes.to_string()])
            .args(fuel.then_some("--fuel"))
            .args((allocation == Allocation::Compact).then_some("--compact"));
        run(&mut command, component, self.patience).map_err(|reason| match reason {
            LoadReason::CompilerDied(how) => LoadReason::CompilerDied(format!(
                "{how} (it may take {} of memory)",
                size(usize::try_from(self.memory_bytes).unwrap_or(usize::MAX))
            )),
            other => other,
        })?;
        if let Err(error) = remember(&known) {
            tracing::debug!("that a component compiles cannot be remembered: {error}");
        }
        Ok(())
    }

    /// The file whose presence says that a component compiles.
    fn known(&self, engine: u64, component: &[u8]) -> PathBuf {
        let digest = Digest::of(component);
        let digest = digest.as_str().rsplit(':').next().unwrap_or_default();
        self.cache.join("known").join(format!("{digest}-{engine:016x}"))
    }
}

fn remember(known: &Path) -> io::Result<()> {
    if let Some(folder) = known.parent() {
        if fs::read_dir(folder).is_ok_and(|files| files.count() > REMEMBERED) {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(folder)?;
    }
    fs::write(known, b"")
}

/// Runs the process to its end, or to the end of patience.
fn run(command: &mut Command, component: &[u8], patience: Duration) -> Result<(), LoadReason> {
    let deadline = Instant::now() + patience;
    let cannot = |error: io::Error| {
        LoadReason::Internal(format!("the process that compiles cannot be run: {error}"))
    };
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = match child {
        Ok(child) => Ended(child),
        Err(error) => {
            do_without(&error.to_string());
            return Ok(());
        }
    };
    if let Some(mut stdin) = child.0.stdin.take() {
        // One that ends early says why.
        match stdin.write_all(component) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(cannot(error)),
            _ => {}
        }
    }
    let status = loop {
        match child.0.try_wait().map_err(cannot)? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                return Err(LoadReason::SlowCompilation(patience));
            }
            None => thread::sleep(LOOK),
        }
    };
    let mut said = Vec::new();
    if let Some(stderr) = child.0.stderr.take() {
        stderr.take(SAID_BYTES).read_to_end(&mut said).map_err(cannot)?;
    }
    let said = String::from_utf8_lossy(&said);
    let said = storable(said.trim(), said.len());
    match status.code() {
        Some(0) => Ok(()),
        Some(code) if code == i32::from(REFUSED) => Err(LoadReason::Invalid(said)),
        Some(code) if code == i32::from(UNABLE) => {
            do_without(&said);
            Ok(())
        }
        _ if said.is_empty() => Err(LoadReason::CompilerDied(status.to_string())),
        _ => Err(LoadReason::CompilerDied(format!("{status}: {said}"))),
    }
}

/// Where there can be no other process, this one compiles.
fn do_without(why: &str) {
    tracing::warn!(
        "components are compiled in this process, where nothing can break it off: another one cannot do it: {why}"
    );
}

/// Never outlives its use.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // One that has ended already needs neither.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The exit code for a component that does not compile.
const REFUSED: u8 = 3;

/// The exit code for what no component can bring about: nothing was tried. Any
/// other end is taken for the component's doing.
const UNABLE: u8 = 4;

/// The other side: compiles what comes on stdin into the cache. Gives the exit
/// code.
///
/// # Errors
/// When the component cannot be read.
pub fn obey(order: &Order) -> io::Result<u8> {
    let engine = match confine(order).map_err(Into::into).and_then(|()| engine_for(order)) {
        Ok(engine) => engine,
        Err(error) => {
            telemetry::say(&format!("{error:#}"));
            return Ok(UNABLE);
        }
    };
    let mut component = Vec::new();
    io::stdin().lock().read_to_end(&mut component)?;
    Ok(match Component::from_binary(&engine, &component) {
        Ok(_) => 0,
        Err(error) => {
            telemetry::say(&chain(&error).to_string());
            REFUSED
        }
    })
}

fn engine_for(order: &Order) -> anyhow::Result<Engine> {
    let allocation = if order.compact { Allocation::Compact } else { Allocation::OnDemand };
    let mut config = engine::config(&EngineSettings::default(), allocation, order.fuel);
    config.cache(cache::reopen(&order.cache));
    let engine = Engine::new(&config)?;
    anyhow::ensure!(fingerprint(&engine) == order.engine, "the code would be for another engine");
    Ok(engine)
}

fn fingerprint(engine: &Engine) -> u64 {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish()
}

#[cfg(unix)]
fn confine(order: &Order) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let at_most = |limit| Rlimit { current: Some(limit), maximum: Some(limit) };
    // What it may write to; mere reservations are free.
    setrlimit(Resource::Data, at_most(order.memory))?;
    // A core of it would hold what a tenant wrote.
    setrlimit(Resource::Core, at_most(0))?;
    setrlimit(Resource::Cpu, at_most(order.seconds))?;
    super::give_way();
    Ok(())
}

#[cfg(not(unix))]
fn confine(_: &Order) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration) -> Result<(), LoadReason> {
        run(Command::new("sh").arg("-c").arg(script), &[b'x'; 1 << 20], patience)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_process_that_ends_well_has_compiled() {
        assert!(shell("cat > /dev/null", LONG).is_ok());
        assert!(shell("exit 0", LONG).is_ok(), "even if it did not listen");
    }

    #[test]
    fn a_process_that_refuses_says_why() {
        let refused =
            shell("cat > /dev/null; echo 'at \u{1b} byte 7' >&2; exit 3", LONG).unwrap_err();
        assert!(
            matches!(&refused, LoadReason::Invalid(text) if text == "at \u{fffd} byte 7"),
            "{refused}"
        );
    }

    #[test]
    fn where_no_process_can_be_run_it_is_done_without() {
        let missing = run(&mut Command::new("/nonexistent/program"), b"x", LONG);
        assert!(missing.is_ok(), "{missing:?}");
        assert!(shell("echo 'cannot' >&2; exit 4", LONG).is_ok());
    }

    #[test]
    fn a_process_that_dies_refuses_the_component() {
        for (script, how) in
            [("kill -9 $$", "signal: 9"), ("exit 1", "status: 1"), ("exit 101", "101")]
        {
            let refused = shell(script, LONG).unwrap_err();
            assert!(
                matches!(&refused, LoadReason::CompilerDied(said) if said.contains(how)),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_process_that_does_not_end_is_ended() {
        let started = Instant::now();
        let refused = shell("cat > /dev/null; exec sleep 60", Duration::from_millis(100));
        assert!(matches!(refused, Err(LoadReason::SlowCompilation(_))), "{refused:?}");
        assert!(started.elapsed() < LONG / 2);
    }
}
