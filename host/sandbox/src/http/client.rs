//! One request over one connection of its own: look the name up, check each
//! address, connect to the very address that was checked, speak TLS if asked.
//!
//! Names are looked up here and nowhere else. A second look, as a client
//! library takes, could be answered differently, and lead where nothing checked.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1;
use rustix::process::{Resource, getrlimit};
#[cfg(test)]
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use wasmtime_wasi_http::io::TokioIo;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody};

use super::body::{
    Measured, Metered, Overrun, content_length, request_head_bytes, response_head_bytes,
};
use super::meter::Meter;
use super::tls::{NoTls, connector, is_exhausted};
use super::{Egress, toml_list};
use crate::fair_semaphore::{Claim, FairPermit, FairSemaphore, HeldBy};
use crate::guest_log::GuestLog;
use crate::settings::{Scheme, Target, TargetHost, names};
use event_host_core::event::Tenant;
use event_host_metrics::{Denied, GuestHttp};

/// Bytes of an answer's head. Bounds what a server can make the host hold for
/// one request.
const HEAD_BYTES: usize = 64 << 10;

/// Addresses of one name that are tried.
const ADDRESSES_TRIED: usize = 8;

/// Look-ups of one handler under way at once, whatever its versions. One takes as long
/// as the name's owner likes, cannot be broken off, and holds a thread.
const LOOKUPS_OF_HANDLER: usize = 4;

/// Look-ups of all handlers under way at once.
const LOOKUPS_OF_HOST: usize = 64;

/// Open files that are not for handlers' connections: those of the database, of
/// components, of look-ups, and the host's own.
const FILES_OF_HOST: usize = 256;

/// The most connections of all handlers at once that are chosen for a machine.
const MOST_CONNECTIONS: usize = 16_384;

/// The least: with fewer files than this takes, the rest of the host does not work either.
const FEWEST_CONNECTIONS: usize = 16;

/// What is waited for, as a sentence has it.
const CONNECTIONS: &str = "connections";
const LOOKUPS: &str = "look-ups of names";

/// As many connections of handlers at once as the process may have files open for.
fn chosen_connections() -> usize {
    let files = getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    let most = files.saturating_sub(FILES_OF_HOST) / 4 * 3;
    most.clamp(FEWEST_CONNECTIONS, MOST_CONNECTIONS)
}

/// Looks names up.
#[async_trait]
pub(crate) trait Resolve: Send + Sync {
    /// The addresses of a name.
    ///
    /// # Errors
    /// When there are none, or they cannot be asked for.
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// As every program of this machine does.
struct System;

#[async_trait]
impl Resolve for System {
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// What all requests of a host share.
pub(crate) struct Client {
    resolver: Arc<dyn Resolve>,
    /// Made with the first request over TLS: reading the system's authorities
    /// takes milliseconds and memory.
    tls: OnceCell<TlsConnector>,
    connections: Arc<FairSemaphore<1>>,
    lookups: Arc<FairSemaphore<1>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new() -> Self {
        Self::with_resolver(Arc::new(System))
    }

    pub(crate) fn with_resolver(resolver: Arc<dyn Resolve>) -> Self {
        Self {
            resolver,
            tls: OnceCell::new(),
            connections: Arc::new(FairSemaphore::new([chosen_connections()])),
            lookups: Arc::new(FairSemaphore::new([LOOKUPS_OF_HOST])),
        }
    }

    /// Sets how many connections each tenant may have open at once; one that is not named
    /// as many as there are for it.
    pub(crate) fn bound<'a>(&self, tenants: impl Iterator<Item = (&'a Tenant, usize)>) {
        self.connections.set_limits(tenants);
    }

    /// The same, that trusts these authorities alone.
    #[cfg(test)]
    pub(crate) fn trusting(resolver: Arc<dyn Resolve>, roots: RootCertStore) -> Self {
        let tls = super::tls::trusting(roots).map(OnceCell::from);
        Self { tls: tls.unwrap_or_default(), ..Self::with_resolver(resolver) }
    }

    async fn tls(&self) -> Result<&TlsConnector, NoTls> {
        let make = || async {
            let made = tokio::task::spawn_blocking(connector).await;
            made.map_err(|error| NoTls::Exhausted(error.to_string()))?
        };
        self.tls.get_or_try_init(make).await
    }
}

