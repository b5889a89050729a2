//! The tools that languages need: where they are, which versions will do, and what
//! brings those that are missing.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command::{probe, run};
use crate::debian;

/// Where `--install` puts tools, in the repository.
const TOOLS: &str = "target/tools";

/// Which versions of a tool are fine.
#[derive(Debug, Clone, Copy)]
pub(super) enum Versions {
    /// This major and minor version, and later ones.
    From(u32, u32),
    /// This major and minor version only.
    Only(u32, u32),
    /// Whatever is there.
    Any,
}

/// How a tool's version is learnt.
#[derive(Debug, Clone, Copy)]
pub(super) enum Asked {
    /// The program says it when it is given this argument.
    With(&'static str),
    /// It stands in the npm package that the program is part of.
    OfPackage,
}

/// What brings a tool.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source {
    /// A package of npm, as npm is told.
    Npm(&'static str),
    /// Packages of npm, with blanks between them, in a folder of their own below
    /// [`TOOLS`]: they bring other versions of programs that others bring too.
    NpmApart(&'static str, &'static str),
    /// A package of PyPI, as pip is told.
    PyPi(&'static str),
    /// A package of Debian, which brings it where we are root; elsewhere these words say
    /// what to do.
    Debian(&'static str, &'static str),
    /// Something that is not installed from here, in words.
    User(&'static str),
}

/// A program that a language needs.
#[derive(Debug)]
pub(super) struct Tool {
    pub(super) program: &'static str,
    pub(super) versions: Versions,
    pub(super) asked: Asked,
    pub(super) source: Source,
}

/// The tools of a language that are here, and those that are not.
pub(super) struct Found {
    /// The folders that they are in.
    folders: Vec<PathBuf>,
    /// Each with another version that is here, and where.
    missing: Vec<(&'static Tool, String)>,
}

impl Found {
    /// Looks for tools: in the SDKs' own folders, in what `--install` made, on the path.
    pub(super) fn of(tools: &[&'static Tool], root: &Path) -> Result<Self> {
        let mut places: Vec<PathBuf> = [
            "guest-sdk/js/node_modules/.bin",
            "guest-sdk/python/.venv/bin",
            "target/tools/node_modules/.bin",
            "target/tools/starlingmonkey/node_modules/.bin",
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
    pub(super) fn name_to<'a>(&self, command: &'a mut Command) -> Result<&'a mut Command> {
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let folders = self.folders.iter().cloned().chain(std::env::split_paths(&inherited));
        let path = std::env::join_paths(folders).context("a folder on the path has a colon")?;
        Ok(command.env("PATH", path).env("GOPROXY", "off").env("GOTOOLCHAIN", "local"))
    }

    /// Whether nothing is missing.
    pub(super) fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// What is missing and what installs it, in a line; empty if nothing is.
    pub(super) fn told(&self) -> String {
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
                Source::NpmApart(folder, packages) => ways
                    .push(format!("npm install --prefix {TOOLS}/{folder} --save-exact {packages}")),
                Source::PyPi(package) => pypi.push(package),
                Source::Debian(_, words) | Source::User(words) => ways.push(words.to_owned()),
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
        let apart = |(tool, _): &(&Tool, String)| matches!(tool.source, Source::NpmApart(..));
        if !npm.is_empty() || !pypi.is_empty() || self.missing.iter().any(apart) {
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

/// Installs what is missing of these tools: npm's and PyPI's packages into [`TOOLS`], and
/// Debian's where that may be done without asking.
pub(super) fn install<'a>(
    root: &Path,
    wanted: impl Iterator<Item = &'a [&'static Tool]>,
) -> Result<()> {
    let mut npm = Vec::new();
    let mut pypi = Vec::new();
    let mut debian = Vec::new();
    let mut seen = HashSet::new();
    for tools in wanted {
        for (tool, _) in Found::of(tools, root)?.missing {
            match tool.source {
                Source::Npm(package) if seen.insert(package) => npm.push(package),
                Source::NpmApart(folder, packages) if seen.insert(packages) => {
                    let folder = root.join(TOOLS).join(folder);
                    tell(npm_install(&folder, packages.split_whitespace()));
                }
                Source::PyPi(package) if seen.insert(package) => pypi.push(package),
                Source::Debian(package, _) if seen.insert(package) => debian.push(package),
                _ => {}
            }
        }
    }
    let tools = root.join(TOOLS);
    if !npm.is_empty() {
        tell(npm_install(&tools, npm.into_iter()));
    }
    if !pypi.is_empty() {
        tell(pip_install(&tools.join("python"), &pypi));
    }
    if !debian.is_empty() && debian::is_here() && debian::we_are_root() {
        tell(debian::install("sdks", &debian));
    }
    Ok(())
}

/// What a registry does not give is told with the language that goes without it.
fn tell(installed: Result<()>) {
    if let Err(error) = installed {
        eprintln!("sdks: {error:#}");
    }
}

fn pip_install(environment: &Path, packages: &[&str]) -> Result<()> {
    println!("sdks: pip installs {} into {TOOLS}/python", packages.join(", "));
    let program = environment.join("bin/python3");
    if !program.is_file() {
        run(Command::new("python3").args(["-m", "venv"]).arg(environment))?;
    }
    run(Command::new(&program).args(["-m", "pip", "install", "--quiet"]).args(packages))
}

fn npm_install(folder: &Path, packages: impl Iterator<Item = &'static str>) -> Result<()> {
    let packages: Vec<_> = packages.collect();
    println!("sdks: npm installs {} into {}", packages.join(", "), folder.display());
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut command = Command::new("npm");
    command.args(["install", "--save-exact", "--no-audit", "--no-fund", "--prefix"]);
    run(command.arg(folder).args(packages))
}

#[cfg(test)]
mod tests {
    use super::super::languages::{MAKE, ZIG};
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
