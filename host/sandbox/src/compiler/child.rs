//! Compiling in a process of its own: the side of that process.

use std::io::{self, Read as _, Write as _};

use wasmtime::Engine;

use super::output::{self, UNABLE, fingerprint};
use crate::engine::{self, Allocation, Code, EngineSettings};
use crate::source::TextForm;

/// The exit code of a process that has no more memory: what it may have is a setting, so
/// the component is refused.
const OUT_OF_MEMORY: u8 = 1;

/// What the process is asked to do, beside the file on its stdin.
#[derive(Debug, Clone, clap::Args)]
pub struct Order {
    /// The settings that the code is for, as a digest
    #[arg(long)]
    engine: u64,
    /// Whether the code counts fuel
    #[arg(long)]
    fuel: bool,
    /// Whether the code is made fast, and is not fast
    #[arg(long, conflicts_with = "fuel")]
    baseline: bool,
    /// Whether the code checks bounds itself
    #[arg(long)]
    compact: bool,
    /// Whether text is refused
    #[arg(long)]
    binary: bool,
    /// How many seconds of processors it may take
    #[arg(long)]
    seconds: u64,
    /// How many bytes of memory it may take
    #[arg(long)]
    memory: u64,
    /// Whether it is known that this system cannot confine it
    #[arg(long)]
    unconfined: bool,
    /// Whether it only finds out if it could compile
    #[arg(long)]
    only_start: bool,
}

/// Compiles what comes on stdin, and answers on stdout. Gives the exit code, and what
/// there is to say on stderr.
#[must_use]
pub fn obey(order: &Order) -> (u8, Option<String>) {
    let engine = match limit(order).map_err(Into::into).and_then(|()| engine_for(order)) {
        Ok(engine) => engine,
        Err(error) => return (UNABLE, Some(format!("{error:#}"))),
    };
    let confined = confine();
    if order.only_start {
        return (0, confined.err());
    }
    // It could be confined when the host started.
    if let Err(why) = confined
        && !order.unconfined
    {
        return (UNABLE, Some(why));
    }
    match answer(order, &engine) {
        Ok(()) => (0, None),
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
            (OUT_OF_MEMORY, Some(error.to_string()))
        }
        // The host is gone, or what it gave cannot be read.
        Err(error) => (UNABLE, Some(error.to_string())),
    }
}

fn answer(order: &Order, engine: &Engine) -> io::Result<()> {
    let mut source = Vec::new();
    io::stdin().lock().read_to_end(&mut source)?;
    let text = if order.binary { TextForm::Refused } else { TextForm::Taken };
    let output = output::to_bytes(output::compile(engine, &source, text).as_ref())?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(&output)?;
    stdout.flush()
}

fn engine_for(order: &Order) -> anyhow::Result<Engine> {
    let allocation = if order.compact { Allocation::Compact } else { Allocation::OnDemand };
    let code = match (order.fuel, order.baseline) {
        (true, _) => Code::Metered,
        (false, true) => Code::Baseline,
        (false, false) => Code::Optimized,
    };
    let config = engine::config(&EngineSettings::default(), allocation, code);
    let engine = Engine::new(&config)?;
    anyhow::ensure!(
        fingerprint(&engine) == order.engine,
        "the program was replaced by another version: restart the host"
    );
    Ok(engine)
}

#[cfg(unix)]
fn limit(order: &Order) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let at_most = |limit| Rlimit { current: Some(limit), maximum: Some(limit) };
    // What it may write to; mere reservations are free.
    setrlimit(Resource::Data, at_most(order.memory))?;
    // A core of it would hold what a tenant wrote.
    setrlimit(Resource::Core, at_most(0))?;
    // The signal that says so comes a second before the one that cannot be told from others.
    let seconds =
        Rlimit { current: Some(order.seconds), maximum: Some(order.seconds.saturating_add(1)) };
    setrlimit(Resource::Cpu, seconds)?;
    Ok(())
}

#[cfg(not(unix))]
fn limit(_: &Order) -> io::Result<()> {
    Ok(())
}

/// Keeps it from everything but memory, time and its pipes; has the system end it first
/// where it is short of memory, and with its host.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn confine() -> Result<(), String> {
    use rustix::process::{Signal, set_parent_process_death_signal};
    let first = std::fs::write("/proc/self/oom_score_adj", "1000")
        .map_err(|error| format!("/proc/self/oom_score_adj: {error}"));
    let with_host = set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("PR_SET_PDEATHSIG: {error}"));
    let confined = super::confinement::apply().map_err(|error| format!("seccomp: {error}"));
    first.and(with_host).and(confined)
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn confine() -> Result<(), String> {
    Err("only Linux on 64-bit machines has what would keep it from that".to_owned())
}
