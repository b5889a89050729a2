//! `/hooks/{source}`: webhooks of providers that know nothing of CloudEvents.
//!
//! Who sent a request, and what event it becomes, is the business of [`event_host_webhooks`];
//! how the event waits and is committed that of [`event_host_ingest`]. Here is what a source
//! has around that: where its requests may come from, how large and how many they may be, and
//! what its operator is told of those that are refused.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use axum_core::body::Body as Answer;
use event_host_core::event::{Event, ExtensionValue, Tenant, quoted};
use event_host_ingest::{Intake, Rate, RateOf, Submission, handshake, may_send};
use event_host_metrics::{IngestMode, IngestSource};
use event_host_webhooks::{Preset, Received, Refusal, Request, Source};
use http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderValue, Method, Response};
use ipnet::IpNet;
use jiff::Timestamp;
use serde_json::json;
use tokio::time::Instant;
use tracing::{info, warn};

use super::events::{self, AUTHID, AUTHTYPE, Seen};
use super::{Access, Routes, Spec};
use crate::call::{Call, Caller};
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::settings::Part;
use crate::token::Role;

/// Webhooks come in. Their sources verify who sends them.
pub const HOOK: Spec = Spec {
    method: Method::POST,
    path: "/hooks/{source}",
    part: Some(Part::Ingest),
    access: Access::Own,
    by_tenant: false,
};

/// Who may send webhooks, and how many: the handshake.
pub const HOOK_HANDSHAKE: Spec = Spec { method: Method::OPTIONS, access: Access::Open, ..HOOK };

/// The attributes of an event together have no more bytes than this, and its data no more
/// than the body.
const ATTRIBUTES: usize = 256 << 10;

/// Requests of one source that are refused for one reason are told of once in this time.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// A source of webhooks, as the settings have it.
#[derive(Debug, Clone, PartialEq)]
pub struct Hook {
    /// The end of its address.
    pub name: String,
    /// Whose its events are.
    pub tenant: Tenant,
    /// How its requests are verified, and what becomes of them.
    pub source: Source,
    /// For how long a repetition is known as one; `None` as all other events.
    pub dedup: Option<Duration>,
    /// How many events it may send in a second; `None` is any number.
    pub rate: Option<f64>,
    /// The most bytes of a request's body; `None` as all others.
    pub max_body: Option<usize>,
    /// Whether it is over: its senders are told to send no more.
    pub retired: bool,
    /// The networks that it may send from; empty is all.
    pub allow_from: Vec<IpNet>,
    /// The origins that may send, for the handshake; `*` is all.
    pub origins: Vec<String>,
    /// Whether each request must name an origin that may send.
    pub require_origin: bool,
    /// With the preset `token`: whether the token may stand in the address.
    pub query_token: bool,
}

/// The sources that a host takes webhooks of. A clone has the same.
#[derive(Debug, Clone)]
pub struct Hooks {
    intake: Intake,
    sources: Arc<RwLock<HashMap<String, Arc<Known>>>>,
}

/// A source, and what is counted of it.
#[derive(Debug)]
struct Known {
    hook: Hook,
    counted: IngestSource,
    /// By reason.
    refused: Mutex<BTreeMap<&'static str, Told>>,
}

/// Of requests that are refused: when it was told last, and how many there were since.
#[derive(Debug)]
struct Told {
    at: Instant,
    since: u64,
}

impl Hooks {
    /// These sources, whose events go where others go, too.
    #[must_use]
    pub fn new(intake: &Intake, hooks: &[Hook]) -> Self {
        let new = Self { intake: intake.clone(), sources: Arc::default() };
        new.set(hooks);
        new
    }

    /// Has other sources from now on. Requests that are under way end as they began.
    pub fn set(&self, hooks: &[Hook]) {
        let known = hooks.iter().map(|hook| {
            let counted = self.intake.metrics().source(&hook.name);
            let known = Known { hook: hook.clone(), counted, refused: Mutex::default() };
            (hook.name.clone(), Arc::new(known))
        });
        let known = known.collect();
        // Replaced in one go, so a poisoned one is whole.
        *self.sources.write().unwrap_or_else(PoisonError::into_inner) = known;
    }

    /// The source that a call is for.
    fn of(&self, call: &Call) -> Result<Arc<Known>, Problem> {
        let name = call.parameter("source");
        let sources = self.sources.read().unwrap_or_else(PoisonError::into_inner);
        let known = sources.get(name).map(Arc::clone);
        let known = known.ok_or_else(|| {
            Problem::new(Kind::NotFound, format!("there is no source {} here", quoted(name)))
        })?;
        if known.hook.retired {
            let detail = format!("the source `{name}` is over: send no more, and unsubscribe");
            return Err(Problem::new(Kind::Retired, detail));
        }
        Ok(known)
    }
}

/// Adds the routes.
pub fn add(routes: &mut Routes, hooks: &Hooks) {
    let ours = hooks.clone();
    routes.add(&HOOK, move |call| {
        let hooks = ours.clone();
        async move { hooks.counted(call).await }
    });
    let ours = hooks.clone();
    routes.add(&HOOK_HANDSHAKE, move |call| {
        let answer = ours.handshake(&call);
        async { answer }
    });
}

