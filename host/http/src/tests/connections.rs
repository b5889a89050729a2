//! Whole connections, over real sockets.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::{known, listener};
use crate::listener::Server;
use crate::routes::{PROBLEM, Routes, WHOAMI};
use crate::settings::{Address, Listener, Settings};

/// How long a test waits for what should come at once.
const PATIENCE: Duration = Duration::from_secs(20);

const ASK: &[u8] = b"GET /problems/busy HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";

fn settings(listener: Listener) -> Settings {
    Settings { listeners: vec![listener], tokens: vec![known("one")], tenants: None }
}

fn anywhere() -> Listener {
    Listener { address: "127.0.0.1:0".parse().unwrap(), ..listener() }
}

/// Routes of which one waits until it is told to answer, and tells that it was called.
fn waiting(called: &Arc<Notify>, go: &Arc<Notify>) -> Routes {
    let (called, go) = (Arc::clone(called), Arc::clone(go));
    let mut routes = Routes::default();
    routes.add(&PROBLEM, move |_| {
        let (called, go) = (Arc::clone(&called), Arc::clone(&go));
        async move {
            called.notify_one();
            go.notified().await;
            Ok(Response::new("waited".into()))
        }
    });
    routes.add(&WHOAMI, |_| async { Ok(Response::new("at once".into())) });
    routes
}

/// Routes that answer at once.
fn quick() -> Routes {
    let mut routes = Routes::default();
    routes.add(&PROBLEM, |_| async { Ok(Response::new("at once".into())) });
    routes
}

async fn start(routes: Routes) -> (Server, std::net::SocketAddr) {
    start_with(anywhere(), routes).await
}

async fn start_with(listener: Listener, routes: Routes) -> (Server, std::net::SocketAddr) {
    let server = Server::start(&settings(listener), routes).await.unwrap();
    let address = server.addresses().next().unwrap().1.clone();
    let Address::Tcp(address) = address else { panic!("{address}") };
    (server, address)
}

/// Reads one answer, by its `Content-Length`.
async fn answer(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> (StatusCode, String, String) {
    timeout(PATIENCE, async {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("an answer"));
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut body).await.unwrap();
        (status, head, String::from_utf8(body).unwrap())
    })
    .await
    .expect("an answer in time")
}

