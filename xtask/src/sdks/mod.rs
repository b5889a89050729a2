//! `cargo xtask sdks`: the tests of the SDKs, one handler in every language run through
//! the host, and what `host new` makes.
//!
//! A language whose tools are not here is left out, with a line that says what is
//! missing and what installs it.

mod languages;
mod projects;
mod tools;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use test_postgres::Binaries;

use self::languages::{GO, Handlers, LANGUAGES, Language, PYTHON, RUST, ZIG};
use self::projects::Projects;
use self::tools::Found;
use crate::command::{cargo, run, stdout_of};
use crate::postgres::Postgres;
use crate::toolchain::{self, Way};
use crate::{guests, host, root};

/// Where the handlers are built, in the repository.
const OUTPUT: &str = "target/sdks";

/// What the command is told.
#[derive(Debug, Default, PartialEq)]
struct Options<'a> {
    install: bool,
    host: Option<&'a str>,
    languages: Vec<&'a str>,
}

impl<'a> Options<'a> {
    fn read(arguments: &[&'a str]) -> Result<Self> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(&argument) = arguments.next() {
            match argument {
                "--install" => options.install = true,
                "--host" => options.host = Some(arguments.next().context("--host takes a file")?),
                name if LANGUAGES.iter().any(|language| language.name == name) => {
                    options.languages.push(name);
                }
                other => {
                    let names: Vec<_> = LANGUAGES.iter().map(|language| language.name).collect();
                    bail!("`{other}` is not a language: {}", names.join(", "));
                }
            }
        }
        Ok(options)
    }

    fn wants(&self, language: &Language) -> bool {
        self.languages.is_empty() || self.languages.contains(&language.name)
    }
}

