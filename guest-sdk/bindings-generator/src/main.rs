//! Makes the bindings of the SDKs for C, C++, Zig and Go from the contract in
//! `wit/`, and gives core modules the metadata of the contract.
//!
//! ```console
//! $ cargo run -- write               # makes all of them again
//! $ cargo run -- check               # fails if one is not what `write` would make
//! $ cargo run -- embed event IN OUT  # `batch` instead of `event`: of batches
//! ```
//!
//! Go must be on PATH: its `gofmt` formats the bindings for Go.

mod abi;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};
use wit_bindgen_core::Files;
use wit_component::StringEncoding;
use wit_parser::{Resolve, WorldId};

/// The worlds of the contract, each with the name of its folder.
const WORLDS: [(&str, &str); 2] = [("event", "event-handler"), ("batch", "batch-event-handler")];

/// What the bindings for C are called in both worlds, so that `host.h` is written
/// once.
const C_NAME: &str = "host-bindings";

/// The Go package below which the bindings live, in the SDK's module.
const GO_PACKAGE: &str = "event-host.dev/sdk/internal/wit";

/// Where the generated Go code looks for its runtime, and where the SDK has it, so
/// that a handler needs no module but the SDK.
const GO_RUNTIME: (&str, &str) =
    ("go.bytecodealliance.org/pkg/wit", "event-host.dev/sdk/internal/runtime");

/// Where the generated Go code looks for the functions that it exports, and where the
/// SDK has them: beside the folder that holds generated files only.
const GO_EXPORTED: (&str, &str) =
    ("event-host.dev/sdk/internal/wit/exports/export_", "event-host.dev/sdk/internal/export_");

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["write"] => write(),
        ["check"] => check(),
        ["embed", world, input, output] => embed(world, input.as_ref(), output.as_ref()),
        _ => Err(anyhow::anyhow!(
            "usage: bindings-generator write | check | embed event|batch IN OUT"
        )),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> Result<()> {
    let sdks = sdks();
    let files = generate()?;
    for folder in generated_folders() {
        let folder = sdks.join(folder);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)
                .with_context(|| format!("removing {}", folder.display()))?;
        }
    }
    for (path, content) in &files {
        let path = sdks.join(path);
        let folder = path.parent().context("a file without a folder")?;
        std::fs::create_dir_all(folder)
            .with_context(|| format!("creating {}", folder.display()))?;
        std::fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
    }
    println!("{} files", files.len());
    Ok(())
}

fn check() -> Result<()> {
    let sdks = sdks();
    let wanted = generate()?;
    let mut wrong = Vec::new();
    for (path, content) in &wanted {
        match std::fs::read(sdks.join(path)) {
            Ok(found) if found == *content => {}
            Ok(_) => wrong.push(format!("{} differs", path.display())),
            Err(error) => wrong.push(format!("{}: {error}", path.display())),
        }
    }
    for folder in generated_folders() {
        for path in files_below(&sdks.join(folder))? {
            let path = path.strip_prefix(&sdks)?.to_owned();
            if !wanted.contains_key(&path) {
                wrong.push(format!("{} is not generated any more", path.display()));
            }
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    bail!(
        "the bindings are not those of the contract; make them again with `write`:\n{}",
        wrong.join("\n")
    )
}

fn embed(world: &str, input: &Path, output: &Path) -> Result<()> {
    let Some((_, world)) = WORLDS.iter().find(|(name, _)| *name == world) else {
        bail!("no world `{world}`: it is `event` or `batch`");
    };
    let (resolve, world) = contract(world)?;
    let mut module =
        std::fs::read(input).with_context(|| format!("reading {}", input.display()))?;
    wit_component::embed_component_metadata(
        &mut module,
        &resolve,
        world,
        StringEncoding::UTF8,
        false,
    )?;
    std::fs::write(output, module).with_context(|| format!("writing {}", output.display()))
}

/// The folder that holds the SDKs.
fn sdks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folders that hold generated files and nothing else.
fn generated_folders() -> [&'static str; 4] {
    ["c/bindings", "zig/bindings", "go/internal/wit", "go/cmd/build/metadata"]
}

/// Every generated file by its path below the folder of the SDKs.
fn generate() -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for (name, world) in WORLDS {
        for (file, content) in c(world)?.iter() {
            let content =
                if file.ends_with(".c") { without_free(content)? } else { content.to_owned() };
            files.insert(Path::new("c/bindings").join(name).join(file), content.clone());
            // Zig speaks to the host by itself, and needs the metadata alone.
            if file.ends_with(".o") {
                files.insert(Path::new("zig/bindings").join(format!("{name}.o")), content);
            }
        }
        let (resolve, id) = contract(world)?;
        let metadata =
            wit_component::metadata::encode(&resolve, id, StringEncoding::UTF8, None, false)?;
        files.insert(Path::new("go/cmd/build/metadata").join(format!("{name}.bin")), metadata);
        for (file, content) in go(world)?.iter() {
            // The assembly files are empty, for builds of other systems than WASI.
            if !file.ends_with(".go") {
                continue;
            }
            let content = formatted(file, content)?;
            let file = go_path(name, file);
            if let Some(other) = files.insert(file.clone(), content.clone())
                && other != content
            {
                bail!("the two worlds disagree about {}", file.display());
            }
        }
    }
    files.insert(PathBuf::from(ABI_PAGE), abi_page()?);
    Ok(files)
}

/// The page of the documentation whose second half is generated, below the SDKs' folder.
const ABI_PAGE: &str = "../docs/languages/others.md";

/// Where the generated half of the page begins.
const ABI_MARK: &str = "<!-- From here on the page is generated from the contract. -->\n";

/// The page with its tables made again.
fn abi_page() -> Result<Vec<u8>> {
    let page = std::fs::read_to_string(sdks().join(ABI_PAGE))
        .with_context(|| format!("reading {ABI_PAGE}"))?;
    let (written, _) =
        page.split_once(ABI_MARK).with_context(|| format!("{ABI_PAGE} has no line {ABI_MARK}"))?;
    let (resolve, event) = contract(WORLDS[0].1)?;
    let package = resolve.worlds[event].package.context("a world without a package")?;
    let batch = resolve.select_world(&[package], Some(WORLDS[1].1))?;
    let tables = abi::tables(&resolve, [event, batch])?;
    Ok(format!("{written}{ABI_MARK}\n{tables}").into_bytes())
}

fn contract(world: &str) -> Result<(Resolve, WorldId)> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(sdks().join("../wit")).context("reading the contract")?;
    let world = resolve.select_world(&[package], Some(world))?;
    Ok((resolve, world))
}

