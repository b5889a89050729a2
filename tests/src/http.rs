//! A client of HTTP that sends exactly what a test writes.

use std::fmt::{self, Debug};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::{PATIENCE, Rig, Running};

/// What was answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers, their names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The first header of a name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }
}

trait Connected: Read + Write {}

impl<T: Read + Write> Connected for T {}

/// A connection to a host.
pub struct Http(Box<dyn Connected>);

impl Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Http")
    }
}

impl Http {
    /// Connects.
    ///
    /// # Panics
    /// When nobody listens.
    #[must_use]
    pub fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).expect("somebody listens")
    }

    /// Connects, if somebody listens.
    ///
    /// # Errors
    /// When nobody does.
    pub fn try_connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(Box::new(stream)))
    }

    /// Connects to a socket in the file system.
    ///
    /// # Panics
    /// When nobody listens.
    #[must_use]
    pub fn connect_unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("somebody listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
        Self(Box::new(stream))
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// When the other end is gone.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.0.write_all(bytes.as_ref())
    }

    /// Asks for a path.
    ///
    /// # Panics
    /// When no answer comes.
    pub fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.try_get(path, headers).expect("an answer")
    }

    /// Asks for a path, if the other end answers.
    ///
    /// # Errors
    /// When it does not.
    pub fn try_get(&mut self, path: &str, headers: &[(&str, &str)]) -> std::io::Result<Answer> {
        let headers: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        self.send(request)?;
        self.answer()
    }

    /// Reads an answer, by its `Content-Length`.
    ///
    /// # Errors
    /// When the other end is gone before it is whole.
    pub fn answer(&mut self) -> std::io::Result<Answer> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            self.0.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
            .collect();
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let length = length.map_or(0, |(_, length)| length.parse().expect("a length"));
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(Answer { status: status.expect("a status"), headers, body })
    }

    /// Reads to the end: what still came, and whether the end was an orderly one.
    pub fn rest(&mut self) -> (Vec<u8>, bool) {
        let mut rest = Vec::new();
        let is_orderly = self.0.read_to_end(&mut rest).is_ok();
        (rest, is_orderly)
    }
}

/// One request on a connection of its own.
///
/// # Panics
/// When no answer comes.
#[must_use]
pub fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
    Http::connect(address).get(path, headers)
}

impl Running {
    /// Waits until a listener is open, and gives its address.
    ///
    /// # Panics
    /// When it listens at no address and port.
    #[must_use]
    pub fn wait_until_listening(&self, listener: &str) -> SocketAddr {
        let what = format!("listener {listener}");
        let line = self.wait_for_log_within(Duration::from_secs(120), &what, |line| {
            line["message"] == "listening" && line["listener"] == listener
        });
        let address = line["address"].as_str().expect("an address");
        address.parse().unwrap_or_else(|_| panic!("no address and port: {line}"))
    }
}

impl Rig {
    /// Makes a token: the token, and the lines for the settings.
    ///
    /// # Panics
    /// When the program does not make one.
    pub fn token(&self, arguments: &[&str]) -> (String, String) {
        let made = self.json(&[&["token", "new"], arguments].concat());
        let name = made["name"].as_str().expect("a name");
        let mut lines = format!(
            "tokens.{name}.sha256 = {}\ntokens.{name}.roles = {}",
            made["sha256"], made["roles"]
        );
        if let Some(tenant) = made["tenant"].as_str() {
            lines += &format!("\ntokens.{name}.tenant = \"{tenant}\"");
        }
        (made["token"].as_str().expect("a token").to_owned(), lines)
    }
}
