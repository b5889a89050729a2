//! Requests as a guest makes them, to servers on this machine.

mod fuzz;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::Uri;
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::client::Resolve;
use super::*;
use crate::guest_log::LineRate;
use event_host_core::event::{Attempt, Event, GroupName, Position, Tenant};
use event_host_core::failure::FailureKind;
use event_host_core::handler::state::{BatchState, EmptyState};

const PATIENCE: Duration = Duration::from_secs(60);

/// Answers from a list, each name in turn, and counts how often it is asked.
#[derive(Default)]
struct Names {
    answers: Mutex<HashMap<&'static str, Vec<Vec<IpAddr>>>>,
    asked: AtomicUsize,
}

impl Names {
    fn of(names: &[(&'static str, &[&[&str]])]) -> Arc<Self> {
        let answers = names.iter().map(|(name, answers)| {
            let parse = |answer: &&[&str]| answer.iter().map(|ip| ip.parse().unwrap()).collect();
            (*name, answers.iter().map(parse).collect())
        });
        Arc::new(Self { answers: Mutex::new(answers.collect()), asked: AtomicUsize::new(0) })
    }
}

#[async_trait]
impl Resolve for Names {
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut answers = self.answers.lock().unwrap();
        match answers.get_mut(name) {
            Some(answers) if !answers.is_empty() => Ok(answers.remove(0)),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// A guest's side of HTTP, with these grants.
struct Caller(Http);

impl Caller {
    fn new(rules: &[&str], limits: Limits, client: Client) -> Self {
        let http: HttpPolicy = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let line_rate = Arc::new(LineRate::new("h", limits.log_lines_per_second));
        let log = Arc::new(GuestLog::new(line_rate, limits.log_bytes, None));
        let egress = Arc::new(Egress::new("h", http, limits, Arc::new(client)));
        let mut caller = Self(Http::new(egress, log));
        caller.begin("/source", "id");
        caller
    }

    fn begin(&mut self, source: &str, id: &str) {
        self.begin_with(&[(source, id)]);
    }

    /// Begins a call with events of these sources and ids.
    fn begin_with(&mut self, events: &[(&str, &str)]) {
        let group: GroupName = "triage".parse().unwrap();
        let tenant = Tenant::none();
        let event = |(source, id): &(&str, &str)| {
            Event::new(*id, *source, "t", "2026-01-01T00:00:01Z".parse().unwrap())
        };
        let in_log =
            |event| LogEvent { position: Position(1), deliver_to: None, digest: None, event };
        let events: Vec<LogEvent> = events.iter().map(event).map(in_log).collect();
        self.0.begin(&CallInput {
            group: &group,
            tenant: &tenant,
            events: &events.iter().collect::<Vec<_>>(),
            attempt: Attempt::FIRST,
            is_late: false,
            state: &BatchState::new("").attempt(Arc::new(EmptyState)),
        });
    }

    fn start(
        &mut self,
        request: http::request::Builder,
        body: &'static str,
    ) -> Pin<Box<dyn Future<Output = SendResult> + Send>> {
        let body = Full::new(Bytes::from_static(body.as_bytes())).map_err(|never| match never {});
        let request = request.body(body.boxed_unsync()).unwrap();
        Pin::from(self.0.hooks.send_request(request, None, Box::new(async { Ok(()) })))
    }

    /// Makes a request to its end, and gives status and body.
    async fn send(
        &mut self,
        request: http::request::Builder,
        body: &'static str,
    ) -> Result<(u16, String), Error> {
        let request = self.start(request, body);
        let whole = async {
            let (answer, driver) = request.await?;
            let _driver = tokio::spawn(Pin::from(driver));
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await?.to_bytes();
            Ok((status, String::from_utf8(body.to_vec()).unwrap()))
        };
        timeout(PATIENCE, whole).await.unwrap()
    }

    async fn get(&mut self, url: &str) -> Result<(u16, String), Error> {
        self.send(Request::get(url), "").await
    }

    fn failure(&self) -> Option<FailureKind> {
        match self.0.abort()? {
            Abort::Limit { kind, .. } => Some(*kind),
            Abort::NotRun(why) => panic!("{why}"),
        }
    }
}

/// A server on this machine that gives each request this answer, and keeps what
/// it received.
struct Server {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Server {
    async fn answering(answer: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&heads);
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let kept = Arc::clone(&kept);
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                        if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    kept.lock().unwrap().push(String::from_utf8_lossy(&head).into_owned());
                    if stream.write_all(answer).await.is_ok() {
                        // Stays open: what ends it is the other side.
                        let _ = stream.read_to_end(&mut head).await;
                    }
                });
            }
        });
        Self { address, heads, task }
    }

    /// A server that answers once it has a body as long as it was said, and counts
    /// those.
    async fn reading_bodies() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&heads);
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let kept = Arc::clone(&kept);
                tokio::spawn(async move {
                    let mut read = Vec::new();
                    loop {
                        if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                            return;
                        }
                        let text = String::from_utf8_lossy(&read).to_lowercase();
                        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                        let length = head.split_once("content-length: ").unwrap().1;
                        let length = length.lines().next().unwrap().parse::<usize>().unwrap();
                        if body.len() >= length {
                            kept.lock().unwrap().push(text);
                            stream.write_all(HELLO).await.unwrap();
                            return;
                        }
                    }
                });
            }
        });
        Self { address, heads, task }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The value of a header of each request.
    fn header(&self, name: &str) -> Vec<Option<String>> {
        let heads = self.heads.lock().unwrap();
        let value = |head: &String| {
            head.lines().find_map(|line| {
                let (header, value) = line.split_once(": ")?;
                header.eq_ignore_ascii_case(name).then(|| value.to_owned())
            })
        };
        heads.iter().map(value).collect()
    }

    fn requests(&self) -> usize {
        self.heads.lock().unwrap().len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

fn denied(answer: &Result<(u16, String), Error>) -> bool {
    matches!(answer, Err(Error::HttpRequestDenied))
}

#[tokio::test]
async fn a_request_to_a_granted_address_arrives_and_its_answer_comes_back() {
    let server = Server::answering(HELLO).await;
    let mut caller = Caller::new(&[&server.url()], Limits::default(), Client::new());
    let url = format!("{}/path?query=1", server.url());
    assert_eq!(caller.get(&url).await.unwrap(), (200, "hello".to_owned()));
    let head = server.heads.lock().unwrap()[0].clone();
    assert!(head.starts_with("GET /path?query=1 HTTP/1.1\r\n"), "{head}");
    assert_eq!(server.header("host"), [Some(server.address.to_string())]);
    assert_eq!(caller.failure(), None);
}

#[tokio::test]
async fn without_a_grant_no_request_leaves() {
    let server = Server::answering(HELLO).await;
    let mut caller = Caller::new(&[], Limits::default(), Client::new());
    assert!(denied(&caller.get(&server.url()).await));
    assert_eq!(server.requests(), 0);
}

/// Every way to write an address that must not be reached, under the widest
/// grant of names that there is.
#[tokio::test]
async fn no_spelling_of_an_inner_address_gets_past_the_widest_grant() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let limits = Limits { http_requests: 1_000, ..Limits::default() };
    let mut caller = Caller::new(&["http://*:*", "https://*:*"], limits, Client::new());
    for host in [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "127.0.1",
        "2130706433",
        "017700000001",
        "0177.0.0.1",
        "0x7f000001",
        "0x7f.0.0.1",
        "0X7F.1",
        "0",
        "0.0.0.0",
        "[::]",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::127.0.0.1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::FFFF:7F00:1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "[::ffff:a9fe:a9fe]",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "10.0.0.1",
        "192.168.0.1",
        "172.16.0.1",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
    ] {
        for scheme in ["http", "https"] {
            let answer = caller.get(&format!("{scheme}://{host}:{port}/")).await;
            assert!(denied(&answer), "{scheme}://{host}: {answer:?}");
        }
    }
    for host in [
        "user@127.0.0.1",
        "user:secret@127.0.0.1",
        "example.com@127.0.0.1",
        "a..b",
        ".",
        "127.0.0.1..",
    ] {
        let answer = caller.get(&format!("http://{host}:{port}/")).await;
        assert!(matches!(answer, Err(Error::HttpRequestUriInvalid)), "{host}: {answer:?}");
    }
    assert!(listener.accept().now_or_never().is_none(), "nobody ever connected");
    assert_eq!(caller.failure(), None, "a denial is not the end of an attempt");
}