fn c(world: &str) -> Result<Files> {
    let (mut resolve, world) = contract(world)?;
    let options = wit_bindgen_c::Opts {
        rename_world: Some(C_NAME.to_owned()),
        ..wit_bindgen_c::Opts::default()
    };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files)?;
    Ok(files)
}

fn go(world: &str) -> Result<Files> {
    let (mut resolve, world) = contract(world)?;
    let options = wit_bindgen_go::Opts {
        format: wit_bindgen_go::Format::False,
        pkg_name: Some(GO_PACKAGE.to_owned()),
        quiet: true,
        ..wit_bindgen_go::Opts::default()
    };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files)?;
    Ok(files)
}

/// Both worlds import the same; what they export has a folder for each world.
fn go_path(world: &str, file: &str) -> PathBuf {
    let folder = Path::new("go/internal/wit");
    match file.strip_prefix("exports/wit_exports/") {
        Some(file) => folder.join("exports").join(world).join(file),
        None => folder.join(file),
    }
}

/// The memory of a call belongs to the SDK, which frees it as a whole afterwards; so
/// the bindings free nothing themselves.
fn without_free(source: &[u8]) -> Result<Vec<u8>> {
    const HEADER: &str = "#include <string.h>\n";
    let source = str::from_utf8(source)?;
    if !source.contains(HEADER) {
        bail!("the bindings for C do not include {HEADER}");
    }
    let shadow = "// Added by the bindings' generator: the memory of a call is freed by the SDK, as a whole.\n\
                  static inline void host_bindings_keep(void *memory) { (void) memory; }\n\
                  #define free host_bindings_keep\n";
    Ok(source.replace(HEADER, &format!("{HEADER}{shadow}")).into_bytes())
}

/// The formatter, which stands beside the compiler in Go's own folder, and only with some
/// installations on the path too.
fn gofmt() -> PathBuf {
    let root = Command::new("go").args(["env", "GOROOT"]).output();
    let root = root.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let beside = root.map(|root| Path::new(root.trim()).join("bin/gofmt"));
    beside.filter(|program| program.is_file()).unwrap_or_else(|| "gofmt".into())
}

/// Formatted Go, for WASI alone.
fn formatted(file: &str, source: &[u8]) -> Result<Vec<u8>> {
    let source = str::from_utf8(source)?;
    let source = source.replace(GO_RUNTIME.0, GO_RUNTIME.1).replace(GO_EXPORTED.0, GO_EXPORTED.1);
    let source = format!("//go:build wasip1\n\n{source}");
    let mut gofmt = Command::new(gofmt())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("running gofmt, which comes with Go")?;
    let mut input = gofmt.stdin.take().context("gofmt has no input")?;
    // It reads everything before it writes, so neither waits for the other.
    input.write_all(source.as_bytes()).context("giving gofmt its input")?;
    drop(input);
    let output = gofmt.wait_with_output()?;
    if !output.status.success() {
        bail!("gofmt did not format {file}");
    }
    Ok(output.stdout)
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in
        std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() { files.extend(files_below(&path)?) } else { files.push(path) }
    }
    Ok(files)
}
