//! Sends webhooks to a host as GitHub does.

use std::net::SocketAddr;

use anyhow::Result;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;

use crate::http::Http;
use crate::samples::Delivery;

/// A repository, as far as its webhooks go: it knows their address and their secret.
pub(crate) struct GitHub {
    http: Http,
    path: String,
    secret: Vec<u8>,
}

impl GitHub {
    /// Connects to a host, for the source of this name.
    pub(crate) fn connect(address: SocketAddr, source: &str, secret: &str) -> Result<Self> {
        Ok(Self {
            http: Http::connect(address)?,
            path: format!("/hooks/{source}"),
            secret: secret.as_bytes().to_vec(),
        })
    }

    /// Sends one, and gives the status and what was answered.
    pub(crate) fn deliver(&mut self, delivery: &Delivery) -> Result<(u16, Value)> {
        let Delivery { id, event, body } = delivery;
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret)?;
        mac.update(body.as_bytes());
        let signature: String =
            mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let headers = [
            ("User-Agent", "GitHub-Hookshot/demo"),
            ("Content-Type", "application/json"),
            ("X-GitHub-Event", event),
            ("X-GitHub-Delivery", id),
            ("X-Hub-Signature-256", &format!("sha256={signature}")),
        ];
        let answer = self.http.post(&self.path, &headers, body)?;
        Ok((answer.status, answer.json()?))
    }
}
