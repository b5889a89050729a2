use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::*;
use crate::echo::{Echo, Served};
use crate::{PATIENCE, wait_until};

/// A namespace, unless this machine allows none.
fn namespace() -> Option<Namespace> {
    Namespace::create().inspect_err(|reason| eprintln!("skipped: {reason}")).ok()
}

/// A program inside that copies its stdin to a server and what the server sends
/// to its stdout, which closes if the connection ends or fails.
struct Relay {
    process: Holder,
    came: Receiver<Vec<u8>>,
}

impl Relay {
    fn start(namespace: &Namespace, server: SocketAddr) -> Self {
        // The one that reads is the process itself; the one that writes ends
        // with its input.
        let script = "exec 3<>/dev/tcp/$0/$1 4<&0 && { cat <&4 >&3 & exec cat <&3; }";
        let mut command = namespace.command("bash");
        command.args(["-c", script, &server.ip().to_string(), &server.port().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Holder(command.spawn().unwrap());
        let mut stdout = process.0.stdout.take().unwrap();
        let (sender, came) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(read @ 1..) = stdout.read(&mut bytes) {
                if sender.send(bytes[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { process, came }
    }

    fn say(&mut self, bytes: &[u8]) {
        self.process.0.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn expect(&self, wanted: &[u8]) {
        let mut came = Vec::new();
        while came.len() < wanted.len() {
            came.extend(self.came.recv_timeout(PATIENCE).expect("bytes come"));
        }
        assert_eq!(came, wanted);
    }

    /// Checks that nothing has come: no bytes, and no end.
    fn expect_nothing(&self) {
        let came = self.came.recv_timeout(Duration::ZERO);
        assert_eq!(came, Err(RecvTimeoutError::Timeout));
    }
}

fn relay(namespace: &Namespace) -> (Echo, Relay, Served) {
    let server = Echo::start(namespace.host_address());
    let relay = Relay::start(namespace, server.address);
    let served = server.next();
    (server, relay, served)
}

#[test]
fn a_cut_is_silence_on_both_sides_until_it_heals() {
    let Some(namespace) = namespace() else { return };
    let (_server, mut relay, served) = relay(&namespace);
    assert_eq!(served.peer.ip(), namespace.inside_address());
    relay.say(b"whole");
    served.expect(b"whole");
    relay.expect(b"whole");

    namespace.cut();
    relay.say(b"cut");
    served.say(b"unheard ");
    served.expect_silence(Duration::from_secs(2));
    relay.expect_nothing();

    namespace.heal();
    served.expect(b"cut");
    relay.expect(b"unheard cut");
}

#[test]
fn a_new_connection_through_a_cut_meets_silence_and_no_refusal() {
    let Some(namespace) = namespace() else { return };
    // Nobody listens inside, so whoever gets through is refused.
    let address = SocketAddr::from((namespace.inside_address(), 9));
    let connect = |patience| TcpStream::connect_timeout(&address, patience).unwrap_err().kind();
    assert_eq!(connect(PATIENCE), ErrorKind::ConnectionRefused);
    namespace.cut();
    assert_eq!(connect(Duration::from_secs(2)), ErrorKind::TimedOut);
    namespace.heal();
    assert_eq!(connect(PATIENCE), ErrorKind::ConnectionRefused);
}

#[test]
fn one_namespace_is_cut_alone() {
    let (Some(cut), Some(whole)) = (namespace(), namespace()) else { return };
    let (_, mut relay_cut, served_cut) = relay(&cut);
    let (_, mut relay_whole, served_whole) = relay(&whole);
    cut.cut();
    relay_cut.say(b"cut");
    relay_whole.say(b"whole");
    served_whole.expect(b"whole");
    relay_whole.expect(b"whole");
    served_cut.expect_silence(Duration::from_millis(200));
}

#[test]
fn a_command_is_the_program_itself() {
    let Some(namespace) = namespace() else { return };
    let mut command = namespace.command("cat");
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut process = Holder(command.spawn().unwrap());
    let about = |file: &str| format!("/proc/{}/{file}", process.pid());
    wait_until("the program runs", PATIENCE, || {
        std::fs::read_to_string(about("comm")).unwrap() == "cat\n"
    });
    let inside = std::fs::read_link(about("ns/net")).unwrap();
    assert_ne!(inside, std::fs::read_link("/proc/self/ns/net").unwrap());
    process.0.kill().unwrap();
    assert_eq!(process.0.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_dropped_namespace_leaves_nothing() {
    let Some(namespace) = namespace() else { return };
    let link = namespace.link.clone();
    let holders = [namespace.inside.pid(), namespace.middle.pid()];
    index_of(&link).unwrap();
    drop(namespace);
    index_of(&link).unwrap_err();
    for holder in holders {
        assert!(!std::path::Path::new(&format!("/proc/{holder}")).exists());
    }
}

#[test]
fn links_that_exist_together_share_no_address() {
    let of = |index| {
        let Addresses { host, router_outer, router_inner, inside } = Addresses::of(index);
        [host, router_outer, router_inner, inside]
    };
    let mut all: Vec<_> = (5..5 + ROOM).flat_map(of).collect();
    assert!(all.iter().all(|address| address.octets()[..2] == [10, 213]));
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4 * ROOM as usize);
}