#[tokio::test]
async fn a_name_that_leads_inside_is_refused_whatever_its_grant() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for inside in ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fd00::1"]
    {
        let names = Names::of(&[("evil.example", &[&[inside], &[inside]])]);
        for rule in [format!("http://evil.example:{port}"), "http://*:*".to_owned()] {
            let client = Client::with_resolver(Arc::clone(&names) as Arc<dyn Resolve>);
            let mut caller = Caller::new(&[&rule], Limits::default(), client);
            let answer = caller.get(&format!("http://evil.example:{port}")).await;
            assert!(denied(&answer), "{inside}: {answer:?}");
        }
    }
    assert!(listener.accept().now_or_never().is_none(), "nobody ever connected");
}

#[tokio::test]
async fn a_name_is_looked_up_once_and_the_address_that_was_checked_is_connected_to() {
    let server = Server::answering(HELLO).await;
    let port = server.address.port();
    // A second look would lead elsewhere, and among several addresses those that
    // may not be reached are passed over.
    let names = Names::of(&[("api.example", &[&["10.255.255.1", "127.0.0.1"], &["10.0.0.1"]])]);
    let client = Client::with_resolver(Arc::clone(&names) as Arc<dyn Resolve>);
    let rules = [format!("http://api.example:{port}"), format!("http://127.0.0.1:{port}")];
    let mut caller = Caller::new(&[&rules[0], &rules[1]], Limits::default(), client);
    let url = format!("http://API.example.:{port}/");
    assert_eq!(caller.get(&url).await.unwrap().1, "hello");
    assert_eq!(names.asked.load(Ordering::Relaxed), 1);
    assert_eq!(server.header("host"), [Some(format!("api.example:{port}"))]);
    assert!(denied(&caller.get(&url).await), "the next request asks anew");
}

