//! What is known of each provider.
//!
//! Header names and signatures as the providers document them in November 2026: GitHub
//! "Validating webhook deliveries", Stripe "Check the webhook signatures", Standard Webhooks
//! 1.0.0, Slack "Verifying requests from Slack", Shopify "Deliver webhooks through HTTPS" and
//! "Ignore duplicate webhooks", GitLab "Webhooks".

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How a source's requests are verified, and what event is usually made of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// GitHub: HMAC-SHA-256 over the body.
    GitHub,
    /// Stripe: HMAC-SHA-256 over time and body.
    Stripe,
    /// Standard Webhooks: HMAC-SHA-256 or Ed25519 over id, time and body. Svix and its users,
    /// and GitLab with a signing token, are among those who send them.
    Standard,
    /// Slack's events: HMAC-SHA-256 over time and body.
    Slack,
    /// Shopify: HMAC-SHA-256 over the body.
    Shopify,
    /// GitLab with a secret token, which comes with each request.
    GitLab,
    /// Anybody's HMAC, as settings describe it.
    Hmac,
    /// A token of the host's own.
    Token,
    /// Nothing: anybody may send.
    Unverified,
}

/// What a preset says where the settings say nothing. `None` has to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Defaults {
    /// The template of the attribute `type`.
    pub event_type: Option<&'static str>,
    /// The template of the attribute `id`.
    pub id: Option<&'static str>,
    /// The template of the attribute `source`.
    pub source: Option<&'static str>,
    /// The template of the attribute `time`; without one an event happens when it is received.
    pub time: Option<&'static str>,
    /// For how long a repetition is known as one; `None` leaves it to the settings for all.
    pub dedup: Option<Duration>,
    /// The most bytes of a body; `None` leaves it to the settings for all.
    pub max_body: Option<usize>,
}

/// Longer than any provider goes on repeating a request.
const WEEK: Duration = Duration::from_secs(7 * 86_400);

impl Preset {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::GitHub,
        Self::Stripe,
        Self::Standard,
        Self::Slack,
        Self::Shopify,
        Self::GitLab,
        Self::Hmac,
        Self::Token,
        Self::Unverified,
    ];

    /// What settings call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::GitHub => "github",
            Self::Stripe => "stripe",
            Self::Standard => "standard",
            Self::Slack => "slack",
            Self::Shopify => "shopify",
            Self::GitLab => "gitlab",
            Self::Hmac => "hmac",
            Self::Token => "token",
            Self::Unverified => "unverified",
        }
    }

    /// Whether it takes `secrets`.
    #[must_use]
    pub fn takes_secrets(self) -> bool {
        !matches!(self, Self::Token | Self::Unverified)
    }

    /// What it says where the settings say nothing.
    #[must_use]
    pub fn defaults(self) -> Defaults {
        let provider = |event_type, id, source| Defaults {
            event_type: Some(event_type),
            id: Some(id),
            source: Some(source),
            dedup: Some(WEEK),
            ..Defaults::default()
        };
        match self {
            Self::GitHub => Defaults {
                // GitHub sends no larger payload than this.
                max_body: Some(25 << 20),
                ..provider(
                    "{header:x-github-event}.{json:/action?}",
                    "{header:x-github-delivery}",
                    "https://github.com/{json:/repository/full_name|json:/organization/login?}",
                )
            },
            Self::Stripe => Defaults {
                time: Some("{json:/created?}"),
                ..provider("{json:/type}", "{json:/id}", "https://stripe.com/{json:/account?}")
            },
            Self::Standard => Defaults {
                time: Some("{json:/timestamp?}"),
                ..provider("{json:/type}", "{header:webhook-id|header:svix-id}", "/webhooks")
            },
            Self::Slack => Defaults {
                time: Some("{json:/event_time?}"),
                // What is no event of a workspace, such as `app_rate_limited`, has no id.
                ..provider(
                    "slack.{json:/event/type|json:/type}",
                    "{json:/event_id|body:sha256}",
                    "https://slack.com/{json:/team_id?}",
                )
            },
            Self::Shopify => Defaults {
                time: Some("{header:x-shopify-triggered-at?}"),
                ..provider(
                    "{header:x-shopify-topic}",
                    "{header:x-shopify-webhook-id}",
                    "https://{header:x-shopify-shop-domain}",
                )
            },
            // The key is the same for each repetition, and is there since GitLab 17.4; the UUID
            // of the event is shared by events that cause each other. Events of groups and
            // systems have a name and no kind.
            Self::GitLab => provider(
                "{json:/object_kind|json:/event_name}",
                "{header:idempotency-key|header:x-gitlab-event-uuid}",
                "{json:/project/web_url|json:/group/web_url|header:x-gitlab-instance}",
            ),
            Self::Hmac | Self::Token | Self::Unverified => Defaults::default(),
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no preset has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownPreset;

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        Self::ALL.into_iter().find(|preset| preset.name() == name).ok_or(UnknownPreset)
    }
}
