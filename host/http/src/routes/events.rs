//! `/v1/events`: CloudEvents come in.
//!
//! A request gets its part of the memory before its body is read, and its answer once its
//! events are committed. What events are, how they wait and when they are committed is the
//! business of [`event_host_ingest`]; here is what belongs to HTTP.

use std::time::Instant;

use axum_core::body::Body as Answer;
use event_host_core::event::{Event, ExtensionValue, Tenant};
use event_host_ingest::binding::{self, Limits, Mode};
use event_host_ingest::{
    Intake, Rate, RateOf, Reason, Refusal, Room, Submission, handshake, inflate, may_send,
};
use event_host_metrics::{IngestMode, IngestSource, Refused};
use event_host_store::Placed;
use http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_TYPE};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tracing::info;

use super::{Access, Routes, Spec};
use crate::body::Body;
use crate::call::{Call, Caller};
use crate::problem::{Kind, Problem};
use crate::settings::Part;
use crate::token::{Role, Token};

/// Events come in.
pub const EVENTS: Spec = Spec {
    method: Method::POST,
    path: "/v1/events",
    part: Some(Part::Ingest),
    access: Access::Roles(&[Role::Publish]),
    by_tenant: true,
};

/// Who may send events, and how: the handshake of webhooks.
pub const HANDSHAKE: Spec =
    Spec { method: Method::OPTIONS, access: Access::Open, by_tenant: false, ..EVENTS };

const PREFER: &str = "prefer";
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
const ACCEPT_POST: HeaderName = HeaderName::from_static("accept-post");
const MINIMAL: &str = "return=minimal";

/// What has more bytes is unpacked and read on another thread, so that it holds up no other
/// connection.
const READ_HERE: usize = 256 << 10;

/// The extensions that say who sent an event, in CloudEvents' words.
pub(super) const AUTHTYPE: &str = "authtype";
pub(super) const AUTHID: &str = "authid";

/// Adds the routes.
pub fn add(routes: &mut Routes, intake: &Intake) {
    let source = intake.metrics().source("events");
    let ours = intake.clone();
    routes.add(&EVENTS, move |call| {
        let (intake, source) = (ours.clone(), source.clone());
        async move { counted(&intake, &source, call).await }
    });
    let ours = intake.clone();
    routes.add(&HANDSHAKE, move |call| {
        let answer = options(&ours, &call.parts.headers);
        async { Ok(answer) }
    });
}

