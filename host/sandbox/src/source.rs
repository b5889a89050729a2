//! From a file to the bytes of a component.
//!
//! What toolchains give is either a component, or a core module that says which
//! component it is the inside of: in a custom section, or by the name of the function
//! that it exports. The host makes the component of the latter itself, with the adapter
//! for old WASI where it is needed. Everything else is recognised as far as it helps its
//! author.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::bail;
use serde::{Deserialize, Serialize};
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wasmparser::{BinaryReader, Parser, Payload};
use wasmtime::Engine;
use wit_component::ComponentEncoder;
use wit_parser::decoding::{DecodedWasm, decode_world};
use wit_parser::{PackageId, Resolve};

use super::load_error::{LoadError, LoadReason};
use super::producers::{Producer, producers};
use super::world_metadata::{self, World};
use event_host_core::digest::Digest;

/// How the names of the custom sections begin that hold component metadata.
const METADATA: &str = "component-type";

/// The most packages that component metadata may have; all of WASI has a dozen.
const PACKAGES: usize = 256;

/// The custom section with the names of functions.
const NAMES: &str = "name";

/// Bytes of the largest text that is parsed. Text is for trying things out by hand;
/// parsing it takes up to eighty times its size.
pub(super) const TEXT_BYTES: usize = 1 << 20;

/// Where a component comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file.
    File(PathBuf),
    /// Bytes that are in memory already.
    Bytes {
        /// What messages call them.
        name: String,
        /// What a file would hold.
        bytes: Vec<u8>,
    },
    /// Bytes that are deployed, or are about to be: WebAssembly text is not taken.
    Deployed {
        /// What messages call them.
        name: String,
        /// What was deployed.
        bytes: Vec<u8>,
    },
}

impl Source {
    /// What messages call it.
    pub(super) fn origin(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Bytes { name, .. } | Self::Deployed { name, .. } => name.clone(),
        }
    }

    /// Whether it may be text.
    pub(super) fn text(&self) -> TextForm {
        match self {
            Self::File(_) | Self::Bytes { .. } => TextForm::Taken,
            Self::Deployed { .. } => TextForm::Refused,
        }
    }

    /// Reads a file, of at most `limit` bytes, so that what is loaded and what is
    /// kept of it are the same whatever becomes of the file.
    ///
    /// # Errors
    /// When it is no file that can be read, or larger.
    pub fn into_bytes(self, limit: u64) -> Result<Vec<u8>, LoadError> {
        match self {
            Self::File(path) => read_file(&path, limit)
                .map_err(|reason| LoadError { origin: path.display().to_string(), reason }),
            Self::Bytes { bytes, .. } | Self::Deployed { bytes, .. } => Ok(bytes),
        }
    }
}

/// Whether WebAssembly text is taken, which is written by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextForm {
    /// Up to [`TEXT_BYTES`].
    Taken,
    /// Not at all.
    Refused,
}

impl From<&Path> for Source {
    fn from(path: &Path) -> Self {
        Self::File(path.to_owned())
    }
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

/// How a component was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// As a component.
    Component,
    /// As a core module.
    CoreModule,
    /// As a core module that imports WASI preview 1.
    CoreModuleWithPreview1,
}

/// What a source holds, unparsed.
#[derive(Debug)]
pub(super) struct SourceBytes {
    /// `sha256:` and hex digits.
    pub(super) digest: String,
    pub(super) bytes: Vec<u8>,
}

/// Reads a source, without looking further than whether it is text.
pub(super) fn read(source: Source, limit: u64) -> Result<SourceBytes, LoadReason> {
    let text = source.text();
    let bytes = match source {
        Source::File(path) => read_file(&path, limit)?,
        Source::Bytes { bytes, .. } | Source::Deployed { bytes, .. } => {
            let len = bytes.len() as u64;
            if len > limit {
                return Err(LoadReason::TooLarge { bytes: len, limit });
            }
            bytes
        }
    };
    // Known without parsing it, and whether or not it was compiled before.
    is_text(&bytes, text)?;
    Ok(SourceBytes { digest: Digest::of(&bytes).to_string(), bytes })
}

fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>, LoadReason> {
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => LoadReason::Missing,
        _ => LoadReason::Unreadable(error),
    };
    // Looked at before it is opened: opening a pipe would wait for its writer.
    let metadata = fs::metadata(path).map_err(refused)?;
    if metadata.is_dir() {
        return Err(LoadReason::Directory);
    }
    if !metadata.is_file() {
        return Err(LoadReason::NotAFile);
    }
    let file = File::open(path).map_err(refused)?;
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len().min(limit)).unwrap_or(0));
    // The file may grow while it is read.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(refused)?;
    let len = bytes.len() as u64;
    if len > limit {
        return Err(LoadReason::TooLarge { bytes: metadata.len().max(len), limit });
    }
    Ok(bytes)
}

