//! What a host shows and does by HTTP, and to whom: listeners, tokens, limits, health, the
//! reload and the stop.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::{Answer, Handler, Http, PATIENCE, Rig, Running, Settings, get, wait_until};

/// Settings of a host that only listens, anywhere, with more lines.
fn listening(more: &str) -> Settings {
    Settings::of([Handler::new("tally", "tally", &["a"])])
        .top(&format!("listen.local.address = \"127.0.0.1:0\"\n{more}"))
}

fn whoami(address: SocketAddr, token: &str) -> Answer {
    get(address, "/v1/whoami", &[("Authorization", &format!("Bearer {token}"))])
}

/// Starts `host run`, and gives the address of its listener `local`.
fn run(rig: &Rig) -> (Running, SocketAddr) {
    let host = rig.spawn_run();
    let address = host.wait_until_listening("local");
    (host, address)
}

#[test]
fn nothing_is_served_unless_it_is_asked_for() {
    let rig = Rig::new(&Settings::of([Handler::new("tally", "tally", &["a"])]));
    let host = rig.spawn_run();
    host.wait_until_leading("tally");
    assert_eq!(host.count_messages("listening"), 0);
    host.stop();
}

#[test]
fn a_token_of_the_command_line_is_accepted_by_its_hash_and_tells_what_it_is() {
    let rig = Rig::new(&listening(""));
    let (secret, lines) =
        rig.token(&["--name", "ci", "--roles", "publish,read", "--tenant", "acme"]);
    rig.configure(&listening(&lines));
    let hashed = rig.host_reading(&["token", "hash"], format!("{secret}\n")).ok();
    assert!(lines.contains(hashed.trim()), "{hashed} is not in {lines}");
    let (host, address) = run(&rig);
    let answer = whoami(address, &secret);
    assert_eq!(answer.status, 200, "{answer:?}");
    let expected = serde_json::json!({
        "name": "ci", "tenant": "acme", "roles": ["publish", "read"], "expires": null,
    });
    assert_eq!(answer.json(), expected);
    let wrong = whoami(address, &secret.replace("ehk_", "ehk-"));
    assert_eq!((wrong.status, wrong.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(wrong.json()["type"], "/problems/unauthenticated");
    assert_eq!(get(address, "/v1/whoami", &[]).status, 401);
    let ended = host.log().iter().any(|line| line.to_string().contains(&secret));
    assert!(!ended, "the token is in the log");
    host.stop();
}

#[test]
fn without_tokens_a_token_is_shown_that_lasts_as_long_as_the_host_and_is_not_logged() {
    let rig = Rig::new(&Settings::of([Handler::new("tally", "tally", &["a"])]));
    let host = rig.spawn(&["run", "--http=127.0.0.1:0"]);
    let address = host.wait_until_listening("local");
    let shown = host.wait_for_log("the token", |line| {
        line.as_str().is_some_and(|line| line.contains("Authorization: Bearer ehk_"))
    });
    let shown = shown.as_str().expect("a line").to_owned();
    let at = shown.find("ehk_").expect("a token");
    let secret = &shown[at..at + 47];
    let answer = whoami(address, secret);
    assert_eq!((answer.status, answer.json()["tenant"].as_str()), (200, Some("*")));
    let logged =
        host.log().iter().any(|line| line.is_object() && line.to_string().contains("ehk_"));
    assert!(!logged, "the token is in the log");
    host.stop();
    let refused = rig.host(["run", "--http=0.0.0.0:8480"]).failed(2);
    assert!(refused.contains("[listen.NAME]"), "{refused}");
}

#[test]
fn a_listener_that_cannot_be_opened_stops_the_start_and_says_why() {
    let rig = Rig::new(&listening(""));
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    rig.configure(
        &Settings::of([Handler::new("tally", "tally", &["a"])])
            .top(&format!("listen.local.address = \"{address}\"")),
    );
    let said = rig.host(["run"]).failed(1);
    let expected = format!("error: the listener `local` cannot listen at {address}: ");
    assert!(said.contains(&expected) && said.contains("another process listens there"), "{said}");
}

#[test]
fn serve_needs_no_handlers_and_leads_no_group() {
    let rig = Rig::new(&Settings::of([Handler::new("tally", "tally", &["a"])]));
    let _ = rig.host(["migrate"]).ok();
    let database = rig.database().display().to_string();
    rig.write(
        "serve.toml",
        format!("database = \"sqlite:{database}\"\n[listen.local]\naddress = \"127.0.0.1:0\"\n"),
    );
    let host = rig.spawn(&["serve", "serve.toml"]);
    let address = host.wait_until_listening("local");
    assert_eq!(get(address, "/livez", &[]).body, "ok\n");
    assert_eq!(get(address, "/readyz", &[]).body, "ok\n");
    host.stop();
    let groups = rig.number("SELECT count(*) FROM consumer_groups");
    assert_eq!(groups, 0);
    rig.write("nothing.toml", format!("database = \"sqlite:{database}\"\n"));
    let said = rig.host(["serve", "nothing.toml"]).failed(1);
    assert!(said.contains("there is nothing to serve"), "{said}");
}

#[test]
fn serve_takes_a_listener_that_was_in_use_at_the_reload_by_itself() {
    let rig = Rig::new(&Settings::of([Handler::new("tally", "tally", &["a"])]));
    let _ = rig.host(["migrate"]).ok();
    let settings = |more: &str| {
        let database = rig.database().display().to_string();
        let local = "[listen.local]\naddress = \"127.0.0.1:0\"";
        rig.write("serve.toml", format!("database = \"sqlite:{database}\"\n{local}\n{more}"));
    };
    settings("");
    let host = rig.spawn(&["serve", "serve.toml"]);
    let address = host.wait_until_listening("local");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let other = taken.local_addr().expect("an address");
    settings(&format!("[listen.other]\naddress = \"{other}\""));
    host.hangup();
    let refused = "not all listeners are as the settings say";
    host.wait_for_log("the taken address", |line| {
        line["message"].as_str().is_some_and(|text| text.starts_with(refused))
    });
    assert_eq!(get(address, "/livez", &[]).status, 200);
    drop(taken);
    assert_eq!(host.wait_until_listening("other"), other);
    host.wait_for_message("reloaded");
    assert_eq!(get(other, "/livez", &[]).status, 200);
    host.stop();
}

#[test]
fn a_slow_sender_gets_408_and_a_header_bomb_431_and_others_notice_nothing() {
    let rig = Rig::new(&listening(""));
    let (host, address) = run(&rig);
    let mut slow = Http::connect(address);
    slow.send("GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").expect("it is taken");
    for headers in [
        (0..100_000).map(|n| format!("X-{n}: 1\r\n")).collect::<String>(),
        format!("X-Long: {}", "x".repeat(1 << 20)),
    ] {
        let mut bomb = Http::connect(address);
        // It may be cut off before all is sent.
        let _ = bomb.send(format!("GET /livez HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n"));
        assert_eq!(bomb.answer().expect("an answer").status, 431);
    }
    let begun = Instant::now();
    for _ in 0..50 {
        assert_eq!(get(address, "/livez", &[]).status, 200);
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let answer = slow.answer().expect("an answer");
    assert_eq!((answer.status, answer.json()["type"].as_str()), (408, Some("/problems/too-slow")));
    host.stop();
}

/// What is said first of an error on a connection that had no answer before.
const NEW: &str = "new: ";

/// Asks again and again on connections that stay open, until told to end; counts answers,
/// and keeps what went wrong.
struct Load {
    over: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    askers: Vec<std::thread::JoinHandle<()>>,
    wrong: Arc<Mutex<Vec<String>>>,
}

impl Load {
    fn start(address: SocketAddr, askers: usize, path: &'static str) -> Self {
        let (over, answered, wrong): (Arc<AtomicBool>, Arc<AtomicUsize>, Arc<Mutex<Vec<_>>>) =
            Default::default();
        let askers = (0..askers).map(|_| {
            let (over, answered, wrong) =
                (Arc::clone(&over), Arc::clone(&answered), Arc::clone(&wrong));
            std::thread::spawn(move || {
                let mut open = None;
                while !over.load(Ordering::Acquire) {
                    let is_new = open.is_none();
                    // Once nobody listens any more, it is over.
                    let Ok(mut http) = open.take().map_or_else(|| Http::try_connect(address), Ok)
                    else {
                        return;
                    };
                    match http.try_get(path, &[]) {
                        Ok(answer) if answer.status == 200 => {
                            answered.fetch_add(1, Ordering::AcqRel);
                            if answer.header("connection") != Some("close") {
                                open = Some(http);
                            }
                        }
                        other => {
                            let of = if is_new { NEW } else { "" };
                            wrong.lock().expect("no panic").push(format!("{of}{other:?}"));
                        }
                    }
                }
            })
        });
        Self { askers: askers.collect(), over, answered, wrong }
    }

    fn wait_for(&self, more: usize) {
        let target = self.answered.load(Ordering::Acquire) + more;
        wait_until("answers", PATIENCE, || self.answered.load(Ordering::Acquire) >= target);
    }

    fn end(self) -> Vec<String> {
        self.over.store(true, Ordering::Release);
        for asker in self.askers {
            asker.join().expect("no panic");
        }
        self.wrong.lock().expect("no panic").clone()
    }
}

#[test]
fn a_reload_changes_tokens_and_listeners_and_loses_no_connection() {
    let rig = Rig::new(&listening(""));
    let (first, lines) = rig.token(&["--name", "first", "--roles", "read"]);
    let (second, more) = rig.token(&["--name", "second", "--roles", "read"]);
    rig.configure(&listening(&lines));
    let (host, address) = run(&rig);
    assert_eq!(whoami(address, &first).status, 200);
    assert_eq!(whoami(address, &second).status, 401);
    let load = Load::start(address, 4, "/livez");
    load.wait_for(50);
    rig.configure(&listening(&format!(
        "{more}\nlisten.other.address = \"127.0.0.2:0\"\nlisten.other.serve = [\"health\"]"
    )));
    host.hangup();
    let other = host.wait_until_listening("other");
    let line = host.wait_for_message("reloaded");
    let changed = "listen.other, tokens.first, tokens.second";
    assert_eq!(line["changed"], changed, "{line}");
    load.wait_for(50);
    assert_eq!(whoami(address, &first).status, 401);
    assert_eq!(whoami(address, &second).status, 200);
    assert_eq!(get(other, "/livez", &[]).status, 200);
    assert_eq!(get(other, "/v1/whoami", &[]).status, 404);

    // A mistake leaves everything as it is.
    rig.configure(&listening("listen.other.serve = [\"helth\"]"));
    host.hangup();
    host.wait_for_log("the mistake", |line| {
        line["message"].as_str().is_some_and(|text| text.contains("did you mean \"health\"?"))
    });
    assert_eq!(whoami(address, &second).status, 200);
    assert_eq!(get(other, "/livez", &[]).status, 200);

    // An address that is taken is of its listener alone: nobody enters by a token that was
    // taken out of the settings.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken_at = taken.local_addr().expect("an address");
    rig.configure(&listening(&format!(
        "{lines}\nlisten.other.address = \"127.0.0.2:0\"\nlisten.other.serve = [\"health\"]\nlisten.third.address = \"{taken_at}\""
    )));
    host.hangup();
    host.wait_for_log("the taken address", |line| {
        line["message"]
            .as_str()
            .is_some_and(|text| text.starts_with("not all listeners are as the settings say"))
    });
    let line = host.wait_for_log("what took effect", |line| {
        line["message"] == "reloaded" && line["changed"] != changed
    });
    assert_eq!(line["changed"], "tokens.first, tokens.second", "{line}");
    assert_eq!(whoami(address, &first).status, 200);
    assert_eq!(whoami(address, &second).status, 401);
    assert_eq!(get(other, "/livez", &[]).status, 200);
    load.wait_for(50);
    assert_eq!(load.end(), [""; 0]);

    // Once it is free, the host takes it by itself.
    drop(taken);
    assert_eq!(host.wait_until_listening("third"), taken_at);
    wait_until("the first token", PATIENCE, || whoami(taken_at, &first).status == 200);
    host.stop();
}

#[test]
fn a_stop_under_load_resets_no_connection_before_its_answer() {
    let rig = Rig::new(&listening("drain_delay = \"500ms\""));
    let (mut host, address) = run(&rig);
    let load = Load::start(address, 8, "/livez");
    load.wait_for(200);
    host.sigterm();
    wait_until("not ready", PATIENCE, || get(address, "/readyz", &[]).status == 503);
    // Everything else is served meanwhile.
    load.wait_for(20);
    assert!(host.wait().success(), "{:#?}", host.log());
    let mut wrong = load.end();
    // A connection that the system sets up between the host's last accept and the closing of
    // the socket is reset by the system: the host never had it, as if it had been refused.
    wrong.retain(|error| !(error.starts_with(NEW) && error.contains("ConnectionReset")));
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn a_second_signal_exits_at_once_also_while_the_stop_waits_for_load_balancers() {
    let rig = Rig::new(&listening("drain_delay = \"1h\""));
    let (mut host, address) = run(&rig);
    host.sigterm();
    wait_until("not ready", PATIENCE, || get(address, "/readyz", &[]).status == 503);
    host.sigterm();
    assert_eq!(host.wait().code(), Some(1));
}

/// Starts the host as a service manager does that has opened its socket.
fn activated(rig: &Rig, socket: &TcpListener) -> Running {
    let program = rig.command(["run"]).get_program().to_owned();
    let mut command = Command::new("sh");
    // The shell gives the socket the number 3, and the process its own in `LISTEN_PID`.
    let script = format!(
        "exec 3<&{}; export LISTEN_FDS=1 LISTEN_FDNAMES=edge LISTEN_PID=$$; exec \"$0\" run --log-format json",
        socket.as_raw_fd()
    );
    command.arg("-c").arg(script).arg(program).current_dir(rig.folder()).env_remove("HOST_LOG");
    Running::start(&mut command)
}

#[test]
fn over_a_restart_under_socket_activation_no_connection_is_refused() {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    // So that the child gets it.
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty()).expect("a flag can be set");
    let address = socket.local_addr().expect("an address");
    let settings = Settings::of([Handler::new("tally", "tally", &["a"])])
        .top("listen.edge.address = \"systemd:edge\"");
    let rig = Rig::new(&settings);
    let host = activated(&rig, &socket);
    host.wait_for_log("the listener", |line| line["message"] == "listening");
    let load = Load::start(address, 4, "/livez");
    load.wait_for(500);
    host.stop();
    let host = activated(&rig, &socket);
    load.wait_for(500);
    assert_eq!(load.end(), [""; 0]);
    host.stop();
    let said = rig.host(["run"]).failed(1);
    assert!(said.contains("the service manager passed no socket"), "{said}");
}

#[test]
fn planted_secrets_are_in_no_line_of_the_log() {
    let rig = Rig::new(&listening(""));
    let (secret, lines) = rig.token(&["--name", "ci", "--roles", "read"]);
    rig.configure(&listening(&lines));
    let host = rig.spawn(&["run", "--log", "trace"]);
    let address = host.wait_until_listening("local");
    assert_eq!(whoami(address, &secret).status, 200);
    let guess: String = "ehk_".chars().chain(secret[4..].chars().rev()).collect();
    assert_ne!(guess, secret);
    assert_eq!(whoami(address, &guess).status, 401);
    let path = format!("/v1/whoami?access_token={secret}");
    let cookie = format!("a={secret}");
    let answer = get(address, &path, &[("Cookie", &cookie), ("X-Signature", &secret)]);
    assert_eq!(answer.status, 401);
    assert!(!answer.body.contains(&secret), "{answer:?}");
    assert_eq!(get(address, "/nowhere", &[("Authorization", &secret)]).status, 404);
    host.wait_for_log("the last request", |line| {
        line["message"] == "answered" && line["path"] == "`/nowhere`"
    });
    for line in host.log() {
        let line: Value = line;
        let text = line.to_string();
        assert!(!text.contains(&secret[4..]) && !text.contains(&guess[4..]), "{text}");
    }
    host.stop();
}

/// The service manager's end of the socket that the host tells it things by.
struct Manager {
    socket: std::os::unix::net::UnixDatagram,
    told: Vec<String>,
}

impl Manager {
    /// Waits for a message, and gives the whole of it.
    fn wait_for(&mut self, what: &str) -> String {
        let mut message = [0; 4096];
        loop {
            let length = self.socket.recv(&mut message);
            let length = length.unwrap_or_else(|why| panic!("no {what}: {why}: {:?}", self.told));
            let message = String::from_utf8_lossy(&message[..length]).into_owned();
            self.told.push(message.clone());
            if message.lines().any(|line| line.starts_with(what)) {
                return message;
            }
        }
    }
}

#[test]
fn the_service_manager_is_told_of_start_reload_life_and_stop() {
    let rig = Rig::new(&listening(""));
    let socket = std::os::unix::net::UnixDatagram::bind(rig.path("notify")).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
    let mut manager = Manager { socket, told: Vec::new() };
    let mut command = rig.command(["run", "--log-format", "json"]);
    command.env("NOTIFY_SOCKET", rig.path("notify")).env("WATCHDOG_USEC", "1000000");
    let mut host = Running::start(&mut command);
    let ready = manager.wait_for("READY=1");
    assert!(ready.contains("STATUS=running, serving at 127.0.0.1:"), "{ready}");
    manager.wait_for("WATCHDOG=1");
    host.hangup();
    let reloading = manager.wait_for("RELOADING=1");
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    manager.wait_for("READY=1");
    // Also where nothing comes of the reload.
    rig.write("handlers.toml", "nonsense");
    host.hangup();
    manager.wait_for("RELOADING=1");
    manager.wait_for("READY=1");
    manager.wait_for("WATCHDOG=1");
    host.sigterm();
    let stopping = manager.wait_for("STOPPING=1");
    assert!(stopping.contains("EXTEND_TIMEOUT_USEC="), "{stopping}");
    assert!(host.wait().success());
}

#[test]
fn the_units_for_systemd_are_right_and_leave_little_exposed() {
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        println!("there is no systemd-analyze here: the units are not looked at");
        return;
    };
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let number: u32 = version
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .unwrap_or_else(|| panic!("{version}"));
    let rig = Rig::new(&listening(""));
    let units = concat!(env!("CARGO_MANIFEST_DIR"), "/../contrib/systemd");
    let service = std::fs::read_to_string(format!("{units}/host.service")).expect("a unit");
    // As the unit says for older ones. The program is where the test has it.
    let service = match number {
        253.. => service,
        _ => {
            service.replace("Type=notify-reload", "Type=notify\nExecReload=/bin/kill -HUP $MAINPID")
        }
    };
    let program = rig.command(["run"]).get_program().to_string_lossy().into_owned();
    rig.write("host.service", service.replace("/usr/local/bin/host", &program));
    let socket = std::fs::read(format!("{units}/host.socket")).expect("a unit");
    rig.write("host.socket", socket);
    for arguments in [
        &["verify", "host.service", "host.socket"][..],
        &["security", "--offline=true", "--threshold=30", "host.service"],
    ] {
        let said =
            Command::new("systemd-analyze").args(arguments).current_dir(rig.folder()).output();
        let said = said.expect("it runs");
        let complaints = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success() && complaints.is_empty(), "{arguments:?}: {complaints}");
    }
}

#[test]
fn check_names_what_is_exposed_and_refuses_a_certificate_that_cannot_be_used() {
    let rig = Rig::new(&listening(""));
    let (_, lines) = rig.token(&["--name", "ci", "--roles", "publish", "--tenant", "acme"]);
    let exposed = "listen.edge.address = \"0.0.0.0:8480\"\nlisten.edge.plaintext = true\n\
         listen.edge.serve = [\"ingest\", \"health\"]";
    let soon = "tokens.ci.expires = 2020-01-31";
    rig.configure(&listening(&format!("{exposed}\n{lines}\n{soon}")));
    let said = rig.host(["check"]).ok();
    for line in [
        "listen.local  http://127.0.0.1:0",
        "  reached by processes of this machine",
        "listen.edge  http://0.0.0.0:8480",
        "  serves     ingest, health",
        "  reached by other machines, NOT encrypted",
        "tokens.ci  publish, of `acme`",
        "  ends       WARNING: it ended 2020-01-31T00:00:00Z",
    ] {
        assert!(said.lines().any(|l| l == line), "`{line}` is not in:\n{said}");
    }
    let tls = "listen.edge.address = \"0.0.0.0:8480\"\n\
         listen.edge.tls = { cert = \"no.pem\", key = \"no.key\" }";
    rig.configure(&listening(tls));
    let said = rig.host(["check"]).failed(1);
    assert!(said.contains("error: [listen.edge]: "), "{said}");
    assert!(said.contains("no.pem: cannot be read"), "{said}");
}
