//! Whether a component fits the contract, by the names it exports and imports.
//!
//! Looked at before anything is compiled, because compiling takes half a minute
//! for some languages and a link error says little to the author of a handler.
//! The types are wasmtime's to check, afterwards.

use std::fmt;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use wasmparser::component_types::ComponentEntityType;
use wasmparser::types::Types;
use wasmparser::{Parser, Payload, Validator, WasmFeatures};

use super::load_error::{Does, LoadReason, Names};
use super::source::malformed;

/// The contract's package.
const PACKAGE: &str = "event-host:handler";

/// The version of the contract that this host has.
const VERSION: &str = "0.1.0";

/// The version of WASI that this host has.
const WASI_VERSION: &str = "0.2.12";

/// The version of `wasi:config` that this host has; a proposal, which has no
/// other version yet.
const CONFIG_VERSION: &str = "0.2.0-rc.1";

/// Packages of hosts that run components of HTTP too, with the host's name.
const OTHER_HOSTS: [(&str, &str); 4] =
    [("fermyon:", "Spin"), ("spin:", "Spin"), ("wasmcloud:", "wasmCloud"), ("fastly:", "Fastly")];

/// Interfaces of the contract that a component may import.
const IMPORTS: [&str; 5] = ["types", "outbox", "state", "log", "context"];

/// Interfaces of WASI that a component may import: those of `wasi:cli/imports`,
/// outgoing HTTP, and configuration.
const WASI: [(&str, &str, &[&str]); 8] = [
    (
        "wasi:cli",
        WASI_VERSION,
        &[
            "environment",
            "exit",
            "stdin",
            "stdout",
            "stderr",
            "terminal-input",
            "terminal-output",
            "terminal-stdin",
            "terminal-stdout",
            "terminal-stderr",
        ],
    ),
    ("wasi:clocks", WASI_VERSION, &["monotonic-clock", "wall-clock"]),
    ("wasi:config", CONFIG_VERSION, &["store"]),
    ("wasi:filesystem", WASI_VERSION, &["preopens", "types"]),
    ("wasi:http", WASI_VERSION, &["outgoing-handler", "types"]),
    ("wasi:io", WASI_VERSION, &["error", "poll", "streams"]),
    ("wasi:random", WASI_VERSION, &["insecure", "insecure-seed", "random"]),
    (
        "wasi:sockets",
        WASI_VERSION,
        &[
            "instance-network",
            "ip-name-lookup",
            "network",
            "tcp",
            "tcp-create-socket",
            "udp",
            "udp-create-socket",
        ],
    ),
];

/// The most names that a component may import, and export. Real ones have fewer than 60.
const MOST_NAMES: usize = 256;

/// The most bytes of all of them together.
const NAMES_BYTES: usize = 64 << 10;

/// The names that a component imports and exports, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Signature {
    pub(super) imports: Vec<String>,
    pub(super) exports: Vec<String>,
}

/// How a component wants to be called: the one of these interfaces that it exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Interface {
    /// With one event.
    Handler,
    /// With several events.
    BatchHandler,
    /// With an HTTP request that is an event.
    Http,
}

impl Interface {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Handler, Self::BatchHandler, Self::Http];

    /// Its name in a component's signature, as this host has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Handler => "event-host:handler/handler@0.1.0",
            Self::BatchHandler => "event-host:handler/batch-handler@0.1.0",
            Self::Http => "wasi:http/incoming-handler@0.2.12",
        }
    }

    /// The version of its package that this host has.
    fn version(self) -> &'static str {
        match self {
            Self::Handler | Self::BatchHandler => VERSION,
            Self::Http => WASI_VERSION,
        }
    }
}

impl fmt::Display for Interface {
    /// The interface's own name, as the contract writes it; one of another package with
    /// that.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handler | Self::BatchHandler => f.pad(Name::parse(self.name()).interface),
            Self::Http => f.pad("wasi:http/incoming-handler"),
        }
    }
}

