//! `cargo xtask test`: every test there is.

use std::process::Command;

use anyhow::{Result, bail};

use crate::command::{cargo, probe, run};
use crate::postgres::Postgres;
use crate::{guests, host, root};

/// Builds what the tests need and runs them all; `extra` goes to the runner.
///
/// Where an argument picks out tests, the examples in comments and the guests' own tests do
/// not run. `--no-fail-fast` picks out none.
/// The server that they share ends with them, also when they fail.
pub(crate) fn test(extra: &[&str]) -> Result<()> {
    let all = extra.iter().all(|argument| *argument == "--no-fail-fast");
    let has_nextest = probe(Command::new("cargo-nextest").arg("--version")).is_some();
    if !has_nextest && !all {
        bail!(
            "tests are picked out by cargo-nextest, which is not installed: `cargo install cargo-nextest --locked`, or run all of them by `cargo xtask test`"
        );
    }
    let root = root()?;
    let postgres = Postgres::find()?;
    guests::build(guests::ALL, None)?;
    let in_root = |arguments: &[&str]| {
        let mut command = cargo();
        command.args(arguments).current_dir(&root);
        command
    };
    // The black-box tests start the host, and cargo builds a binary only for the
    // tests of its own crate. Together with the tests, because their
    // dependencies' features would build half of the host a second time.
    run(&mut in_root(&["build", "--workspace", "--bins", "--tests", "--locked"]))?;
    host::ensure_built_with_the_tests(&root)?;
    let postgres = postgres.start()?;
    let with_server = |arguments: &[&str]| {
        let mut command = in_root(arguments);
        postgres.name_to(&mut command);
        command
    };
    if has_nextest {
        run(with_server(&["nextest", "run", "--workspace", "--locked"]).args(extra))?;
        if all {
            run(&mut in_root(&["test", "--doc", "--workspace", "--locked"]))?;
        }
    } else {
        println!("cargo-nextest is not installed; `cargo test` takes longer");
        run(with_server(&["test", "--workspace", "--locked"]).args(extra))?;
    }
    if all {
        guests::test_natively(&root, guests::WEBHOOKS)?;
        guests::test_natively(&root, guests::PLATFORM)?;
    }
    Ok(())
}
