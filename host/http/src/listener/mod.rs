//! Listeners: bound, served, changed by a reload, and closed in order.
//!
//! A reload binds what is new before it closes what is gone, and leaves a listener whose
//! address stays as it is: its connections go on, and from the next request on they are
//! answered as the settings say now. What cannot be bound leaves everything as it was.

mod bind;
mod connection;
mod inherited;
mod stream;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use event_host_core::event::Tenant;
use event_host_metrics::{HttpMetrics, Level};

use crate::failures::Failures;
use crate::peer::Peer;
use crate::routes::Routes;
use crate::service::{Policy, Service, Shared};
use crate::settings::{Address, Listener, Part, Settings};
use crate::tls;
use crate::token::{self, Token, TokenHash, Tokens};
use bind::{Accepted, Socket};
pub use inherited::Inherited;
use stream::Stream;

/// After an accept that failed because the process or the system has run out of something.
const AFTER_EXHAUSTION: Duration = Duration::from_secs(1);

/// A listener that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the listener `{name}` cannot listen at {address}: {why}")]
pub struct CannotListen {
    name: String,
    address: Address,
    why: String,
}

impl CannotListen {
    /// The listener's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Listeners that are not as the settings say.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct Refused(pub Vec<CannotListen>);

/// What a listener needs to be opened or changed, where that can fail.
struct Prepared {
    tls: Option<TlsAcceptor>,
    /// The socket of one that is new, and where it listens.
    fresh: Option<(Socket, Address)>,
}

/// Whom the listeners let in.
struct LetIn {
    tokens: Arc<Tokens>,
    /// In place of those, where only this machine reaches a listener.
    ephemeral: Option<Arc<Tokens>>,
    tenants: Option<Arc<BTreeSet<Tenant>>>,
}

impl LetIn {
    fn new(settings: &Settings, ephemeral: Option<&str>) -> Self {
        let ephemeral = ephemeral.map(TokenHash::of);
        let ephemeral = ephemeral.map(|hash| Token::unlimited("ephemeral", hash));
        Self {
            tokens: Arc::new(Tokens::new(settings.tokens.iter().cloned())),
            ephemeral: settings.tokens.is_empty().then(|| Arc::new(Tokens::new(ephemeral))),
            tenants: settings.tenants.clone().map(Arc::new),
        }
    }

    fn policy(
        &self,
        listener: &Arc<Listener>,
        local: &Address,
        routes: &Routes,
        tls: Option<TlsAcceptor>,
    ) -> Policy {
        // Only this machine reaches it, so whoever started the host may show its token.
        let ephemeral = self.ephemeral.as_ref().filter(|_| local.is_local());
        let tokens = Arc::clone(ephemeral.unwrap_or(&self.tokens));
        Policy::new(Arc::clone(listener), tokens, self.tenants.clone(), routes, tls)
    }
}

/// The listeners of a host.
pub struct Server {
    routes: Routes,
    failures: Arc<Failures>,
    open: Vec<Open>,
    /// The connections of listeners that were closed.
    closed: Vec<TaskTracker>,
    inherited: Inherited,
    /// What stands for the tokens of the settings where those have none.
    ephemeral: Option<String>,
}

/// One listener that is open.
struct Open {
    listener: Arc<Listener>,
    /// Where it listens, with the port that the system chose.
    local: Address,
    shared: Arc<Shared>,
    limit: Arc<Limit>,
    connections: TaskTracker,
    closing: CancellationToken,
}

/// How many connections a listener has at once.
struct Limit {
    open: AtomicUsize,
    most: AtomicUsize,
    changed: Notify,
}

/// One connection, in the metrics.
struct Shown(Level);

impl Shown {
    fn new(level: Level) -> Self {
        level.add(1);
        Self(level)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}

/// One connection that counts.
struct Counted(Arc<Limit>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
    }
}

impl Limit {
    fn new(most: usize) -> Arc<Self> {
        let (open, changed) = (AtomicUsize::new(0), Notify::new());
        Arc::new(Self { open, most: AtomicUsize::new(most), changed })
    }

