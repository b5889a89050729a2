//! Sends webhooks to a host as GitHub does.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;

use crate::samples::Delivery;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A repository, as far as its webhooks go: it knows their address and their secret.
pub(crate) struct GitHub {
    stream: BufReader<TcpStream>,
    path: String,
    secret: Vec<u8>,
}

impl GitHub {
    /// Connects to a host, for the source of this name.
    pub(crate) fn connect(address: SocketAddr, source: &str, secret: &str) -> Result<Self> {
        let stream =
            TcpStream::connect(address).with_context(|| format!("nobody listens at {address}"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::new(stream),
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
        let request = format!(
            "POST {} HTTP/1.1\r\n\
             Host: localhost\r\n\
             User-Agent: GitHub-Hookshot/demo\r\n\
             Content-Type: application/json\r\n\
             X-GitHub-Event: {event}\r\n\
             X-GitHub-Delivery: {id}\r\n\
             X-Hub-Signature-256: sha256={signature}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.path,
            body.len(),
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.answer()
    }

    fn answer(&mut self) -> Result<(u16, Value)> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("no answer of HTTP: {line:?}"))?;
        let mut length = 0;
        loop {
            let mut header = String::new();
            ensure!(self.stream.read_line(&mut header)? > 0, "the answer broke off");
            let header = header.trim_end().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().with_context(|| header.clone())?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body);
        let answer = serde_json::from_str(&body).with_context(|| format!("no JSON: {body}"))?;
        Ok((status, answer))
    }
}
