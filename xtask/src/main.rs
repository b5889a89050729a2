//! What a developer types: `cargo xtask …`.
//!
//! It stands before everything else on a fresh clone, so it has few
//! dependencies and reads its few arguments by hand.

mod clients;
mod command;
mod debian;
mod demo;
mod dist;
mod github;
mod guests;
mod host;
mod http;
mod image;
mod kubernetes;
mod metrics;
mod postgres;
mod samples;
mod sdks;
mod test;
mod toolchain;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::toolchain::Way;

const USAGE: &str = "\
What a developer types.

Usage: cargo xtask COMMAND

Commands:
  demo            builds the host and the example of webhooks, and shows them at work
  demo platform [--sqlite]
                  the same with the example of a platform: a quiet tenant beside a noisy
                  and a hostile one, on PostgreSQL if its programs are here; fails if a
                  figure is out of its bound
  test [ARGS]     builds the guests and runs all tests; ARGS go to the runner
                  of the workspace's tests, and the others are left out; starts a
                  PostgreSQL server for them, unless DATABASE_URL names one
  dist            builds the host for release, and puts the program and its debug
                  information, in a file of its own, into target/dist
  build-guests [--via installed|rustup|debian]
                  builds the test guests and the examples' handlers for wasm;
                  --via takes one way to a wasm target instead of the first
                  that works
  sdks [--install] [--host FILE] [LANGUAGE...]
                  tests the SDKs, makes what `host new` has in each language and does
                  what its README says, builds the same handlers with each, and runs
                  them on SQLite and PostgreSQL through the host: one that is built now,
                  or FILE. A language whose tools are missing is left out, and what
                  installs them is said; --install has npm and pip install them
                  into target/tools, and root's apt-get what Debian has
  metrics [--install]
                  checks the alerts and the dashboard in contrib with promtool, and
                  runs the alerts' tests; --install fetches Debian's package of it
                  into target/tools
  image-check [--host FILE]
                  runs the host as its container does, with what the image has and no more:
                  as its user, with a read-only root, in namespaces, and with the settings
                  of contrib/kubernetes on SQLite and PostgreSQL; takes root
  kubernetes [--install] [--host FILE]
                  checks the manifests in contrib/kubernetes by Kubernetes' schemas and
                  against each other, and their settings with the host; --install has pip
                  install PyPI's `kubernetes-validate` into target/tools
  clients [--install] [--host FILE]
                  has PyPI's and npm's `cloudevents` and curl send events to a host that
                  is built now, or FILE, in all modes. A client whose tools are missing
                  is left out; --install has pip and npm install them into target/tools
  sample-events   writes the events of the example of webhooks anew
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<ExitCode> {
    match arguments {
        ["build-guests"] => guests::build(guests::ALL, None)?,
        ["build-guests", "--via", way] => guests::build(guests::ALL, Some(way.parse::<Way>()?))?,
        ["sdks", arguments @ ..] => sdks::sdks(arguments)?,
        ["clients", arguments @ ..] => clients::clients(arguments)?,
        ["image-check", arguments @ ..] => image::check(arguments)?,
        ["kubernetes", arguments @ ..] => kubernetes::check(arguments)?,
        ["demo"] => demo::webhooks()?,
        ["demo", "platform", arguments @ ..] => demo::platform(arguments)?,
        ["dist"] => dist::dist()?,
        ["metrics", arguments @ ..] => metrics::check(arguments)?,
        ["test", extra @ ..] => test::test(extra)?,
        ["sample-events"] => samples::write()?,
        [] | ["help" | "-h" | "--help"] => print!("{USAGE}"),
        [other, ..] => {
            eprintln!("error: `{other}` with these arguments is not a command\n\n{USAGE}");
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The repository's root.
fn root() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.parent().context("xtask has no parent folder")?;
    if !root.join("Cargo.toml").is_file() {
        bail!("{} is no longer there; run this from the clone it was built in", root.display());
    }
    Ok(root.to_owned())
}