    fn set(&self, most: usize) {
        self.most.store(most, Ordering::Release);
        self.changed.notify_one();
    }

    /// Waits until there is room for one more. Only the accepting task asks.
    async fn one(self: &Arc<Self>) -> Counted {
        loop {
            if let Some(counted) = self.try_one() {
                return counted;
            }
            self.changed.notified().await;
        }
    }

    /// One more, if there is room.
    fn try_one(self: &Arc<Self>) -> Option<Counted> {
        if self.open.load(Ordering::Acquire) >= self.most.load(Ordering::Acquire) {
            return None;
        }
        self.open.fetch_add(1, Ordering::AcqRel);
        Some(Counted(Arc::clone(self)))
    }
}

impl Server {
    /// Opens the listeners.
    ///
    /// # Errors
    /// With the first that cannot be opened; then none is.
    pub async fn start(
        settings: &Settings,
        routes: Routes,
        inherited: Inherited,
        metrics: HttpMetrics,
    ) -> Result<Self, CannotListen> {
        let mut server = Self {
            routes,
            failures: Arc::new(Failures::new(metrics)),
            open: Vec::new(),
            closed: Vec::new(),
            inherited,
            ephemeral: None,
        };
        let prepared: Result<Vec<_>, _> =
            settings.listeners.iter().map(|listener| server.prepare(listener)).collect();
        server.take_over(settings, prepared?.into_iter().map(Ok).collect());
        Ok(server)
    }

    /// Takes over other settings. A listener that cannot be as they say stays as it is where it
    /// has the same address or name; its tokens and tenants are those of the settings all the
    /// same, and so is everything else.
    ///
    /// # Errors
    /// With the listeners that are not as the settings say.
    pub async fn apply(&mut self, settings: &Settings) -> Result<(), Refused> {
        let prepared = settings.listeners.iter().map(|listener| self.prepare(listener)).collect();
        let refused = self.take_over(settings, prepared);
        if refused.is_empty() { Ok(()) } else { Err(Refused(refused)) }
    }

    /// Does what can fail of opening or changing a listener.
    fn prepare(&self, listener: &Listener) -> Result<Prepared, CannotListen> {
        let tls = encryption(listener)?;
        let same = self.open.iter().find(|open| open.listener.address == listener.address);
        let Some(open) = same else {
            let (socket, local) = self.bind(listener)?;
            may_be_plain(listener, &local)?;
            return Ok(Prepared { tls, fresh: Some((socket, local)) });
        };
        may_be_plain(listener, &open.local)?;
        Ok(Prepared { tls, fresh: None })
    }

    /// Opens, changes and closes listeners. Gives what was refused.
    fn take_over(
        &mut self,
        settings: &Settings,
        prepared: Vec<Result<Prepared, CannotListen>>,
    ) -> Vec<CannotListen> {
        self.choose_ephemeral(settings);
        let let_in = LetIn::new(settings, self.ephemeral.as_deref());
        let mut before = std::mem::take(&mut self.open);
        let mut refused = Vec::new();
        for (listener, prepared) in settings.listeners.iter().zip(prepared) {
            let Prepared { tls, fresh } = match prepared {
                Ok(prepared) => prepared,
                Err(why) => {
                    refused.push((listener, why));
                    continue;
                }
            };
            let listener = Arc::new(listener.clone());
            let kept = before.iter().position(|open| open.listener.address == listener.address);
            let kept = kept.map(|index| before.swap_remove(index));
            let open = match (fresh, kept) {
                (Some((socket, local)), _) => {
                    let policy = let_in.policy(&listener, &local, &self.routes, tls);
                    let shared = Arc::new(Shared::new(policy, Arc::clone(&self.failures)));
                    Open::start(listener, socket, local, shared)
                }
                (None, Some(open)) => {
                    let policy = let_in.policy(&listener, &open.local, &self.routes, tls);
                    open.change(listener, policy)
                }
                // Two of one address, which the settings refuse.
                (None, None) => continue,
            };
            self.open.push(open);
        }
        for (wanted, _) in &refused {
            let is_same = |open: &Open| open.listener.address == wanted.address;
            let has_its_name = |open: &Open| open.listener.name == wanted.name;
            let stays = before.iter().position(is_same);
            let stays = stays.or_else(|| before.iter().position(has_its_name));
            if let Some(open) = stays.map(|index| before.swap_remove(index)) {
                let (listener, tls) =
                    (Arc::clone(&open.listener), open.shared.policy().tls.clone());
                let policy = let_in.policy(&listener, &open.local, &self.routes, tls);
                self.open.push(open.change(listener, policy));
            }
        }
        self.closed.extend(before.into_iter().map(Open::close));
        self.closed.retain(|connections| !connections.is_empty());
        refused.into_iter().map(|(_, why)| why).collect()
    }

