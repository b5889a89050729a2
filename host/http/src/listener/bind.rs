//! Sockets that listen: bound, and accepted from.

use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tracing::warn;

use super::inherited::{Inherited, Opened};
use super::stream::Stream;
use crate::peer::{self, Peer};
use crate::settings::Address;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// A socket that listens.
pub(super) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
    /// One of the service manager's, which the process does not remove.
    InheritedUnix(UnixListener),
}

/// A connection that was accepted.
pub(super) enum Accepted {
    /// Not encrypted yet, where it is to be.
    Tcp(TcpStream),
    Unix(Stream),
}

/// A socket in the file system, removed with this if it is still the same.
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and number of the file.
    identity: Option<(u64, u64)>,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // Whoever comes next removes it otherwise.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Socket {
    /// Opens a socket.
    pub(super) fn bind(address: &Address, mode: u32, inherited: &Inherited) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let socket = match address {
                    std::net::SocketAddr::V4(_) => TcpSocket::new_v4()?,
                    std::net::SocketAddr::V6(_) => TcpSocket::new_v6()?,
                };
                // So that a host that starts again need not wait for the connections of the
                // one before it.
                socket.set_reuseaddr(true)?;
                socket.bind(*address)?;
                Ok(Self::Tcp(socket.listen(BACKLOG)?))
            }
            Address::Unix(path) => bind_unix(path, mode),
            Address::Inherited(name) => Ok(match inherited.open(name.as_deref())? {
                Opened::Tcp(listener) => Self::Tcp(listener),
                Opened::Unix(listener) => Self::InheritedUnix(listener),
            }),
        }
    }

    /// Where it listens.
    pub(super) fn local(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(socket) => socket.local_addr().map(Address::Tcp),
            Self::Unix(_, file) => Ok(Address::Unix(file.path.clone())),
            Self::InheritedUnix(socket) => {
                let address = socket.local_addr()?;
                let path = address.as_pathname().unwrap_or(Path::new("(unnamed)"));
                Ok(Address::Unix(path.to_owned()))
            }
        }
    }

    /// Waits for a connection.
    pub(super) async fn accept(&self) -> io::Result<(Accepted, Peer)> {
        match self {
            Self::Tcp(socket) => {
                let (stream, address) = socket.accept().await?;
                // Without it, an answer in several pieces waits for the peer. It fails only
                // where the connection is gone.
                let _ = stream.set_nodelay(true);
                Ok((Accepted::Tcp(stream), peer::address_of(address)))
            }
            Self::Unix(socket, _) | Self::InheritedUnix(socket) => {
                let (stream, _) = socket.accept().await?;
                let uid = stream.peer_cred().ok().map(|credentials| credentials.uid());
                Ok((Accepted::Unix(Stream::new(stream)), Peer::User(uid)))
            }
        }
    }
}

impl Socket {
    /// Closes the socket, and gives the connections that the system has set up and nobody has
    /// accepted.
    pub(super) fn rest(self) -> Vec<(Accepted, Peer)> {
        let mut rest = Vec::new();
        match self {
            Self::Tcp(socket) => {
                let Ok(socket) = socket.into_std() else { return rest };
                // It does not block: an error is that there is none left.
                while let Ok((stream, address)) = socket.accept() {
                    let stream =
                        stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                    // One that cannot be had is gone.
                    let Ok(stream) = stream else { continue };
                    let _ = stream.set_nodelay(true);
                    rest.push((Accepted::Tcp(stream), peer::address_of(address)));
                }
            }
            Self::Unix(socket, file) => {
                // Nobody finds it any more.
                drop(file);
                let Ok(socket) = socket.into_std() else { return rest };
                while let Ok((stream, _)) = socket.accept() {
                    let stream =
                        stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
                    let Ok(stream) = stream else { continue };
                    let uid = stream.peer_cred().ok().map(|credentials| credentials.uid());
                    rest.push((Accepted::Unix(Stream::new(stream)), Peer::User(uid)));
                }
            }
            // Its connections wait for the process that the service manager starts next.
            Self::InheritedUnix(_) => {}
        }
        rest
    }
}

/// Binds beside the path and renames over it: whoever connects reaches the socket with its
/// mode, and what a host that was killed left there is no hindrance.
fn bind_unix(path: &Path, mode: u32) -> io::Result<Socket> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(io::Error::new(
                ErrorKind::AlreadyExists,
                "a file that is no socket is there",
            ));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(ErrorKind::AddrInUse.into());
        }
        _ => {}
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(name);
    match std::fs::remove_file(&beside) {
        Err(why) if why.kind() != ErrorKind::NotFound => return Err(why),
        _ => {}
    }
    let socket = UnixListener::bind(&beside)?;
    let ready = std::fs::set_permissions(&beside, Permissions::from_mode(mode))
        .and_then(|()| std::fs::rename(&beside, path));
    if let Err(why) = ready {
        let _ = std::fs::remove_file(&beside);
        return Err(why);
    }
    let file = SocketFile { path: path.to_owned(), identity: identity(path) };
    Ok(Socket::Unix(socket, file))
}

/// Gives the socket of a listener another mode.
pub(super) fn set_mode(address: &Address, mode: u32) {
    let Address::Unix(path) = address else { return };
    if let Err(why) = std::fs::set_permissions(path, Permissions::from_mode(mode)) {
        warn!(path = %path.display(), "the socket keeps its mode: {why}");
    }
}

/// Why an address cannot be listened at, and what would be right.
pub(super) fn explain(why: &io::Error, address: &Address) -> String {
    let hint = match (why.kind(), address) {
        (ErrorKind::AddrInUse, _) => "another process listens there: end it, or choose another",
        (ErrorKind::AddrNotAvailable, _) => "this machine has no such address",
        (ErrorKind::PermissionDenied, Address::Tcp(address)) if address.port() < 1024 => {
            "ports below 1024 are not for everybody: choose another, or have the service manager open it"
        }
        (ErrorKind::NotFound, Address::Unix(_)) => "the folder is not there: make it first",
        _ => return why.to_string(),
    };
    format!("{why}; {hint}")
}

/// Whether an accept failed for the connection alone, not for the listener.
pub(super) fn is_of_one_connection(why: &io::Error) -> bool {
    matches!(
        why.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::Interrupted
    )
}