/// Reads the names in a component's signature.
pub(super) fn signature(component: &[u8]) -> Result<Signature, LoadReason> {
    let mut signature = Signature::default();
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(component) {
        match payload.map_err(|error| malformed(&error, component))? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(imports) if depth == 0 => {
                for import in imports {
                    let import = import.map_err(|error| malformed(&error, component))?;
                    add(&mut signature.imports, Does::Imports, import.name.name)?;
                }
            }
            Payload::ComponentExportSection(exports) if depth == 0 => {
                for export in exports {
                    let export = export.map_err(|error| malformed(&error, component))?;
                    add(&mut signature.exports, Does::Exports, export.name.name)?;
                }
            }
            _ => {}
        }
    }
    Ok(signature)
}

fn add(names: &mut Vec<String>, does: Does, name: &str) -> Result<(), LoadReason> {
    let too_many = |found: String, limit: String| LoadReason::TooManyNames { does, found, limit };
    if names.len() == MOST_NAMES {
        let (found, limit) = (format!("more than {MOST_NAMES} names"), MOST_NAMES.to_string());
        return Err(too_many(found, limit));
    }
    let bytes = names.iter().map(String::len).sum::<usize>() + name.len();
    if bytes > NAMES_BYTES {
        let found = format!("names of more than {NAMES_BYTES} bytes together");
        return Err(too_many(found, NAMES_BYTES.to_string()));
    }
    names.push(name.to_owned());
    Ok(())
}

/// Checks the names of a component, and tells how it is called.
pub(super) fn check(signature: &Signature, component: &[u8]) -> Result<Interface, LoadReason> {
    let interface = check_exports(&signature.exports)?;
    // Validating takes long, so it is done once, and only for who needs it.
    let types = OnceLock::new();
    let types = || types.get_or_init(|| types_of(component)).as_ref();
    for import in &signature.imports {
        if let Err(reason) = check_import(import)
            && !types().is_some_and(|types| holds_only_types(types, import))
        {
            return Err(reason);
        }
    }
    Ok(interface)
}

fn check_exports(exports: &[String]) -> Result<Interface, LoadReason> {
    let find = |interface: Interface| {
        let wanted = Name::parse(interface.name());
        let export = exports.iter().find(|export| {
            let name = Name::parse(export);
            name.package == wanted.package && name.interface == wanted.interface
        });
        export.map(|export| (export, interface))
    };
    let found: Vec<_> = Interface::ALL.into_iter().filter_map(find).collect();
    let (name, interface) = match found[..] {
        [] => return Err(LoadReason::NoHandler { found: Names(exports.to_vec()) }),
        [found] => found,
        [(one, _), (other, _), ..] => {
            let (one, other) = (one.clone(), other.clone());
            return Err(LoadReason::SeveralHandlers { one, other });
        }
    };
    if !is_compatible(Name::parse(name).version, interface.version()) {
        return Err(other_version(Does::Exports, name, interface.version()));
    }
    Ok(interface)
}

fn check_import(import: &str) -> Result<(), LoadReason> {
    let name = Name::parse(import);
    let (known, version): (&[&str], &'static str) = if name.package == PACKAGE {
        (&IMPORTS, VERSION)
    } else {
        let wasi = WASI.iter().find(|(package, ..)| *package == name.package);
        wasi.map_or((&[], WASI_VERSION), |(_, version, interfaces)| (interfaces, version))
    };
    if !known.is_empty() && !is_compatible(name.version, version) {
        return Err(other_version(Does::Imports, import, version));
    }
    if known.contains(&name.interface) {
        return Ok(());
    }
    Err(LoadReason::UnknownImport { name: import.to_owned(), hint: hint(&name, known) })
}

/// What the host has that is nearest to a name that it does not have.
fn hint(name: &Name<'_>, known: &[&str]) -> String {
    if let Some((_, host)) = OTHER_HOSTS.iter().find(|(own, _)| name.package.starts_with(own)) {
        return format!(
            "it is one of {host}'s own, and what imports it runs there alone: use what WASI {WASI_VERSION} or `{PACKAGE}@{VERSION}` has for it"
        );
    }
    if !known.is_empty() {
        return format!("of `{}` it has {}", name.package, known.join(", "));
    }
    let wasi: Vec<&str> = WASI.iter().map(|(package, ..)| *package).collect();
    format!(
        "it has {} of `{PACKAGE}@{VERSION}`, and of WASI {WASI_VERSION} {}",
        IMPORTS.join(", "),
        wasi.join(", ")
    )
}

