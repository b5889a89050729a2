//! One request over one connection of its own: look the name up, check each
//! address, connect to the very address that was checked, speak TLS if asked.
//!
//! Names are looked up here and nowhere else. A second look, as a client
//! library takes, could be answered differently, and lead where nothing checked.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tokio_rustls::TlsConnector;
use wasmtime_wasi_http::io::TokioIo;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody};

use super::meter::Meter;
use super::policy::{Scheme, Target, TargetHost};
use super::{Outlet, toml_list};
use crate::sandbox::imports::GuestLog;

/// Bytes of an answer's head. Bounds what a server can make the host hold for
/// one request.
const HEAD_BYTES: usize = 64 << 10;

/// Addresses of one name that are tried.
const ADDRESSES_TRIED: usize = 8;

/// Look-ups of one handler under way at once. One takes as long as the name's
/// owner likes, cannot be broken off, and holds a thread.
pub(super) const LOOKUPS: usize = 4;

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
        Self { resolver, tls: OnceCell::new() }
    }

    /// The same, that trusts these authorities alone.
    #[cfg(test)]
    pub(crate) fn trusting(resolver: Arc<dyn Resolve>, roots: RootCertStore) -> Self {
        let tls = trusting(roots).map(OnceCell::from);
        Self { resolver, tls: tls.unwrap_or_default() }
    }

    async fn tls(&self) -> Result<&TlsConnector, Error> {
        let make = || async {
            let made = tokio::task::spawn_blocking(connector).await;
            made.map_err(|error| internal(&error))?.map_err(|error| internal(&error))
        };
        self.tls.get_or_try_init(make).await
    }
}

fn internal(error: &dyn fmt::Display) -> Error {
    tracing::warn!("no TLS for handlers: {error}");
    Error::InternalError(None)
}

/// TLS that trusts whom the system trusts, as the connection to the database
/// does.
fn connector() -> Result<TlsConnector, rustls::Error> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!("some of the system's certificate authorities cannot be read: {error}");
    }
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        tracing::warn!(
            "the system has no certificate authorities, so that handlers can reach nothing by https"
        );
    }
    trusting(roots)
}

