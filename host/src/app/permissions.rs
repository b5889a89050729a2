//! What a component imports, and what its settings grant it of that.
//!
//! The host links everything that it has, whatever the settings say, and refuses what is
//! not granted when it is asked for. So what a component imports is what its language's
//! runtime might ask for, and says little of what the handler does.

use std::collections::{BTreeMap, BTreeSet};

use event_host_sandbox::settings::{Clocks, EmitPolicy, Grants};

/// The package of the contract.
const CONTRACT: &str = "event-host:handler";

/// The interfaces of one package that a component imports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Imported<'a> {
    /// The package, without its version.
    pub(crate) package: &'a str,
    /// Its interfaces, without their versions.
    pub(crate) interfaces: BTreeSet<&'a str>,
    /// What is granted of them, in words.
    pub(crate) granted: Vec<String>,
}

/// What a component with these imports may use, by packages.
pub(crate) fn imported<'a>(imports: &'a [String], grants: &Grants) -> Vec<Imported<'a>> {
    let mut packages: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for import in imports {
        let path = import.split('@').next().unwrap_or(import);
        let (package, interface) = path.split_once('/').unwrap_or((path, ""));
        // The contract's types are nothing that is used by itself.
        if (package, interface) != (CONTRACT, "types") {
            packages.entry(package).or_default().insert(interface);
        }
    }
    let imported = packages.into_iter().map(|(package, interfaces)| {
        let granted = granted(package, &interfaces, grants);
        Imported { package, interfaces, granted }
    });
    imported.collect()
}

/// The same in lines of text: one for each package that something is granted of, and one
/// for all the others.
pub(crate) fn lines(imported: &[Imported<'_>]) -> Vec<String> {
    let (something, nothing): (Vec<_>, Vec<_>) =
        imported.iter().partition(|imported| !imported.granted.is_empty());
    let mut lines: Vec<String> = something
        .into_iter()
        .map(|imported| format!("{}: granted {}", imported.package, imported.granted.join(", ")))
        .collect();
    if !nothing.is_empty() {
        let packages: Vec<&str> = nothing.iter().map(|imported| imported.package).collect();
        lines.push(format!("{}: granted nothing", packages.join(", ")));
    }
    lines
}

fn granted(package: &str, interfaces: &BTreeSet<&str>, grants: &Grants) -> Vec<String> {
    let one = |text: &str| vec![text.to_owned()];
    match package {
        CONTRACT => {
            interfaces.iter().filter_map(|interface| of_contract(interface, grants)).collect()
        }
        "wasi:cli" => {
            let mut granted = Vec::new();
            let streams = ["stdout", "stderr"].into_iter().filter(|one| interfaces.contains(one));
            let streams: Vec<&str> = streams.collect();
            if !streams.is_empty() {
                granted.push(format!("{} (to the log)", streams.join(" and ")));
            }
            if interfaces.contains("environment") && !grants.env.is_empty() {
                let names: Vec<&str> = grants.env.keys().map(String::as_str).collect();
                granted.push(format!("the variables {}", names.join(" ")));
            }
            granted
        }
        "wasi:clocks" => one(match grants.clocks {
            Clocks::Coarse => "the time to the millisecond",
            Clocks::Fine => "the time as exactly as the host knows it",
        }),
        "wasi:config" => grants.config.keys().cloned().collect(),
        // Without it, the types are for requests that come in.
        "wasi:http" if interfaces.contains("outgoing-handler") => {
            grants.http.rules().map(ToString::to_string).collect()
        }
        "wasi:io" | "wasi:random" => one("all of it"),
        "wasi:filesystem" | "wasi:sockets" => Vec::new(),
        // What the host does not have is refused, unless it is types alone.
        _ => one("its types"),
    }
}

fn of_contract(interface: &str, grants: &Grants) -> Option<String> {
    let granted = match interface {
        "outbox" => match &grants.emit {
            EmitPolicy::Any => "outbox (every type)".to_owned(),
            EmitPolicy::Nothing => return None,
            EmitPolicy::Types(types) => format!("outbox ({})", types.patterns().join(" ")),
        },
        "state" if !grants.state => return None,
        other => other.to_owned(),
    };
    Some(granted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use event_host_core::subscription::Subscription;
    use event_host_sandbox::settings::{HttpPolicy, HttpRule};

    fn said(imports: &[&str], grants: &Grants) -> Vec<String> {
        let imports: Vec<String> = imports.iter().map(|import| (*import).to_owned()).collect();
        lines(&imported(&imports, grants))
    }

    const ALL: [&str; 13] = [
        "event-host:handler/types@0.1.0",
        "event-host:handler/outbox@0.1.0",
        "event-host:handler/state@0.1.0",
        "wasi:cli/environment@0.2.3",
        "wasi:cli/stderr@0.2.3",
        "wasi:cli/stdout@0.2.3",
        "wasi:clocks/wall-clock@0.2.3",
        "wasi:config/store@0.2.0-rc.1",
        "wasi:filesystem/types@0.2.3",
        "wasi:http/outgoing-handler@0.2.3",
        "wasi:http/types@0.2.3",
        "wasi:io/poll@0.2.3",
        "wasi:sockets/tcp@0.2.3",
    ];

    #[test]
    fn what_is_granted_is_said_by_package_and_what_is_not_in_one_line() {
        assert_eq!(
            said(&ALL, &Grants::default()),
            [
                "event-host:handler: granted outbox (every type), state",
                "wasi:cli: granted stdout and stderr (to the log)",
                "wasi:clocks: granted the time to the millisecond",
                "wasi:io: granted all of it",
                "wasi:config, wasi:filesystem, wasi:http, wasi:sockets: granted nothing",
            ]
        );
        let server = ["wasi:http/types@0.2.3"];
        assert_eq!(said(&server, &Grants::default()), ["wasi:http: granted its types"]);
        assert_eq!(said(&[], &Grants::default()), [""; 0]);
    }

    #[test]
    fn permissions_are_told_by_their_names_and_never_by_their_values() {
        let rule = |text: &str| text.parse::<HttpRule>().unwrap();
        let secret = |name: &str| [(name.to_owned(), "hunter2".to_owned())].into();
        let grants = Grants {
            env: secret("TOKEN"),
            config: secret("region"),
            http: HttpPolicy::from_iter([rule("https://api.example.com")]),
            emit: EmitPolicy::Types(Subscription::new(["order.*"]).unwrap()),
            state: false,
            clocks: Clocks::Fine,
        };
        assert_eq!(
            said(&ALL, &grants),
            [
                "event-host:handler: granted outbox (order.*)",
                "wasi:cli: granted stdout and stderr (to the log), the variables TOKEN",
                "wasi:clocks: granted the time as exactly as the host knows it",
                "wasi:config: granted region",
                "wasi:http: granted https://api.example.com",
                "wasi:io: granted all of it",
                "wasi:filesystem, wasi:sockets: granted nothing",
            ]
        );
        let denied = Grants { emit: EmitPolicy::Nothing, ..grants };
        assert_eq!(said(&ALL[..3], &denied), ["event-host:handler: granted nothing"]);
    }
}
