//! The contract's canonical ABI as tables: what a handler in a language without an SDK is
//! written by.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use wit_parser::abi::{AbiVariant, WasmSignature, WasmType};
use wit_parser::{
    Function, Resolve, SizeAlign, Type, TypeDefKind, TypeId, WorldId, WorldItem, WorldKey,
};

/// The tables of the functions and the values of two worlds.
pub(crate) fn tables(resolve: &Resolve, worlds: [WorldId; 2]) -> Result<String> {
    let mut sizes = SizeAlign::default();
    sizes.fill(resolve)?;
    let mut text = String::new();
    let [event, batch] = worlds.map(|world| &resolve.worlds[world]);

    writeln!(text, "### Imports\n\n| module | name | signature |\n| --- | --- | --- |")?;
    for (key, item) in &event.imports {
        for (function, name) in functions(resolve, key, item) {
            let signature = resolve.wasm_signature(AbiVariant::GuestImport, function);
            writeln!(
                text,
                "| `{name}` | `{}` | {} |",
                function.name,
                described(resolve, function, &signature)
            )?;
        }
    }

    writeln!(text, "\n### Exports\n\n| name | signature |\n| --- | --- |")?;
    for (key, item) in event.exports.iter().chain(&batch.exports) {
        for (function, name) in functions(resolve, key, item) {
            let signature = resolve.wasm_signature(AbiVariant::GuestExport, function);
            writeln!(
                text,
                "| `{name}#{}` | {} |",
                function.name,
                described(resolve, function, &signature)
            )?;
            writeln!(
                text,
                "| `cabi_post_{name}#{}` | `(i32)`: what the call gave; it may be freed now |",
                function.name
            )?;
        }
    }
    writeln!(
        text,
        "| `cabi_realloc` | `(i32 i32 i32 i32) -> i32`: old place, old size, alignment, new size; gives a place |"
    )?;
    writeln!(text, "| `memory` | the memory |")?;

    for (id, kind) in resolve.types.iter() {
        let Some(name) = kind.name.as_deref() else { continue };
        if let TypeDefKind::Record(_) | TypeDefKind::Variant(_) | TypeDefKind::Enum(_) = kind.kind {
            writeln!(text, "\n### `{name}`\n")?;
            value(&mut text, resolve, &sizes, id)?;
        }
    }
    for (key, item) in event.imports.iter().chain(&event.exports).chain(&batch.exports) {
        for (function, _) in functions(resolve, key, item) {
            if let Some(result @ Type::Id(id)) = &function.result
                && let TypeDefKind::Result(_) | TypeDefKind::List(_) = resolve.types[*id].kind
            {
                writeln!(
                    text,
                    "\n### What `{}` gives: `{}`\n",
                    function.name,
                    named(resolve, result)
                )?;
                value(&mut text, resolve, &sizes, *id)?;
            }
        }
    }
    Ok(text)
}

fn functions<'a>(
    resolve: &'a Resolve,
    key: &WorldKey,
    item: &'a WorldItem,
) -> Vec<(&'a Function, String)> {
    let WorldItem::Interface { id, .. } = item else { return Vec::new() };
    let name = resolve.name_world_key(key);
    resolve.interfaces[*id].functions.values().map(|function| (function, name.clone())).collect()
}

/// A signature in the words of WAT, and what its numbers are.
fn described(resolve: &Resolve, function: &Function, signature: &WasmSignature) -> String {
    let core = |types: &[WasmType]| {
        types.iter().map(|kind| wasm_name(*kind)).collect::<Vec<_>>().join(" ")
    };
    let mut text = format!("`({})", core(&signature.params));
    if !signature.results.is_empty() {
        let _ = write!(text, " -> {}", core(&signature.results));
    }
    text.push('`');
    let mut words = Vec::new();
    for parameter in &function.params {
        let (name, kind) = (&parameter.name, named(resolve, &parameter.ty));
        let how = if signature.indirect_params {
            format!("place of `{name}: {kind}`")
        } else if kind.starts_with("string") || kind.starts_with("list") {
            format!("place and length of `{name}: {kind}`")
        } else {
            format!("`{name}: {kind}`")
        };
        words.push(how);
    }
    if let Some(result) = &function.result {
        let kind = named(resolve, result);
        words.push(if signature.retptr && signature.results.is_empty() {
            format!("place for the answer, `{kind}`")
        } else if signature.retptr {
            format!("gives the place of the answer, `{kind}`")
        } else {
            format!("gives `{kind}`")
        });
    }
    if words.is_empty() { text } else { format!("{text}: {}", words.join("; ")) }
}