fn other_version(does: Does, name: &str, host: &'static str) -> LoadReason {
    let package = Name::parse(name).package.to_owned();
    LoadReason::OtherVersion { does, name: name.to_owned(), package, host: host.into() }
}

/// The types of a component; none where it is not valid, and wasmtime will say what is
/// wrong.
fn types_of(component: &[u8]) -> Option<Types> {
    Validator::new_with_features(WasmFeatures::all()).validate_all(component).ok()
}

/// Whether an import brings nothing that would have to be implemented. A
/// component that shares types with others imports them so.
fn holds_only_types(types: &Types, import: &str) -> bool {
    let types = types.as_ref();
    let Some(item) = types.component_item_for_import(import) else { return false };
    let ComponentEntityType::Instance(instance) = item.ty else { return false };
    types[instance].exports.values().all(|export| match export.ty {
        ComponentEntityType::Type { created, .. } => {
            !matches!(created, wasmparser::component_types::ComponentAnyTypeId::Resource(_))
        }
        _ => false,
    })
}

/// A name such as `wasi:io/poll@0.2.6`, taken apart. What is no such name is
/// all package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Name<'a> {
    package: &'a str,
    interface: &'a str,
    version: Option<&'a str>,
}

impl<'a> Name<'a> {
    fn parse(name: &'a str) -> Self {
        let (path, version) = match name.split_once('@') {
            Some((path, version)) => (path, Some(version)),
            None => (name, None),
        };
        let (package, interface) = path.split_once('/').unwrap_or((path, ""));
        Self { package, interface, version }
    }
}

