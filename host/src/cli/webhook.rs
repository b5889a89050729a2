//! `host webhook`: try a source out with no host that runs: what would become of a request,
//! and a request as the provider would send it.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{AlreadySaid, Global, UsageError, database, output};
use crate::config::{Config, Overrides};
use crate::nearest::nearest;
use event_host_core::event::quoted;
use event_host_http::Hook;
use event_host_webhooks::{Preset, Received, Refusal, Request};

#[derive(Debug, Subcommand)]
pub(super) enum Webhook {
    /// Say what would become of a request that was captured
    Check(Check),
    /// Print a curl command that sends a file as the provider would, signed
    Sign(Sign),
}

impl Webhook {
    pub(super) fn run(self, global: &Global) -> anyhow::Result<()> {
        match self {
            Self::Check(check) => check.run(global),
            Self::Sign(sign) => sign.run(global),
        }
    }
}

/// A request on the command line.
#[derive(Debug, Args)]
struct Given {
    /// The source: NAME of [sources.NAME]
    source: String,
    /// A file with the body; - is stdin
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// A header, such as 'x-github-event: issues', again and again
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// What follows the ? of the address
    #[arg(long, value_name = "QUERY")]
    query: Option<String>,
}

impl Given {
    fn headers(&self) -> Result<HeaderMap, UsageError> {
        let mut headers = HeaderMap::new();
        for text in &self.header {
            let wrong = || {
                UsageError(format!("--header {} is no header: write 'NAME: VALUE'", quoted(text)))
            };
            let (name, value) = text.split_once(':').ok_or_else(wrong)?;
            let name: HeaderName = name.trim().parse().map_err(|_| wrong())?;
            let value = HeaderValue::from_bytes(value.trim().as_bytes()).map_err(|_| wrong())?;
            headers.append(name, value);
        }
        Ok(headers)
    }

    fn body(&self) -> anyhow::Result<Vec<u8>> {
        if self.file == Path::new("-") {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).context("cannot read stdin")?;
            return Ok(bytes);
        }
        std::fs::read(&self.file).with_context(|| format!("cannot read {}", self.file.display()))
    }

    fn settings(&self, global: &Global) -> anyhow::Result<Hook> {
        let path = global.config_path();
        let overrides = Overrides { needs_no_handlers: true, ..database::overrides(global) };
        let config = Config::load(&path, &overrides)?;
        let names: Vec<String> = config.sources.iter().map(|source| source.name.clone()).collect();
        let found = config.sources.into_iter().find(|source| source.name == self.source);
        found.ok_or_else(|| {
            let hint = match nearest(&self.source, names.iter().map(String::as_str)) {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("{} has {}", path.display(), listed(&names)),
            };
            anyhow::anyhow!("there is no source {}: {hint}", quoted(&self.source))
        })
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "no sources".to_owned() } else { format!("`{}`", names.join("`, `")) }
}

#[derive(Debug, Args)]
pub(super) struct Check {
    #[command(flatten)]
    given: Given,
    /// When the request came, for the time of its signature [default: now]
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Check {
    fn run(self, global: &Global) -> anyhow::Result<()> {
        let (headers, body) = (self.given.headers()?, self.given.body()?);
        let settings = self.given.settings(global)?;
        let by_token = settings.source.preset() == Preset::Token;
        let request = Request {
            headers: &headers,
            query: self.given.query.as_deref(),
            body: &body,
            // Whether a token is known and may publish is not looked at here.
            token: by_token.then_some("token"),
        };
        let received = settings.source.receive(request, self.at.unwrap_or_else(Timestamp::now));
        if self.json {
            output::json(&to_json(&settings, &received))?;
            return if received.is_ok() { Ok(()) } else { Err(AlreadySaid.into()) };
        }
        match received {
            Ok(Received::Event { event, duplicate_key }) => {
                output::line("an event is published:")?;
                output::line(event.to_json_string())?;
                if let Some(key) = duplicate_key {
                    output::line(format!("it is known as a repetition by {key}, too"))?;
                }
            }
            Ok(Received::Ping) => output::line("it is answered, and nothing is published: a ping")?,
            Ok(Received::Challenge(text)) => output::line(format!(
                "it is answered with its challenge, and nothing is published: {text}"
            ))?,
            Err(refusal) => {
                let hint = match refusal {
                    Refusal::Stale(_) if self.at.is_none() => {
                        "; --at says when it came, if it was captured before"
                    }
                    _ => "",
                };
                anyhow::bail!("the request is refused ({}): {refusal}{hint}", refusal.reason());
            }
        }
        if settings.retired {
            output::line("the source is retired, though: every request is answered with 410")?;
        }
        if by_token {
            output::line("that is, with a token that may publish it")?;
        }
        Ok(())
    }
}

fn to_json(settings: &Hook, received: &Result<Received, Refusal>) -> Value {
    let mut object = match received {
        Ok(Received::Event { event, duplicate_key }) => json!({
            "outcome": "event",
            "event": event.to_json(),
            "duplicate_key": duplicate_key,
        }),
        Ok(Received::Ping) => json!({ "outcome": "ping" }),
        Ok(Received::Challenge(text)) => json!({ "outcome": "challenge", "answer": text }),
        Err(refusal) => json!({
            "outcome": "refused",
            "reason": refusal.reason(),
            "detail": refusal.to_string(),
        }),
    };
    object["retired"] = settings.retired.into();
    object
}

#[derive(Debug, Args)]
pub(super) struct Sign {
    #[command(flatten)]
    given: Given,
    /// Where the host listens
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8480")]
    url: String,
}

impl Sign {
    fn run(self, global: &Global) -> anyhow::Result<()> {
        let mut headers = self.given.headers()?;
        if self.given.file == Path::new("-") {
            return Err(UsageError("--file names the file that curl sends".to_owned()).into());
        }
        let body = self.given.body()?;
        let settings = self.given.settings(global)?;
        if !headers.contains_key(http::header::CONTENT_TYPE) {
            let json = HeaderValue::from_static("application/json");
            headers.insert(http::header::CONTENT_TYPE, json);
        }
        let query = self.given.query.as_deref();
        let now = Timestamp::now();
        let request = Request { headers: &headers, query, body: &body, token: None };
        let added = settings
            .source
            .sign(request, now)
            .with_context(|| format!("the source {} cannot be signed for", self.given.source))?;
        for (name, value) in added {
            headers.insert(name, HeaderValue::from_str(&value)?);
        }
        let request = Request { headers: &headers, query, body: &body, token: None };
        if let Err(refusal) = settings.source.receive(request, now) {
            anyhow::bail!("the request would be refused ({}): {refusal}", refusal.reason());
        }
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        let address = format!("{}/hooks/{}{query}", self.url.trim_end_matches('/'), settings.name);
        let mut line = format!("curl {}", shell(&address));
        for (name, value) in &headers {
            let header = format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()));
            line.push_str(&format!(" \\\n  -H {}", shell(&header)));
        }
        let file = format!("@{}", self.given.file.display());
        line.push_str(&format!(" \\\n  --data-binary {}", shell(&file)));
        output::line(line)?;
        Ok(())
    }
}

/// A text as one word of a shell.
fn shell(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:@%+=,".contains(&b);
    if !text.is_empty() && text.bytes().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_what_a_shell_reads_as_one() {
        for (text, word) in [
            ("@body.json", "@body.json"),
            ("http://h/hooks/a?b=c", "'http://h/hooks/a?b=c'"),
            ("x: it's", r"'x: it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(shell(text), word);
        }
    }
}
