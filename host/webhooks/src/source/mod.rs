//! A source: who sends to one address, how that is verified, and what event becomes of it.

mod making;
mod misfits;

use std::collections::BTreeMap;
use std::time::Duration;

use event_host_core::event::Event;
use http::HeaderName;
use jiff::{SignedDuration, Timestamp};

use crate::encoding::Encoding;
use crate::facts::{Facts, is_form};
use crate::place::Place;
use crate::pointers::{Found, Pointer, Pointers, Values};
use crate::preset::Preset;
use crate::refusal::Refusal;
use crate::request::{Request, one_header};
use crate::secret::Secret;
use crate::signature::{Algorithm, Check, Keyed, Scheme};
use crate::template::{InvalidTemplate, Template};

/// How far from now the time of a signature may be, unless the settings say otherwise.
const TOLERANCE: Duration = Duration::from_secs(300);

/// The most secrets of one source: each costs a hash of the body.
const MOST_SECRETS: usize = 8;

/// What a source is made of, as settings say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// How requests are verified, and what event is usual.
    pub preset: Preset,
    /// What they are verified with; each of them may fit.
    pub secrets: Vec<Secret>,
    /// With the preset `hmac`: how the signature is made.
    pub hmac: Option<Hmac>,
    /// How far from now the time of a signature may be.
    pub tolerance: Option<Duration>,
    /// The attribute `type`.
    pub event_type: Option<Template>,
    /// The attribute `id`.
    pub id: Option<Template>,
    /// The attribute `source`.
    pub source: Option<Template>,
    /// The attribute `subject`.
    pub subject: Option<Template>,
    /// The attribute `time`.
    pub time: Option<Template>,
    /// The attribute `partitionkey`.
    pub partitionkey: Option<Template>,
    /// Extension attributes, by name.
    pub extensions: BTreeMap<String, Template>,
    /// What else tells a repeated request, beside `id`.
    pub duplicate_key: Key,
    /// Whether GitHub's `ping` becomes an event, and is not only answered.
    pub ping: bool,
}

impl Parts {
    /// With what the preset says, and nothing of one's own.
    #[must_use]
    pub fn new(preset: Preset) -> Self {
        Self {
            preset,
            secrets: Vec::new(),
            hmac: None,
            tolerance: None,
            event_type: None,
            id: None,
            source: None,
            subject: None,
            time: None,
            partitionkey: None,
            extensions: BTreeMap::new(),
            duplicate_key: Key::Usual,
            ping: false,
        }
    }
}

/// How a signature of the preset `hmac` is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hmac {
    /// The header that it is in.
    pub header: HeaderName,
    /// What stands before it there.
    pub prefix: String,
    /// How it is written.
    pub encoding: Encoding,
    /// With which hash function it is made.
    pub algorithm: Algorithm,
    /// What is signed: `{body}`, with headers and parameters of the address around it.
    pub signed: Template,
    /// Where the time of the signature is, if it has one. It must be signed.
    pub timestamp: Option<Template>,
}

/// What else tells a repeated request, beside the event's `id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// The body's hash where the `id` is not under the signature and the signature has no time:
    /// else whoever captures a request could send it again under another `id`.
    Usual,
    /// Nothing.
    Nothing,
    /// What a template makes of the request.
    Of(Template),
}

/// What does not fit together in [`Parts`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// The setting that it is about.
    pub key: &'static str,
    /// What is wrong, and what would be right.
    pub why: String,
}

/// A source, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    preset: Preset,
    scheme: Scheme,
    secrets: Vec<Secret>,
    tolerance: Duration,
    event_type: Template,
    id: Template,
    source: Template,
    subject: Option<Template>,
    time: Option<Template>,
    partitionkey: Option<Template>,
    extensions: BTreeMap<String, Template>,
    duplicate_key: Option<Template>,
    ping: bool,
    /// All places in a body that anything is looked for.
    pointers: Pointers,
}

/// What becomes of a request that its sender has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// An event to publish.
    Event {
        /// The event, which has passed [`Event::check`].
        event: Box<Event>,
        /// What else tells a repetition of it, beside its `source` and `id`.
        duplicate_key: Option<String>,
    },
    /// The provider asks whether this address is there: nothing is published.
    Ping,
    /// The provider asks for this text as the answer: nothing is published.
    Challenge(String),
}

/// The header in which GitHub says which event it sends.
const GITHUB_EVENT: HeaderName = HeaderName::from_static("x-github-event");