/// Whether a component made for one version can be linked with another: the
/// rule by which wasmtime matches names.
fn is_compatible(wanted: Option<&str>, host: &str) -> bool {
    let Some(wanted) = wanted else { return false };
    if wanted == host {
        return true;
    }
    let parts = |version: &str| -> Option<[u64; 3]> {
        let mut numbers = version.split('.').map(|part| part.parse().ok());
        let version = [numbers.next()??, numbers.next()??, numbers.next()??];
        numbers.next().is_none().then_some(version)
    };
    match (parts(wanted), parts(host)) {
        (Some([0, 0, _]), _) | (_, Some([0, 0, _])) => false,
        (Some([0, a, _]), Some([0, b, _])) => a == b,
        (Some([a, _, _]), Some([b, _, _])) => a == b && a != 0,
        // Pre-releases match only themselves.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use wasmtime::component::Linker;

    use super::*;

    fn exports(names: &[&str]) -> Result<Interface, LoadReason> {
        check_exports(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_component_exports_exactly_one_handler_interface() {
        for interface in Interface::ALL {
            assert_eq!(exports(&[interface.name(), "other"]).unwrap(), interface);
            assert_eq!(Name::parse(interface.name()).version, Some(interface.version()));
        }
        let none = exports(&["wasi:http/outgoing-handler@0.2.0"]).unwrap_err().to_string();
        assert_eq!(
            none,
            "it exports `wasi:http/outgoing-handler@0.2.0`; wanted is one of `event-host:handler/handler@0.1.0`, `event-host:handler/batch-handler@0.1.0` and `wasi:http/incoming-handler@0.2.x`"
        );
        assert!(exports(&[]).unwrap_err().to_string().starts_with("it exports nothing;"));
        let both = exports(&[
            "event-host:handler/handler@0.1.0",
            "event-host:handler/batch-handler@0.1.0",
        ]);
        assert!(matches!(both, Err(LoadReason::SeveralHandlers { .. })));
        let both =
            exports(&["wasi:http/incoming-handler@0.2.4", "event-host:handler/handler@0.1.0"]);
        assert_eq!(
            both.unwrap_err().to_string(),
            "it exports both `event-host:handler/handler@0.1.0` and `wasi:http/incoming-handler@0.2.4`; wanted is one of them, so that it is clear how it is called"
        );
        // Which one is meant is asked before whether its version fits.
        let both = exports(&[
            "event-host:handler/handler@0.2.0",
            "event-host:handler/batch-handler@0.1.0",
        ]);
        assert!(matches!(both, Err(LoadReason::SeveralHandlers { .. })));
    }

    #[test]
    fn every_version_of_wasi_0_2_is_called() {
        for version in ["0.2.0", "0.2.3", "0.2.10", "0.2.12", "0.2.99"] {
            let name = format!("wasi:http/incoming-handler@{version}");
            assert_eq!(exports(&[&name]).unwrap(), Interface::Http, "{version}");
        }
        let error = exports(&["wasi:http/incoming-handler@0.3.0"]).unwrap_err().to_string();
        assert!(error.contains("this host has version 0.2.12 of `wasi:http`"), "{error}");
    }

    #[test]
    fn what_another_host_alone_has_is_told_so() {
        let error = check_import("fermyon:spin/key-value@2.0.0").unwrap_err().to_string();
        assert!(
            error.contains("it is one of Spin's own, and what imports it runs there"),
            "{error}"
        );
        let error = check_import("wasmcloud:bus/lattice@1.0.0").unwrap_err().to_string();
        assert!(error.contains("it is one of wasmCloud's own"), "{error}");
    }

    #[test]
    fn another_version_of_the_contract_is_said_with_both_versions() {
        let error = exports(&["event-host:handler/handler@0.2.0"]).unwrap_err().to_string();
        assert_eq!(
            error,
            "it exports `event-host:handler/handler@0.2.0`, and this host has version 0.1.0 of `event-host:handler`; build it with bindings of that version"
        );
        let error = check_import("wasi:io/poll@0.3.0").unwrap_err().to_string();
        assert!(error.contains("`wasi:io/poll@0.3.0`") && error.contains("0.2.12"), "{error}");
        assert!(check_import("event-host:handler/log").is_err(), "no version is no promise");
    }

    #[test]
    fn an_import_that_the_host_does_not_have_is_told_what_it_has() {
        let hint = |name: &str| match check_import(name) {
            Err(LoadReason::UnknownImport { hint, .. }) => hint,
            other => panic!("{other:?}"),
        };
        assert!(hint("wasi:http/incoming-handler@0.2.3").contains("it has outgoing-handler"));
        assert!(hint("event-host:handler/clock@0.1.0").contains("outbox, state, log, context"));
        assert!(hint("acme:db/query@1.0.0").contains("wasi:random"));
        assert!(hint("plain").contains("event-host:handler@0.1.0"));
    }

    #[test]
    fn versions_match_as_wasmtime_matches_them() {
        let cases = [
            (Some("0.2.0"), "0.2.12", true),
            (Some("0.2.99"), "0.2.12", true),
            (Some("0.3.0"), "0.2.12", false),
            (Some("1.4.0"), "1.0.0", true),
            (Some("2.0.0"), "1.0.0", false),
            (Some("0.0.1"), "0.0.2", false),
            (Some("0.2.0-rc-2023-11-10"), "0.2.0", false),
            (Some("0.2"), "0.2.0", false),
            (Some("0.2.0.0"), "0.2.0", false),
            (None, "0.2.0", false),
        ];
        for (wanted, host, expected) in cases {
            assert_eq!(is_compatible(wanted, host), expected, "{wanted:?} with {host}");
        }
    }

    /// The lists above are written by hand; the linker is what counts.
    #[test]
    fn every_listed_interface_is_linked() {
        let engine = wasmtime::Engine::default();
        let mut linker = Linker::new(&engine);
        super::super::imports::link(&mut linker).unwrap();
        let ours = IMPORTS.iter().map(|i| format!("{PACKAGE}/{i}@{VERSION}"));
        let wasi = WASI
            .iter()
            .flat_map(|(p, version, is)| is.iter().map(move |i| format!("{p}/{i}@{version}")));
        for name in ours.chain(wasi) {
            // The linker cannot be asked what it has, but it refuses to define
            // the same thing twice.
            let again = linker.root().func_wrap(&name, |_, (): ()| Ok(()));
            assert!(again.is_err(), "{name} is not linked");
        }
    }
}