impl Hooks {
    fn handshake(&self, call: &Call) -> Result<Response<Answer>, Problem> {
        let known = self.of(call)?;
        let settings = self.intake.settings();
        let hook = &known.hook;
        let origins = if hook.origins.is_empty() { &settings.origins } else { &hook.origins };
        let rate = match (hook.rate, settings.rate) {
            (Some(own), Some(all)) => Some(own.min(all)),
            (own, all) => own.or(all),
        };
        let (mut headers, origin) = handshake(&call.parts.headers, origins, rate);
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(origin) = origin {
            info!(
                source = hook.name,
                origin = %origin.name.escape_debug(),
                allowed = origin.is_allowed,
                callback = origin.wants_callback,
                "a sender of webhooks asks whether it may send here; the host calls nobody back"
            );
        }
        let mut response = Response::new(Answer::empty());
        *response.status_mut() = http::StatusCode::NO_CONTENT;
        *response.headers_mut() = headers;
        Ok(response)
    }

    /// Answers a request, counts it, and tells the operator why it is refused.
    async fn counted(&self, call: Call) -> Result<Response<Answer>, Problem> {
        let known = self.of(&call)?;
        let peer = call.peer;
        let mut seen = Seen { mode: IngestMode::Webhook, events: 0, read_at: None };
        let answer = self.post(&known, call, &mut seen).await;
        events::count(&known.counted, &seen, &answer);
        if let Err(problem) = &answer
            && let Some(reason) = told_of(problem.kind())
        {
            known.tell(reason, peer, problem.detail());
        }
        answer
    }

    async fn post(
        &self,
        known: &Arc<Known>,
        call: Call,
        seen: &mut Seen,
    ) -> Result<Response<Answer>, Problem> {
        let settings = self.intake.settings();
        let hook = &known.hook;
        may_come_from(hook, call.peer)?;
        if hook.require_origin || settings.require_origin {
            let origins = if hook.origins.is_empty() { &settings.origins } else { &hook.origins };
            may_send(&call.parts.headers, origins)?;
        }
        not_encoded(&call)?;
        let caller = caller(hook, &call)?;
        let most = hook.max_body.unwrap_or(settings.max_body);
        let Call { parts, body, .. } = call;
        let (body, room) = events::read(&self.intake, body, most, caller.is_some()).await?;
        seen.read_at = Some(std::time::Instant::now());
        known.counted.bytes().add_len(body.len());
        let token = caller.as_ref().and_then(Caller::token).map(|token| token.name.clone());
        let query = parts.uri.query().map(str::to_owned);
        let (of, headers) = (Arc::clone(known), parts.headers.clone());
        let bytes = body.len();
        let receive = move || {
            let request = Request {
                headers: &headers,
                query: query.as_deref(),
                body: &body,
                token: token.as_deref(),
            };
            // The room goes with the body, also when nobody waits for the answer any more.
            (of.hook.source.receive(request, Timestamp::now()), room)
        };
        let (received, room) = events::on_its_own_thread(bytes, receive).await?;
        let (event, duplicate_key) = match received? {
            Received::Event { event, duplicate_key } => (*event, duplicate_key),
            Received::Ping => return Ok(pong()),
            Received::Challenge(text) => return Ok(challenge(text)),
        };
        seen.events = 1;
        let mut published = vec![event];
        if let Some(token) = caller.as_ref().and_then(Caller::token) {
            events::allowed(token, &published)?;
        }
        if settings.stamp {
            published.iter_mut().for_each(|event| stamp(event, hook, caller.as_ref()));
        }
        let name = |event: &Event| (event.id.clone(), event.source.clone());
        let names: Vec<_> = published.iter().map(name).collect();
        let own =
            hook.rate.map(|per_second| Rate { of: RateOf::Source(hook.name.clone()), per_second });
        let mut rates = caller.as_ref().map(events::rates).unwrap_or_default();
        rates.extend(own);
        let submission = Submission {
            tenant: hook.tenant.clone(),
            window: hook.dedup.or(settings.dedup).filter(|window| !window.is_zero()),
            // Of this source alone: another may have the same.
            also_known_as: duplicate_key
                .map(|key| format!("{} {key}", hook.name))
                .into_iter()
                .collect(),
            max_event: hook.max_body.map(|most| settings.max_event.max(most + ATTRIBUTES)),
            rates,
            room,
            events: published,
        };
        let placed = self.intake.publish(submission).await?;
        let duplicates = placed.iter().filter(|placed| placed.is_duplicate).count();
        known.counted.committed(placed.len() - duplicates, duplicates);
        Ok(events::answer(&parts.headers, &names, &placed))
    }
}

