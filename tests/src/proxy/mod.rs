//! A TCP proxy between a client and a server that fails as networks do, when
//! the test says so: it stalls, swallows answers, closes and resets
//! connections, refuses new ones, or stops at the moment in which a client
//! sends certain bytes.
//!
//! It knows nothing of what passes through it. Bytes are looked at only to find
//! the pattern of a hold, so the connection must not be encrypted for that.
//!
//! Orders reach running connections through a channel each. A byte that is sent
//! after an order was given obeys it; one that was sent before may still pass.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::timeout;

#[cfg(test)]
mod tests;

/// How long the server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a peer may take to close its side after the proxy closed its own.
const FAREWELL: Duration = Duration::from_secs(10);

/// What a direction carries at a time, in bytes.
const CHUNK: usize = 16 * 1024;

/// A proxy on a port of its own. Dropping it ends its thread, its listener and
/// every connection.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    // Dropped with the proxy, which waits for its thread.
    _runtime: Runtime,
}

/// What has gone through a proxy so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Connections open now.
    pub open: usize,
    /// Connections ever passed on to the server.
    pub opened: u64,
    /// Bytes from clients, written to the server.
    pub requests: u64,
    /// Bytes from the server, written to clients.
    pub replies: u64,
    /// Connections turned away by [`Proxy::refuse`].
    pub refused: u64,
}

/// One connection through a proxy. It may have ended.
#[derive(Clone)]
pub struct Connection(Arc<Link>);

struct Link {
    client_port: u16,
    upstream_port: u16,
    orders: watch::Sender<Orders>,
}

/// What a connection is to do.
#[derive(Debug, Clone, Copy)]
struct Orders {
    flow: Flow,
    end: Option<End>,
}

/// Which directions flow.
#[derive(Debug, Clone, Copy)]
struct Flow {
    requests: bool,
    replies: bool,
}

impl Flow {
    const ALL: Self = Self { requests: true, replies: true };
    const REQUESTS: Self = Self { requests: true, replies: false };
    const NONE: Self = Self { requests: false, replies: false };
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Close,
    Reset,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Told whenever the hold gets further.
    held: Condvar,
}

#[derive(Debug)]
struct State {
    upstream: SocketAddr,
    /// Bytes a second of all connections and both directions together.
    rate: Option<u64>,
    /// When the link has carried what it was given so far.
    free_at: Instant,
    /// For connections to come.
    flow: Flow,
    refusing: bool,
    connections: Vec<Connection>,
    opened: u64,
    requests: u64,
    replies: u64,
    refused: u64,
    hold: Option<Hold>,
    /// How many holds there were, so that each has a number of its own.
    holds: u64,
}

/// The wait for a pattern, and what became of it.
#[derive(Debug)]
struct Hold {
    number: u64,
    pattern: Vec<u8>,
    /// Whether the server gets the pattern.
    pass_on: bool,
    /// Who sent the pattern.
    by: Option<Connection>,
    /// Whether everything that was to be passed on has been.
    held: bool,
    /// Whether the server has answered.
    answered: bool,
}

