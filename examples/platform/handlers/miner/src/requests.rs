//! HTTP and waiting, by WASI.

use event_host_sdk::Failure;
use wasip2::clocks::monotonic_clock;
use wasip2::http::outgoing_handler;
use wasip2::http::types::{Fields, Method, OutgoingRequest, Scheme};

/// Asks for a URL, and gives the status of the answer.
pub fn get(url: &str) -> Result<u16, String> {
    let request = OutgoingRequest::new(Fields::new());
    let (scheme, rest) = url.split_once("://").ok_or("no scheme")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let scheme = if scheme == "https" { Scheme::Https } else { Scheme::Http };
    let invalid = |()| "no such URL";
    request.set_method(&Method::Get).map_err(invalid)?;
    request.set_scheme(Some(&scheme)).map_err(invalid)?;
    request.set_authority(Some(authority)).map_err(invalid)?;
    request.set_path_with_query(Some(path)).map_err(invalid)?;
    let answer = outgoing_handler::handle(request, None).map_err(|why| format!("{why:?}"))?;
    answer.subscribe().block();
    let answer = answer.get().ok_or("no answer")?.map_err(|()| "the answer is gone")?;
    Ok(answer.map_err(|why| format!("{why:?}"))?.status())
}

/// Waits for what never comes.
pub fn wait_for_ever() -> Result<(), Failure> {
    monotonic_clock::subscribe_duration(u64::MAX).block();
    Ok(())
}