#[tokio::test]
async fn a_name_that_is_not_granted_is_not_looked_up() {
    let names = Names::of(&[]);
    let client = Client::with_resolver(Arc::clone(&names) as Arc<dyn Resolve>);
    let mut caller = Caller::new(&["http://api.example"], Limits::default(), client);
    assert!(denied(&caller.get("http://secret.evil.example").await));
    assert_eq!(names.asked.load(Ordering::Relaxed), 0);
    let unknown = caller.get("http://api.example").await;
    assert!(matches!(unknown, Err(Error::DnsError { .. })), "{unknown:?}");
}

#[tokio::test]
async fn a_query_without_a_path_arrives() {
    let server = Server::answering(HELLO).await;
    let mut caller = Caller::new(&[&server.url()], Limits::default(), Client::new());
    let uri = |path: &str| {
        let authority = server.address.to_string();
        Uri::builder().scheme("http").authority(authority).path_and_query(path).build().unwrap()
    };
    for (path, sent) in [("?x=1", "/?x=1"), ("", "/"), ("/?x=1", "/?x=1"), ("?", "/?")] {
        caller.send(Request::get(uri(path)), "").await.unwrap();
        let head = server.heads.lock().unwrap().pop().unwrap();
        assert!(head.starts_with(&format!("GET {sent} HTTP/1.1\r\n")), "{path}: {head}");
    }
}

