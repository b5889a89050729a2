//! One HTTP request by `wasi:http`.

use std::time::Duration;

use crate::bindings::wasi::http::outgoing_handler;
use crate::bindings::wasi::http::types::{
    ErrorCode, Fields, IncomingResponse, Method, OutgoingBody, OutgoingRequest, Scheme,
};
use crate::bindings::wasi::io::streams::StreamError;

/// A request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its method, such as `GET`.
    pub method: String,
    /// Its URL, with a scheme.
    pub url: String,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its body; none is not sent.
    pub body: Option<String>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
}

/// Makes as many requests at once, and drops them without a look at their answers when
/// so much time has passed.
///
/// # Errors
/// When one cannot be made.
pub fn hold(url: &str, count: u32, time: Duration) -> Result<(), String> {
    let request =
        Request { method: "GET".to_owned(), url: url.to_owned(), headers: Vec::new(), body: None };
    let made: Result<Vec<_>, String> = (0..count)
        .map(|_| outgoing_handler::handle(outgoing(&request)?, None).map_err(|e| name(&e)))
        .collect();
    let _made = made?;
    crate::sleep(time);
    Ok(())
}

/// Makes a request and waits for its answer.
///
/// # Errors
/// What `wasi:http` calls the error.
pub fn request(request: &Request) -> Result<Response, String> {
    let outgoing = outgoing(request)?;
    let body = match &request.body {
        Some(text) => Some((outgoing.body().map_err(|()| "there is a body already")?, text)),
        None => None,
    };
    let answer = outgoing_handler::handle(outgoing, None).map_err(|error| name(&error))?;
    if let Some((body, text)) = body {
        // A server that does not want it closes the stream; its answer says why.
        let stream = body.write().map_err(|()| "the body is being written already")?;
        for piece in text.as_bytes().chunks(4096) {
            if stream.blocking_write_and_flush(piece).is_err() {
                break;
            }
        }
        drop(stream);
        let _ = OutgoingBody::finish(body, None);
    }
    answer.subscribe().block();
    let answer = answer.get().ok_or("the answer is not there")?.map_err(|()| "taken already")?;
    read(&answer.map_err(|error| name(&error))?)
}

/// A request without its body.
fn outgoing(request: &Request) -> Result<OutgoingRequest, String> {
    let headers: Vec<(String, Vec<u8>)> = request
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), value.clone().into_bytes()))
        .collect();
    let headers = Fields::from_list(&headers).map_err(|error| format!("{error:?}"))?;
    let outgoing = OutgoingRequest::new(headers);
    let (scheme, rest) = request.url.split_once("://").ok_or("the URL has no scheme")?;
    let path_at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(path_at);
    let scheme = match scheme {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        other => Scheme::Other(other.to_owned()),
    };
    let method = match request.method.as_str() {
        "GET" => Method::Get,
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        other => Method::Other(other.to_owned()),
    };
    outgoing.set_method(&method).map_err(|()| "the method is invalid")?;
    outgoing.set_scheme(Some(&scheme)).map_err(|()| "the scheme is invalid")?;
    outgoing.set_authority(Some(authority)).map_err(|()| "the authority is invalid")?;
    outgoing.set_path_with_query(Some(path)).map_err(|()| "the path is invalid")?;
    Ok(outgoing)
}

fn read(answer: &IncomingResponse) -> Result<Response, String> {
    let text =
        |(name, value): (String, Vec<u8>)| (name, String::from_utf8_lossy(&value).into_owned());
    let headers = answer.headers().entries().into_iter().map(text).collect();
    let incoming = answer.consume().map_err(|()| "the body is taken already")?;
    let stream = incoming.stream().map_err(|()| "the body is being read already")?;
    let mut body = Vec::new();
    loop {
        match stream.blocking_read(64 << 10) {
            Ok(piece) => body.extend(piece),
            Err(StreamError::Closed) => break,
            Err(error) => return Err(format!("reading the body: {error:?}")),
        }
    }
    Ok(Response { status: answer.status(), headers, body })
}

fn name(error: &ErrorCode) -> String {
    format!("{error:?}")
}
