//! From the bytes of a file to what the host needs of it: what it is, what it
//! imports and exports, and its code.
//!
//! Everything here works on what others wrote, and some of it takes long or much
//! memory: it is the work of the process that compiles, which is limited. The
//! host takes the answer as it is and parses nothing of the component itself.

use serde::{Deserialize, Serialize};
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::contract::{self, Interface, Signature};
use crate::ending::chain;
use crate::load_error::LoadReason;
use crate::producers::Producer;
use crate::source::{self, Form, Recognised, TextForm};
use event_host_core::failure::storable;

/// Bytes of the largest code that is run: eight times the largest file.
pub(super) const CODE_BYTES: usize = 512 << 20;

/// Bytes of an answer's beginning, which says everything but the code.
pub(super) const HEAD_BYTES: usize = 1 << 20;

/// The number of what an answer says: another one for each change of it, so that what was
/// kept before is not read.
pub(super) const FORMAT: u32 = 2;

/// The exit code for what no component can bring about: nothing was tried. Any other
/// end than 0 is taken for the component's doing.
pub(super) const UNABLE: u8 = 4;

/// How much work goes into making code small; 3 is zstd's own default.
const COMPRESSION: i32 = 3;

/// Bytes of what a parser says that are kept: it quotes whole lines.
const SAID_BYTES: usize = 4 << 10;

/// What a component is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// How it was given.
    pub(crate) form: Form,
    /// How it is called.
    pub(crate) interface: Interface,
    /// What it imports.
    pub(crate) imports: Vec<String>,
    /// What it exports.
    pub(crate) exports: Vec<String>,
    /// What it was built with, as it says itself.
    pub(crate) producers: Vec<Producer>,
}

/// A component that was compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Compiled {
    pub(crate) facts: Facts,
    /// Native code as wasmtime serializes it, made smaller with zstd.
    code: Vec<u8>,
}

/// Looks at a file and compiles it.
pub(super) fn compile(
    engine: &Engine,
    source: &[u8],
    text: TextForm,
) -> Result<Compiled, LoadReason> {
    compile_whole(engine, source, text).map_err(shorter)
}

fn compile_whole(engine: &Engine, source: &[u8], text: TextForm) -> Result<Compiled, LoadReason> {
    let Recognised { form, producers, component } = source::recognise(source, text)?;
    let signature = contract::signature(&component)?;
    let interface = contract::check(&signature, &component)?;
    let code = engine
        .precompile_component(&component)
        .map_err(|error| LoadReason::Invalid(chain(&error)))?;
    if code.len() > CODE_BYTES {
        return Err(LoadReason::CodeTooLarge { bytes: code.len(), limit: CODE_BYTES });
    }
    let code = zstd::bulk::compress(&code, COMPRESSION)
        .map_err(|error| LoadReason::Internal(error.to_string()))?;
    let Signature { imports, exports } = signature;
    Ok(Compiled { facts: Facts { form, interface, imports, exports, producers }, code })
}

/// A refusal without most of the text that it quotes.
fn shorter(reason: LoadReason) -> LoadReason {
    match reason {
        LoadReason::Text(said) => LoadReason::Text(storable(&said, SAID_BYTES)),
        LoadReason::Invalid(said) => LoadReason::Invalid(storable(&said, SAID_BYTES)),
        LoadReason::NotEncodable(said) => LoadReason::NotEncodable(storable(&said, SAID_BYTES)),
        other => other,
    }
}

/// An answer as bytes: the length of its beginning in four bytes, the beginning as
/// JSON, and the code.
pub(crate) fn to_bytes(
    answer: Result<&Compiled, &LoadReason>,
) -> Result<Vec<u8>, serde_json::Error> {
    let code = answer.map_or(&[][..], |compiled| &compiled.code);
    let head = answer.map(|compiled| &compiled.facts);
    let head = serde_json::to_vec(&head)?;
    // A length beyond four bytes is far beyond what is read.
    let length = u32::try_from(head.len()).unwrap_or(u32::MAX);
    Ok([&length.to_le_bytes(), head.as_slice(), code].concat())
}

/// Why bytes are no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// They end too early.
    #[error("it is cut short")]
    Truncated,
    /// The beginning is too long.
    #[error("its beginning has {0} bytes; the most is {HEAD_BYTES}")]
    TooLong(usize),
    /// The beginning is something else.
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
}

/// Reads an answer.
pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Result<Compiled, LoadReason>, NoAnswer> {
    let (length, rest) = bytes.split_first_chunk().ok_or(NoAnswer::Truncated)?;
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > HEAD_BYTES {
        return Err(NoAnswer::TooLong(length));
    }
    let (head, code) = rest.split_at_checked(length).ok_or(NoAnswer::Truncated)?;
    let head: Result<Facts, LoadReason> = serde_json::from_slice(head)?;
    Ok(head.map(|facts| Compiled { facts, code: code.to_vec() }))
}

impl Compiled {
    /// The component, with its code in memory and ready to run.
    #[expect(
        unsafe_code,
        reason = "wasmtime cannot know where code comes from that it did not compile in this process"
    )]
    pub(crate) fn component(&self, engine: &Engine) -> Result<Component, LoadReason> {
        let broken = |error: String| LoadReason::Internal(format!("its compiled code: {error}"));
        let code = zstd::bulk::decompress(&self.code, CODE_BYTES)
            .map_err(|error| broken(error.to_string()))?;
        // SAFETY: the bytes are what `Engine::precompile_component` gave, of this very
        // program and version of wasmtime (the name of an entry and the order to the
        // process carry the engine's fingerprint, and wasmtime checks its own version and
        // settings again). They come from this process, from the process that it started
        // to compile, or from the cache, whose MAC says that one of its hosts had them
        // from there; nothing that a user gives comes here.
        unsafe { Component::deserialize(engine, &code) }.map_err(|error| broken(chain(&error)))
    }
}

/// What code is for, as a number: of the engine's settings and version, of this program's,
/// which knows what a component may import, and of what is said beside the code.
pub(crate) fn fingerprint(engine: &Engine) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    FORMAT.hash(&mut hasher);
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled() -> Compiled {
        let facts = Facts {
            form: Form::CoreModule,
            interface: Interface::BatchHandler,
            imports: vec!["a".to_owned(), "\u{1b}\"".to_owned()],
            exports: vec![],
            producers: vec![],
        };
        Compiled { facts, code: vec![0, 255, 7] }
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        let bytes = to_bytes(Ok(&compiled())).unwrap();
        assert_eq!(from_bytes(&bytes).unwrap().unwrap(), compiled());
        let refused = LoadReason::UnknownImport { name: "a:b/c".into(), hint: "none".into() };
        let said = refused.to_string();
        let bytes = to_bytes(Err(&refused)).unwrap();
        assert_eq!(from_bytes(&bytes).unwrap().unwrap_err().to_string(), said);
    }

    #[test]
    fn what_is_no_answer_is_refused_wherever_it_ends() {
        let bytes = to_bytes(Ok(&compiled())).unwrap();
        for end in 0..bytes.len() - compiled().code.len() {
            assert!(from_bytes(&bytes[..end]).is_err(), "{end}");
        }
        assert!(matches!(from_bytes(&[255; 100]), Err(NoAnswer::TooLong(_))));
        assert!(matches!(from_bytes(b"\x02\0\0\0{}"), Err(NoAnswer::Malformed(_))));
    }
}
