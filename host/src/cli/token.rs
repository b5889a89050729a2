//! `host token`: makes tokens for HTTP, and their hashes.

use std::io::{IsTerminal as _, Read as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use super::{UsageError, output};
use crate::config::duration;
use crate::telemetry;
use event_host_core::event::{HandlerName, Tenant};
use event_host_http::token::{self, Role, TokenHash};

#[derive(Debug, Subcommand)]
pub(super) enum Tokens {
    /// Make a token: print it, and the table for the settings, which has only its hash
    New(New),
    /// Print the hash of a token that is read from stdin
    Hash,
}

#[derive(Debug, Args)]
pub(super) struct New {
    /// What it is called in the settings and in logs
    #[arg(long, default_value = "NAME", value_parser = name)]
    name: String,
    /// What it may do: publish, read, operate, deploy, metrics
    #[arg(long, required = true, value_delimiter = ',', value_name = "ROLES", value_parser = role)]
    roles: Vec<Role>,
    /// Whose things it reaches; `*` is everybody's
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    tenant: Option<String>,
    /// For how long it is accepted, such as 90d
    #[arg(long, value_name = "TIME", value_parser = lasting)]
    expires: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn name(text: &str) -> Result<String, String> {
    let name = text.parse::<HandlerName>();
    name.map(|name| name.to_string()).map_err(|why| why.to_string())
}

fn role(text: &str) -> Result<Role, String> {
    let known = Role::ALL.map(Role::name).join(", ");
    text.parse().map_err(|()| format!("no such role: there are {known}"))
}

fn tenant(text: &str) -> Result<String, String> {
    if text == "*" {
        return Ok(text.to_owned());
    }
    text.parse::<Tenant>().map(|tenant| tenant.to_string()).map_err(|why| why.to_string())
}

fn lasting(text: &str) -> Result<Duration, String> {
    let lasting = duration(text).filter(|time| !time.is_zero());
    lasting.ok_or_else(|| "write a duration such as 90d or 12h".to_owned())
}

impl Tokens {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::New(new) => new.run(),
            Self::Hash => hash(),
        }
    }
}

impl New {
    fn run(self) -> anyhow::Result<()> {
        if self.roles.contains(&Role::Metrics) && self.tenant.as_deref() != Some("*") {
            bail!("the metrics tell of all tenants: add `--tenant '*'`");
        }
        let token = token::generate().context("the system gives no random bytes")?;
        let hash = TokenHash::of(&token);
        let expires = self.expires.map(|lasting| Timestamp::now().saturating_add(lasting));
        let expires = expires.transpose().context("`--expires` is too long")?;
        // To the second: nobody reads more of it.
        let expires = expires.map(|at| at.round(jiff::Unit::Second)).transpose()?;
        let mut roles: Vec<&str> = self.roles.iter().map(|role| role.name()).collect();
        roles.dedup();
        if self.json {
            output::json(&json!({
                "token": token,
                "name": self.name,
                "sha256": hash.to_string(),
                "roles": roles,
                "tenant": self.tenant,
                "expires": expires.map(|at| at.to_string()),
            }))?;
            return Ok(());
        }
        output::line(&token)?;
        let key = if self.name.contains('.') { format!("\"{}\"", self.name) } else { self.name };
        output::line(format!("\n[tokens.{key}]\nsha256 = \"{hash}\"\nroles = {roles:?}"))?;
        if let Some(tenant) = self.tenant {
            output::line(format!("tenant = \"{tenant}\""))?;
        }
        if let Some(at) = expires {
            output::line(format!("expires = {at}"))?;
        }
        telemetry::say(
            "The first line is the token: keep it secret, it is not shown again. The table is for the settings.",
        );
        Ok(())
    }
}

/// Prints the hash of the token on stdin.
fn hash() -> anyhow::Result<()> {
    if std::io::stdin().is_terminal() {
        telemetry::say("Paste the token, then press Enter and Ctrl-D.");
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read the token from stdin")?;
    let token = text.trim();
    if !token::is_well_formed(token) {
        return Err(UsageError(
            "stdin has no token, which is `ehk_` and 43 letters, digits, `-` and `_`: `host token new` makes one"
                .to_owned(),
        )
        .into());
    }
    output::line(TokenHash::of(token).to_string())?;
    Ok(())
}