impl Known {
    /// Tells the operator of a request that is refused, once a minute for one reason.
    fn tell(&self, reason: &'static str, peer: Peer, detail: &str) {
        let now = Instant::now();
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let told = refused.get_mut(reason);
        let requests = match told {
            Some(told) if now.duration_since(told.at) < LOG_EVERY => {
                told.since += 1;
                return;
            }
            Some(told) => {
                let requests = told.since + 1;
                *told = Told { at: now, since: 0 };
                requests
            }
            None => {
                refused.insert(reason, Told { at: now, since: 0 });
                1
            }
        };
        drop(refused);
        warn!(source = self.hook.name, reason, requests, %peer, "a webhook is refused: {detail}");
    }
}

/// What the log calls it, where it is the sender that something is wrong with.
fn told_of(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Busy | Kind::Database | Kind::Draining | Kind::Full | Kind::Internal => None,
        other => Some(other.slug()),
    }
}

/// Refuses a request from where the source does not send.
fn may_come_from(hook: &Hook, peer: Peer) -> Result<(), Problem> {
    let is_allowed = match peer {
        // Where nothing is verified and no network is named, only this machine is trusted.
        _ if hook.allow_from.is_empty() => {
            hook.source.preset() != Preset::Unverified || peer.is_local()
        }
        Peer::Address(address) => {
            hook.allow_from.iter().any(|network| network.contains(&address.to_canonical()))
        }
        Peer::User(_) => {
            let here: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            here.iter().any(|here| hook.allow_from.iter().any(|network| network.contains(here)))
        }
    };
    if is_allowed {
        return Ok(());
    }
    let detail = format!(
        "the source `{}` takes no requests from this address: its operator can add it to `allow_from`",
        hook.name
    );
    Err(Problem::new(Kind::Forbidden, detail))
}

/// Refuses a body that is not as its sender signed it.
fn not_encoded(call: &Call) -> Result<(), Problem> {
    let codings = call.parts.headers.get_all(CONTENT_ENCODING).iter();
    let is_plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if codings.into_iter().all(is_plain) {
        return Ok(());
    }
    let detail = "the body is encoded, and signatures are of what is sent: send it without `Content-Encoding`";
    let identity = HeaderValue::from_static("identity");
    Err(Problem::new(Kind::Unsupported, detail).header(ACCEPT_ENCODING, identity))
}

/// Who sends to a source of tokens; nobody, for other sources.
fn caller(hook: &Hook, call: &Call) -> Result<Option<Caller>, Problem> {
    if hook.source.preset() != Preset::Token {
        return Ok(None);
    }
    let mut named = call.query().filter(|(name, _)| name == "access_token");
    let caller = match (named.next(), named.next()) {
        (Some((_, token)), None) if hook.query_token => call.authenticate(&token)?,
        (Some(_), Some(_)) if hook.query_token => {
            let detail = "`access_token` came twice: send it once";
            return Err(Problem::new(Kind::InvalidRequest, detail));
        }
        _ => match crate::checks::bearer(&call.parts.headers)? {
            Some(token) => call.authenticate(token)?,
            None => call.caller.clone(),
        },
    };
    if caller.token().is_none() {
        let detail =
            "this source takes a token that may publish: send one in `Authorization: Bearer`";
        return Err(crate::call::unauthenticated(detail));
    }
    if !caller.has_one_of(&[Role::Publish]) || !caller.reaches(&hook.tenant) {
        let detail = format!(
            "the token `{}` may not publish to this source: use one with the role `publish` and the source's tenant",
            caller.name()
        );
        return Err(Problem::new(Kind::Forbidden, detail));
    }
    Ok(Some(caller))
}

/// Writes into an event who sent it, so that a handler can rely on it.
fn stamp(event: &mut Event, hook: &Hook, caller: Option<&Caller>) {
    let (kind, id) = match (caller, hook.source.preset()) {
        (Some(caller), _) => ("api_key", Some(caller.name())),
        (None, Preset::Unverified) => ("unauthenticated", None),
        (None, _) => ("service_account", Some(&*hook.name)),
    };
    for (name, value) in [(AUTHTYPE, Some(kind)), (AUTHID, id)] {
        event.extensions.remove(name);
        if let Some(value) = value {
            event.extensions.insert(name.to_owned(), ExtensionValue::Text(value.to_owned()));
        }
    }
}

/// The answer to a ping: there is somebody, and no event.
fn pong() -> Response<Answer> {
    let mut response = Response::new(Answer::from(json!({ "events": [] }).to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The text that a provider asks for. It is text to every reader: nobody's page.
fn challenge(text: String) -> Response<Answer> {
    let mut response = Response::new(Answer::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let kind = match &refusal {
            Refusal::Signature(_) => Kind::Signature,
            Refusal::Stale(_) => Kind::StaleSignature,
            Refusal::Token => Kind::Unauthenticated,
            Refusal::Invalid(_) => Kind::InvalidRequest,
            Refusal::Event(_) => Kind::InvalidEvent,
        };
        let problem = Self::new(kind, refusal.to_string());
        match &refusal {
            Refusal::Event(error) => match error.attribute() {
                Some(attribute) => problem.attribute(attribute),
                None => problem,
            },
            _ => problem,
        }
    }
}
