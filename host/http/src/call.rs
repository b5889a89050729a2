//! One request, as the handler of a route gets it: authenticated, and for a tenant that the
//! caller may reach.

use std::collections::BTreeSet;
use std::sync::Arc;

use event_host_core::event::Tenant;
use http::request::Parts;
use jiff::Timestamp;

use crate::body::Body;
use crate::failures::Failures;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::settings::Listener;
use crate::token::{Found, Role, Scope, Token, Tokens};

/// Who sent a request.
#[derive(Debug, Clone)]
pub struct Caller {
    token: Option<Arc<Token>>,
    roles: BTreeSet<Role>,
    scope: Scope,
}

impl Caller {
    /// Somebody of whom nothing is known.
    #[must_use]
    pub fn stranger() -> Self {
        Self { token: None, roles: BTreeSet::new(), scope: Scope::One(Tenant::none()) }
    }

    /// Somebody without a token, where the listener lets such do something. Reaches what is
    /// of no tenant.
    pub(crate) fn anonymous(roles: BTreeSet<Role>) -> Self {
        Self { token: None, roles, scope: Scope::One(Tenant::none()) }
    }

    /// Whoever has this token.
    #[must_use]
    pub fn of_token(token: Arc<Token>) -> Self {
        let (roles, scope) = (token.roles.clone(), token.scope.clone());
        Self { token: Some(token), roles, scope }
    }

    /// The name of the token, for logs; `anonymous` without one.
    #[must_use]
    pub fn name(&self) -> &str {
        self.token.as_ref().map_or("anonymous", |token| &token.name)
    }

    /// The token, with what it may publish. Without one nothing is limited.
    #[must_use]
    pub fn token(&self) -> Option<&Arc<Token>> {
        self.token.as_ref()
    }

    /// Whether it has one of these roles.
    #[must_use]
    pub fn has_one_of(&self, roles: &[Role]) -> bool {
        roles.iter().any(|role| self.roles.contains(role))
    }

    /// What it may do.
    #[must_use]
    pub fn roles(&self) -> &BTreeSet<Role> {
        &self.roles
    }

    /// Whose things it reaches.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Whether it reaches the things of this tenant.
    #[must_use]
    pub fn reaches(&self, tenant: &Tenant) -> bool {
        match &self.scope {
            Scope::All => true,
            Scope::One(own) => own == tenant,
        }
    }
}

/// One request, as the handler of a route gets it.
#[derive(Debug)]
pub struct Call {
    /// Method, path, query and headers.
    pub parts: Parts,
    /// The body, not read yet.
    pub body: Body,
    /// Who sent it: with a role of the route's, if the route asks for one.
    pub caller: Caller,
    /// Whose things it is about: the caller's tenant, or the one that `?tenant=` names.
    /// `None` is all of them: the caller reaches all and named none. Always `None` where no
    /// tenant counts for the route.
    pub tenant: Option<Tenant>,
    /// Names the request in its answer and in the log.
    pub request_id: Arc<str>,
    /// Who it comes from: the client of a trusted proxy, else the other end of the connection.
    pub peer: Peer,
    /// Whether the client's connection is encrypted.
    pub is_encrypted: bool,
    /// The listener that it came to, as the settings have it now.
    pub listener: Arc<Listener>,
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) failures: Arc<Failures>,
}

impl Call {
    /// A part of the path, by its name in the route's template; percent-decoded.
    #[must_use]
    pub fn parameter(&self, name: &str) -> &str {
        let found = self.parameters.iter().find(|(parameter, _)| parameter == name);
        found.map_or("", |(_, value)| value)
    }

    /// The parameters of the query, decoded, in their order.
    pub fn query(&self) -> impl Iterator<Item = (String, String)> {
        query(&self.parts)
    }

    /// Authenticates a token that is not where tokens are sent, such as one in the query.
    /// Failures count against the address.
    ///
    /// # Errors
    /// `unauthenticated`, and `rate` for an address that failed too often.
    pub fn authenticate(&self, token: &str) -> Result<Caller, Problem> {
        authenticate(token, &self.tokens, &self.failures, self.peer)
    }
}

pub(crate) fn query(parts: &Parts) -> impl Iterator<Item = (String, String)> {
    let query = parts.uri.query().unwrap_or_default();
    url::form_urlencoded::parse(query.as_bytes())
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
}

/// Whether an address may try to authenticate.
pub(crate) fn may_try(failures: &Failures, peer: Peer) -> Result<(), Problem> {
    match failures.wait(peer) {
        None => Ok(()),
        Some(wait) => Err(Problem::new(
            Kind::Rate,
            "this address failed to authenticate more than 10 times a minute: wait, and use a valid token",
        )
        .retry_after(wait)),
    }
}

/// Finds out whose token this is.
pub(crate) fn authenticate(
    token: &str,
    tokens: &Tokens,
    failures: &Failures,
    peer: Peer,
) -> Result<Caller, Problem> {
    // Before the token is looked at, so that one who guesses learns nothing more.
    may_try(failures, peer)?;
    match tokens.find(token, Timestamp::now()) {
        Found::Valid(token) => Ok(Caller::of_token(token)),
        Found::Expired(token) => {
            failures.count(peer, "expired", &format!("the token `{}` has expired", token.name));
            Err(unauthenticated("the token has expired: ask for a new one"))
        }
        Found::Unknown => {
            failures.count(peer, "unknown", "unknown token");
            Err(unauthenticated("the token is not known here: use one of the host's [tokens]"))
        }
    }
}

pub(crate) fn unauthenticated(detail: &str) -> Problem {
    Problem::new(Kind::Unauthenticated, detail)
        .header(http::header::WWW_AUTHENTICATE, http::HeaderValue::from_static("Bearer"))
}
