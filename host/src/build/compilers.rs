//! What a language needs beside one program: the compilers of C with a C library for
//! WASI, and the targets of Rust; and all of it, for `host build --doctor`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::tools::{self, Found, Missing, Places, Tool};
use crate::language::Language;

/// Where Debian's `wasi-libc` has its headers.
const DEBIAN_WASI: &str = "/usr/include/wasm32-wasi";

/// The programs that may be the linker of clang, the better one first.
const LINKERS: [&str; 4] = ["wasm-ld-19", "wasm-ld-20", "wasm-ld-21", "wasm-ld"];

/// The targets that Rust is built for, the better one first.
const RUST_TARGETS: [&str; 2] = ["wasm32-unknown-unknown", "wasm32-wasip2"];

/// What a recipe's language needs, for `--doctor`: each tool with what was found.
pub(super) async fn needs(
    language: Language,
    places: &Places,
) -> Vec<(&'static str, String, Result<Found, Missing>)> {
    let tools: &[&Tool] = match language {
        Language::Rust => &[&tools::CARGO, &tools::RUSTC],
        Language::Js => &[&tools::NODE, &tools::ESBUILD, &tools::COMPONENTIZE_QJS],
        Language::Ts => &[&tools::NODE, &tools::ESBUILD, &tools::COMPONENTIZE_QJS, &tools::TSC],
        Language::Python => &[&tools::COMPONENTIZE_PY],
        Language::Go => &[&tools::GO],
        Language::C | Language::Cpp => {
            let found = c_compiler(places, language).await;
            let name = if found.as_ref().is_ok_and(|c| c.is_clang) { "clang" } else { "zig" };
            let wanted = "0.17 (or clang 19.1)".to_owned();
            return vec![(name, wanted, found.map(|compiler| compiler.found))];
        }
        Language::Zig => &[&tools::ZIG],
        Language::Wat => &[],
    };
    let mut needs = Vec::new();
    for tool in tools {
        needs.push((tool.name, tool.wanted(), places.find(tool).await));
    }
    if language == Language::Rust
        && let [.., (_, _, Ok(rustc))] = &needs[..]
    {
        let found = match rust_target(&rustc.words, Path::new("."), &places.path()).await {
            Some(target) => Ok(Found { words: vec![target.into()], version: target.to_owned() }),
            None => Err(no_rust_target()),
        };
        needs.push(("target", RUST_TARGETS.join(" or "), found));
    }
    needs
}

/// The target for which the compiler has a standard library.
pub(super) async fn rust_target(
    rustc: &[OsString],
    folder: &Path,
    path: &OsStr,
) -> Option<&'static str> {
    let (program, first) = rustc.split_first()?;
    for target in RUST_TARGETS {
        let mut command = tokio::process::Command::new(program);
        command.args(first).args(["--print", "target-libdir", "--target", target]);
        command.current_dir(folder).env("PATH", path).kill_on_drop(true);
        let Ok(output) = command.output().await else { continue };
        let libraries = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() && Path::new(&libraries).is_dir() {
            return Some(target);
        }
    }
    None
}

pub(super) fn no_rust_target() -> Missing {
    let install = format!("rustup target add {}", RUST_TARGETS[0]);
    Missing::part("the target wasm32-unknown-unknown of rustc", &install)
}

/// A compiler of C and C++ for WASI.
pub(super) struct CCompiler {
    pub(super) found: Found,
    is_clang: bool,
    /// What it needs for linking.
    pub(super) linking: Vec<OsString>,
}

impl CCompiler {
    /// The arguments with which it compiles a language.
    pub(super) fn arguments(&self, language: Language) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        if self.is_clang {
            if language == Language::Cpp {
                arguments.push("--driver-mode=g++".into());
            }
        } else {
            arguments.push(if language == Language::Cpp { "c++" } else { "cc" }.into());
        }
        arguments.push("--target=wasm32-wasi".into());
        arguments
    }
}

/// Zig, which brings all it needs, or else a clang with Debian's C library for WASI.
pub(super) async fn c_compiler(places: &Places, language: Language) -> Result<CCompiler, Missing> {
    let no_zig = match places.find(&tools::ZIG).await {
        Ok(found) => return Ok(CCompiler { found, is_clang: false, linking: Vec::new() }),
        Err(missing) => missing,
    };
    let headers = match language {
        Language::Cpp => Path::new(DEBIAN_WASI).join("c++"),
        _ => PathBuf::from(DEBIAN_WASI),
    };
    let linker = LINKERS.iter().find_map(|name| places.files(name).next());
    let (true, Some(linker)) = (headers.is_dir(), linker) else { return Err(no_zig) };
    let Ok(found) = places.find(&tools::CLANG).await else { return Err(no_zig) };
    // The names of functions stay, which the dead letter of a crash shows; and a stack
    // that is full is a trap.
    let linking =
        [joined("-fuse-ld=", &linker), "-Wl,--strip-debug".into(), "-Wl,--stack-first".into()];
    Ok(CCompiler { found, is_clang: true, linking: linking.into() })
}

/// A flag with a path, as one argument.
pub(super) fn joined(flag: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(flag);
    argument.push(path);
    argument
}
