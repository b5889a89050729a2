//! Webhooks of providers that know nothing of CloudEvents: who sent a request is verified over
//! its raw bytes, before anything of it is parsed, and templates then make an event of it.
//!
//! Nothing here reads a clock, a file or a socket: a [`Request`] and the time are handed in,
//! and [`Source::receive`] gives what becomes of them, an event, an answer to a challenge, or a
//! [`Refusal`]. What is allowed to arrive at all (sizes, rates, networks) and where the event
//! goes is left to whoever serves HTTP.
//!
//! - [`Preset`]: what is known of a provider: headers, signature, and the usual event;
//! - [`Secret`]: a secret that is never shown, several of which may be valid at once;
//! - [`Template`]: an attribute made of headers, of the query and of places in the JSON body;
//! - [`Source`]: the three together, checked when settings are read.

mod encoding;
mod facts;
mod place;
mod pointers;
mod preset;
mod refusal;
mod request;
mod secret;
mod sign;
mod signature;
mod source;
mod template;

pub use encoding::Encoding;
pub use preset::{Defaults, Preset};
pub use refusal::Refusal;
pub use request::Request;
pub use secret::{InvalidSecret, Secret};
pub use sign::CannotSign;
pub use signature::Algorithm;
pub use source::{Hmac, Key, Misfit, Parts, Received, Source};
pub use template::{InvalidTemplate, Template};