impl Proxy {
    /// A proxy to this server, on a free port of 127.0.0.1. The server need not
    /// be there yet: a connection that it does not accept is closed.
    ///
    /// # Panics
    /// When there is no port or no thread to be had.
    #[must_use]
    pub fn start(upstream: SocketAddr) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("proxy")
            .enable_all()
            .build()
            .expect("a runtime starts");
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.expect("there is a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                upstream,
                rate: None,
                free_at: Instant::now(),
                flow: Flow::ALL,
                refusing: false,
                connections: Vec::new(),
                opened: 0,
                requests: 0,
                replies: 0,
                refused: 0,
                hold: None,
                holds: 0,
            }),
            held: Condvar::new(),
        });
        runtime.spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, _runtime: runtime }
    }

    /// A proxy to the server of a PostgreSQL URL, and the URL that leads through
    /// it; for sessions of this application name, which tells them apart.
    ///
    /// # Panics
    /// When the URL does not name the server and its port.
    #[must_use]
    pub fn before(url: &str, application_name: &str) -> (Self, String) {
        let (scheme, rest) = url.split_once("://").expect("a URL has a scheme");
        let (authority, path) = rest.split_once('/').expect("the URL names a database");
        let (user, server) = authority.rsplit_once('@').expect("the URL names a user");
        let upstream = server.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
        let proxy = Self::start(upstream.unwrap_or_else(|| panic!("no server in {url}")));
        let mark = if path.contains('?') { '&' } else { '?' };
        let address = proxy.address();
        let url =
            format!("{scheme}://{user}@{address}/{path}{mark}application_name={application_name}");
        (proxy, url)
    }

    /// Leads new connections to another server. Those that are open stay where they
    /// are.
    pub fn lead_to(&self, upstream: SocketAddr) {
        self.shared.lock().upstream = upstream;
    }

    /// Carries so many bytes a second at most from now on, of all connections and both
    /// directions together, as a slow link does; without, as many as there are.
    ///
    /// # Panics
    /// At a rate of 0: [`Proxy::stall`] does that.
    pub fn throttle(&self, bytes_a_second: Option<u64>) {
        assert_ne!(bytes_a_second, Some(0), "a link that carries nothing is stalled");
        let mut state = self.shared.lock();
        state.rate = bytes_a_second;
        state.free_at = Instant::now();
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The port on which it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// What has gone through it so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let state = self.shared.lock();
        Traffic {
            open: state.open().count(),
            opened: state.opened,
            requests: state.requests,
            replies: state.replies,
            refused: state.refused,
        }
    }

    /// The connections that are open now, oldest first.
    ///
    /// A client may be connected a moment before its connection appears here.
    #[must_use]
    pub fn connections(&self) -> Vec<Connection> {
        self.shared.lock().open().cloned().collect()
    }

    /// Lets nothing through in either direction, neither bytes nor the end of a
    /// connection. Connections stay open; new ones are accepted and stall too.
    pub fn stall(&self) {
        self.flow(Flow::NONE);
    }

    /// Lets requests through and no answers, on connections new and old.
    pub fn stall_replies(&self) {
        self.flow(Flow::REQUESTS);
    }

    /// Lets everything through again, what was held up first, on connections
    /// new and old. A hold whose pattern has not come yet stays.
    pub fn resume(&self) {
        self.flow(Flow::ALL);
    }

    /// Closes every connection on both sides, as a peer does that is done.
    pub fn drop_all(&self) {
        self.end(End::Close);
    }

    /// Resets every connection towards the client, and closes it towards the
    /// server.
    pub fn reset_all(&self) {
        self.end(End::Reset);
    }

    /// Closes new connections at once, until [`Proxy::accept`]. Those that are
    /// open stay: to cut everyone off, refuse first and then drop all.
    pub fn refuse(&self) {
        self.shared.lock().refusing = true;
    }

    /// Takes new connections again.
    pub fn accept(&self) {
        self.shared.lock().refusing = false;
    }

    /// Waits for the first client that sends this pattern from now on, passes
    /// the pattern on, and holds back every answer on that connection: whatever
    /// the server does with it happens, and the client does not learn it.
    ///
    /// Once only. The pattern may come in pieces. An answer to what the client
    /// sent before may be held back too, if it has not waited for it.
    ///
    /// # Panics
    /// When the pattern is empty.
    pub fn hold_after(&self, pattern: &[u8]) {
        self.hold(pattern, true);
    }

    /// Waits for the first client that sends this pattern from now on, and stalls
    /// that connection before the pattern is complete at the server: it never
    /// happens, unless the connection is resumed, and the client does not learn
    /// that.
    ///
    /// Once only. The pattern may come in pieces.
    ///
    /// # Panics
    /// When the pattern is empty.
    pub fn hold_before(&self, pattern: &[u8]) {
        self.hold(pattern, false);
    }

    /// Waits until a hold has taken effect, and gives the connection: after
    /// [`Proxy::hold_after`] the server has been sent the pattern, after
    /// [`Proxy::hold_before`] the proxy keeps it.
    ///
    /// # Panics
    /// When that does not happen within `patience`, or nothing is to be held.
    #[must_use]
    pub fn wait_until_held(&self, patience: Duration) -> Connection {
        self.wait_for_hold("held", patience, |hold| hold.held)
    }

    /// Waits until the server has answered to the pattern of
    /// [`Proxy::hold_after`], so that it must have acted on it, and gives the
    /// connection. The client does not have the answer.
    ///
    /// # Panics
    /// When that does not happen within `patience`, or nothing is to be held.
    #[must_use]
    pub fn wait_until_answered(&self, patience: Duration) -> Connection {
        self.wait_for_hold("answered", patience, |hold| hold.held && hold.answered)
    }

    fn flow(&self, flow: Flow) {
        let mut state = self.shared.lock();
        state.flow = flow;
        for connection in &state.connections {
            connection.flow(flow);
        }
    }

    fn end(&self, end: End) {
        for connection in &self.shared.lock().connections {
            connection.end(end);
        }
    }

    fn hold(&self, pattern: &[u8], pass_on: bool) {
        assert!(!pattern.is_empty(), "an empty pattern is found nowhere");
        let mut state = self.shared.lock();
        state.holds += 1;
        state.hold = Some(Hold {
            number: state.holds,
            pattern: pattern.to_vec(),
            pass_on,
            by: None,
            held: false,
            answered: false,
        });
    }

    fn wait_for_hold(
        &self,
        what: &str,
        patience: Duration,
        reached: impl Fn(&Hold) -> bool,
    ) -> Connection {
        let begun = Instant::now();
        let mut state = self.shared.lock();
        loop {
            let hold = state.hold.as_ref().expect("hold_after or hold_before came first");
            if let Some(connection) = hold.by.as_ref().filter(|_| reached(hold)) {
                return connection.clone();
            }
            let left = patience.saturating_sub(begun.elapsed());
            assert!(!left.is_zero(), "not {what} within {patience:?}: {state:#?}");
            state = self.shared.held.wait_timeout(state, left).expect("no holder panicked").0;
        }
    }
}

