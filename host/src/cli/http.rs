//! What commands that serve, or ask who serves, take of HTTP.

use std::net::SocketAddr;

use clap::Args;

use crate::config::Overrides;

#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Serving {
    /// Serve by HTTP at this address of the machine's own, beside what the settings say;
    /// other addresses are for the settings: [listen.NAME]
    #[arg(
        long,
        value_name = "ADDRESS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "127.0.0.1:8480",
        value_parser = loopback,
    )]
    pub(super) http: Option<SocketAddr>,
}

impl Serving {
    /// What the command line says over the settings.
    pub(super) fn over(self, overrides: Overrides) -> Overrides {
        Overrides { http: self.http, ..overrides }
    }
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| {
        "write an address and a port, such as 127.0.0.1:8480 or [::1]:8480".to_owned()
    })?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err("other machines can reach it: write it into the settings, as [listen.NAME], with what it is to serve".to_owned())
}
