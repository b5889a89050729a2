//! How a component was built, as it says itself.
//!
//! The custom section `producers` is a convention of the tools
//! (<https://github.com/WebAssembly/tool-conventions/blob/main/ProducersSection.md>). It is
//! not checked by anybody, and what is malformed is passed over. A component made of
//! several modules has several of them; each thing is told once, in the order of the file.

use std::fmt;

use serde::{Deserialize, Serialize};
use wasmparser::{KnownCustom, Parser, Payload};

use event_host_core::failure::storable;
use event_host_core::foreign::one_line;

/// Maximum number that is told.
const MOST: usize = 32;

/// Bytes of a name, and of a version.
const TEXT_BYTES: usize = 100;

/// A language or a tool that a component was built with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Producer {
    /// What it is.
    pub kind: ProducerKind,
    /// Its name: one line, without control characters.
    pub name: String,
    /// Its version, alike; empty where none is said.
    pub version: String,
}

/// What something is that a component was built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProducerKind {
    /// The language of its source.
    Language,
    /// A compiler, a linker or another tool.
    ProcessedBy,
    /// A collection of such tools.
    Sdk,
}

impl fmt::Display for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if !self.version.is_empty() {
            write!(f, " {}", self.version)?;
        }
        Ok(())
    }
}

/// What a core module or a component says, with the modules inside of it.
pub(super) fn producers(wasm: &[u8]) -> Vec<Producer> {
    let mut found = Vec::new();
    for payload in Parser::new(0).parse_all(wasm) {
        let Ok(payload) = payload else { break };
        if let Payload::CustomSection(section) = payload
            && let KnownCustom::Producers(fields) = section.as_known()
        {
            for field in fields {
                let Ok(field) = field else { break };
                let kind = match field.name {
                    "language" => ProducerKind::Language,
                    "processed-by" => ProducerKind::ProcessedBy,
                    "sdk" => ProducerKind::Sdk,
                    _ => continue,
                };
                for value in field.values {
                    let Ok(value) = value else { break };
                    let text = |text: &str| storable(&one_line(text), TEXT_BYTES);
                    let (name, version) = (text(value.name), text(value.version));
                    let producer = Producer { kind, name, version };
                    if !found.contains(&producer) {
                        found.push(producer);
                    }
                    if found.len() == MOST {
                        return found;
                    }
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A core module with a `producers` section of these contents.
    fn module(contents: &[u8]) -> Vec<u8> {
        let mut module = b"\0asm\x01\0\0\0\0".to_vec();
        // Of two bytes, whatever it is.
        let length = 10 + contents.len();
        let [low, high] =
            [length & 0x7f | 0x80, length >> 7].map(|byte| u8::try_from(byte).unwrap());
        module.extend([low, high]);
        module.extend_from_slice(b"\x09producers");
        module.extend_from_slice(contents);
        module
    }

    fn field(name: &str, values: &[(&str, &str)]) -> Vec<u8> {
        let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        let mut field = text(name);
        field.push(u8::try_from(values.len()).unwrap());
        for (name, version) in values {
            field.extend(text(name));
            field.extend(text(version));
        }
        field
    }

    #[test]
    fn what_it_was_built_with_is_told_once_and_cleaned() {
        let fields = [
            vec![2],
            field("language", &[("C11", ""), ("C11", "")]),
            field("processed-by", &[("cla\x1b[31mng\n", "19.1 (x)")]),
        ];
        let module = module(&fields.concat());
        // The same in a component, as the first of its modules.
        let mut component = b"\0asm\x0d\0\x01\0\x01".to_vec();
        component.push(u8::try_from(module.len()).unwrap());
        component.extend_from_slice(&module);
        for wasm in [module, component] {
            let told: Vec<String> = producers(&wasm).iter().map(ToString::to_string).collect();
            assert_eq!(told, ["C11", "cla\u{fffd}[31mng  19.1 (x)"]);
        }
    }

    #[test]
    fn what_is_malformed_or_endless_is_passed_over() {
        for bad in [&[][..], &[1, 3, b'a', b'b', b'c', 0], &[2, 3, b's', b'd', b'k', 7]] {
            assert_eq!(producers(&module(bad)), []);
        }
        assert_eq!(producers(b"rubbish"), []);
        let many: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "")).collect();
        let fields = [vec![2], field("sdk", &many), field("language", &many)];
        assert_eq!(producers(&module(&fields.concat())).len(), MOST);
    }
}
