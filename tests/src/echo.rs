//! A plain TCP server that sends back what it gets, and lets a test see what
//! happens at its side.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::PATIENCE;

/// A server. Its threads end with its connections and with the process.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    accepted: Receiver<Served>,
}

/// The server's side of one connection.
pub(crate) struct Served {
    /// Whom the server takes for its client.
    pub(crate) peer: SocketAddr,
    stream: TcpStream,
    /// What each read gave; the end is an empty one.
    reads: Receiver<io::Result<Vec<u8>>>,
}

impl Echo {
    pub(crate) fn start(address: Ipv4Addr) -> Self {
        let listener = TcpListener::bind((address, 0)).expect("there is a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let (accept, accepted) = channel();
        std::thread::spawn(move || {
            while let Ok((stream, peer)) = listener.accept() {
                let (sender, reads) = channel();
                let own = stream.try_clone().expect("a socket can be shared");
                std::thread::spawn(move || {
                    answer(own, |read| {
                        // The test may have stopped to look.
                        let _ = sender.send(read);
                    });
                });
                if accept.send(Served { peer, stream, reads }).is_err() {
                    return;
                }
            }
        });
        Self { address, accepted }
    }

    /// The next connection.
    pub(crate) fn next(&self) -> Served {
        self.accepted.recv_timeout(PATIENCE).expect("a connection comes")
    }

    /// Checks that no connection has come.
    pub(crate) fn expect_none(&self) {
        assert!(self.accepted.try_recv().is_err(), "a connection came");
    }
}

/// Sends back what comes, until the end, and tells of each read.
fn answer(mut stream: TcpStream, mut tell: impl FnMut(io::Result<Vec<u8>>)) {
    let mut bytes = [0; 1024];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => {
                // A client that has gone needs no end.
                let _ = stream.shutdown(std::net::Shutdown::Write);
                return tell(Ok(Vec::new()));
            }
            Ok(read) => {
                tell(Ok(bytes[..read].to_vec()));
                if let Err(error) = stream.write_all(&bytes[..read]) {
                    return tell(Err(error));
                }
            }
            Err(error) => return tell(Err(error)),
        }
    }
}

impl Served {
    /// Waits until exactly these bytes have come since the last look.
    pub(crate) fn expect(&self, wanted: &[u8]) {
        let begun = Instant::now();
        let mut came = Vec::new();
        while came.len() < wanted.len() {
            let left = PATIENCE.saturating_sub(begun.elapsed());
            let read = self.reads.recv_timeout(left).expect("bytes come");
            let read = read.expect("the connection is whole");
            assert!(!read.is_empty(), "the end came after {came:?}");
            came.extend(read);
        }
        assert_eq!(came, wanted);
    }

    /// Waits for the clean end of the connection, with nothing before it.
    pub(crate) fn expect_end(&self) {
        let read = self.reads.recv_timeout(PATIENCE).expect("an end comes");
        assert_eq!(read.expect("the end is a clean one"), b"");
    }

    /// Checks that for so long nothing comes: no bytes, no end and no error.
    pub(crate) fn expect_silence(&self, duration: Duration) {
        let read = self.reads.recv_timeout(duration);
        assert!(matches!(read, Err(RecvTimeoutError::Timeout)), "{read:?}");
    }

    /// Sends bytes that are no answer.
    pub(crate) fn say(&self, bytes: &[u8]) {
        (&self.stream).write_all(bytes).expect("bytes can be sent");
    }
}

/// A client of the server, or of what stands before it.
pub(crate) struct Asking(pub(crate) TcpStream);

impl Asking {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self(TcpStream::connect_timeout(&address, PATIENCE).expect("a connection is made"))
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.local_addr().expect("a socket has an address").port()
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("bytes can be sent");
    }

    /// Waits for exactly these bytes.
    pub(crate) fn expect(&mut self, wanted: &[u8]) {
        let mut came = vec![0; wanted.len()];
        self.0.set_read_timeout(Some(PATIENCE)).expect("a deadline can be set");
        self.0.read_exact(&mut came).expect("bytes come");
        assert_eq!(came, wanted);
    }

    /// Sends bytes and waits for them to come back.
    pub(crate) fn ask(&mut self, bytes: &[u8]) {
        self.say(bytes);
        self.expect(bytes);
    }

    /// Waits for the end, with nothing before it, and gives it.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.0.set_read_timeout(Some(PATIENCE)).expect("a deadline can be set");
        let read = self.0.read(&mut [0; 16])?;
        assert_eq!(read, 0, "bytes came");
        Ok(())
    }

    /// Checks that for so long nothing comes: no bytes, no end and no error.
    pub(crate) fn expect_silence(&mut self, duration: Duration) {
        self.0.set_read_timeout(Some(duration)).expect("a deadline can be set");
        let read = self.0.read(&mut [0; 16]).map_err(|error| error.kind());
        assert!(matches!(read, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "{read:?}");
    }
}
