//! `host compile-component`: what a host asks another run of itself to do. Not
//! for people.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::config::Compilation;
use crate::sandbox::{self, CompileOrder, EngineSettings};
use crate::telemetry;

#[derive(Debug, Args)]
pub(super) struct Compile {
    #[command(flatten)]
    order: CompileOrder,
}

impl Compile {
    /// Does it on the thread that calls this, with nothing else in the process.
    pub(super) fn run(&self) -> ExitCode {
        let (code, said) = sandbox::compile(&self.order);
        if let Some(said) = said {
            telemetry::say(&said);
        }
        telemetry::flush();
        ExitCode::from(code)
    }
}

/// The settings of an engine that compiles in processes of their own, with these limits.
pub(super) fn engine_settings(limits: &Compilation) -> EngineSettings {
    let default = EngineSettings::default();
    EngineSettings {
        compile_program: this_program(),
        compile_memory_bytes: limits.memory_bytes.unwrap_or(default.compile_memory_bytes),
        compile_timeout: limits.timeout.unwrap_or(default.compile_timeout),
        ..default
    }
}

/// The program that runs, even if its file was replaced meanwhile.
fn this_program() -> Option<PathBuf> {
    if cfg!(target_os = "linux") {
        Some(PathBuf::from("/proc/self/exe"))
    } else {
        std::env::current_exe().ok()
    }
}
