//! The `host` program: starts the command line, nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    event_host::cli::main()
}