fn options(intake: &Intake, asked: &HeaderMap) -> Response<Answer> {
    let settings = intake.settings();
    let (headers, origin) = handshake(asked, &settings.origins, settings.rate);
    if let Some(origin) = origin {
        info!(
            origin = %origin.name.escape_debug(),
            allowed = origin.is_allowed,
            callback = origin.wants_callback,
            "a sender of webhooks asks whether it may send here; the host calls nobody back"
        );
    }
    let mut response = Response::new(Answer::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    *response.headers_mut() = headers;
    response
}

/// What is known of a request by the time that it is answered.
pub(super) struct Seen {
    pub(super) mode: IngestMode,
    pub(super) events: usize,
    /// When the last byte of its body had come.
    pub(super) read_at: Option<Instant>,
}

/// Answers a request, and counts it.
async fn counted(
    intake: &Intake,
    source: &IngestSource,
    call: Call,
) -> Result<Response<Answer>, Problem> {
    let mut seen = Seen { mode: IngestMode::Unknown, events: 0, read_at: None };
    let answer = post(intake, source, call, &mut seen).await;
    count(source, &seen, &answer);
    answer
}

/// Counts a request that is answered.
pub(super) fn count(
    source: &IngestSource,
    seen: &Seen,
    answer: &Result<Response<Answer>, Problem>,
) {
    let status = match answer {
        Ok(response) => response.status(),
        Err(problem) => problem.kind().status(),
    };
    source.answered(seen.mode, status.as_u16());
    if let Err(problem) = answer
        && let Some(reason) = refused_for(problem.kind())
    {
        source.refused(reason, seen.events);
    }
    if let Some(read_at) = seen.read_at {
        source.duration().observe(read_at.elapsed());
    }
}

async fn post(
    intake: &Intake,
    source: &IngestSource,
    call: Call,
    seen: &mut Seen,
) -> Result<Response<Answer>, Problem> {
    let Call { parts, body, caller, tenant, .. } = call;
    let headers = parts.headers;
    let settings = intake.settings();
    if settings.require_origin {
        may_send(&headers, &settings.origins)?;
    }
    let mode = Mode::of(&headers)?;
    seen.mode = match mode {
        Mode::Binary => IngestMode::Binary,
        Mode::Structured => IngestMode::Structured,
        Mode::Batched => IngestMode::Batched,
    };
    let is_gzip = binding::is_gzip(&headers)?;
    let (body, room) = read(intake, body, settings.max_body, true).await?;
    seen.read_at = Some(Instant::now());
    source.bytes().add_len(body.len());
    let sent = Sent { mode, headers, body, is_gzip, room, max_body: settings.max_body };
    let (mut events, headers, room) = sent.read(intake.limits()).await?;
    seen.events = events.len();
    if let Some(token) = caller.token() {
        allowed(token, &events)?;
    }
    if settings.stamp {
        stamp(&mut events, &caller)?;
    }
    let names: Vec<(String, String)> =
        events.iter().map(|event| (event.id.clone(), event.source.clone())).collect();
    let submission = Submission {
        rates: rates(&caller),
        tenant: tenant.unwrap_or_else(Tenant::none),
        window: settings.dedup,
        also_known_as: Vec::new(),
        max_event: None,
        room,
        events,
    };
    let placed = intake.publish(submission).await?;
    let duplicates = placed.iter().filter(|placed| placed.is_duplicate).count();
    source.committed(placed.len() - duplicates, duplicates);
    Ok(answer(&headers, &names, &placed))
}

/// Reads a body of at most so many bytes, and takes its part of the memory: before it is
/// read, where a sender who `is_known` says how large it is, and as it comes otherwise. So
/// those who are not known yet take no more than they send.
pub(super) async fn read(
    intake: &Intake,
    mut body: Body,
    most: usize,
    is_known: bool,
) -> Result<(Vec<u8>, Room), Problem> {
    let too_large = || {
        let detail =
            format!("the body has more than {most} bytes, which is the most: send it in parts");
        Problem::new(Kind::TooLarge, detail).limit(most as u64)
    };
    let length = body.length().map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    if length.is_some_and(|length| length > most) {
        return Err(too_large());
    }
    let mut room = intake.room(length.filter(|_| is_known).unwrap_or_default())?;
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if data.len() > most - bytes.len() {
            return Err(too_large());
        }
        room.grow_to(bytes.len() + data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, room))
}

/// Reads a request: here if it is small, and on another thread if it has so many bytes that
/// other connections would wait for it.
pub(super) async fn on_its_own_thread<T: Send + 'static>(
    bytes: usize,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    if bytes <= READ_HERE {
        return Ok(read());
    }
    tokio::task::spawn_blocking(read).await.map_err(|_| {
        Problem::new(
            Kind::Internal,
            "the host broke while it read the request; nothing of it was published: tell its operator",
        )
    })
}

/// A request whose body has come.
struct Sent {
    mode: Mode,
    headers: HeaderMap,
    body: Vec<u8>,
    is_gzip: bool,
    room: Room,
    max_body: usize,
}

impl Sent {
    /// Its events, its headers, and its part of the memory.
    async fn read(self, limits: Limits) -> Result<(Vec<Event>, HeaderMap, Room), Problem> {
        // Nobody knows how large it gets.
        let bytes = if self.is_gzip { usize::MAX } else { self.body.len() };
        Ok(on_its_own_thread(bytes, move || self.read_now(limits)).await??)
    }

    fn read_now(mut self, limits: Limits) -> Result<(Vec<Event>, HeaderMap, Room), Refusal> {
        if self.is_gzip {
            self.body = inflate(&self.body, self.max_body, &mut self.room)?;
        }
        let events = binding::events(self.mode, &self.headers, self.body, limits)?;
        Ok((events, self.headers, self.room))
    }
}

/// Refuses events that the token may not publish.
pub(super) fn allowed(token: &Token, events: &[Event]) -> Result<(), Problem> {
    for (index, event) in events.iter().enumerate() {
        let attribute = if !token.may_publish_type(&event.event_type) {
            "type"
        } else if !token.may_publish_source(&event.source) {
            "source"
        } else {
            continue;
        };
        return Err(Problem::new(
            Kind::Forbidden,
            format!(
                "token `{}` may not publish events of this {attribute}: use one whose `{attribute}s` in its table of [tokens] allow it",
                token.name
            ),
        )
        .event(index)
        .attribute(attribute));
    }
    Ok(())
}