impl Source {
    /// Makes a source of its settings.
    ///
    /// # Errors
    /// With everything that does not fit together.
    pub fn new(parts: Parts) -> Result<Self, Vec<Misfit>> {
        let preset = parts.preset;
        let mut misfits = misfits::misfits(&parts);
        let scheme = scheme(preset, parts.hmac).unwrap_or_else(|why| {
            misfits.push(Misfit { key: "verify", why: why.to_string() });
            None
        });
        let has_timestamp = scheme.as_ref().is_some_and(Scheme::has_timestamp);
        if parts.tolerance.is_some() && !has_timestamp {
            misfits.push(Misfit {
                key: "tolerance",
                why: format!(
                    "`tolerance` is for signatures with a time, and `{preset}` has none: leave it out"
                ),
            });
        }
        let mut attribute = |key, said: Option<Template>, usual: Option<&'static str>| {
            let template = said.or_else(|| usual.and_then(|usual| usual.parse().ok()));
            if template.is_none() {
                misfits.push(Misfit {
                    key,
                    why: format!(
                        "`{key}` is missing: `verify = \"{preset}\"` knows nothing of the requests, so write how it is made of them, such as `{key} = \"{}\"`",
                        example(key)
                    ),
                });
            }
            template
        };
        let usual = preset.defaults();
        let event_type = attribute("type", parts.event_type, usual.event_type);
        let id = attribute("id", parts.id, usual.id);
        let source = attribute("source", parts.source, usual.source);
        let time = parts.time.or_else(|| usual.time.and_then(|time| time.parse().ok()));
        let (Some(scheme), Some(event_type), Some(id), Some(source), true) =
            (scheme, event_type, id, source, misfits.is_empty())
        else {
            return Err(misfits);
        };
        let duplicate_key = match parts.duplicate_key {
            Key::Usual => usual_duplicate_key(preset, &scheme, &id, &source),
            Key::Nothing => None,
            Key::Of(template) => Some(template),
        };
        let mut made = Self {
            preset,
            scheme,
            secrets: parts.secrets,
            tolerance: parts.tolerance.unwrap_or(TOLERANCE),
            event_type,
            id,
            source,
            subject: parts.subject,
            time,
            partitionkey: parts.partitionkey,
            extensions: parts.extensions,
            duplicate_key,
            ping: parts.ping,
            pointers: Pointers::default(),
        };
        made.pointers = made.all_pointers();
        Ok(made)
    }

    /// How requests are verified.
    #[must_use]
    pub fn preset(&self) -> Preset {
        self.preset
    }

    /// The attributes and the templates that make them, for people.
    #[must_use]
    pub fn attributes(&self) -> Vec<(String, String)> {
        let known = [
            ("type", Some(&self.event_type)),
            ("id", Some(&self.id)),
            ("source", Some(&self.source)),
            ("subject", self.subject.as_ref()),
            ("time", self.time.as_ref()),
            ("partitionkey", self.partitionkey.as_ref()),
        ];
        let known = known.into_iter().filter_map(|(name, template)| Some((name, template?)));
        let extensions = self.extensions.iter().map(|(name, template)| (&**name, template));
        known
            .chain(extensions)
            .map(|(name, template)| (name.to_owned(), template.to_string()))
            .collect()
    }

    /// The template that tells a repeated request beside `id`, for people.
    #[must_use]
    pub fn duplicate_key(&self) -> Option<String> {
        self.duplicate_key.as_ref().map(ToString::to_string)
    }

    pub(crate) fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    pub(crate) fn id_template(&self) -> &Template {
        &self.id
    }

    pub(crate) fn check(&self, now: Timestamp) -> Check<'_> {
        // A tolerance is a day at most where settings are read; what is longer still is ever.
        let tolerance = SignedDuration::try_from(self.tolerance).unwrap_or(SignedDuration::MAX);
        Check { secrets: &self.secrets, tolerance, now }
    }

    /// Verifies a request over its raw bytes, and makes an event of it.
    ///
    /// # Errors
    /// When it is not its sender's, or no event can be made of it.
    pub fn receive(&self, request: Request<'_>, now: Timestamp) -> Result<Received, Refusal> {
        let facts = Facts::unread(request);
        self.scheme.verify(self.check(now), request, &facts)?;
        let json = self.json(request)?;
        if let Some(challenge) = self.challenge(&json) {
            return Ok(Received::Challenge(challenge));
        }
        if self.preset == Preset::GitHub && !self.ping {
            let event = one_header(request.headers, GITHUB_EVENT);
            if event == Ok(Some(b"ping")) {
                return Ok(Received::Ping);
            }
        }
        let facts = facts.with_json(json);
        let event = self.event(&facts, request, now)?;
        let duplicate_key = self
            .duplicate_key
            .as_ref()
            .map(|template| making::render("duplicate_key", template, &facts))
            .transpose()?;
        Ok(Received::Event { event: Box::new(event), duplicate_key })
    }

    fn all_pointers(&self) -> Pointers {
        let mut pointers = Pointers::default();
        let optional = [&self.subject, &self.time, &self.partitionkey, &self.duplicate_key];
        let templates = [&self.event_type, &self.id, &self.source]
            .into_iter()
            .chain(optional.into_iter().flatten())
            .chain(self.extensions.values());
        templates.for_each(|template| template.add_to(&mut pointers));
        if self.preset == Preset::Slack {
            ["/type", "/challenge"]
                .into_iter()
                .filter_map(Pointer::parse)
                .for_each(|pointer| pointers.add(&pointer));
        }
        pointers
    }

    /// What is looked for in the body.
    fn json(&self, request: Request<'_>) -> Result<Values, Refusal> {
        if self.pointers.is_empty() {
            return Ok(Values::new());
        }
        let hint = if is_form(request.headers) {
            "it is a form: choose the content type application/json at the provider".to_owned()
        } else {
            "this source makes its events of places in JSON".to_owned()
        };
        let not_json = |why: &dyn std::fmt::Display| {
            Refusal::Invalid(format!("the body is not JSON ({why}): {hint}"))
        };
        let text = std::str::from_utf8(request.body).map_err(|error| not_json(&error))?;
        self.pointers.find(text).map_err(|error| not_json(&error))
    }

    /// The text that Slack wants to see before it sends anything else.
    fn challenge(&self, json: &Values) -> Option<String> {
        let text = |at: &str| match json.get(&Pointer::parse(at)?)? {
            Found::Text(text) => Some(text.clone()),
            _ => None,
        };
        if self.preset != Preset::Slack || text("/type")? != "url_verification" {
            return None;
        }
        text("/challenge")
    }
}

