//! What only several hosts on one server can promise, or break: held against
//! real servers, with sessions that are held at known points.

mod failover;
mod guards;
mod locks;
mod log;
mod many_groups;
mod overtake;
mod replay;
mod restart;
mod settings;
mod strangers;
mod troubles;

use serde_json::Value;
use tests::{Client, PATIENCE, Rig, Running, wait_until};

/// Whether a line is one that a guest logged.
fn guest_says<'a>(text: &'a str) -> impl Fn(&Value) -> bool + 'a {
    move |line| line["target"] == "guest" && line["message"] == text
}

/// How often a guest has said something so far.
fn times_said(host: &Running, text: &str) -> usize {
    let says = guest_says(text);
    host.log().iter().filter(|line| says(line)).count()
}

/// The server's processes that are the lock sessions of the hosts that lead a group.
const LEADING: &str = "
    SELECT DISTINCT l.pid::bigint FROM pg_locks l
    JOIN event_host.hosts h ON h.backend_pid = l.pid
    JOIN event_host.consumer_groups g ON g.leader_key = h.lock_key
    WHERE l.locktype = 'advisory' AND l.granted
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// The server's processes that hold an advisory lock in this database: the lock
/// sessions of the hosts.
const LOCK_HOLDERS: &str = "
    SELECT DISTINCT pid::bigint FROM pg_locks
    WHERE locktype = 'advisory' AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Ends the session by which a host leads groups, and gives the number of such.
fn end_lock_session_of(client: &mut Client, host: &Running) -> i64 {
    client.number(&format!(
        "SELECT count(*) FROM ({LEADING}) l
         WHERE l.pid = (SELECT backend_pid FROM event_host.hosts WHERE pid = {})
           AND pg_terminate_backend(l.pid::int)",
        host.pid()
    ))
}

/// Ends every session that leads a group, and gives their number.
fn end_lock_sessions(client: &mut Client) -> i64 {
    client.number(&format!(
        "SELECT count(*) FROM ({LEADING}) l WHERE pg_terminate_backend(l.pid::int)"
    ))
}

/// Keeps a record of every settlement of a group, in `public.settlements`: when,
/// under which epoch, up to where.
fn record_settlements(rig: &Rig) {
    Client::new(rig).execute(
        "CREATE TABLE public.settlements (
             n bigint GENERATED ALWAYS AS IDENTITY, at timestamptz DEFAULT clock_timestamp(),
             epoch bigint, position bigint);
         CREATE FUNCTION public.record_settlement() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             INSERT INTO public.settlements (epoch, position) VALUES (new.epoch, new.position);
             RETURN NULL;
         END $$;
         CREATE TRIGGER record AFTER UPDATE ON event_host.consumer_groups FOR EACH ROW
         WHEN (old.settled <> new.settled) EXECUTE FUNCTION public.record_settlement();",
    );
}

/// Checks that no settlement came after one of a later epoch, and that the
/// cursor never moved back.
fn expect_settlements_in_order(rig: &Rig) {
    let out_of_order = rig.number(
        "SELECT count(*) FROM public.settlements one JOIN public.settlements later ON later.n > one.n
         WHERE later.epoch < one.epoch OR later.position < one.position",
    );
    assert_eq!(out_of_order, 0);
}

/// Checks that no advisory lock is held, as no host is left.
fn expect_no_lock(client: &mut Client) {
    wait_until("no lock is held", PATIENCE, || {
        client.number(&format!("SELECT count(*) FROM ({LOCK_HOLDERS}) l")) == 0
    });
}

/// Whether a host stands by.
pub(super) fn stands_by(line: &Value) -> bool {
    line["message"] == "another host leads; standing by"
}

/// Whether a line says all of this.
fn says(line: &Value, fragments: &[&str]) -> bool {
    let said = line["message"].as_str().unwrap_or_default();
    fragments.iter().all(|fragment| said.contains(fragment))
}