/// Whether the other end closes, without a reset.
async fn is_closed(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> bool {
    let mut rest = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("an end in time");
    read.is_ok() && rest.is_empty()
}

#[tokio::test]
async fn a_connection_is_used_again_and_so_is_one_that_sends_ahead() {
    let (server, address) = start(quick()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for _ in 0..3 {
        stream.write_all(ASK).await.unwrap();
        assert_eq!(answer(&mut stream).await.0, StatusCode::OK);
    }
    stream.write_all(&[ASK, ASK].concat()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(answer(&mut stream).await.0, StatusCode::OK);
    }
    server.stop(Instant::now() + PATIENCE).await;
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn too_many_and_too_long_headers_are_refused_with_431() {
    let (_server, address) = start(quick()).await;
    let many: String = (0..100_000).map(|n| format!("x-{n}: 1\r\n")).collect();
    let long = format!("x-long: {}\r\n", "x".repeat(40_000));
    let endless = "x".repeat(1 << 20);
    for headers in [many, long, endless] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET /problems/busy HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n");
        // The answer comes before all of it is taken, and is not lost to that.
        let (mut reads, mut writes) = stream.split();
        let sending = async {
            let _ = writes.write_all(request.as_bytes()).await;
        };
        let ((status, ..), ()) = tokio::join!(answer(&mut reads), sending);
        assert_eq!(status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
}

/// The clock runs on whenever nothing else does.
#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_come_is_answered_with_408() {
    let (_server, address) = start(quick()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /problems/busy HTTP/1.1\r\nHost: ").await.unwrap();
    let (status, head, body) = answer(&mut stream).await;
    assert_eq!(status, StatusCode::REQUEST_TIMEOUT);
    assert!(head.contains("connection: close"), "{head}");
    assert!(body.contains("/problems/too-slow"), "{body}");
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn a_body_that_nobody_reads_does_not_cost_its_sender_the_answer() {
    let (_server, address) = start(quick()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "POST /problems/busy HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 8388608\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    // All of it is sent before the answer is looked for.
    stream.write_all(&vec![b'x'; 8 << 20]).await.unwrap();
    assert_eq!(answer(&mut stream).await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn a_stop_waits_for_the_answer_and_says_that_it_is_the_last() {
    let (called, go) = (Arc::default(), Arc::default());
    let (server, address) = start(waiting(&called, &go)).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(ASK).await.unwrap();
    called.notified().await;
    let stopping = tokio::spawn(server.stop(Instant::now() + PATIENCE));
    // Nobody is accepted any more.
    timeout(PATIENCE, async { while TcpStream::connect(address).await.is_ok() {} }).await.unwrap();
    assert!(!stopping.is_finished());
    go.notify_one();
    let (status, head, body) = answer(&mut stream).await;
    assert_eq!((status, body.as_str()), (StatusCode::OK, "waited"));
    assert!(head.contains("connection: close"), "{head}");
    assert!(is_closed(&mut stream).await);
    stopping.await.unwrap();
}

#[tokio::test]
async fn a_stop_breaks_off_what_does_not_end_in_time() {
    let (called, go) = (Arc::default(), Arc::default());
    let (server, address) = start(waiting(&called, &go)).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(ASK).await.unwrap();
    called.notified().await;
    let begun = Instant::now();
    server.stop(begun + Duration::from_millis(100)).await;
    assert!(begun.elapsed() < PATIENCE);
}

#[tokio::test]
async fn a_request_that_was_on_its_way_when_the_listener_closed_is_answered() {
    let (server, address) = start(quick()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(ASK).await.unwrap();
    assert_eq!(answer(&mut stream).await.0, StatusCode::OK);
    let stopping = tokio::spawn(server.stop(Instant::now() + PATIENCE));
    timeout(PATIENCE, async { while TcpStream::connect(address).await.is_ok() {} }).await.unwrap();
    stream.write_all(ASK).await.unwrap();
    let (status, head, _) = answer(&mut stream).await;
    assert_eq!(status, StatusCode::OK);
    assert!(head.contains("connection: close"), "{head}");
    stopping.await.unwrap();
}

#[tokio::test]
async fn no_more_connections_are_taken_than_the_limit() {
    let few = Listener { max_connections: 2, ..anywhere() };
    let (_server, address) = start_with(few, quick()).await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(ASK).await.unwrap();
        assert_eq!(answer(&mut stream).await.0, StatusCode::OK);
        streams.push(stream);
    }
    let mut third = TcpStream::connect(address).await.unwrap();
    third.write_all(ASK).await.unwrap();
    let early = timeout(Duration::from_millis(200), third.read_u8()).await;
    assert!(early.is_err(), "{early:?}");
    streams.pop();
    assert_eq!(answer(&mut third).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_unix_socket_has_its_mode_replaces_a_dead_one_and_is_removed() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "what a host that was killed leaves");
    let at = Listener { address: Address::Unix(path.clone()), socket_mode: 0o600, ..listener() };
    let server = Server::start(&settings(at.clone()), quick()).await.unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(ASK).await.unwrap();
    assert_eq!(answer(&mut stream).await.0, StatusCode::OK);
    let again = Server::start(&settings(at), quick()).await.err().unwrap();
    assert!(again.to_string().contains("another process listens there"), "{again}");
    server.stop(Instant::now() + PATIENCE).await;
    assert!(!path.exists());
}

#[tokio::test]
async fn a_reload_binds_first_and_leaves_everything_as_it_was_if_it_cannot() {
    let (mut server, address) = start(quick()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(ASK).await.unwrap();
    answer(&mut stream).await;
    let before = server.addresses().next().unwrap().1.clone();
    let taken = Listener { name: "other".to_owned(), address: before, ..listener() };
    let wrong = Settings { listeners: vec![taken.clone()], tokens: vec![], tenants: None };
    let refused = server.apply(&wrong).await.unwrap_err().to_string();
    assert!(refused.starts_with("the listener `other` cannot listen at 127.0.0.1:"), "{refused}");
    stream.write_all(ASK).await.unwrap();
    assert_eq!(answer(&mut stream).await.0, StatusCode::OK);

    // The same address under other settings: the connection goes on, and meets them.
    let based = Listener { base_path: "/host".to_owned(), ..anywhere() };
    server.apply(&settings(based)).await.unwrap();
    stream.write_all(ASK).await.unwrap();
    assert_eq!(answer(&mut stream).await.0, StatusCode::NOT_FOUND);
    assert_eq!(server.addresses().count(), 1);

    // Another address: what was there ends in order.
    let moved = Listener { address: "127.0.0.2:0".parse().unwrap(), ..listener() };
    server.apply(&settings(moved)).await.unwrap();
    assert!(is_closed(&mut stream).await);
    assert!(TcpStream::connect(address).await.is_err());
}
