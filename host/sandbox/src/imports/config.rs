//! `wasi:config/store`: the values that handlers.toml gives.

use std::collections::BTreeMap;
use std::fmt;

use wasmtime::component::Linker;
use wasmtime_wasi_config::{WasiConfig, WasiConfigVariables};

use super::HostState;

/// The values of one handler, as its guests are given them.
pub(crate) struct ConfigValues(WasiConfigVariables);

impl From<&BTreeMap<String, String>> for ConfigValues {
    fn from(values: &BTreeMap<String, String>) -> Self {
        Self(values.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
    }
}

impl fmt::Debug for ConfigValues {
    /// Nothing of them: values are often secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigValues").finish_non_exhaustive()
    }
}

pub(super) fn link(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    wasmtime_wasi_config::add_to_linker(linker, |host| WasiConfig::new(&host.profile.config.0))
}