/// A request that is allowed, as far as its URL tells, and what it needs.
pub(super) struct Exchange {
    pub(super) egress: Arc<Egress>,
    pub(super) log: Arc<GuestLog>,
    pub(super) target: Target,
    pub(super) meter: Arc<Meter>,
    pub(super) options: RequestOptions,
    /// What it takes of the host's connections.
    pub(super) claim: Claim<1>,
}

/// What keeps a connection going while its answer is read.
type Driver = Box<dyn Future<Output = Result<(), Error>> + Send>;

impl Exchange {
    /// Makes the request, and gives the answer once its head is there.
    pub(super) async fn run(
        self,
        request: Request<WasiBody>,
    ) -> Result<(Response<WasiBody>, Driver), Error> {
        let end = self.meter.end.clone();
        let began = Instant::now();
        let deadline = began + self.meter.timeout;
        let answer = tokio::select! {
            // What no longer may go on does not, even if it could.
            biased;
            () = end.cancelled() => Err(Error::ConnectionTerminated),
            answer = self.until(deadline, request) => answer,
        };
        let (outcome, took) = match &answer {
            Ok((response, _)) => {
                (GuestHttp::answered(response.status().as_u16()), Some(began.elapsed()))
            }
            Err(Error::HttpRequestDenied) => (GuestHttp::Denied, None),
            Err(Error::HttpResponseTimeout | Error::ConnectionTimeout) => {
                (GuestHttp::Timeout, None)
            }
            Err(_) => (GuestHttp::Error, None),
        };
        self.egress.metrics.requested(outcome, took);
        answer
    }

    async fn until(
        &self,
        deadline: Instant,
        request: Request<WasiBody>,
    ) -> Result<(Response<WasiBody>, Driver), Error> {
        let client = &self.egress.client;
        let admission = timeout_at(deadline, client.connections.acquire(&self.claim));
        let Ok(connection) = admission.await else {
            self.waited_in_vain(&client.connections, &self.claim, CONNECTIONS);
            return Err(Error::ConnectionLimitReached);
        };
        match timeout_at(deadline, self.exchange(request, deadline, connection)).await {
            Ok(Ok(answer)) => Ok(answer),
            // A step of it may notice the time before the whole does.
            Ok(Err(error)) if Instant::now() < deadline => Err(error),
            Ok(Err(_)) | Err(_) => {
                self.meter.timed_out(&self.target.to_string());
                Err(Error::HttpResponseTimeout)
            }
        }
    }

    /// Says whose fault it is that the time went by before there was one of these.
    fn waited_in_vain(&self, semaphore: &FairSemaphore<1>, claim: &Claim<1>, what: &str) {
        let target = self.target.to_string();
        let Claim { handler_id, most, .. } = claim;
        match semaphore.held_by(claim) {
            Some(HeldBy::Handler) => {
                let limit =
                    if what == CONNECTIONS { names::HTTP_CONNECTIONS } else { "a fixed limit" };
                let own = format!("one of the handler's {what}, of which it has {most}, {limit}");
                self.meter.waited(&target, &own);
            }
            Some(HeldBy::Tenant) => {
                let whose = match handler_id.tenant.is_none() {
                    true => "handlers without a tenant".to_owned(),
                    false => format!("tenant `{}`", handler_id.tenant),
                };
                self.meter
                    .waited(&target, &format!("one of the {what} that {whose} may have at once"));
            }
            // Or just now there is one.
            Some(HeldBy::Others) | None => {
                let [all] = semaphore.all();
                self.meter.not_run(format!(
                    "the {what} of this host, {all} for all handlers, are in use by others"
                ));
            }
        }
    }

    async fn exchange(
        &self,
        request: Request<WasiBody>,
        deadline: Instant,
        permit: FairPermit<1>,
    ) -> Result<(Response<WasiBody>, Driver), Error> {
        let (request, overrun) = self.to_be_sent(request, deadline).await?;
        let patience = within(self.options.connect_timeout, deadline);
        let stream = timeout_at(patience, self.connect(patience, deadline))
            .await
            .unwrap_or(Err(Error::ConnectionTimeout))?;
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES)
            .handshake::<_, Metered>(TokioIo::new(stream))
            .await?;
        // Ends when it is dropped, and with it the connection.
        let connection = wasmtime_wasi::runtime::spawn(async move {
            let _permit = permit;
            connection.await
        });

