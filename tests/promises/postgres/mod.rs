//! What only several hosts on one server can promise, or break: held against
//! real servers, with sessions that are held at known points.

mod locks;
mod log;

use serde_json::Value;
use tests::{Client, Running};

/// Whether a line is one that a guest logged.
fn guest_says<'a>(text: &'a str) -> impl Fn(&Value) -> bool + 'a {
    move |line| line["target"] == "guest" && line["message"] == text
}

/// How often a guest has said something so far.
fn times_said(host: &Running, text: &str) -> usize {
    let says = guest_says(text);
    host.log().iter().filter(|line| says(line)).count()
}

/// The server's processes that hold an advisory lock in this database: the lock
/// sessions of the hosts that lead a group.
const LOCK_HOLDERS: &str = "
    SELECT DISTINCT pid::bigint FROM pg_locks
    WHERE locktype = 'advisory' AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Ends every session that holds an advisory lock, and gives their number.
fn end_lock_sessions(client: &mut Client) -> i64 {
    client.number(&format!(
        "SELECT count(*) FROM ({LOCK_HOLDERS}) l WHERE pg_terminate_backend(l.pid::int)"
    ))
}
