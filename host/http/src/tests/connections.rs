//! Whole connections, over real sockets.

use std::sync::Arc;
use std::time::Duration;

use event_host_metrics::HttpMetrics;
use http::{Response, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::{known, listener};
use crate::listener::{CannotListen, Inherited, Server};
use crate::routes::{PROBLEM, Routes, WHOAMI};
use crate::settings::{Address, Listener, Settings, TlsFiles};

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
    let server =
        Server::start(&settings(listener), routes, Inherited::default(), HttpMetrics::default())
            .await
            .unwrap();
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

/// Whether a time is that of a limit, but for what else takes time.
fn is_about(took: Duration, limit: u64) -> bool {
    (limit..limit + 5).contains(&took.as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_nobody_uses_is_closed_after_75_s() {
    let (_server, address) = start(quick()).await;
    for asks in [false, true] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        if asks {
            stream.write_all(ASK).await.unwrap();
            assert_eq!(answer(&mut stream).await.0, StatusCode::OK);
        }
        let begun = Instant::now();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"", "no answer that nobody asked for");
        assert!(is_about(begun.elapsed(), 75), "{:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_nothing_of_its_answer_is_given_up_after_30_s() {
    let mut routes = Routes::default();
    // More than the system keeps for both ends.
    routes.add(&PROBLEM, |_| async { Ok(Response::new(vec![b'x'; 64 << 20].into())) });
    let (server, address) = start(routes).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(ASK).await.unwrap();
    // The answer has begun, and nobody reads on.
    assert_eq!(stream.read_u8().await.unwrap(), b'H');
    let begun = Instant::now();
    server.stop(begun + Duration::from_secs(3_600)).await;
    assert!(is_about(begun.elapsed(), 30), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_agrees_on_no_keys_is_given_up_after_10_s() {
    let folder = tempfile::tempdir().unwrap();
    let files = certificate(folder.path(), "own");
    let encrypted = Listener { tls: Some(files), ..anywhere() };
    let (_server, address) = start_with(encrypted, quick()).await;
    // The first byte of a handshake, and no more.
    for sent in [&b""[..], &[22]] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let begun = Instant::now();
        let mut rest = Vec::new();
        // It may be a reset: nothing was agreed on.
        let _ = stream.read_to_end(&mut rest).await;
        assert!(is_about(begun.elapsed(), 10), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn what_comes_after_the_length_of_a_body_is_the_next_request() {
    let (_server, address) = start(quick()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let posted = "POST /problems/busy HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{}";
    stream.write_all(&[posted.as_bytes(), ASK].concat()).await.unwrap();
    assert_eq!(answer(&mut stream).await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(answer(&mut stream).await.0, StatusCode::OK);
    // A body that is longer than it says is no request: nothing of it is taken.
    stream.write_all(format!("{posted}, \"more\": 1}}\r\n\r\n").as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(answer(&mut stream).await.0, StatusCode::BAD_REQUEST);
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

/// One thread, so that nothing of the host runs between the connects and the stop.
#[tokio::test]
async fn connections_that_nobody_has_accepted_yet_are_answered_at_a_stop() {
    use std::io::Write as _;
    let (server, address) = start(quick()).await;
    let mut streams = Vec::new();
    for _ in 0..20 {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(ASK).unwrap();
        stream.set_nonblocking(true).unwrap();
        streams.push(TcpStream::from_std(stream).unwrap());
    }
    server.stop(Instant::now() + PATIENCE).await;
    for mut stream in streams {
        assert_eq!(answer(&mut stream).await.0, StatusCode::OK);
    }
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_unix_socket_has_its_mode_replaces_a_dead_one_and_is_removed() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "what a host that was killed leaves");
    let at = Listener { address: Address::Unix(path.clone()), socket_mode: 0o600, ..listener() };
    let server =
        Server::start(&settings(at.clone()), quick(), Inherited::default(), HttpMetrics::default())
            .await
            .unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(ASK).await.unwrap();
    assert_eq!(answer(&mut stream).await.0, StatusCode::OK);
    let again = Server::start(&settings(at), quick(), Inherited::default(), HttpMetrics::default())
        .await
        .err()
        .unwrap();
    assert!(again.to_string().contains("another process listens there"), "{again}");
    server.stop(Instant::now() + PATIENCE).await;
    assert!(!path.exists());
}

/// What a token is answered where one is needed.
async fn status_of(stream: &mut TcpStream, token: &str) -> StatusCode {
    let ask = format!(
        "GET /v1/whoami HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(ask.as_bytes()).await.unwrap();
    answer(stream).await.0
}

#[tokio::test]
async fn a_listener_that_cannot_be_as_the_settings_say_stays_and_lets_in_whom_they_say() {
    let mut routes = quick();
    routes.add(&WHOAMI, |_| async { Ok(Response::new("at once".into())) });
    let (mut server, address) = start(routes).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    assert_eq!(status_of(&mut stream, "one").await, StatusCode::OK);
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address_of = |socket: &TcpListener| Address::Tcp(socket.local_addr().unwrap());
    let moved = Listener { address: address_of(&taken), ..listener() };
    let fine =
        Listener { name: "fine".to_owned(), address: "127.0.0.2:0".parse().unwrap(), ..listener() };
    let wanted =
        Settings { listeners: vec![moved, fine], tokens: vec![known("two")], tenants: None };
    let refused = server.apply(&wanted).await.unwrap_err();
    let said = refused.to_string();
    assert!(said.starts_with("the listener `local` cannot listen at 127.0.0.1:"), "{said}");
    assert_eq!(refused.0.iter().map(CannotListen::name).collect::<Vec<_>>(), ["local"]);
    // It stays where it was, and the other is there.
    let names: Vec<_> = server.addresses().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(names, ["fine", "local"]);
    assert_eq!(status_of(&mut stream, "one").await, StatusCode::UNAUTHORIZED);
    assert_eq!(status_of(&mut stream, "two").await, StatusCode::OK);
    drop(taken);
    server.apply(&wanted).await.unwrap();
    assert!(is_closed(&mut stream).await);
    assert_eq!(server.addresses().count(), 2);
}

#[tokio::test]
async fn a_reload_changes_the_listener_of_an_address_and_closes_what_is_gone() {
    let (mut server, address) = start(quick()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(ASK).await.unwrap();
    answer(&mut stream).await;

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

/// A certificate of the test's own and its key, made by another implementation.
fn certificate(folder: &std::path::Path, name: &str) -> TlsFiles {
    let [cert, key] = ["pem", "key"].map(|kind| folder.join(format!("{name}.{kind}")));
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args([
            "-days",
            "2",
            "-subj",
            &format!("/CN={name}"),
            "-addext",
            "subjectAltName=DNS:localhost",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .expect("openssl runs");
    assert!(made.status.success(), "{made:?}");
    TlsFiles { cert, key }
}

/// Asks over TLS, and gives the certificate that was shown.
async fn ask_encrypted(
    address: std::net::SocketAddr,
    trusted: &[&TlsFiles],
) -> std::io::Result<(StatusCode, String, Vec<u8>)> {
    let mut roots = rustls::RootCertStore::empty();
    for files in trusted {
        roots.add(crate::tls::certificates(&files.cert).unwrap().remove(0)).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(address).await?;
    let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await?;
    let shown = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    stream.write_all(ASK).await?;
    let (status, head, _) = answer(&mut stream).await;
    Ok((status, head, shown))
}

#[tokio::test]
async fn a_certificate_encrypts_and_is_read_again_with_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| certificate(folder.path(), name));
    let used = TlsFiles { cert: folder.path().join("cert"), key: folder.path().join("key") };
    let put = |files: &TlsFiles| {
        std::fs::copy(&files.cert, &used.cert).unwrap();
        std::fs::copy(&files.key, &used.key).unwrap();
    };
    put(&old);
    let encrypted = Listener { tls: Some(used.clone()), ..anywhere() };
    let (mut server, address) = start_with(encrypted.clone(), quick()).await;
    let known = crate::tls::check(&used).unwrap();
    let left = known.expires.unwrap().duration_since(jiff::Timestamp::now());
    assert!((40..=48).contains(&left.as_hours()), "{known:?}");
    let (status, head, first) = ask_encrypted(address, &[&old, &new]).await.unwrap();
    assert_eq!(status, StatusCode::OK);
    assert!(head.contains("strict-transport-security"), "{head}");

    // A key that is not the certificate's leaves the listener as it is.
    std::fs::copy(&new.cert, &used.cert).unwrap();
    let refused = server.apply(&settings(encrypted.clone())).await.unwrap_err().to_string();
    assert!(refused.contains("do not go together"), "{refused}");
    assert_eq!(ask_encrypted(address, &[&old, &new]).await.unwrap().2, first);

    put(&new);
    server.apply(&settings(encrypted)).await.unwrap();
    let (status, _, second) = ask_encrypted(address, &[&old, &new]).await.unwrap();
    assert_eq!(status, StatusCode::OK);
    assert_ne!(first, second);

    // Who speaks plainly there gets no answer, and holds nothing up.
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(ASK).await.unwrap();
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, plain.read_to_end(&mut rest)).await.unwrap();
    assert!(!rest.starts_with(b"HTTP"), "{rest:?}");
}

#[tokio::test]
async fn files_that_hold_no_certificate_are_named_and_what_is_in_them_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let good = certificate(folder.path(), "good");
    let secret = folder.path().join("secret.key");
    std::fs::write(&secret, "-----BEGIN PRIVATE KEY-----\nhunter2!\n-----END PRIVATE KEY-----\n")
        .unwrap();
    let missing = folder.path().join("missing.pem");
    for (cert, key, expected) in [
        (missing.clone(), good.key.clone(), "missing.pem: cannot be read"),
        (good.key.clone(), good.key.clone(), "good.key: it has no certificate"),
        (good.cert.clone(), good.cert.clone(), "good.pem: has none"),
        (good.cert.clone(), secret, "secret.key: is no PEM"),
    ] {
        let listener = Listener { tls: Some(TlsFiles { cert, key }), ..anywhere() };
        let refused = Server::start(
            &settings(listener),
            quick(),
            Inherited::default(),
            HttpMetrics::default(),
        )
        .await;
        let refused = refused.err().unwrap().to_string();
        assert!(refused.contains(expected), "{refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}
