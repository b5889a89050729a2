//! The contract's metadata, for core modules that carry none.
//!
//! A module says by the name of its export which of the two worlds it is the inside of,
//! and the host knows both. So a compiler that can name an export is all that a language
//! needs. Who imports more than the contract and old WASI has, such as interfaces of
//! WASI 0.2, still has to say so in metadata.

use anyhow::Context as _;
use wit_component::{StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// The contract, as the bindings of this host were made from it.
const CONTRACT: &str = include_str!("../../../wit/handler.wit");

/// A world of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum World {
    /// Of handlers of single events.
    Handler,
    /// Of handlers of batches.
    BatchHandler,
}

impl World {
    /// What a core module calls the function that the host calls.
    pub(super) fn core_export(self) -> &'static str {
        match self {
            Self::Handler => "event-host:handler/handler@0.1.0#handle",
            Self::BatchHandler => "event-host:handler/batch-handler@0.1.0#handle-batch",
        }
    }

    /// Its name in the contract.
    fn name(self) -> &'static str {
        match self {
            Self::Handler => "event-handler",
            Self::BatchHandler => "batch-event-handler",
        }
    }
}

/// A core module with the metadata of this world.
pub(super) fn with_metadata(module: &[u8], world: World) -> anyhow::Result<Vec<u8>> {
    let mut packages = Resolve::default();
    let package = packages.push_str("handler.wit", CONTRACT).context("the host's contract")?;
    let world =
        packages.select_world(&[package], Some(world.name())).context("the host's contract")?;
    let mut module = module.to_vec();
    embed_component_metadata(&mut module, &packages, world, StringEncoding::UTF8, false)?;
    Ok(module)
}
