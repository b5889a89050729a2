//! One engine with everything that its guests may import.

use std::sync::Arc;

use wasmtime::Engine;
use wasmtime::component::Linker;

use super::ending::chain;
use super::engine::{self, Allocation, Code, EngineError, EngineSettings};
use super::imports::{self, HostState};
use super::instance_pool::InstancePool;
use super::ticker::Ticker;

/// An engine, and everything that handlers may import.
pub(super) struct Runtime {
    pub(super) engine: Engine,
    pub(super) ticker: Arc<Ticker>,
    pub(super) linker: Linker<HostState>,
    pub(super) allocation: Allocation,
    /// `None` where instances come from no pool.
    pub(super) pool: Option<Arc<InstancePool>>,
}

impl Runtime {
    /// # Errors
    /// When the machine can run no engine of this kind.
    pub(super) fn start(settings: &EngineSettings, code: Code) -> Result<Self, EngineError> {
        let (engine, ticker, allocation) = engine::start(settings, code)?;
        let mut linker = Linker::new(&engine);
        imports::link(&mut linker).map_err(|error| EngineError::Unusable(chain(&error)))?;
        let pool = (allocation == Allocation::Pooling)
            .then(|| Arc::new(InstancePool::new(&settings.pool)));
        Ok(Self { engine, ticker: Arc::new(ticker), linker, allocation, pool })
    }
}