        let between = self.options.between_bytes_timeout;
        let metered = |body| Metered::new(body, &self.meter, &self.target, deadline);
        let patience = within(self.options.first_byte_timeout, deadline);
        let sent = timeout_at(patience, sender.send_request(request))
            .await
            .map_err(|_| Error::ConnectionReadTimeout)?;
        let answer = match (sent, overrun.get()) {
            // Whatever the server answers, it was not to what the guest wrote.
            (_, Some(written)) => return Err(Error::HttpRequestBodySize(Some(*written))),
            (sent, None) => sent?,
        };
        if !self.meter.bytes(response_head_bytes(&answer)) {
            return Err(Error::HttpResponseHeaderSectionSize(None));
        }
        let answer = answer.map(|body| {
            let body = body.map_err(Error::from).boxed_unsync();
            metered(body).with_pauses_of_at_most(between).boxed_unsync()
        });

        let end = self.meter.end.clone();
        let driver = async move {
            tokio::select! {
                () = end.cancelled() => {}
                // What went wrong, the answer's body tells the guest.
                _ = timeout_at(deadline, connection) => {}
            }
            Ok(())
        };
        Ok((answer, Box::new(driver)))
    }

    /// The request as it goes to its server, with what tells by how much its body is
    /// longer than it says.
    async fn to_be_sent(
        &self,
        request: Request<WasiBody>,
        deadline: Instant,
    ) -> Result<(Request<Metered>, Overrun), Error> {
        let request = self.in_origin_form(request)?;
        if !self.meter.bytes(request_head_bytes(&request)) {
            return Err(Error::HttpRequestHeaderSectionSize(None));
        }
        let overrun = Overrun::default();
        let Some(length) = content_length(&request) else {
            let metered = |body| Metered::new(body, &self.meter, &self.target, deadline);
            return Ok((request.map(metered), overrun));
        };
        let (head, body) = request.into_parts();
        let mut body = Measured::new(body, length, Arc::clone(&overrun));
        if length == 0 {
            // The connection would not look at a body of this length at all.
            while let Some(frame) = body.frame().await {
                frame?;
            }
        }
        let metered = Metered::new(body.boxed_unsync(), &self.meter, &self.target, deadline);
        Ok((Request::from_parts(head, metered), overrun))
    }

    /// The request with the path alone, and with the host that was checked.
    fn in_origin_form(&self, mut request: Request<WasiBody>) -> Result<Request<WasiBody>, Error> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        // RFC 9112, section 3.2.1: an empty path is sent as `/`, before its query too.
        let path = if path.starts_with('?') { format!("/{path}") } else { path.to_owned() };
        *request.uri_mut() = Uri::try_from(path).map_err(|_| Error::HttpRequestUriInvalid)?;
        match HeaderValue::try_from(self.target.authority()) {
            Ok(host) => request.headers_mut().insert(header::HOST, host),
            Err(_) => request.headers_mut().remove(header::HOST),
        };
        Ok(request)
    }

    /// Connects to the first address that answers, of those that may be reached.
    async fn connect(
        &self,
        patience: Instant,
        deadline: Instant,
    ) -> Result<Box<dyn Stream>, Error> {
        let stream = self.connect_tcp(patience, deadline).await?;
        // Small requests and answers should not wait for each other.
        stream.set_nodelay(true).map_err(Error::Connect)?;
        if self.target.scheme == Scheme::Http {
            return Ok(Box::new(stream));
        }
        let server = match &self.target.host {
            TargetHost::Name(name) => {
                ServerName::try_from(name.clone()).map_err(|_| Error::HttpRequestUriInvalid)?
            }
            TargetHost::Address(address) => ServerName::from(*address),
        };
        let tls = self.egress.client.tls().await.map_err(|error| self.no_tls(&error))?;
        let stream = tls.connect(server, stream).await.map_err(|error| self.tls_error(error))?;
        Ok(Box::new(stream))
    }

    fn no_tls(&self, error: &NoTls) -> Error {
        tracing::warn!("no TLS for handlers: {error}");
        self.meter.not_run(format!("the host has no TLS: {error}"));
        Error::InternalError(None)
    }

    /// The host has run out of what a connection takes.
    #[cold]
    fn exhausted(&self, error: &io::Error) -> Error {
        self.meter.not_run(format!("the host cannot open another connection: {error}"));
        Error::ConnectionLimitReached
    }

    fn tls_error(&self, error: io::Error) -> Error {
        tracing::debug!(handler = self.egress.handler, "TLS with {}: {error}", self.target);
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        match cause {
            Some(rustls::Error::InvalidCertificate(_)) => Error::TlsCertificateError,
            _ => Error::Tls(error),
        }
    }

    async fn connect_tcp(&self, patience: Instant, deadline: Instant) -> Result<TcpStream, Error> {
        let addresses = self.addresses(patience, deadline).await?;
        let mut last = Error::DestinationNotFound;
        for (tried, address) in addresses.iter().enumerate() {
            // One that is silent leaves time for those after it.
            let left = patience.saturating_duration_since(Instant::now());
            let others = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            let until = Instant::now() + left / others;
            let address = SocketAddr::new(*address, self.target.port);
            match timeout_at(until, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) if is_exhausted(&error) => return Err(self.exhausted(&error)),
                Ok(Err(error)) => last = Error::Connect(error),
                Err(_) => last = Error::ConnectionTimeout,
            }
        }
        Err(last)
    }

    /// The target's addresses that may be reached: at least one.
    async fn addresses(&self, patience: Instant, deadline: Instant) -> Result<Vec<IpAddr>, Error> {
        let mut addresses = match &self.target.host {
            TargetHost::Address(address) => vec![*address],
            TargetHost::Name(name) => self.look_up(name, patience, deadline).await?,
        };
        let mut refusal = None;
        addresses.retain(|address| {
            let refused = self.egress.policy.refusal_of(&self.target, *address);
            let may = refused.is_none();
            refusal = refusal.take().or(refused.map(|refused| (*address, refused)));
            may
        });
        match refusal {
            Some((address, refused)) if addresses.is_empty() => {
                self.egress.metrics.denied(Denied::Http);
                self.log.denied(
                    &format!("HTTP to {}: {address} is {}", self.target, refused.is),
                    "http",
                    &toml_list(&refused.rule),
                );
                Err(Error::HttpRequestDenied)
            }
            _ => {
                addresses.truncate(ADDRESSES_TRIED);
                Ok(addresses)
            }
        }
    }

    async fn look_up(
        &self,
        name: &str,
        patience: Instant,
        deadline: Instant,
    ) -> Result<Vec<IpAddr>, Error> {
        let lookups = &self.egress.client.lookups;
        let claim = Claim { most: LOOKUPS_OF_HANDLER, ..self.claim.clone() };
        let Ok(permit) = timeout_at(patience, lookups.acquire(&claim)).await else {
            // The guest's own patience is its own matter.
            if Instant::now() >= deadline {
                self.waited_in_vain(lookups, &claim, LOOKUPS);
            }
            return Err(Error::DnsTimeout);
        };
        let (resolver, name) = (Arc::clone(&self.egress.client.resolver), name.to_owned());
        // Goes on to its end when its request waits no more: the thread it holds is
        // not free before.
        let lookup = tokio::spawn(async move {
            let _permit = permit;
            resolver.addresses(&name).await
        });
        let unknown = |error: &dyn fmt::Display| {
            tracing::debug!(handler = self.egress.handler, "looking up {}: {error}", self.target);
            Error::DnsError { rcode: None, info_code: None }
        };
        let addresses = lookup.await.map_err(|error| unknown(&error))?;
        let addresses = match addresses {
            Err(error) if is_exhausted(&error) => return Err(self.exhausted(&error)),
            addresses => addresses.map_err(|error| unknown(&error))?,
        };
        if addresses.is_empty() { Err(unknown(&"no address")) } else { Ok(addresses) }
    }
}

/// The guest's own patience, if it is shorter than what is left.
fn within(wanted: Option<Duration>, deadline: Instant) -> Instant {
    wanted.and_then(|wanted| Instant::now().checked_add(wanted)).unwrap_or(deadline).min(deadline)
}

/// A connection, with TLS or without.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}
