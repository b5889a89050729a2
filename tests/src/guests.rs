//! Makes guests that no toolchain has to build.

use std::fmt::Write as _;

use crate::guest_file;

/// A guest whose core module is this text. What makes a handler of it, the
/// contract's metadata, is that of a guest that was built.
///
/// # Panics
/// When the text is no module.
#[must_use]
pub fn guest_of_text(text: &str) -> Vec<u8> {
    let built = std::fs::read(guest_file("noop")).expect("the guest can be read");
    let mut module = wat::parse_str(text).expect("a module");
    let metadata: Vec<&[u8]> =
        custom_sections(&built).filter(|section| is_named(section, b"component-type")).collect();
    assert!(!metadata.is_empty(), "the guest has no metadata");
    module.extend(metadata.concat());
    module
}

/// A guest of some kilobytes that a compiler works on for long: one loop in the other, and
/// in the innermost a jump to the beginning of each of them. So many loops: 1,000 take
/// seconds, 2,000 minutes. It handles every event, well.
///
/// # Panics
/// When a string does not take what is written to it.
#[must_use]
pub fn guest_that_compiles_slowly(loops: usize) -> Vec<u8> {
    const LOCALS: usize = 500;
    let mut text = String::from(
        r#"(module (memory (export "memory") 2)
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 8192))
        (func (export "event-host:handler/handler@0.1.0#handle") (param i32) (result i32)
          (i32.const 1024))
        (func (param i32) (result i32) (local "#,
    );
    text.push_str(&"i32 ".repeat(LOCALS));
    text.push(')');
    text.push_str(&"(loop ".repeat(loops));
    text.push_str("(br_table");
    for depth in 0..loops {
        write!(text, " {depth}").expect("a string takes it");
    }
    text.push_str(" (local.get 0))");
    for n in 0..loops {
        let (to, from) = (1 + n % LOCALS, 1 + n * 7 % LOCALS);
        write!(text, "(local.set {to} (i32.add (local.get {from}) (local.get {to}))))")
            .expect("a string takes it");
    }
    text.push_str("(local.get 1)))");
    guest_of_text(&text)
}

/// The custom sections of a module, each with its kind and its size before it.
fn custom_sections(module: &[u8]) -> impl Iterator<Item = &[u8]> {
    const HEAD: usize = 8;
    let mut rest = &module[HEAD..];
    let sections = std::iter::from_fn(move || {
        let (_, content) = rest.split_first()?;
        let (size, length) = leb128(content);
        let (section, others) = rest.split_at(1 + length + size);
        rest = others;
        Some(section)
    });
    sections.filter(|section| section[0] == 0)
}

/// Whether the name of a custom section begins like this.
fn is_named(section: &[u8], beginning: &[u8]) -> bool {
    let content = &section[1 + leb128(&section[1..]).1..];
    content[leb128(content).1..].starts_with(beginning)
}

/// A number as modules write it, and how many bytes it takes.
fn leb128(bytes: &[u8]) -> (usize, usize) {
    let length = bytes.iter().take_while(|byte| **byte >= 0x80).count() + 1;
    let number = bytes[..length].iter().rev().fold(0, |n, byte| n << 7 | usize::from(byte & 0x7f));
    (number, length)
}
