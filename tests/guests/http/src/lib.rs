//! Answers each request as its body says: a JSON object, whose members are in
//! `../README.md`.

mod bindings {
    wit_bindgen::generate!({
        path: ["../../../wit", "wit"],
        world: "event-host:http-guests/knowing",
        generate_all,
    });
}

use std::panic;
use std::sync::atomic::{AtomicU32, Ordering};

use bindings::event_host::handler::outbox::{Message, emit};
use bindings::event_host::handler::{context, state};
use bindings::exports::wasi::http::incoming_handler::Guest;
use bindings::wasi::cli::stderr;
use bindings::wasi::clocks::monotonic_clock;
use bindings::wasi::http::types::{
    ErrorCode, Fields, IncomingRequest, Method, OutgoingBody, OutgoingResponse, ResponseOutparam,
    Scheme,
};
use bindings::wasi::io::streams::OutputStream;
use serde::Deserialize;
use serde_json::{Value, json};

/// The most that a stream takes at once.
const PIECE: usize = 4096;

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wish {
    count: Option<String>,
    emit: Option<String>,
    panic: Option<String>,
    silent: Option<Silence>,
    error: Option<String>,
    until_attempt: Option<u32>,
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    repeat: u64,
    pause_ms: u64,
    reflect: bool,
    end: End,
    sleep_ms: u64,
    emit_after: Option<String>,
    panic_after: Option<String>,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            count: None,
            emit: None,
            panic: None,
            silent: None,
            error: None,
            until_attempt: None,
            status: 200,
            headers: Vec::new(),
            body: String::new(),
            repeat: 1,
            pause_ms: 0,
            reflect: false,
            end: End::Finished,
            sleep_ms: 0,
            emit_after: None,
            panic_after: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Silence {
    Dropped,
    Kept,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum End {
    Finished,
    Dropped,
    Kept,
}

/// The calls that this instance has had.
static CALLS: AtomicU32 = AtomicU32::new(0);

struct Handler;

impl Guest for Handler {
    fn handle(request: IncomingRequest, answer: ResponseOutparam) {
        panic::set_hook(Box::new(|told| print(&format!("{told}\n"))));
        CALLS.fetch_add(1, Ordering::Relaxed);
        let headers = request.headers().entries();
        let body = read(&request);
        let mut wish: Wish = if body.is_empty() {
            Wish::default()
        } else {
            serde_json::from_slice(&body).expect("a wish")
        };
        if let Some(key) = &wish.count {
            count(key);
        }
        if let Some(event_type) = &wish.emit {
            publish(event_type);
        }
        if let Some(text) = &wish.panic {
            panic!("{text}");
        }
        match wish.silent {
            Some(Silence::Dropped) => return,
            Some(Silence::Kept) => return std::mem::forget(answer),
            None => {}
        }
        if let Some(text) = wish.error {
            return ResponseOutparam::set(answer, Err(ErrorCode::InternalError(Some(text))));
        }
        if let Some(attempt) = wish.until_attempt
            && header(&headers, "eh-attempt").and_then(|text| text.parse().ok()) < Some(attempt)
        {
            wish.status = 503;
        }
        if wish.reflect {
            wish.body = reflect(&request, &headers).to_string();
        }
        respond(&wish, answer);
        if wish.sleep_ms > 0 {
            sleep(wish.sleep_ms);
        }
        if let Some(event_type) = &wish.emit_after {
            publish(event_type);
        }
        if let Some(text) = &wish.panic_after {
            panic!("{text}");
        }
    }
}

fn respond(wish: &Wish, answer: ResponseOutparam) {
    let headers: Vec<_> = wish
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), value.clone().into_bytes()))
        .collect();
    let response = OutgoingResponse::new(Fields::from_list(&headers).expect("headers"));
    response.set_status_code(wish.status).expect("a status");
    let body = response.body().expect("its first");
    ResponseOutparam::set(answer, Ok(response));
    let stream = body.write().expect("its first");
    for _ in 0..wish.repeat {
        write(&stream, wish.body.as_bytes());
        if wish.pause_ms > 0 {
            sleep(wish.pause_ms);
        }
    }
    drop(stream);
    match wish.end {
        End::Finished => OutgoingBody::finish(body, None).expect("a whole body"),
        End::Dropped => drop(body),
        End::Kept => std::mem::forget(body),
    }
}

/// What the request says of itself.
fn reflect(request: &IncomingRequest, headers: &[(String, Vec<u8>)]) -> Value {
    let headers: Vec<_> =
        headers.iter().map(|(name, value)| json!([name, String::from_utf8_lossy(value)])).collect();
    json!({
        "post": matches!(request.method(), Method::Post),
        "http": matches!(request.scheme(), Some(Scheme::Http)),
        "authority": request.authority(),
        "path": request.path_with_query(),
        "headers": headers,
        "group": context::group(),
        "calls": CALLS.load(Ordering::Relaxed),
    })
}

fn header<'a>(headers: &'a [(String, Vec<u8>)], name: &str) -> Option<&'a str> {
    let (_, value) = headers.iter().find(|(own, _)| own == name)?;
    std::str::from_utf8(value).ok()
}

fn read(request: &IncomingRequest) -> Vec<u8> {
    let incoming = request.consume().expect("its first");
    let stream = incoming.stream().expect("its first");
    let mut body = Vec::new();
    while let Ok(data) = stream.blocking_read(1 << 16) {
        body.extend(data);
    }
    body
}

fn count(key: &str) {
    let before = state::get(key).expect("state").unwrap_or_else(|| b"0".to_vec());
    let before: u64 = serde_json::from_slice(&before).expect("a number");
    state::set(key, (before + 1).to_string().as_bytes()).expect("state");
}

fn publish(event_type: &str) {
    let message = Message {
        type_: event_type.to_owned(),
        data: b"{}".to_vec(),
        id: None,
        source: None,
        subject: None,
        time: None,
        datacontenttype: None,
        dataschema: None,
        partitionkey: None,
        extensions: Vec::new(),
    };
    emit(&message).expect("an event");
}

fn sleep(milliseconds: u64) {
    monotonic_clock::subscribe_duration(milliseconds * 1_000_000).block();
}

fn print(text: &str) {
    write(&stderr::get_stderr(), text.as_bytes());
}

fn write(stream: &OutputStream, text: &[u8]) {
    for piece in text.chunks(PIECE) {
        stream.blocking_write_and_flush(piece).expect("somebody takes it");
    }
}

bindings::export!(Handler with_types_in bindings);