impl Connection {
    /// The client's port.
    #[must_use]
    pub fn client_port(&self) -> u16 {
        self.0.client_port
    }

    /// The proxy's port towards the server: what the server takes for the
    /// client's port.
    #[must_use]
    pub fn upstream_port(&self) -> u16 {
        self.0.upstream_port
    }

    /// Whether neither the proxy, nor both sides, nor a failure has ended it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.orders.borrow().end.is_none()
    }

    /// As [`Proxy::stall`], for this connection.
    pub fn stall(&self) {
        self.flow(Flow::NONE);
    }

    /// As [`Proxy::stall_replies`], for this connection.
    pub fn stall_replies(&self) {
        self.flow(Flow::REQUESTS);
    }

    /// As [`Proxy::resume`], for this connection.
    pub fn resume(&self) {
        self.flow(Flow::ALL);
    }

    /// As [`Proxy::drop_all`], for this connection.
    pub fn close(&self) {
        self.end(End::Close);
    }

    /// As [`Proxy::reset_all`], for this connection.
    pub fn reset(&self) {
        self.end(End::Reset);
    }

    fn flow(&self, flow: Flow) {
        self.0.orders.send_modify(|orders| orders.flow = flow);
    }

    /// Ends it, unless it has ended, and gives how.
    fn end(&self, end: End) -> End {
        let mut ended = end;
        self.0.orders.send_modify(|orders| ended = *orders.end.get_or_insert(end));
        ended
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Connection")
            .field("client_port", &self.0.client_port)
            .field("upstream_port", &self.0.upstream_port)
            .field("orders", &*self.0.orders.borrow())
            .finish()
    }
}

impl State {
    /// Ended connections leave the list only once their task has noticed.
    fn open(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter(|connection| connection.is_open())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panicked")
    }

    /// Takes a connection in, unless none are taken. In one step with the
    /// orders of the moment, so that an order to all misses none.
    fn admit(&self, client: &TcpStream, upstream: &TcpStream) -> io::Result<Option<Connection>> {
        let client_port = client.peer_addr()?.port();
        let upstream_port = upstream.local_addr()?.port();
        let mut state = self.lock();
        if state.refusing {
            return Ok(None);
        }
        let orders = watch::Sender::new(Orders { flow: state.flow, end: None });
        let connection = Connection(Arc::new(Link { client_port, upstream_port, orders }));
        state.opened += 1;
        state.connections.push(connection.clone());
        Ok(Some(connection))
    }

    fn forget(&self, connection: &Connection) {
        self.lock().connections.retain(|other| !other.is(connection));
    }

    /// Looks for the pattern in what a client sent, before any of it is passed
    /// on, and holds the connection if it is there.
    fn look(&self, connection: &Connection, seen: &mut Seen, bytes: &[u8]) {
        let mut state = self.lock();
        let Some(hold) = state.hold.as_mut().filter(|hold| hold.by.is_none()) else {
            return;
        };
        if seen.find(hold, bytes) {
            connection.flow(if hold.pass_on { Flow::REQUESTS } else { Flow::NONE });
            hold.by = Some(connection.clone());
            hold.held = !hold.pass_on;
            self.held.notify_all();
        }
    }

    /// Counts a request that the server has been sent.
    fn requested(&self, connection: &Connection, bytes: usize) {
        let mut state = self.lock();
        state.requests += bytes as u64;
        if let Some(hold) = state.hold_by(connection).filter(|hold| !hold.held) {
            hold.held = true;
            self.held.notify_all();
        }
    }

    /// Notes an answer that the client does not get yet.
    fn held_back(&self, connection: &Connection) {
        let mut state = self.lock();
        if let Some(hold) = state.hold_by(connection).filter(|hold| hold.pass_on) {
            hold.answered = true;
            self.held.notify_all();
        }
    }

    /// Waits until the link has carried these bytes, behind what others gave it before.
    async fn carry(&self, bytes: usize) {
        let carried = {
            let mut state = self.lock();
            let Some(rate) = state.rate else { return };
            let time = Duration::from_secs_f64(bytes as f64 / rate as f64);
            state.free_at = state.free_at.max(Instant::now()) + time;
            state.free_at
        };
        tokio::time::sleep_until(carried.into()).await;
    }