fn trusting(roots: RootCertStore) -> Result<TlsConnector, rustls::Error> {
    // The one that the connection to the database uses.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// A request that is allowed, as far as its URL tells, and what it needs.
pub(super) struct Exchange {
    pub(super) outlet: Arc<Outlet>,
    pub(super) log: Arc<GuestLog>,
    pub(super) target: Target,
    pub(super) meter: Arc<Meter>,
    pub(super) options: RequestOptions,
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
        let deadline = Instant::now() + self.meter.timeout;
        tokio::select! {
            // What no longer may go on does not, even if it could.
            biased;
            () = end.cancelled() => Err(Error::ConnectionTerminated),
            answer = timeout_at(deadline, self.exchange(request, deadline)) => match answer {
                Ok(Ok(answer)) => Ok(answer),
                // A step of it may notice the time before the whole does.
                Ok(Err(error)) if Instant::now() < deadline => Err(error),
                Ok(Err(_)) | Err(_) => {
                    self.meter.timed_out(&self.target.to_string());
                    Err(Error::HttpResponseTimeout)
                }
            }
        }
    }

    async fn exchange(
        &self,
        request: Request<WasiBody>,
        deadline: Instant,
    ) -> Result<(Response<WasiBody>, Driver), Error> {
        let patience = within(self.options.connect_timeout, deadline);
        let stream = timeout_at(patience, self.connect(patience))
            .await
            .unwrap_or(Err(Error::ConnectionTimeout))?;
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES)
            .handshake::<_, Metered>(TokioIo::new(stream))
            .await?;
        // Ends when it is dropped, and with it the connection.
        let connection = wasmtime_wasi::runtime::spawn(connection);

        let between = self.options.between_bytes_timeout;
        let metered = |body| Metered::new(body, &self.meter, &self.target, deadline);
        let request = self.in_origin_form(request.map(metered));
        let patience = within(self.options.first_byte_timeout, deadline);
        let answer = timeout_at(patience, sender.send_request(request))
            .await
            .map_err(|_| Error::ConnectionReadTimeout)??;
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

    /// The request as it goes to its server: with the path alone, and with the
    /// host that was checked.
    fn in_origin_form(&self, mut request: Request<Metered>) -> Request<Metered> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        // A path that was taken from a URL is one.
        *request.uri_mut() = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
        match HeaderValue::try_from(self.target.authority()) {
            Ok(host) => request.headers_mut().insert(header::HOST, host),
            Err(_) => request.headers_mut().remove(header::HOST),
        };
        request
    }

    /// Connects to the first address that answers, of those that may be reached.
    async fn connect(&self, deadline: Instant) -> Result<Box<dyn Stream>, Error> {
        let stream = self.connect_tcp(deadline).await?;
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
        let tls = self.outlet.client.tls().await?;
        let stream = tls.connect(server, stream).await.map_err(|error| self.tls_error(error))?;
        Ok(Box::new(stream))
    }

    fn tls_error(&self, error: io::Error) -> Error {
        tracing::debug!(handler = self.outlet.handler, "TLS with {}: {error}", self.target);
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        match cause {
            Some(rustls::Error::InvalidCertificate(_)) => Error::TlsCertificateError,
            _ => Error::Tls(error),
        }
    }

    async fn connect_tcp(&self, deadline: Instant) -> Result<TcpStream, Error> {
        let addresses = self.addresses().await?;
        let mut last = Error::DestinationNotFound;
        for (tried, address) in addresses.iter().enumerate() {
            // One that is silent leaves time for those after it.
            let left = deadline.saturating_duration_since(Instant::now());
            let others = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            let until = Instant::now() + left / others;
            let address = SocketAddr::new(*address, self.target.port);
            match timeout_at(until, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = Error::Connect(error),
                Err(_) => last = Error::ConnectionTimeout,
            }
        }
        Err(last)
    }

    /// The target's addresses that may be reached: at least one.
    async fn addresses(&self) -> Result<Vec<IpAddr>, Error> {
        let mut addresses = match &self.target.host {
            TargetHost::Address(address) => vec![*address],
            TargetHost::Name(name) => self.look_up(name).await?,
        };
        let mut refusal = None;
        addresses.retain(|address| {
            let refused = self.outlet.policy.refusal_of(&self.target, *address);
            let may = refused.is_none();
            refusal = refusal.take().or(refused.map(|refused| (*address, refused)));
            may
        });
        match refusal {
            Some((address, refused)) if addresses.is_empty() => {
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

    async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, Error> {
        let lookups = Arc::clone(&self.outlet.lookups);
        let permit = lookups.acquire_owned().await.map_err(|_| Error::DnsTimeout)?;
        let (resolver, name) = (Arc::clone(&self.outlet.client.resolver), name.to_owned());
        // Goes on to its end when nobody waits any more: the thread it holds is
        // not free before.
        let lookup = tokio::spawn(async move {
            let _permit = permit;
            resolver.addresses(&name).await
        });
        let unknown = |error: &dyn fmt::Display| {
            tracing::debug!(handler = self.outlet.handler, "looking up {}: {error}", self.target);
            Error::DnsError { rcode: None, info_code: None }
        };
        let addresses = lookup.await.map_err(|error| unknown(&error))?;
        let addresses = addresses.map_err(|error| unknown(&error))?;
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

/// A body that counts.
struct Metered {
    body: WasiBody,
    meter: Arc<Meter>,
    target: String,
    deadline: Pin<Box<Sleep>>,
    pause: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl Metered {
    fn new(body: WasiBody, meter: &Arc<Meter>, target: &Target, deadline: Instant) -> Self {
        let (meter, target) = (Arc::clone(meter), target.to_string());
        Self { body, meter, target, deadline: Box::pin(sleep_until(deadline)), pause: None }
    }

    fn with_pauses_of_at_most(mut self, pause: Option<Duration>) -> Self {
        self.pause = pause.map(|pause| (pause, Box::pin(sleep_until(after(pause)))));
        self
    }
}

/// Kept representable, whatever the guest asks for.
fn after(pause: Duration) -> Instant {
    Instant::now() + pause.min(Duration::from_secs(86_400))
}

impl Body for Metered {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        let broken_off = this.meter.end.is_cancelled();
        match Pin::new(&mut this.body).poll_frame(cx) {
            _ if broken_off => Poll::Ready(Some(Err(Error::ConnectionTerminated))),
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                if !this.meter.bytes(bytes) {
                    return Poll::Ready(Some(Err(Error::HttpResponseBodySize(None))));
                }
                if let Some((pause, sleep)) = &mut this.pause {
                    sleep.as_mut().reset(after(*pause));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            // A connection that was ended by the clock looks like a broken one.
            Poll::Ready(Some(Err(_))) if Instant::now() >= this.deadline.deadline() => {
                this.meter.timed_out(&this.target);
                Poll::Ready(Some(Err(Error::HttpResponseTimeout)))
            }
            Poll::Pending => {
                if this.deadline.as_mut().poll(cx).is_ready() {
                    this.meter.timed_out(&this.target);
                    return Poll::Ready(Some(Err(Error::HttpResponseTimeout)));
                }
                if let Some((_, sleep)) = &mut this.pause
                    && sleep.as_mut().poll(cx).is_ready()
                {
                    return Poll::Ready(Some(Err(Error::ConnectionReadTimeout)));
                }
                Poll::Pending
            }
            other => other,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
