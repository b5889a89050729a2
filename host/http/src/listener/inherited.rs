//! Sockets that the service manager opened before the process began (systemd's socket
//! activation): the kernel keeps their connections while the process starts again.

use std::io::{self, ErrorKind};

use listenfd::ListenFd;
use tokio::net::{TcpListener, UnixListener};

/// The names of the sockets, in their order.
const NAMES: &str = "LISTEN_FDNAMES";

/// A socket of the service manager.
enum Passed {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
    /// It cannot be listened at.
    Useless(io::Error),
}

/// A socket of the service manager that listens. The process does not remove it.
pub(super) enum Opened {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The sockets that the service manager passed to the process, with their names.
#[derive(Default)]
pub struct Inherited(Vec<(String, Passed)>);

impl Inherited {
    /// Takes those that were passed. To be called once in a process, before it has threads:
    /// it changes the environment, so that children do not take them for theirs.
    #[must_use]
    pub fn take() -> Self {
        let mut passed = ListenFd::from_env();
        let names = std::env::var(NAMES).unwrap_or_default();
        let mut names = names.split(':');
        let mut sockets = Vec::new();
        for index in 0..passed.len() {
            let name = names.next().unwrap_or_default().to_owned();
            let socket = take_one(&mut passed, index).unwrap_or_else(Passed::Useless);
            sockets.push((name, socket));
        }
        Self(sockets)
    }

    /// Opens the one of this name, or the only one. It stays open when that is closed, so
    /// that a reload may open it again.
    pub(super) fn open(&self, name: Option<&str>) -> io::Result<Opened> {
        let named = self.0.iter().filter(|(known, _)| name.is_none_or(|name| name == known));
        let found: Vec<&Passed> = named.map(|(_, socket)| socket).collect();
        let wrong = |why: String| Err(io::Error::new(ErrorKind::NotFound, why));
        let socket = match found[..] {
            [socket] => socket,
            [] if self.0.is_empty() => {
                return wrong(
                    "the service manager passed no socket: start the host by its socket unit"
                        .to_owned(),
                );
            }
            [] => {
                let known: Vec<_> = self.0.iter().map(|(name, _)| name.as_str()).collect();
                return wrong(format!(
                    "the service manager passed no socket of this name, but: {}",
                    known.join(", ")
                ));
            }
            _ => {
                return wrong(
                    "the service manager passed several sockets: give each a name by `FileDescriptorName=`, and write \"systemd:NAME\""
                        .to_owned(),
                );
            }
        };
        match socket {
            Passed::Tcp(socket) => {
                let socket = socket.try_clone()?;
                socket.set_nonblocking(true)?;
                Ok(Opened::Tcp(TcpListener::from_std(socket)?))
            }
            Passed::Useless(why) => wrong(format!("the socket is of no use: {why}")),
            Passed::Unix(socket) => {
                let socket = socket.try_clone()?;
                socket.set_nonblocking(true)?;
                Ok(Opened::Unix(UnixListener::from_std(socket)?))
            }
        }
    }
}

fn take_one(passed: &mut ListenFd, index: usize) -> io::Result<Passed> {
    // Each refuses a socket of another kind, and leaves it. A copy is kept: unlike what was
    // passed, children do not get it.
    if let Ok(Some(socket)) = passed.take_tcp_listener(index) {
        return socket.try_clone().map(Passed::Tcp);
    }
    match passed.take_unix_listener(index)? {
        Some(socket) => socket.try_clone().map(Passed::Unix),
        None => Err(ErrorKind::NotFound.into()),
    }
}
