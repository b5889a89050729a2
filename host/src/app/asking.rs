//! Asks a host on this machine how it is, by one of its listeners.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use event_host_http::{Address, Listener, Part, tls};

/// More of an answer is not read.
const MOST: u64 = 64 * 1024;

/// What was answered.
pub(crate) struct Asked {
    /// The status.
    pub(crate) status: u16,
    /// The text.
    pub(crate) body: String,
}

/// The listener that the command line names.
pub(crate) fn at(address: SocketAddr) -> Listener {
    Listener::new("local", Address::Tcp(address))
}

/// The listener to ask: one that serves health and whose address is known, without
/// encryption if there is such a one.
pub(crate) fn for_health(listeners: &[Listener]) -> Option<&Listener> {
    let mut able = listeners.iter().filter(|listener| {
        listener.serve.contains(&Part::Health) && !matches!(listener.address, Address::Inherited(_))
    });
    let first = able.next()?;
    if first.tls.is_none() {
        return Some(first);
    }
    Some(able.find(|listener| listener.tls.is_none()).unwrap_or(first))
}

/// Asks for a path.
///
/// # Errors
/// When nobody answers, or not as HTTP says.
pub(crate) async fn get(listener: &Listener, path: &str) -> io::Result<Asked> {
    let path = format!("{}{path}?verbose", listener.base_path);
    match &listener.address {
        Address::Tcp(address) => {
            let stream = TcpStream::connect(reachable(*address)).await?;
            match &listener.tls {
                None => ask(stream, &path).await,
                Some(files) => ask(tls::connect(files, stream).await?, &path).await,
            }
        }
        Address::Unix(socket) => ask(UnixStream::connect(socket).await?, &path).await,
        Address::Inherited(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Where a listener at all addresses is reached.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> io::Result<Asked> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MOST).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let strange = || io::Error::new(io::ErrorKind::InvalidData, "what answers there is no host");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(strange)?;
    let status =
        head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).ok_or_else(strange)?;
    let status = status.parse().map_err(|_| strange())?;
    Ok(Asked { status, body: body.to_owned() })
}
