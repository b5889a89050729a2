//! Every way out of the sandbox that WASI 0.2 offers, tried.

use crate::bindings::wasi::cli::{environment, stdin};
use crate::bindings::wasi::filesystem::preopens;
use crate::bindings::wasi::io::streams::StreamError;
use crate::bindings::wasi::random::{insecure_seed, random};
use crate::bindings::wasi::sockets::instance_network::instance_network;
use crate::bindings::wasi::sockets::ip_name_lookup::resolve_addresses;
use crate::bindings::wasi::sockets::network::IpAddressFamily;
use crate::bindings::wasi::sockets::tcp_create_socket::create_tcp_socket;
use crate::bindings::wasi::sockets::udp_create_socket::create_udp_socket;

/// What each way leads to, in words.
#[must_use]
pub fn try_all() -> Vec<(&'static str, String)> {
    let network = instance_network();
    let look_up = |name| match resolve_addresses(&network, name) {
        Err(error) => format!("{error:?}"),
        Ok(addresses) => loop {
            match addresses.resolve_next_address() {
                Ok(address) => break format!("{address:?}"),
                Err(error) if format!("{error:?}").contains("WouldBlock") => {
                    addresses.subscribe().block();
                }
                Err(error) => break format!("{error:?}"),
            }
        },
    };
    let read = match stdin::get_stdin().blocking_read(100) {
        Err(StreamError::Closed) => "Closed".to_owned(),
        Ok(bytes) => format!("{} bytes", bytes.len()),
        Err(error) => format!("{error:?}"),
    };
    let socket = |made: Result<(), String>| made.err().unwrap_or_else(|| "a socket".to_owned());
    let tcp =
        |family| socket(create_tcp_socket(family).map(drop).map_err(|error| format!("{error:?}")));
    let udp =
        |family| socket(create_udp_socket(family).map(drop).map_err(|error| format!("{error:?}")));
    vec![
        ("directories", preopens::get_directories().len().to_string()),
        ("stdin", read),
        ("environment", environment::get_environment().len().to_string()),
        ("arguments", environment::get_arguments().len().to_string()),
        ("working-directory", format!("{:?}", environment::initial_cwd())),
        ("tcp4", tcp(IpAddressFamily::Ipv4)),
        ("tcp6", tcp(IpAddressFamily::Ipv6)),
        ("udp4", udp(IpAddressFamily::Ipv4)),
        ("udp6", udp(IpAddressFamily::Ipv6)),
        ("name", look_up("localhost")),
        ("address", look_up("127.0.0.1")),
        ("seed", format!("{:?}", insecure_seed::insecure_seed())),
        ("random", format!("{:?}", random::get_random_bytes(16))),
    ]
}

/// One value of `wasi:config`, and the number of all.
///
/// # Errors
/// What the host says.
pub fn config(key: &str) -> Result<(Option<String>, usize), String> {
    use crate::bindings::wasi::config::store;
    let value = store::get(key).map_err(|error| format!("{error:?}"))?;
    let all = store::get_all().map_err(|error| format!("{error:?}"))?;
    Ok((value, all.len()))
}
