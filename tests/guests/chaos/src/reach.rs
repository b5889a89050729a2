//! Reaching out: by HTTP, as a handler that follows redirects does, and for the
//! time.

use std::collections::BTreeMap;
use std::time::Duration;

use event_host_sdk::{Failure, Message, emit};
use serde::Deserialize;
use serde_json::{Value, json};
use wasi_calls::{clocks, hoard, http};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    url: String,
    method: Option<String>,
    body: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    /// How many redirects to follow.
    redirects: Option<u32>,
    r#type: String,
    /// Goes on for ever afterwards.
    spin: Option<bool>,
}

/// Which part of a request is filled.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    Method,
    Path,
    Authority,
    Scheme,
    Fields,
    Headers,
    Body,
}

impl From<Part> for hoard::Part {
    fn from(part: Part) -> Self {
        match part {
            Part::Method => Self::Method,
            Part::Path => Self::Path,
            Part::Authority => Self::Authority,
            Part::Scheme => Self::Scheme,
            Part::Fields => Self::Fields,
            Part::Headers => Self::Headers,
            Part::Body => Self::Body,
        }
    }
}

/// What the clocks give, in nanoseconds.
pub fn clocks() -> Value {
    const TIMES: usize = 10;
    const SLEEP: Duration = Duration::from_millis(20);
    let seen = |seen: clocks::Seen| json!({ "resolution": seen.resolution, "times": seen.times });
    json!({
        "monotonic": seen(clocks::monotonic(TIMES)),
        "wall": seen(clocks::wall(TIMES)),
        "sleep": clocks::sleep_measured(SLEEP),
        "wait": clocks::wait_measured(SLEEP),
    })
}

/// Emits what came of it: `status`, `headers` and `body`, or `error`.
pub fn request(command: Request) -> Result<(), Failure> {
    let mut request = http::Request {
        method: command.method.unwrap_or_else(|| "GET".to_owned()),
        url: command.url,
        headers: command.headers.unwrap_or_default().into_iter().collect(),
        body: command.body,
    };
    let mut redirects = command.redirects.unwrap_or(0);
    let outcome = loop {
        match http::request(&request) {
            Err(error) => break json!({ "error": error }),
            Ok(answer) => {
                let location = answer.headers.iter().find(|(name, _)| name == "location");
                if let (300..400, Some((_, location)), 1..) = (answer.status, location, redirects) {
                    redirects -= 1;
                    request.url.clone_from(location);
                    continue;
                }
                let headers: BTreeMap<_, _> = answer.headers.into_iter().collect();
                let body = String::from_utf8_lossy(&answer.body);
                break json!({ "status": answer.status, "headers": headers, "body": body });
            }
        }
    };
    if command.spin == Some(true) {
        crate::bad::spin();
    }
    emit(Message::new(command.r#type).json(&outcome)?)?;
    Ok(())
}
