//! `host compile-component`: what a host asks another run of itself to do. Not
//! for people.

use std::path::PathBuf;

use clap::Args;

use crate::sandbox::EngineSettings;
use crate::sandbox::compile_process::{self, Order};
use crate::telemetry;

#[derive(Debug, Args)]
pub(super) struct Compile {
    #[command(flatten)]
    order: Order,
}

impl Compile {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let code = compile_process::obey(&self.order)?;
        telemetry::flush();
        // At once: what is left to be cleared away is of no use to anybody.
        std::process::exit(i32::from(code))
    }
}

/// The settings of an engine that compiles in processes of their own.
pub(super) fn engine_settings() -> EngineSettings {
    EngineSettings { compile_program: this_program(), ..EngineSettings::default() }
}

/// The program that runs, even if its file was replaced meanwhile.
fn this_program() -> Option<PathBuf> {
    if cfg!(target_os = "linux") {
        Some(PathBuf::from("/proc/self/exe"))
    } else {
        std::env::current_exe().ok()
    }
}