    /// Counts an answer that the client has been sent.
    fn replied(&self, bytes: usize) {
        self.lock().replies += bytes as u64;
    }
}

impl State {
    fn hold_by(&mut self, connection: &Connection) -> Option<&mut Hold> {
        self.hold.as_mut().filter(|hold| hold.by.as_ref().is_some_and(|by| by.is(connection)))
    }
}

/// What a client has sent of a pattern that may come in pieces.
#[derive(Debug, Default)]
struct Seen {
    hold: u64,
    tail: Vec<u8>,
}

impl Seen {
    /// Whether these bytes complete the pattern of a hold, together with those
    /// since it began.
    fn find(&mut self, hold: &Hold, bytes: &[u8]) -> bool {
        if self.hold != hold.number {
            self.hold = hold.number;
            self.tail.clear();
        }
        self.tail.extend_from_slice(bytes);
        let found = self.tail.windows(hold.pattern.len()).any(|window| window == hold.pattern);
        let old = self.tail.len().saturating_sub(hold.pattern.len() - 1);
        self.tail.drain(..old);
        found
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    // A connection that cannot be made is closed: the client
                    // sees what it would see of the server.
                    let _ = serve(client, &shared).await;
                });
            }
            Err(error) => {
                // The listener closes with this task, so tests fail where they
                // connect.
                eprintln!("the proxy gives up: {error}");
                return;
            }
        }
    }
}

/// One connection, from its acceptance to its end.
async fn serve(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    let upstream = {
        let mut state = shared.lock();
        if state.refusing {
            state.refused += 1;
            return Ok(());
        }
        state.upstream
    };
    let mut server = timeout(CONNECT, TcpStream::connect(upstream)).await??;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let Some(connection) = shared.admit(&client, &server)? else {
        return Ok(());
    };
    let mut orders = connection.0.orders.subscribe();
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::select! {
        // Both sides are done, or one has failed, which ends the connection for
        // the other too.
        _ = async { tokio::try_join!(
            requests(from_client, to_server, &connection, shared),
            replies(from_server, to_client, &connection, shared),
        ) } => {}
        _ = orders.wait_for(|orders| orders.end.is_some()) => {}
    }
    let end = connection.end(End::Close);
    shared.forget(&connection);
    match end {
        End::Reset => {
            client.set_zero_linger()?;
            drop(client);
            close(server).await;
        }
        End::Close => {
            tokio::join!(close(client), close(server));
        }
    }
    Ok(())
}

/// From the client to the server.
async fn requests(
    mut client: ReadHalf<'_>,
    mut server: WriteHalf<'_>,
    connection: &Connection,
    shared: &Shared,
) -> io::Result<()> {
    let mut orders = connection.0.orders.subscribe();
    let mut seen = Seen::default();
    let mut chunk = vec![0; CHUNK];
    loop {
        // A stalled connection passes on no end either, be it good or bad.
        let read = client.read(&mut chunk).await;
        requests_flow(&mut orders).await;
        let bytes = &chunk[..read?];
        if bytes.is_empty() {
            return server.shutdown().await;
        }
        shared.look(connection, &mut seen, bytes);
        requests_flow(&mut orders).await;
        shared.carry(bytes.len()).await;
        server.write_all(bytes).await?;
        shared.requested(connection, bytes.len());
    }
}

/// From the server to the client.
async fn replies(
    mut server: ReadHalf<'_>,
    mut client: WriteHalf<'_>,
    connection: &Connection,
    shared: &Shared,
) -> io::Result<()> {
    let mut orders = connection.0.orders.subscribe();
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = server.read(&mut chunk).await;
        // Looks and waits in one, so that no answer waits without a note of it.
        while !orders.borrow_and_update().flow.replies {
            if matches!(read, Ok(1..)) {
                shared.held_back(connection);
            }
            // As for requests: there is a sender.
            let _ = orders.changed().await;
        }
        let bytes = &chunk[..read?];
        if bytes.is_empty() {
            return client.shutdown().await;
        }
        shared.carry(bytes.len()).await;
        client.write_all(bytes).await?;
        shared.replied(bytes.len());
    }
}

/// Waits until requests flow.
async fn requests_flow(orders: &mut watch::Receiver<Orders>) {
    // It fails only without a sender, and the connection that has it outlives
    // the wait.
    let _ = orders.wait_for(|orders| orders.flow.requests).await;
}

/// Closes a connection so that the peer gets all that was passed on, and then
/// the end: a socket that closes with bytes unread resets, and what waits in it
/// is lost.
async fn close(mut stream: TcpStream) {
    // A peer that is gone needs no farewell, and one that does not close in time
    // gets no more of it.
    if stream.shutdown().await.is_ok() {
        let _ = timeout(FAREWELL, tokio::io::copy(&mut stream, &mut tokio::io::sink())).await;
    }
}
