//! Whether a host is well, as load balancers, service managers and `host health` ask it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use test_postgres::{Server, Stop};
use tests::{Handler, Http, PATIENCE, Rig, Running, Settings, get, wait_until};

/// Settings of a host that only listens, anywhere, with more lines.
fn listening(more: &str) -> Settings {
    Settings::of([Handler::new("tally", "tally", &["a"])])
        .top(&format!("listen.local.address = \"127.0.0.1:0\"\n{more}"))
}

/// Starts `host run`, and gives the address of its listener `local`.
fn run(rig: &Rig) -> (Running, SocketAddr) {
    let host = rig.spawn_run();
    let address = host.wait_until_listening("local");
    (host, address)
}

#[test]
fn livez_stays_while_the_server_is_gone_and_readyz_follows_it() {
    let mut server = Server::start(&[]).expect("a server starts");
    let rig = Rig::at(&server.url("postgres"), &listening(""));
    let (host, address) = run(&rig);
    // One that is only starting ends when the server goes.
    host.wait_until_leading("tally");
    let is = |path: &str, status: u16| get(address, path, &[]).status == status;
    wait_until("ready", PATIENCE, || is("/readyz", 200));
    server.stop(Stop::Fast).expect("the server stops");
    wait_until("not ready", PATIENCE, || is("/readyz", 503));
    assert!(is("/livez", 200));
    let why = get(address, "/readyz?verbose", &[]).json();
    assert!(why["reason"].as_str().is_some_and(|why| why.contains("database")), "{why}");
    server.resume().expect("the server starts");
    wait_until("ready again", PATIENCE, || is("/readyz", 200));
    host.stop();
}

#[test]
fn health_is_asked_by_the_program_itself() {
    let settings = Settings::of([Handler::new("tally", "tally", &["a"])]);
    let rig = Rig::new(&settings.top("listen.local.address = \"unix:http.sock\""));
    let said = rig.host(["health"]).failed(1);
    assert!(said.contains("cannot ask unix:"), "{said}");
    let host = rig.spawn_run();
    host.wait_for_log("the listener", |line| line["message"] == "listening");
    assert!(rig.host(["health"]).ok().contains("\"status\":\"ok\""));
    assert!(rig.host(["health", "--ready"]).ok().contains("\"status\":\"ok\""));
    host.stop();
}

#[test]
fn the_exit_code_of_health_is_0_if_the_host_is_well_1_if_not_and_2_for_a_wrong_call() {
    let rig = Rig::new(&listening("drain_delay = \"1h\""));
    let (mut host, address) = run(&rig);
    let http = format!("--http={address}");
    assert!(rig.host(["health", &http]).ok().contains("\"status\":\"ok\""));
    wait_until("ready", PATIENCE, || rig.host(["health", "--ready", &http]).code == Some(0));
    host.sigterm();
    wait_until("not ready", PATIENCE, || get(address, "/readyz", &[]).status == 503);
    let stops = rig.host(["health", "--ready", &http]);
    assert_eq!(stops.code, Some(1), "{stops:?}");
    assert!(stops.stdout.contains("the host stops"), "{stops:?}");
    // It is alive: a restart would not help.
    let _ = rig.host(["health", &http]).ok();
    host.sigterm();
    host.wait();
    let gone = rig.host(["health", &http]).failed(1);
    assert!(gone.contains("cannot ask http://127.0.0.1:"), "{gone}");
    // What answers is no host.
    let stranger = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = stranger.local_addr().expect("an address");
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = stranger.accept().expect("it asks");
        // What is left unread would reset the connection, before the answer is read.
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("it asks");
            asked.push(byte[0]);
        }
        stream.write_all(b"220 mail ESMTP\r\n\r\n").expect("it listens");
    });
    let said = rig.host(["health", &format!("--http={address}")]).failed(1);
    assert!(said.contains("what answers there is no host"), "{said}");
    answering.join().expect("no panic");
    let said = rig.host(["health", "--http=nowhere"]).failed(2);
    assert!(said.contains("write an address and a port"), "{said}");
    rig.configure(&listening("listen.local.serve = [\"ingest\"]"));
    let said = rig.host(["health"]).failed(1);
    assert!(said.contains("add \"health\" to its `serve`"), "{said}");
}