/// What an attribute is made of, where the preset says nothing.
fn example(key: &str) -> &'static str {
    match key {
        "type" => "{json:/event}",
        "id" => "{header:x-event-id}",
        _ => "https://example.com/shop",
    }
}

/// How requests are verified. `None` without what the preset `hmac` needs, which is a misfit.
fn scheme(preset: Preset, hmac: Option<Hmac>) -> Result<Option<Scheme>, InvalidTemplate> {
    let over_body = |header, prefix: &str, encoding| -> Result<_, InvalidTemplate> {
        Ok(Keyed {
            header: HeaderName::from_static(header),
            prefix: prefix.to_owned(),
            encoding,
            algorithm: Algorithm::Sha256,
            signed: "{body}".parse()?,
            timestamp: None,
        })
    };
    Ok(Some(match preset {
        Preset::GitHub => {
            Scheme::Keyed(over_body("x-hub-signature-256", "sha256=", Encoding::Hex)?)
        }
        Preset::Shopify => Scheme::Keyed(over_body("x-shopify-hmac-sha256", "", Encoding::Base64)?),
        Preset::Slack => Scheme::Keyed(Keyed {
            signed: "v0:{header:x-slack-request-timestamp}:{body}".parse()?,
            timestamp: Some("{header:x-slack-request-timestamp}".parse()?),
            ..over_body("x-slack-signature", "v0=", Encoding::Hex)?
        }),
        Preset::Stripe => Scheme::Stripe,
        Preset::Standard => Scheme::Standard,
        Preset::GitLab => Scheme::Shared(HeaderName::from_static("x-gitlab-token")),
        Preset::Token => Scheme::Token,
        Preset::Unverified => Scheme::Unverified,
        Preset::Hmac => {
            let Some(hmac) = hmac else { return Ok(None) };
            let Hmac { header, prefix, encoding, algorithm, signed, timestamp } = hmac;
            Scheme::Keyed(Keyed { header, prefix, encoding, algorithm, signed, timestamp })
        }
    }))
}

/// What tells a repeated request where nothing is said: the body, if the rest of the request
/// is not signed.
fn usual_duplicate_key(
    preset: Preset,
    scheme: &Scheme,
    id: &Template,
    source: &Template,
) -> Option<Template> {
    let Scheme::Keyed(keyed) = scheme else { return None };
    let signed = |place: &Place| match place {
        Place::Json(_) | Place::BodySha256 | Place::Body => true,
        Place::Header(_) | Place::Query(_) => keyed.signed.always_holds(place),
    };
    if keyed.timestamp.is_some() || id.places().chain(source.places()).all(signed) {
        return None;
    }
    match preset {
        // One body is sent for several topics, such as `orders/create` and `orders/paid`.
        Preset::Shopify => "{header:x-shopify-topic} {body:sha256}",
        _ => "{body:sha256}",
    }
    .parse()
    .ok()
}
