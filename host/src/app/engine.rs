//! The engine that a host's components are compiled and run by.

use std::path::PathBuf;

use crate::config::Compilation;
use event_host_sandbox::EngineSettings;

/// The settings of an engine that compiles in processes of their own, with these limits.
pub(crate) fn engine_settings(limits: &Compilation) -> EngineSettings {
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
