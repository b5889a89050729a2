//! A network namespace: a program in it reaches the machine outside over a
//! cable of its own, and the test can cut that cable.
//!
//! ```text
//!     outside          the middle           inside
//!   host_address ---- router that ---- inside_address
//!                    cut() silences
//! ```
//!
//! To cut is to stop forwarding in the middle. That is silence as between two
//! machines in different racks: each side still has its carrier and its next
//! hop, so that no kernel reports an error, packets only vanish. It needs
//! neither traffic control nor a packet filter, which many kernels lack.
//!
//! Each namespace lives as long as a process in it, whose stdin the test holds.
//! However the test ends, the kernel takes everything away.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(test)]
mod tests;

/// The network from which every namespace has its addresses.
const NETWORK: Ipv4Addr = Ipv4Addr::new(10, 213, 0, 0);

/// How many namespaces have room in the network, with eight addresses each.
const ROOM: u32 = 1 << 13;

/// A namespace behind a cable. Dropping it removes both; what still runs inside
/// is cut off, so end that first.
#[derive(Debug)]
pub struct Namespace {
    inside: Holder,
    middle: Holder,
    /// The outer end of the cable.
    link: String,
    addresses: Addresses,
}

impl Namespace {
    /// All addresses of all namespaces, in the form that `pg_hba.conf` takes.
    pub const NETWORK: &'static str = "10.213.0.0/16";

    /// A namespace whose cable is whole.
    ///
    /// # Errors
    /// Why this machine does not allow it: not root, a program is missing (`ip`,
    /// `unshare`, `nsenter`), or the kernel refuses.
    pub fn create() -> Result<Self, String> {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        // At most 15 characters.
        let link = format!("eh{}n{number}", std::process::id());
        let middle = Holder::start()?;
        let inside = Holder::start()?;

        ip(&format!("link add {link} type veth peer name outer netns {}", middle.pid()))?;
        let addresses = Addresses::of(index_of(&link)?);
        let Addresses { host, router_outer, router_inner, inside: inner } = addresses;
        ip(&format!("address add {host}/30 dev {link}"))?;
        ip(&format!("link set {link} up"))?;
        middle.ip(&format!("link add inner type veth peer name cable netns {}", inside.pid()))?;
        middle.ip(&format!("address add {router_outer}/30 dev outer"))?;
        middle.ip("link set outer up")?;
        middle.ip(&format!("address add {router_inner}/30 dev inner"))?;
        middle.ip("link set inner up")?;
        inside.ip("link set lo up")?;
        inside.ip(&format!("address add {inner}/30 dev cable"))?;
        inside.ip("link set cable up")?;
        inside.ip(&format!("route add default via {router_inner}"))?;
        ip(&format!("route add {inner}/32 via {router_outer} dev {link}"))?;
        middle.forward(true)?;
        Ok(Self { inside, middle, link, addresses })
    }

    /// A command that runs inside. Its process is the program itself, so that a
    /// signal to its process id reaches the program.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.inside.command(program)
    }

    /// The address of the machine outside, as seen from inside. A server must
    /// listen there, or on all addresses.
    #[must_use]
    pub fn host_address(&self) -> Ipv4Addr {
        self.addresses.host
    }

    /// The address of what runs inside, as seen from outside.
    #[must_use]
    pub fn inside_address(&self) -> Ipv4Addr {
        self.addresses.inside
    }

    /// Cuts the cable: from now on every packet vanishes in both directions, and
    /// neither side is told.
    ///
    /// # Panics
    /// When the kernel refuses what it allowed at first.
    pub fn cut(&self) {
        self.middle.forward(false).expect("a router can stop");
    }

    /// Mends the cable.
    ///
    /// # Panics
    /// When the kernel refuses what it allowed at first.
    pub fn heal(&self) {
        self.middle.forward(true).expect("a router can go on");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The kernel removes the cable some time after the last process that is
        // in its namespaces has ended; this is at once.
        if let Err(error) = ip(&format!("link delete {}", self.link)) {
            eprintln!("a namespace leaves its cable to the kernel: {error}");
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Addresses {
    host: Ipv4Addr,
    router_outer: Ipv4Addr,
    router_inner: Ipv4Addr,
    inside: Ipv4Addr,
}

impl Addresses {
    /// The addresses of the cable whose outer end has this index, which no other
    /// link outside has: two networks of four addresses each.
    fn of(index: u32) -> Self {
        let block = u32::from(NETWORK) + index % ROOM * 8;
        let at = |offset| Ipv4Addr::from(block + offset);
        Self { host: at(1), router_outer: at(2), router_inner: at(5), inside: at(6) }
    }
}

/// A process that keeps the network namespace in which it runs, and ends with
/// this.
#[derive(Debug)]
struct Holder(Child);

impl Holder {
    fn start() -> Result<Self, String> {
        let child = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let mut holder = Self(child);
        let stdin = holder.0.stdin.as_mut().expect("stdin is piped");
        let stdout = holder.0.stdout.as_mut().expect("stdout is piped");
        // Once `cat` answers, the namespace is there.
        if let Err(error) = stdin.write_all(b".").and_then(|()| stdout.read_exact(&mut [0])) {
            let mut reason = String::new();
            let stderr = holder.0.stderr.as_mut().expect("stderr is piped");
            return Err(match stderr.read_to_string(&mut reason) {
                Ok(1..) => reason.trim().to_owned(),
                _ => format!("unshare: {error}"),
            });
        }
        Ok(holder)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// A command that runs in the namespace.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.pid())).arg("--").arg(program);
        command
    }

    fn ip(&self, arguments: &str) -> Result<(), String> {
        run(self.command("ip").args(arguments.split(' '))).map(drop)
    }

    /// Sets whether the namespace forwards packets that are not its own.
    fn forward(&self, forward: bool) -> Result<(), String> {
        // The file belongs to the namespace of the process that opens it.
        let script = format!("echo {} > /proc/sys/net/ipv4/ip_forward", u8::from(forward));
        run(self.command("sh").args(["-c", &script])).map(drop)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The kernel's number of a link outside.
fn index_of(link: &str) -> Result<u32, String> {
    let answer = run(Command::new("ip").args(["-oneline", "link", "show", "dev", link]))?;
    let index = answer.split(':').next().and_then(|index| index.parse().ok());
    index.ok_or_else(|| format!("ip link show: no index in {answer:?}"))
}

fn ip(arguments: &str) -> Result<(), String> {
    run(Command::new("ip").args(arguments.split(' '))).map(drop)
}

/// Runs a command to its good end, and gives what it wrote.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let complaint = String::from_utf8_lossy(&output.stderr);
        Err(format!("{command:?}: {}, {}", output.status, complaint.trim()))
    }
}
