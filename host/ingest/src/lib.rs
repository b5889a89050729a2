//! Events in by HTTP, without a web framework: from a request's headers and bytes to events in
//! the log, or to the reason why not.
//!
//! [`binding`] makes CloudEvents of a request, in each of the three content modes, byte for
//! byte. [`Intake`] publishes them: it bounds what waits ([`Room`]), limits rates, and commits
//! for many senders at once, tenants in turn. An answer comes after the commit, and never
//! before. [`Refusal`] is why a request was not published, with the slug and the place that
//! its answer names.
//!
//! It knows no database but by the trait [`Ingest`](event_host_store::Ingest), no token and no
//! settings file.

pub mod binding;
mod budget;
mod commits;
mod committer;
mod disk;
mod gzip;
mod handshake;
mod intake;
mod keeper;
mod queue;
mod rate;
mod refusal;
mod settings;
mod shared;

pub use budget::Room;
pub use gzip::{MOST_TIMES, inflate};
pub use handshake::{CODINGS, FORMATS, Origin, handshake, may_send};
pub use intake::{Intake, Submission};
pub use rate::{Rate, RateOf};
pub use refusal::{Reason, Refusal};
pub use settings::Settings;