/// A component, and how it was given.
#[derive(Debug)]
pub(super) struct Recognised {
    pub(super) form: Form,
    /// What it was built with, as it says itself.
    pub(super) producers: Vec<Producer>,
    pub(super) component: Vec<u8>,
}

/// Makes a component of what was given, and tells how it was.
pub(super) fn recognise(source: &[u8], text: TextForm) -> Result<Recognised, LoadReason> {
    if source.is_empty() {
        return Err(LoadReason::Empty);
    }
    if Engine::detect_precompiled(source).is_some() {
        return Err(LoadReason::Precompiled);
    }
    if !is_text(source, text)? {
        return component(source);
    }
    let parsed = wat::parse_bytes(source).map_err(|error| LoadReason::Text(error.to_string()))?;
    component(&parsed)
}

/// Whether it is text, which begins with a parenthesis or a comment: both rule out
/// everything binary. Refuses text that is not taken.
fn is_text(source: &[u8], text: TextForm) -> Result<bool, LoadReason> {
    let start = source.trim_ascii_start();
    if !start.starts_with(b"(") && !start.starts_with(b";;") {
        return Ok(false);
    }
    if text == TextForm::Refused {
        return Err(LoadReason::TextDeployed);
    }
    if source.len() > TEXT_BYTES {
        return Err(LoadReason::TextTooLarge { bytes: source.len(), limit: TEXT_BYTES });
    }
    Ok(true)
}

fn component(wasm: &[u8]) -> Result<Recognised, LoadReason> {
    const MAGIC: &[u8] = b"\0asm";
    if wasm.len() < 8 && (MAGIC.starts_with(wasm) || wasm.starts_with(MAGIC)) {
        return Err(LoadReason::Truncated(wasm.len() as u64));
    }
    if !wasm.starts_with(MAGIC) {
        return Err(LoadReason::NotWasm(beginning(wasm)));
    }
    let outline = outline(wasm)?;
    if outline.is_component {
        let (form, component) = (Form::Component, wasm.to_vec());
        return Ok(Recognised { form, producers: producers(wasm), component });
    }
    let not_encodable = |error: anyhow::Error| LoadReason::NotEncodable(format!("{error:#}"));
    let module = if outline.has_metadata {
        Cow::Borrowed(wasm)
    } else {
        let world = match (outline.exports_handler, outline.exports_batch_handler) {
            (true, true) => {
                let [one, other] = [World::Handler, World::BatchHandler]
                    .map(|world| world.core_export().to_owned());
                return Err(LoadReason::SeveralHandlers { one, other });
            }
            (true, false) => World::Handler,
            (false, true) => World::BatchHandler,
            (false, false) => return Err(LoadReason::NoMetadata),
        };
        Cow::Owned(world_metadata::with_metadata(wasm, world).map_err(not_encodable)?)
    };
    let form =
        if outline.imports_preview1 { Form::CoreModuleWithPreview1 } else { Form::CoreModule };
    let component = encode(&module, outline.imports_preview1).map_err(not_encodable)?;
    Ok(Recognised { form, producers: producers(wasm), component })
}

/// The first bytes, as an author would recognise them.
fn beginning(bytes: &[u8]) -> String {
    let first = &bytes[..bytes.len().min(16)];
    match std::str::from_utf8(first) {
        Ok(text) if !text.chars().any(event_host_core::foreign::is_unsafe) => {
            format!("the text {text:?}")
        }
        _ => format!("the bytes {first:02x?}"),
    }
}

/// The little of a binary that tells what it is.
#[derive(Default)]
struct Outline {
    is_component: bool,
    has_metadata: bool,
    imports_preview1: bool,
    /// Of a core module, by the name of the function.
    exports_handler: bool,
    exports_batch_handler: bool,
}

fn outline(wasm: &[u8]) -> Result<Outline, LoadReason> {
    let mut outline = Outline::default();
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.map_err(|error| malformed(&error, wasm))? {
            Payload::Version { encoding, .. } if depth == 0 => {
                outline.is_component = encoding == wasmparser::Encoding::Component;
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::CustomSection(section) if depth == 0 => {
                outline.has_metadata |= section.name().starts_with(METADATA);
            }
            Payload::ImportSection(imports) if depth == 0 => {
                for import in imports.into_imports() {
                    let import = import.map_err(|error| malformed(&error, wasm))?;
                    outline.imports_preview1 |=
                        import.module == WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME;
                }
            }
            Payload::ExportSection(exports) if depth == 0 => {
                for export in exports {
                    let export = export.map_err(|error| malformed(&error, wasm))?;
                    let is = |world: World| export.name == world.core_export();
                    outline.exports_handler |= is(World::Handler);
                    outline.exports_batch_handler |= is(World::BatchHandler);
                }
            }
            _ => {}
        }
    }
    Ok(outline)
}