/// Makes a certificate and its key, in the rig's folder, which counts for so many days.
fn certificate(rig: &Rig, name: &str, days: u32) {
    let (cert, key) = (format!("{name}.pem"), format!("{name}.key"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-nodes", "-subj", "/CN=elsewhere.example", "-days", &days.to_string()])
        .args(["-keyout", &key, "-out", &cert])
        .current_dir(rig.folder())
        .output()
        .expect("openssl runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn health_asks_an_encrypted_listener_which_must_show_the_certificate_of_the_settings() {
    let encrypted = |certificate: &str, port: u16| {
        Settings::of([Handler::new("tally", "tally", &["a"])]).top(&format!(
            "listen.edge.address = \"127.0.0.1:{port}\"\n\
             listen.edge.tls = {{ cert = \"{certificate}.pem\", key = \"{certificate}.key\" }}"
        ))
    };
    let rig = Rig::new(&listening(""));
    certificate(&rig, "own", 30);
    certificate(&rig, "other", 30);
    rig.configure(&encrypted("own", 0));
    let host = rig.spawn_run();
    let address = host.wait_until_listening("edge");
    // Another settings file, with the port that the host got.
    rig.configure(&encrypted("own", address.port()));
    assert!(rig.host(["health"]).ok().contains("\"status\":\"ok\""));
    wait_until("ready", PATIENCE, || rig.host(["health", "--ready"]).code == Some(0));
    rig.configure(&encrypted("other", address.port()));
    let said = rig.host(["health"]).failed(1);
    assert!(said.contains("it shows another certificate than the settings name"), "{said}");
    // It takes over the renewed one, with the same listener.
    rig.configure(&encrypted("other", 0));
    host.hangup();
    host.wait_for_message("reloaded");
    rig.configure(&encrypted("other", address.port()));
    let _ = rig.host(["health"]).ok();
    // One that is not encrypted is asked first.
    rig.configure(&encrypted("own", address.port()).top("listen.plain.address = \"unix:no.sock\""));
    let said = rig.host(["health"]).failed(1);
    assert!(said.contains("cannot ask unix:"), "{said}");
    host.stop();
}

#[test]
fn a_full_ingest_queue_is_not_ready_where_events_come_in_and_ready_elsewhere() {
    let rig = Rig::new(&listening(""));
    let (secret, lines) = rig.token(&["--name", "ci", "--roles", "publish"]);
    let edge = "listen.edge.address = \"127.0.0.2:0\"\n\
         listen.edge.serve = [\"ingest\", \"health\"]\n\
         listen.local.serve = [\"health\"]\n\
         ingest.queue = \"1MiB\"\ningest.max_body = \"1MiB\"";
    rig.configure(&listening(&format!("{edge}\n{lines}")));
    let (host, local) = run(&rig);
    let edge = host.wait_until_listening("edge");
    let is = |address: SocketAddr, status: u16| get(address, "/readyz", &[]).status == status;
    wait_until("ready", PATIENCE, || is(edge, 200) && is(local, 200));
    // A sender that says how much it sends, and does not send it: the room is taken.
    let mut sender = Http::connect(edge);
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n\
         Content-Type: application/cloudevents+json\r\nContent-Length: {}\r\n\r\n{{",
        1 << 20
    );
    sender.send(head).expect("it is taken");
    wait_until("not ready", PATIENCE, || is(edge, 503));
    let why = get(edge, "/readyz?verbose", &[]).json();
    assert!(why["reason"].as_str().is_some_and(|why| why.contains("the ingest queue")), "{why}");
    assert!(is(local, 200), "no events come in here");
    assert_eq!(get(edge, "/livez", &[]).status, 200);
    drop(sender);
    wait_until("ready again", PATIENCE, || is(edge, 200));
    host.stop();
}

#[test]
fn check_warns_of_a_certificate_that_ends_within_14_days() {
    let rig = Rig::new(&listening(""));
    for (name, days, warns) in [("long", 16, false), ("soon", 13, true)] {
        certificate(&rig, name, days);
        rig.configure(&listening(&format!(
            "listen.local.tls = {{ cert = \"{name}.pem\", key = \"{name}.key\" }}"
        )));
        let said = rig.host(["check"]).ok();
        let line = said.lines().find(|line| line.starts_with("  ends"));
        let line = line.unwrap_or_else(|| panic!("no line of the certificate: {said}"));
        assert_eq!(line.contains("WARNING"), warns, "{name}: {line}");
    }
}