/// Tests the SDKs, and runs their handlers through the host on both stores.
///
/// A language that is asked for by name and left out is a failure; so is any test, but
/// the other languages are tested all the same.
pub(crate) fn sdks(arguments: &[&str]) -> Result<()> {
    let options = Options::read(arguments)?;
    let root = root()?;
    let python = Found::of(&[&PYTHON], &root)?;
    ensure!(python.is_complete(), "{}", python.told());
    let postgres = Postgres::find()?;
    if options.install {
        let begun = Instant::now();
        let wanted = LANGUAGES.iter().filter(|language| options.wants(language));
        tools::install(&root, wanted.map(|language| language.tools))?;
        tell_time("the tools", begun);
    }
    let host = program(&root, options.host)?;
    let output = root.join(OUTPUT);
    fs::create_dir_all(&output).with_context(|| format!("cannot create {}", output.display()))?;

    let projects = Projects::new(&output, &host)?;

    let mut failures = Vec::new();
    let mut left_out = Vec::new();
    let mut handlers = Vec::new();
    let mut tested = Vec::new();
    for language in LANGUAGES.iter().filter(|language| options.wants(language)) {
        let name = language.name;
        let found = Found::of(language.tools, &root)?;
        let mut why_not = found.told();
        if name == RUST
            && let Err(error) = rust_way(&root, options.install)
        {
            why_not = format!("{error:#}; rustup target add {}", toolchain::TARGET);
        }
        if !why_not.is_empty() {
            left_out.push(format!("{name}: {why_not}"));
            continue;
        }
        println!("sdks: {name}");
        let begun = Instant::now();
        tested.push(name);
        let made = test(language, &found, &root)
            .and_then(|()| build(language, &found, &root, &output, options.install))
            .and_then(|built| match language.handlers {
                Handlers::Example(_) => example(language, &built, &root, &host).map(|()| None),
                Handlers::Both | Handlers::Single => Ok(Some(built)),
            });
        match made {
            Ok(built) => handlers.extend(built.into_iter().flatten()),
            Err(error) => failures.push(format!("{name}: {error:#}")),
        }
        tell_time(name, begun);
        let begun = Instant::now();
        match projects.try_all(name, &found) {
            Ok(0) => {}
            Ok(_) => tell_time(&format!("what `host new` makes in {name}"), begun),
            Err(error) => failures.push(format!("{name}: {error:#}")),
        }
    }
    if let Err(error) = bindings(&root, &options, &mut left_out) {
        failures.push(format!("bindings: {error:#}"));
    }
    if !handlers.is_empty() {
        println!("sdks: the handlers, one after the other in one group");
        let begun = Instant::now();
        if let Err(error) = suite(&root, &host, &python, postgres, &handlers) {
            failures.push(format!("conformance: {error:#}"));
        }
        tell_time("the suite", begun);
    }
    println!(
        "sdks: tested {}",
        if tested.is_empty() { "nothing".into() } else { tested.join(", ") }
    );
    for line in &left_out {
        println!("sdks: leaves out {line}");
    }
    if !left_out.is_empty() && !options.languages.is_empty() {
        failures.push("a language that was asked for is left out".to_owned());
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Has a command find Zig, which compiles C for WebAssembly, also where `--install` put it.
pub(crate) fn name_c_compiler_to(command: &mut Command, root: &Path) -> Result<()> {
    Found::of(&[&ZIG], root)?.name_to(command)?;
    Ok(())
}

fn tell_time(what: &str, begun: Instant) {
    println!("sdks: {what} took {:.0} s", begun.elapsed().as_secs_f64());
}

/// Runs all handlers through the host, on SQLite and on PostgreSQL.
fn suite(
    root: &Path,
    host: &Path,
    python: &Found,
    postgres: Postgres,
    handlers: &[(String, PathBuf)],
) -> Result<()> {
    let server = postgres.start()?;
    let mut suite = Command::new("python3");
    suite.arg(root.join("guest-sdk/conformance/run.py")).arg("--host").arg(host);
    suite.arg("--postgres").arg(server.url()?);
    // Where the server is another's, its programs need not be here: then `psql` is on the path.
    if let Ok(binaries) = Binaries::find()
        && binaries.program("psql").is_file()
    {
        suite.arg("--psql").arg(binaries.program("psql"));
    }
    for (name, file) in handlers {
        let mut argument = OsString::from(format!("{name}="));
        argument.push(file);
        suite.arg(argument);
    }
    run(python.name_to(&mut suite)?)
}

/// Calls the handler of an example with its event: it must greet.
fn example(
    language: &Language,
    built: &[(String, PathBuf)],
    root: &Path,
    host: &Path,
) -> Result<()> {
    for (_, file) in built {
        let event = root.join(language.folder).join("event.json");
        let told = stdout_of(Command::new(host).arg("invoke").arg(file).arg("--event").arg(event))?;
        print!("{told}");
        ensure!(
            told.starts_with("success") && told.contains("Hello, Ada!"),
            "{} does not greet",
            file.display()
        );
    }
    Ok(())
}

/// Holds what the SDKs and the documents have of the contract against `wit/`. The
/// generator formats Go.
fn bindings(root: &Path, options: &Options, left_out: &mut Vec<String>) -> Result<()> {
    if !options.languages.is_empty() {
        return Ok(());
    }
    let go = Found::of(&[&GO], root)?;
    if !go.is_complete() {
        left_out.push(format!("the check of the bindings: {}", go.told()));
        return Ok(());
    }
    println!("sdks: the bindings and the tables of the ABI");
    let begun = Instant::now();
    let mut check = cargo();
    check
        .args(["run", "--locked", "--quiet", "--manifest-path"])
        .arg(root.join("guest-sdk/bindings-generator/Cargo.toml"))
        .arg("check")
        // With the guests, which have much of it built.
        .env("CARGO_TARGET_DIR", root.join(guests::TARGET_FOLDER));
    run(go.name_to(&mut check)?)?;
    tell_time("the check of the bindings", begun);
    Ok(())
}

/// The host that runs the handlers: the one given, or one that is built now.
fn program(root: &Path, given: Option<&str>) -> Result<PathBuf> {
    if let Some(file) = given {
        return fs::canonicalize(file).with_context(|| format!("there is no host at {file}"));
    }
    host::build(root)
}

fn test(language: &Language, found: &Found, root: &Path) -> Result<()> {
    for test in language.tests {
        let [program, arguments @ ..] = *test else { bail!("{} has an empty test", language.name) };
        let mut command = if *program == "cargo" { cargo() } else { Command::new(program) };
        command.args(arguments).current_dir(root.join(language.folder));
        run(found.name_to(&mut command)?)?;
    }
    Ok(())
}

/// Builds the handlers; gives each with its name for the suite.
fn build(
    language: &Language,
    found: &Found,
    root: &Path,
    output: &Path,
    install: bool,
) -> Result<Vec<(String, PathBuf)>> {
    let name = language.name;
    let single = (name.to_owned(), output.join(format!("{name}.wasm")));
    let mut batch = (format!("{name}-batch"), output.join(format!("{name}-batch.wasm")));
    match language.handlers {
        Handlers::Example([program, arguments @ ..]) => {
            let folder = root.join(language.folder);
            let mut command = Command::new(program);
            run(found.name_to(command.args(arguments).current_dir(&folder))?)?;
            let built = folder.join("hello.wasm");
            fs::copy(&built, &single.1).with_context(|| format!("copying {}", built.display()))?;
            return Ok(vec![single]);
        }
        Handlers::Example([]) => bail!("{name} has no command that builds its example"),
        Handlers::Both | Handlers::Single if name == RUST => {
            guests::build_by(rust_way(root, install)?, &[guests::CONFORMANCE])?;
            // Names of libraries have no hyphen.
            batch.1 = output.join(format!("{name}_batch.wasm"));
        }
        Handlers::Both | Handlers::Single => {
            let script = root.join("guest-sdk/conformance").join(name).join("build.sh");
            run(found.name_to(Command::new(script).arg(output))?)?;
        }
    }
    Ok(if language.handlers == Handlers::Single { vec![single] } else { vec![single, batch] })
}

/// A way to build Rust for wasm; without `install` only one that is ready.
fn rust_way(root: &Path, install: bool) -> Result<Way> {
    let memory = root.join(guests::TARGET_FOLDER).join("way");
    if install { toolchain::find(None, &memory) } else { toolchain::ready() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_that_nobody_knows_is_named() {
        let options = Options { install: true, host: Some("h"), languages: vec!["go"] };
        assert_eq!(Options::read(&["go", "--install", "--host", "h"]).unwrap(), options);
        let error = Options::read(&["cobol"]).unwrap_err().to_string();
        assert!(error.contains("`cobol`") && error.contains("zig"), "{error}");
    }
}