/// What is written of a body, and what it says that it is.
#[tokio::test]
async fn a_body_that_is_longer_than_it_says_is_an_error_and_none_that_is_cut_short_is_answered() {
    let server = Server::reading_bodies().await;
    let mut caller = Caller::new(&[&server.url()], Limits::default(), Client::new());
    let mut post = async |length: &str, pieces: &[&'static [u8]]| {
        let frames: Vec<Result<Frame<Bytes>, Error>> =
            pieces.iter().map(|piece| Ok(Frame::data(Bytes::from_static(piece)))).collect();
        let body = StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
        let request = Request::post(server.url()).header("content-length", length).body(body);
        let sent = caller.0.hooks.send_request(request.unwrap(), None, Box::new(async { Ok(()) }));
        let (answer, driver) = timeout(PATIENCE, Pin::from(sent)).await.unwrap()?;
        let _driver = tokio::spawn(Pin::from(driver));
        Ok::<u16, Error>(answer.status().as_u16())
    };
    for pieces in [&[b"hello".as_slice()][..], &[b"he", b"", b"llo"], &[b"hello", b""]] {
        assert_eq!(post("5", pieces).await.unwrap(), 200);
    }
    assert_eq!(post("0", &[]).await.unwrap(), 200);
    let too_long: [(&str, &[&'static [u8]]); 4] = [
        ("5", &[b"hello world"]),
        ("5", &[b"hello", b" world"]),
        ("5", &[b"he", b"llo", b"!"]),
        ("0", &[b"hello"]),
    ];
    for (length, pieces) in too_long {
        let answer = post(length, pieces).await;
        assert!(matches!(answer, Err(Error::HttpRequestBodySize(Some(_)))), "{answer:?}");
    }
    let short = post("5", &[b"hell"]).await;
    assert!(short.is_err(), "{short:?}");
    assert_eq!(server.requests(), 4, "no other one was whole");
}

#[tokio::test]
async fn heads_count_to_the_bytes_that_an_attempt_sends_and_receives() {
    let server = Server::answering(HELLO).await;
    let limits = Limits { http_bytes: 10_000, ..Limits::default() };
    let mut caller = Caller::new(&[&server.url()], limits, Client::new());
    let request = || Request::get(server.url()).header("x-large", "x".repeat(4_000));
    caller.send(request(), "").await.unwrap();
    caller.send(request(), "").await.unwrap();
    assert_eq!(caller.failure(), None);
    caller.send(request(), "").await.unwrap_err();
    assert_eq!(caller.failure(), Some(FailureKind::HttpByteLimit));
    assert_eq!(server.requests(), 2);

    let answer =
        format!("HTTP/1.1 200 OK\r\nX-Large: {}\r\nContent-Length: 0\r\n\r\n", "x".repeat(9_990));
    let server = Server::answering(Box::leak(answer.into_boxed_str()).as_bytes()).await;
    let limits = Limits { http_bytes: 10_000, ..Limits::default() };
    let mut caller = Caller::new(&[&server.url()], limits, Client::new());
    caller.get(&server.url()).await.unwrap_err();
    assert_eq!(caller.failure(), Some(FailureKind::HttpByteLimit));
}

#[tokio::test]
async fn a_tunnel_is_refused() {
    let server = Server::answering(HELLO).await;
    let mut caller = Caller::new(&[&server.url()], Limits::default(), Client::new());
    let answer = caller.send(Request::connect(server.url()), "").await;
    assert!(matches!(answer, Err(Error::HttpRequestMethodInvalid)), "{answer:?}");
    assert_eq!(server.requests(), 0);
}

#[tokio::test]
async fn what_changes_something_carries_a_key_that_is_the_same_in_each_attempt() {
    let server = Server::answering(HELLO).await;
    let mut caller = Caller::new(&[&server.url()], Limits::default(), Client::new());
    for _ in 0..2 {
        caller.begin("/a:b", "é 1");
        caller.get(&server.url()).await.unwrap();
        caller.send(Request::post(server.url()), "x").await.unwrap();
        let own = Request::post(server.url()).header("Idempotency-Key", "own");
        caller.send(own, "x").await.unwrap();
        caller.send(Request::delete(server.url()), "").await.unwrap();
    }
    let keys = server.header("idempotency-key");
    let once =
        [None, Some("triage:/a%3Ab:%C3%A9%201"), Some("own"), Some("triage:/a%3Ab:%C3%A9%201:2")];
    let expected: Vec<Option<String>> =
        once.iter().chain(&once).map(|key| key.map(ToOwned::to_owned)).collect();
    assert_eq!(keys, expected);

    // The same events in one call are named together, by nothing that one is named by.
    let mut batch_key = async |events: &[(&str, &str)]| {
        caller.begin_with(events);
        caller.send(Request::post(server.url()), "x").await.unwrap();
        server.header("idempotency-key").pop().flatten().unwrap()
    };
    let one = batch_key(&[("/a:b", "é 1"), ("/a", "b")]).await;
    assert!(one.starts_with("triage:batch:") && one.len() < 100, "{one}");
    assert_eq!(batch_key(&[("/a:b", "é 1"), ("/a", "b")]).await, one);
    for others in [&[("/a:b", "é 1"), ("/a", "c")][..], &[("/a", "b"), ("/a:b", "é 1")]] {
        assert_ne!(batch_key(others).await, one);
    }

    caller.begin("/source", &"long".repeat(1_000));
    caller.send(Request::post(server.url()), "x").await.unwrap();
    let long = server.header("idempotency-key").pop().flatten().unwrap();
    assert!(long.starts_with("triage:sha256:") && long.len() < 100, "{long}");
}

#[tokio::test]
async fn requests_beyond_their_number_end_the_attempt_denied_ones_too() {
    let server = Server::answering(HELLO).await;
    let limits = Limits { http_requests: 2, ..Limits::default() };
    let mut caller = Caller::new(&[&server.url()], limits, Client::new());
    caller.get(&server.url()).await.unwrap();
    assert!(denied(&caller.get("http://elsewhere.example").await));
    assert_eq!(caller.failure(), None);
    assert!(caller.get(&server.url()).await.is_err());
    assert_eq!(caller.failure(), Some(FailureKind::HttpRequestLimit));
    assert_eq!(server.requests(), 1);
}

#[tokio::test]
async fn bodies_beyond_their_size_end_the_attempt_in_both_directions() {
    let server = Server::answering(HELLO).await;
    let mut caller = Caller::new(&[&server.url()], Limits::default(), Client::new());
    caller.send(Request::post(server.url()), "").await.unwrap();
    let attempt = caller.0.hooks.attempt.as_ref().unwrap();
    let heads = attempt.meter.as_ref().unwrap().counted() - "hello".len();
    assert!((100..300).contains(&heads), "{heads}");
    for (body, most, fits) in
        [("12345", 10, true), ("12345", 9, false), ("123456789012", 10, false)]
    {
        let limits = Limits { http_bytes: heads + most, ..Limits::default() };
        let mut caller = Caller::new(&[&server.url()], limits, Client::new());
        let answer = caller.send(Request::post(server.url()), body).await;
        assert_eq!(answer.is_ok(), fits, "{body} {most}: {answer:?}");
        let expected = if fits { None } else { Some(FailureKind::HttpByteLimit) };
        assert_eq!(caller.failure(), expected, "{body} {most}");
    }
}

#[tokio::test]
async fn a_server_that_is_silent_or_stalls_in_its_answer_ends_the_attempt_in_time() {
    let stalls: [&[u8]; 3] =
        [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"];
    for stall in stalls {
        let server = Server::answering(stall).await;
        let limits = Limits { http_timeout: Duration::from_millis(100), ..Limits::default() };
        let mut caller = Caller::new(&[&server.url()], limits, Client::new());
        assert!(caller.get(&server.url()).await.is_err());
        assert_eq!(caller.failure(), Some(FailureKind::HttpTimeout));
        let text = caller.0.abort().unwrap().to_string();
        assert!(text.ends_with("longer than limits.http_timeout, 100ms"), "{text}");
    }
}

#[tokio::test]
async fn an_answer_that_is_no_http_or_has_an_endless_head_is_an_error() {
    const LINE: &[u8] = b"HTTP/1.1 200 OK\r\nX: ";
    static ENDLESS: [u8; 200_000] = {
        let mut head = [b'x'; 200_000];
        let mut at = 0;
        while at < LINE.len() {
            head[at] = LINE[at];
            at += 1;
        }
        head
    };
    for answer in [&b"SSH-2.0-OpenSSH_9.2\r\n"[..], &ENDLESS] {
        let server = Server::answering(answer).await;
        let mut caller = Caller::new(&[&server.url()], Limits::default(), Client::new());
        assert!(caller.get(&server.url()).await.is_err());
        assert_eq!(caller.failure(), None, "that is the server's doing");
    }
}

#[tokio::test]
async fn what_is_open_when_the_attempt_ends_is_broken_off() {
    let server = Server::answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel").await;
    let mut caller = Caller::new(&[&server.url()], Limits::default(), Client::new());
    let (answer, _driver) = caller.start(Request::get(server.url()), "").await.unwrap();
    let waiting = caller.start(Request::get(server.url()), "");
    caller.0.end();
    assert!(matches!(waiting.await, Err(Error::ConnectionTerminated)));
    let body = timeout(PATIENCE, answer.into_body().collect()).await.unwrap();
    assert!(matches!(body, Err(Error::ConnectionTerminated)), "{body:?}");
}

/// A server that speaks TLS, as `api.example` and as 127.0.0.1.
async fn tls_server() -> (SocketAddr, JoinHandle<()>) {
    let certificates = vec![CertificateDer::from_pem_slice(include_bytes!("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that trusts nobody here breaks off.
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                let _ = stream.write_all(HELLO).await;
                let _ = stream.shutdown().await;
            }
        }
    });
    (address, task)
}

#[tokio::test]
async fn over_tls_a_server_must_be_the_one_that_was_asked_for() {
    let (address, server) = tls_server().await;
    let port = address.port();
    let mut ours = RootCertStore::empty();
    ours.add(CertificateDer::from_pem_slice(include_bytes!("ca.pem")).unwrap()).unwrap();
    for (host, roots, trusted) in [
        ("api.example", ours.clone(), true),
        ("127.0.0.1", ours.clone(), true),
        ("other.example", ours, false),
        ("api.example", RootCertStore::empty(), false),
    ] {
        let names =
            Names::of(&[("api.example", &[&["127.0.0.1"]]), ("other.example", &[&["127.0.0.1"]])]);
        let rules = [format!("https://*:{port}"), format!("https://127.0.0.1:{port}")];
        let client = Client::trusting(names, roots);
        let mut caller = Caller::new(&[&rules[0], &rules[1]], Limits::default(), client);
        let answer = caller.get(&format!("https://{host}:{port}")).await;
        if trusted {
            assert_eq!(answer.unwrap().1, "hello", "{host}");
        } else {
            assert!(matches!(answer, Err(Error::TlsCertificateError)), "{host}: {answer:?}");
        }
    }
    server.abort();
}

/// Runs itself in a process of its own, which may open no further file.
#[tokio::test]
async fn a_host_without_open_files_counts_no_attempt() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const NAME: &str = "http::tests::a_host_without_open_files_counts_no_attempt";
    if std::env::var_os("IN_CHILD").is_none() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME])
            .env("IN_CHILD", "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let server = Server::answering(HELLO).await;
    let mut caller = Caller::new(&[&server.url()], Limits::default(), Client::new());
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), maximum }).unwrap();
    let answer = caller.get(&server.url()).await;
    assert!(matches!(answer, Err(Error::ConnectionLimitReached)), "{answer:?}");
    let over = caller.0.abort().unwrap();
    assert!(matches!(over, Abort::NotRun(why) if why.contains("another connection")), "{over}");
}
