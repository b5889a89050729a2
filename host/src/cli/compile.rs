//! `host compile-component`: what a host asks another run of itself to do. Not
//! for people.

use std::process::ExitCode;

use clap::Args;

use crate::telemetry;
use event_host_sandbox::{self, CompileOrder};

#[derive(Debug, Args)]
pub(super) struct Compile {
    #[command(flatten)]
    order: CompileOrder,
}

impl Compile {
    /// Does it on the thread that calls this, with nothing else in the process.
    pub(super) fn run(&self) -> ExitCode {
        let (code, said) = event_host_sandbox::compile(&self.order);
        if let Some(said) = said {
            telemetry::say(&said);
        }
        telemetry::flush();
        ExitCode::from(code)
    }
}
