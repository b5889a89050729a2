//! What a host serves by HTTP.

use std::collections::BTreeSet;

use event_host_http::Part;

/// Parts of a host that its listeners serve.
pub(crate) type Parts = BTreeSet<Part>;
