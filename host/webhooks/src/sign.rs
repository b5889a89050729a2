//! Signs requests as a provider does, for trying a source out.

use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;

use crate::request::Request;
use crate::source::Source;

/// Why a request cannot be signed for a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CannotSign(String);

impl Source {
    /// The headers that the provider would add to a request: those of the signature, made with
    /// the first secret, and a random id where the source takes the event's `id` from a header
    /// that is not there. What the request has stays as it is.
    ///
    /// # Errors
    /// When the sender alone can sign, or what is signed is not there.
    pub fn sign(
        &self,
        request: Request<'_>,
        now: Timestamp,
    ) -> Result<Vec<(HeaderName, String)>, CannotSign> {
        let mut headers: HeaderMap = request.headers.clone();
        let mut added = Vec::new();
        // Of several headers the first is the one that is sent today. That of Standard Webhooks
        // is signed, and made with the signature.
        let names: Vec<_> = self.id_template().headers().collect();
        if let Some(first) = names.first()
            && *first != "webhook-id"
            && !names.iter().any(|name| headers.contains_key(*name))
        {
            let id = uuid::Uuid::new_v4().to_string();
            let value = HeaderValue::from_str(&id).map_err(|why| CannotSign(why.to_string()))?;
            headers.insert((*first).clone(), value);
            added.push(((*first).clone(), id));
        }
        let request = Request { headers: &headers, ..request };
        let signed = self.scheme().sign(self.check(now), request).map_err(CannotSign)?;
        added.extend(signed);
        Ok(added)
    }
}