    /// Opens the socket of a listener.
    fn bind(&self, listener: &Listener) -> Result<(Socket, Address), CannotListen> {
        let explained =
            |why: io::Error| cannot_listen(listener, bind::explain(&why, &listener.address));
        let socket = Socket::bind(&listener.address, listener.socket_mode, &self.inherited);
        let socket = socket.map_err(explained)?;
        let local = socket.local().map_err(explained)?;
        Ok((socket, local))
    }

    /// A token stands for those of the settings as long as these have none.
    fn choose_ephemeral(&mut self, settings: &Settings) {
        if !settings.tokens.is_empty() {
            self.ephemeral = None;
        } else if self.ephemeral.is_none() {
            self.ephemeral = token::generate()
                .inspect_err(|why| warn!("there is no token, and none can be made: {why}"))
                .ok();
        }
    }

    /// What the listeners serve that are open.
    pub fn parts(&self) -> impl Iterator<Item = Part> {
        self.open.iter().flat_map(|open| open.listener.serve.iter().copied())
    }

    /// The name and the address of each listener, with the port that the system chose.
    pub fn addresses(&self) -> impl Iterator<Item = (&str, &Address)> {
        self.open.iter().map(|open| (open.listener.name.as_str(), &open.local))
    }

    /// The token that stands for those of the settings, where these have none, and the
    /// addresses that take it.
    #[must_use]
    pub fn ephemeral(&self) -> Option<(&str, Vec<String>)> {
        let local = self.open.iter().filter(|open| open.local.is_local());
        let urls: Vec<String> = local
            .map(|open| Listener { address: open.local.clone(), ..(*open.listener).clone() }.url())
            .collect();
        self.ephemeral.as_deref().filter(|_| !urls.is_empty()).map(|token| (token, urls))
    }

    /// Closes the listeners, lets the requests that are under way end, and waits for that
    /// until `deadline`. What is not answered by then is broken off.
    pub async fn stop(self, deadline: Instant) {
        let mut connections = self.closed;
        connections.extend(self.open.into_iter().map(Open::close));
        let all = futures_util::future::join_all(connections.iter().map(TaskTracker::wait));
        if tokio::time::timeout_at(deadline, all).await.is_err() {
            let left: usize = connections.iter().map(TaskTracker::len).sum();
            warn!(connections = left, "requests that did not end in time are broken off");
        }
    }
}

impl Open {
    fn start(listener: Arc<Listener>, socket: Socket, local: Address, shared: Arc<Shared>) -> Self {
        let limit = Limit::new(listener.max_connections);
        let (connections, closing) = (TaskTracker::new(), CancellationToken::new());
        let serves: Vec<&str> = listener.serve.iter().map(|part| part.name()).collect();
        info!(listener = listener.name, address = %local, serves = serves.join(" "), "listening");
        connections.spawn(accept(
            socket,
            Arc::clone(&shared),
            Arc::clone(&limit),
            connections.clone(),
            closing.clone(),
        ));
        Self { listener, local, shared, limit, connections, closing }
    }

