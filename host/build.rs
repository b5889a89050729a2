//! Lists the files of the SDKs that the library embeds.
//!
//! Each SDK is listed here by what its package consists of, because its folder also has
//! tests, and what its tools leave behind.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of the SDKs, and what of them a project needs.
const SDKS: &[(&str, &[&str])] = &[
    ("c", &["README.md", "LICENSE-APACHE", "LICENSE-MIT", "include", "bindings"]),
    (
        "go",
        &[
            "README.md",
            "LICENSE-APACHE",
            "LICENSE-MIT",
            "go.mod",
            "context.go",
            "doc.go",
            "emit.go",
            "event.go",
            "failure.go",
            "log.go",
            "state.go",
            "batch",
            "cmd",
            "handler",
            "hosttest",
            "internal",
        ],
    ),
    ("js", &["README.md", "LICENSE-APACHE", "LICENSE-MIT", "package.json", "src", "wit"]),
    ("python", &["README.md", "LICENSE-APACHE", "LICENSE-MIT", "pyproject.toml", "event_host"]),
    ("rust", &["Cargo.toml", "src", "wit", "macros"]),
    (
        "zig",
        &[
            "README.md",
            "LICENSE-APACHE",
            "LICENSE-MIT",
            "build.zig",
            "build.zig.zon",
            "src",
            "bindings",
        ],
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os("CARGO_FEATURE_BUILD").is_some() {
        // include_dir does not see that a file was added.
        println!("cargo:rerun-if-changed=templates");
        embed_sdks()?;
    }
    Ok(())
}

/// Writes `sdks.rs`: one constant an SDK, with the path and the bytes of each file.
fn embed_sdks() -> Result<(), Box<dyn Error>> {
    // Asked for when this runs: where it was compiled may be another folder, as a copied target
    // folder shows.
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("..");
    let output = PathBuf::from(std::env::var("OUT_DIR")?);
    let workspace = root.join("Cargo.toml");
    println!("cargo:rerun-if-changed={}", workspace.display());
    let workspace = Workspace::read(&fs::read_to_string(workspace)?);
    let mut list = String::new();
    for (name, entries) in SDKS {
        let folder = root.join("guest-sdk").join(name);
        let mut files = Vec::new();
        for entry in *entries {
            println!("cargo:rerun-if-changed={}", folder.join(entry).display());
            collect(&folder, Path::new(entry), &mut files)
                .map_err(|why| format!("guest-sdk/{name}/{entry}: {why}"))?;
        }
        files.sort();
        let constant = name.to_uppercase();
        writeln!(list, "/// The SDK in `guest-sdk/{name}`.")?;
        writeln!(list, "const {constant}: &[SdkFile] = &[")?;
        for file in files {
            let mut source = folder.join(&file).canonicalize()?;
            if file.ends_with("Cargo.toml") {
                let alone = workspace.inherited(&fs::read_to_string(&source)?)?;
                source = output.join(format!("sdk-{name}-{}", file.display()).replace('/', "-"));
                // Written only if it changed: cargo compares the times of embedded files.
                if fs::read_to_string(&source).ok().as_ref() != Some(&alone) {
                    fs::write(&source, alone)?;
                }
            }
            writeln!(
                list,
                "    SdkFile {{ path: {:?}, bytes: include_bytes!({:?}) }},",
                file.to_str().ok_or("a file name is not UTF-8")?,
                source.to_str().ok_or("the path of the repository is not UTF-8")?,
            )?;
        }
        writeln!(list, "];")?;
    }
    fs::write(output.join("sdks.rs"), list)?;
    Ok(())
}

/// Collects a file, or all files below a folder, as paths within the SDK.
fn collect(sdk: &Path, entry: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let path = sdk.join(entry);
    if !fs::metadata(&path)?.is_dir() {
        files.push(entry.to_owned());
        return Ok(());
    }
    for child in fs::read_dir(path)? {
        let name = child?.file_name();
        let text = name.to_string_lossy();
        let is_left_behind = text.starts_with('.') || matches!(&*text, "__pycache__" | "target");
        if !is_left_behind && !text.ends_with("_test.go") {
            collect(sdk, &entry.join(&name), files)?;
        }
    }
    Ok(())
}

/// What packages inherit from the workspace's Cargo.toml: the value of each key, as text.
struct Workspace(Vec<(String, String)>);

impl Workspace {
    fn read(text: &str) -> Self {
        let mut section = "";
        let mut values = Vec::new();
        for line in text.lines() {
            if line.starts_with('[') {
                section = line.trim();
            } else if matches!(section, "[workspace.package]" | "[workspace.dependencies]")
                && let Some((key, value)) = line.split_once(" = ")
            {
                values.push((key.to_owned(), value.to_owned()));
            }
        }
        Self(values)
    }

    /// A package's Cargo.toml for outside of the workspace, without its tests.
    fn inherited(&self, text: &str) -> Result<String, String> {
        let mut left_out = false;
        let mut alone = String::new();
        for line in text.lines() {
            if line.starts_with('[') {
                left_out = matches!(line.trim(), "[lints]" | "[dev-dependencies]");
            }
            if left_out {
                continue;
            }
            match line.strip_suffix(".workspace = true") {
                Some(key) => {
                    let value = self.0.iter().find(|(known, _)| known == key);
                    let (_, value) = value.ok_or(format!("the workspace has no `{key}`"))?;
                    alone.push_str(&format!("{key} = {value}\n"));
                }
                None => {
                    alone.push_str(line);
                    alone.push('\n');
                }
            }
        }
        Ok(alone.trim_end().to_owned() + "\n")
    }
}