/// Tells a file that was cut short from one that is wrong.
pub(super) fn malformed(error: &wasmparser::BinaryReaderError, wasm: &[u8]) -> LoadReason {
    if error.message().starts_with("unexpected end") {
        LoadReason::Truncated(wasm.len() as u64)
    } else {
        LoadReason::Invalid(error.to_string())
    }
}

/// Makes a component of a core module.
///
/// The specification has a custom section ignored whose contents are malformed, and
/// the encoder refuses a module for some of them. So what it refuses is tried again
/// without: at first the names of functions stay, which a trap is told with. The
/// component metadata is a custom section too, and the one that must be well-formed.
fn encode(module: &[u8], preview1: bool) -> anyhow::Result<Vec<u8>> {
    check_metadata(module)?;
    let mut result = encode_as_it_is(module, preview1);
    for keeps in [&[NAMES][..], &[]] {
        if result.is_ok() {
            break;
        }
        result = encode_as_it_is(&without_custom_sections(module, keeps)?, preview1);
    }
    result
}

/// Refuses component metadata that the encoder cannot take. It follows packages that need
/// others by calling itself, without an end where two need one another: the stack then
/// overflows, which ends the process.
fn check_metadata(module: &[u8]) -> anyhow::Result<()> {
    for payload in Parser::new(0).parse_all(module) {
        if let Payload::CustomSection(section) = payload?
            && section.name().starts_with(METADATA)
        {
            check_packages(&packages_of(section.data())?)?;
        }
    }
    Ok(())
}

/// The packages that a section of component metadata holds, in either of its formats, as
/// the encoder reads them.
fn packages_of(metadata: &[u8]) -> anyhow::Result<Resolve> {
    /// The first byte of the older one. The other is a component.
    const OLDER: u8 = 3;
    let mut reader = BinaryReader::new(metadata, 0);
    if reader.read_u8()? != OLDER {
        return Ok(decode_world(metadata)?.0);
    }
    // The encoding of strings, and the name of the world.
    reader.read_u8()?;
    reader.read_string()?;
    let at = usize::try_from(reader.original_position())?;
    match wit_component::decode(metadata.get(at..).unwrap_or_default())? {
        DecodedWasm::WitPackage(packages, _) | DecodedWasm::Component(packages, _) => Ok(packages),
    }
}

/// Whether there are few packages, and none needs itself by way of others.
fn check_packages(packages: &Resolve) -> anyhow::Result<()> {
    let mut left: HashSet<PackageId> = packages.packages.iter().map(|(id, _)| id).collect();
    if left.len() > PACKAGES {
        bail!("its component metadata has {} packages; the most is {PACKAGES}", left.len());
    }
    while !left.is_empty() {
        let needs_none = |id: &PackageId| {
            !packages.package_direct_deps(*id).any(|needed| left.contains(&needed))
        };
        let Some(next) = left.iter().copied().find(needs_none) else {
            bail!("its component metadata has packages that need one another");
        };
        left.remove(&next);
    }
    Ok(())
}

fn encode_as_it_is(module: &[u8], preview1: bool) -> anyhow::Result<Vec<u8>> {
    let mut encoder = ComponentEncoder::default();
    encoder.module(module)?;
    if preview1 {
        encoder
            .adapter(WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER)?;
    }
    encoder.encode()
}

/// A core module without its custom sections, but for the component metadata and those
/// with one of these names.
fn without_custom_sections(module: &[u8], keeps: &[&str]) -> anyhow::Result<Vec<u8>> {
    let mut kept = Vec::with_capacity(module.len());
    let mut at = 0;
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload?;
        let (end, keep) = match &payload {
            Payload::Version { range, .. } => (range.end, true),
            Payload::CustomSection(section) => {
                let name = section.name();
                (section.range().end, name.starts_with(METADATA) || keeps.contains(&name))
            }
            other => match other.as_section() {
                Some((_, range)) => (range.end, true),
                None => continue,
            },
        };
        let end = usize::try_from(end)?;
        if keep {
            // From the end of the section before, so with its own number and length.
            kept.extend_from_slice(module.get(at..end).unwrap_or_default());
        }
        at = end;
    }
    Ok(kept)
}