/// Writes into events who sent them, so that a handler can rely on it: nobody else may.
fn stamp(events: &mut [Event], caller: &Caller) -> Result<(), Problem> {
    let (kind, id) = match caller.token() {
        Some(token) => ("api_key", Some(token.name.as_str())),
        None => ("unauthenticated", None),
    };
    for (index, event) in events.iter_mut().enumerate() {
        for name in [AUTHTYPE, AUTHID] {
            if event.extensions.contains_key(name) {
                return Err(Problem::new(
                    Kind::InvalidEvent,
                    format!(
                        "`{name}` is set by the host, which says who sent an event: leave it out"
                    ),
                )
                .event(index)
                .attribute(name));
            }
        }
        let stamps = [(AUTHTYPE, Some(kind)), (AUTHID, id)];
        event.extensions.extend(stamps.into_iter().filter_map(|(name, value)| {
            Some((name.to_owned(), ExtensionValue::Text(value?.to_owned())))
        }));
    }
    Ok(())
}

/// The rates that the caller is subject to.
pub(super) fn rates(caller: &Caller) -> Vec<Rate> {
    let of_token = caller.token().and_then(|token| {
        Some(Rate { of: RateOf::Token(token.name.clone()), per_second: token.rate? })
    });
    of_token.into_iter().collect()
}

/// The answer to events that are committed.
pub(super) fn answer(
    asked: &HeaderMap,
    names: &[(String, String)],
    placed: &[Placed],
) -> Response<Answer> {
    let is_new = placed.iter().any(|placed| !placed.is_duplicate);
    let mut response = if wants_little(asked) {
        let mut response = Response::new(Answer::empty());
        response.headers_mut().insert(PREFERENCE_APPLIED, HeaderValue::from_static(MINIMAL));
        response
    } else {
        let events = names.iter().zip(placed).map(|((id, source), placed)| {
            json!({
                "id": id,
                "source": source,
                "position": placed.position,
                "duplicate": placed.is_duplicate,
            })
        });
        let body = json!({ "events": events.collect::<Vec<Value>>() }).to_string();
        let mut response = Response::new(Answer::from(body));
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    };
    *response.status_mut() = if is_new { StatusCode::ACCEPTED } else { StatusCode::OK };
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Whether the sender wants no more than the status.
fn wants_little(asked: &HeaderMap) -> bool {
    let preferences = asked.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
    preferences
        .flat_map(|value| value.split(','))
        .any(|preference| preference.trim().eq_ignore_ascii_case(MINIMAL))
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal.reason {
            Reason::InvalidEvent => Kind::InvalidEvent,
            Reason::InvalidRequest => Kind::InvalidRequest,
            Reason::Forbidden => Kind::Forbidden,
            Reason::TooLarge => Kind::TooLarge,
            Reason::Unsupported => Kind::Unsupported,
            Reason::IdReused => Kind::IdReused,
            Reason::Rate => Kind::Rate,
            Reason::Busy => Kind::Busy,
            Reason::Database => Kind::Database,
            Reason::Draining => Kind::Draining,
            Reason::Full => Kind::Full,
            Reason::Internal => Kind::Internal,
        };
        let mut problem = Self::new(kind, refusal.detail);
        if let Some(event) = refusal.event {
            problem = problem.event(event);
        }
        if let Some(attribute) = &refusal.attribute {
            problem = problem.attribute(attribute);
        }
        if let Some(limit) = refusal.limit {
            problem = problem.limit(limit);
        }
        if let Some(position) = refusal.position {
            problem = problem.field("position", position.0);
        }
        if let Some(wait) = refusal.retry_after {
            problem = problem.retry_after(wait);
        }
        if kind == Kind::Unsupported {
            let formats = HeaderValue::from_static(event_host_ingest::FORMATS);
            let codings = HeaderValue::from_static(event_host_ingest::CODINGS);
            problem = problem.header(ACCEPT_POST, formats).header(ACCEPT_ENCODING, codings);
        }
        problem
    }
}

/// What a refused request is counted as, if it was refused for what it brought.
fn refused_for(kind: Kind) -> Option<Refused> {
    match kind {
        Kind::Rate => Some(Refused::Rate),
        Kind::Busy | Kind::Database | Kind::Draining | Kind::Full => Some(Refused::Busy),
        Kind::TooLarge => Some(Refused::TooLarge),
        Kind::IdReused => Some(Refused::IdReused),
        Kind::InvalidEvent | Kind::InvalidRequest | Kind::Unsupported => Some(Refused::Invalid),
        Kind::Signature => Some(Refused::Signature),
        Kind::StaleSignature => Some(Refused::Stale),
        _ => None,
    }
}