fn wasm_name(kind: WasmType) -> &'static str {
    match kind {
        WasmType::I64 | WasmType::PointerOrI64 => "i64",
        WasmType::F32 => "f32",
        WasmType::F64 => "f64",
        WasmType::I32 | WasmType::Pointer | WasmType::Length => "i32",
    }
}

/// A type as WIT writes it.
fn named(resolve: &Resolve, kind: &Type) -> String {
    let Type::Id(id) = kind else {
        return match kind {
            Type::Bool => "bool".to_owned(),
            Type::String => "string".to_owned(),
            other => format!("{other:?}").to_lowercase(),
        };
    };
    let definition = &resolve.types[*id];
    if let Some(name) = &definition.name {
        return name.clone();
    }
    let inner = |kind: &Type| named(resolve, kind);
    match &definition.kind {
        TypeDefKind::Option(kind) => format!("option<{}>", inner(kind)),
        TypeDefKind::List(kind) => format!("list<{}>", inner(kind)),
        TypeDefKind::Tuple(tuple) => {
            format!("tuple<{}>", tuple.types.iter().map(inner).collect::<Vec<_>>().join(", "))
        }
        TypeDefKind::Result(result) => {
            let side = |kind: &Option<Type>| kind.as_ref().map_or("_".to_owned(), inner);
            format!("result<{}, {}>", side(&result.ok), side(&result.err))
        }
        other => format!("{other:?}"),
    }
}

fn value(text: &mut String, resolve: &Resolve, sizes: &SizeAlign, id: TypeId) -> Result<()> {
    let whole = Type::Id(id);
    let size = |kind: &Type| sizes.size(kind).size_wasm32();
    let align = sizes.align(&whole).align_wasm32();
    match size(&whole) {
        1 => writeln!(text, "1 byte.\n")?,
        bytes => writeln!(text, "{bytes} bytes, at a multiple of {align}.\n")?,
    }
    let payload = |cases: Vec<Option<&Type>>, tag| sizes.payload_offset(tag, cases).size_wasm32();
    match &resolve.types[id].kind {
        TypeDefKind::Record(record) => {
            writeln!(text, "| offset | size | field | type |\n| --- | --- | --- | --- |")?;
            let offsets = sizes.field_offsets(record.fields.iter().map(|field| &field.ty));
            for (field, (offset, kind)) in record.fields.iter().zip(offsets) {
                writeln!(
                    text,
                    "| {} | {} | `{}` | `{}` |",
                    offset.size_wasm32(),
                    size(kind),
                    field.name,
                    named(resolve, kind)
                )?;
            }
        }
        TypeDefKind::Variant(variant) => {
            let offset =
                payload(variant.cases.iter().map(|case| case.ty.as_ref()).collect(), variant.tag());
            writeln!(text, "| byte at 0 | case | at {offset} |\n| --- | --- | --- |")?;
            for (number, case) in variant.cases.iter().enumerate() {
                let kind = case
                    .ty
                    .as_ref()
                    .map_or("nothing".to_owned(), |kind| format!("`{}`", named(resolve, kind)));
                writeln!(text, "| {number} | `{}` | {kind} |", case.name)?;
            }
        }
        TypeDefKind::Enum(cases) => {
            writeln!(text, "| number | case |\n| --- | --- |")?;
            for (number, case) in cases.cases.iter().enumerate() {
                writeln!(text, "| {number} | `{}` |", case.name)?;
            }
        }
        TypeDefKind::Result(result) => {
            let offset =
                payload(vec![result.ok.as_ref(), result.err.as_ref()], wit_parser::Int::U8);
            writeln!(text, "| byte at 0 | case | at {offset} |\n| --- | --- | --- |")?;
            for (number, (case, kind)) in
                [("ok", &result.ok), ("error", &result.err)].into_iter().enumerate()
            {
                let kind = kind
                    .as_ref()
                    .map_or("nothing".to_owned(), |kind| format!("`{}`", named(resolve, kind)));
                writeln!(text, "| {number} | {case} | {kind} |")?;
            }
        }
        TypeDefKind::List(kind) => {
            let each = size(kind);
            writeln!(text, "The place of the first at 0, how many at 4; each has {each} bytes.")?;
            if let Type::Id(element) = kind
                && resolve.types[*element].name.is_none()
            {
                writeln!(text, "\nOne of them: `{}`.\n", named(resolve, kind))?;
                value(text, resolve, sizes, *element)?;
            }
        }
        other => {
            return Err(anyhow::anyhow!("{other:?}")).context("a type that the tables do not know");
        }
    }
    Ok(())
}
