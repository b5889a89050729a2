//! Where in a request a value is.

use std::fmt;

use event_host_core::event::quoted;
use http::HeaderName;

use crate::pointers::Pointer;

/// Where in a request a value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Header(HeaderName),
    Query(String),
    Json(Pointer),
    BodySha256,
    /// All of it; only in what is signed.
    Body,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::BodySha256 => f.write_str("body:sha256"),
            Self::Body => f.write_str("body"),
        }
    }
}

impl Place {
    /// Reads what stands between braces. An error is a sentence.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let invalid = |why: &str| Err(format!("`{{{text}}}` {why}"));
        match text.split_once(':') {
            Some(("header", name)) => match name.parse() {
                Ok(name) => Ok(Self::Header(name)),
                Err(_) => invalid("names no header: write one such as `{header:x-github-event}`"),
            },
            Some(("query", name)) if !name.is_empty() => Ok(Self::Query(name.to_owned())),
            Some(("query", _)) => invalid("names nothing: write one such as `{query:shop}`"),
            Some(("json", pointer)) => match Pointer::parse(pointer) {
                Some(pointer) => Ok(Self::Json(pointer)),
                None => invalid(
                    "is no JSON pointer: write one such as `{json:/repository/full_name}`, with `~1` for a `/` in a name and `~0` for a `~`",
                ),
            },
            Some(("body", "sha256")) => Ok(Self::BodySha256),
            None if text == "body" => Ok(Self::Body),
            _ => Err(format!(
                "{} stands for nothing: there are `{{header:NAME}}`, `{{json:/pointer}}`, `{{query:NAME}}` and `{{body:sha256}}`",
                quoted(&format!("{{{text}}}"))
            )),
        }
    }
}