    /// Goes on under other settings: the connections that are there too, from their next
    /// request on.
    fn change(self, listener: Arc<Listener>, policy: Policy) -> Self {
        self.shared.set_policy(policy);
        self.limit.set(listener.max_connections);
        if self.listener.socket_mode != listener.socket_mode {
            bind::set_mode(&listener.address, listener.socket_mode);
        }
        Self { listener, ..self }
    }

    /// Takes no more connections, and has those that are there end after the request that
    /// is under way.
    fn close(self) -> TaskTracker {
        info!(listener = self.listener.name, address = %self.local, "closed");
        self.closing.cancel();
        self.connections.close();
        self.connections
    }
}

/// Accepts connections, until the listener closes. Those that the system has set up by then
/// are served too: to close the socket would reset them.
async fn accept(
    socket: Socket,
    shared: Arc<Shared>,
    limit: Arc<Limit>,
    connections: TaskTracker,
    closing: CancellationToken,
) {
    loop {
        let next = async { (limit.one().await, one(&socket).await) };
        let (counted, (accepted, peer)) = tokio::select! {
            next = next => next,
            () = closing.cancelled() => break,
        };
        let shared = Arc::clone(&shared);
        connections.spawn(serve(accepted, peer, shared, closing.clone(), counted));
    }
    for (accepted, peer) in socket.rest() {
        let Some(counted) = limit.try_one() else { break };
        let shared = Arc::clone(&shared);
        connections.spawn(serve(accepted, peer, shared, closing.clone(), counted));
    }
}

/// Waits for one connection.
async fn one(socket: &Socket) -> (Accepted, Peer) {
    loop {
        match socket.accept().await {
            Ok(accepted) => return accepted,
            // That of one connection, which is gone.
            Err(why) if bind::is_of_one_connection(&why) => {}
            Err(why) => {
                warn!("cannot accept a connection: {why}");
                tokio::time::sleep(AFTER_EXHAUSTION).await;
            }
        }
    }
}

/// Serves one connection, until it ends.
async fn serve(
    accepted: Accepted,
    peer: Peer,
    shared: Arc<Shared>,
    closing: CancellationToken,
    _counted: Counted,
) {
    let _shown = Shown::new(shared.connections());
    let (stream, is_encrypted) = match (accepted, shared.policy().tls.clone()) {
        (Accepted::Tcp(stream), Some(acceptor)) => {
            let accepted = tokio::select! {
                accepted = tls::accept(&acceptor, stream) => accepted,
                // Nothing has been asked yet, so nothing is owed.
                () = connection::last_request_time_over(&closing) => return,
            };
            // Not worth a line in the log: anybody can send anything.
            let Ok(stream) = accepted else { return };
            (Stream::new(stream), true)
        }
        (Accepted::Tcp(stream), None) => (Stream::new(stream), false),
        (Accepted::Unix(stream), _) => (stream, false),
    };
    let service = Service::new(shared, peer, is_encrypted, closing.clone());
    connection::serve(stream, service, &closing).await;
}

fn cannot_listen(listener: &Listener, why: String) -> CannotListen {
    CannotListen { name: listener.name.clone(), address: listener.address.clone(), why }
}

/// Refuses what would give tokens away: an address that other machines reach, unencrypted.
/// Of a socket of the service manager the settings do not know where it is.
fn may_be_plain(listener: &Listener, local: &Address) -> Result<(), CannotListen> {
    if local.is_local() || listener.tls.is_some() || listener.plaintext {
        return Ok(());
    }
    Err(cannot_listen(
        listener,
        format!(
            "it is {local}, which other machines reach, and nothing there is encrypted: give it `tls`, or write `plaintext = true` if that is so by intent"
        ),
    ))
}

/// What encrypts the connections of a listener.
fn encryption(listener: &Listener) -> Result<Option<TlsAcceptor>, CannotListen> {
    let Some(files) = &listener.tls else { return Ok(None) };
    let acceptor = tls::acceptor(files).map_err(|why| cannot_listen(listener, why.to_string()))?;
    Ok(Some(acceptor))
}
