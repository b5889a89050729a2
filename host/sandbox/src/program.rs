//! A component that is compiled and linked, and fits the contract by its types.

use std::sync::Arc;

use super::compiler::output::{Compiled, Facts};
use super::contract::Interface;
use super::ending::{chain, size};
use super::entry_point::{EntryPoint, export_type};
use super::instance_pool::{InstanceNeeds, InstancePool};
use super::load_error::LoadReason;
use super::producers::Producer;
use super::runtime::Runtime;
use super::settings::{Limits, names};
use super::source::Form;
use super::ticker::Ticker;

/// The size of a page of WebAssembly memory.
const PAGE_BYTES: u64 = 64 << 10;

/// What is known of a component without running it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// `sha256:` and hex digits, of the file's bytes.
    pub digest: String,
    /// The file's size in bytes.
    pub bytes: u64,
    /// How it was given.
    pub form: Form,
    /// How it is called.
    pub interface: Interface,
    /// What it imports.
    pub imports: Vec<String>,
    /// What it exports.
    pub exports: Vec<String>,
    /// What it was built with, as it says itself.
    pub producers: Vec<Producer>,
    /// Bytes of the largest of its memories, as an instance begins with it.
    pub memory_bytes: u64,
}

/// A component that fits the contract, compiled and linked.
pub(super) struct Program {
    pub(super) entry_point: EntryPoint,
    pub(super) inspection: Inspection,
    /// Where its instances get their pool, if there is a pool.
    pub(super) pool: Option<Arc<InstancePool>>,
    /// What each of them takes.
    pub(super) needs: InstanceNeeds,
    /// To be told of each call.
    pub(super) ticker: Arc<Ticker>,
}

/// Makes what can be called of compiled code.
pub(super) fn link(
    runtime: &Runtime,
    digest: String,
    size: u64,
    compiled: &Compiled,
) -> Result<Program, LoadReason> {
    let component = compiled.component(&runtime.engine)?;
    let Facts { form, interface, imports, exports, producers } = compiled.facts.clone();
    let pre = runtime.linker.instantiate_pre(&component).map_err(|e| import_type(&e))?;
    let entry_point =
        EntryPoint::new(interface, pre).map_err(|error| export_type(interface, chain(&error)))?;
    entry_point.check()?;
    // Unknown only for components that import code, which none of ours may.
    let needs = entry_point.component().resources_required();
    let memory_bytes = needs
        .as_ref()
        .and_then(|needs| needs.max_initial_memory_size)
        .map_or(0, |pages| pages.saturating_mul(PAGE_BYTES));
    let inspection = Inspection {
        digest,
        bytes: size,
        form,
        interface,
        imports,
        exports,
        producers,
        memory_bytes,
    };
    let (ticker, pool) = (Arc::clone(&runtime.ticker), runtime.pool.clone());
    // The engine refuses a component that declares more than the pool has for one.
    let [memories, tables] = needs.map_or([0, 0], |needs| {
        [needs.num_memories, needs.num_tables]
            .map(|many| usize::try_from(many).unwrap_or(usize::MAX))
    });
    Ok(Program { entry_point, inspection, pool, needs: [1, memories, tables], ticker })
}

/// Whether an instance can be made at all within the limits.
pub(super) fn fit_limits(program: &Program, limits: &Limits) -> Result<(), LoadReason> {
    let memory = program.inspection.memory_bytes;
    if memory > limits.memory_bytes as u64 {
        return Err(LoadReason::OverLimit(format!(
            "it begins with a memory of {}, and {} is {}",
            size(usize::try_from(memory).unwrap_or(usize::MAX)),
            names::MEMORY,
            size(limits.memory_bytes)
        )));
    }
    // Unknown only for components that import code, which none of ours may.
    let Some(needs) = program.entry_point.component().resources_required() else { return Ok(()) };
    let elements = needs.max_initial_table_size.unwrap_or(0);
    if elements > limits.table_elements as u64 {
        return Err(LoadReason::OverLimit(format!(
            "it begins with a table of {elements} elements, and {} is {}",
            names::TABLE_ELEMENTS,
            limits.table_elements
        )));
    }
    Ok(())
}

/// wasmtime says of every import that does not fit that it was not found, and
/// what is wrong with it in the causes.
fn import_type(error: &wasmtime::Error) -> LoadReason {
    let mut texts = error.chain().map(ToString::to_string);
    let first = texts.next().unwrap_or_default();
    let name = first.split('`').nth(1).unwrap_or(&first).to_owned();
    let causes: Vec<String> = texts.map(|text| text.replace("instance export ", "")).collect();
    LoadReason::ImportType(format!("`{name}`: {}", causes.join(": ")))
}
