use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use super::*;
use crate::echo::{Asking, Echo, Served};
use crate::{PATIENCE, wait_until};

/// Long enough for a local byte that should not have come.
const MOMENT: Duration = Duration::from_millis(200);

fn start() -> (Echo, Proxy) {
    let server = Echo::start(Ipv4Addr::LOCALHOST);
    let proxy = Proxy::start(server.address);
    (server, proxy)
}

/// A connection through the proxy, seen from all three sides.
fn connect(server: &Echo, proxy: &Proxy) -> (Asking, Connection, Served) {
    let client = Asking::connect(proxy.address());
    let served = server.next();
    let mut found = None;
    wait_until("the proxy knows the connection", PATIENCE, || {
        found = proxy.connections().into_iter().find(|one| one.client_port() == client.port());
        found.is_some()
    });
    (client, found.unwrap(), served)
}

#[test]
fn bytes_pass_both_ways_and_are_counted() {
    let (server, proxy) = start();
    let (mut first, _, _) = connect(&server, &proxy);
    let (mut second, _, _) = connect(&server, &proxy);
    first.ask(b"one");
    second.ask(&[7; 100_000]);

    let total = Traffic { open: 2, opened: 2, requests: 100_003, replies: 100_003, refused: 0 };
    wait_until("all is counted", PATIENCE, || proxy.traffic() == total);
}

#[test]
fn a_throttled_link_takes_its_time_for_all_connections_together() {
    let (server, proxy) = start();
    let (mut first, _, _) = connect(&server, &proxy);
    let (mut second, _, _) = connect(&server, &proxy);
    proxy.throttle(Some(200_000));
    let begun = Instant::now();
    first.say(&[1; 25_000]);
    second.say(&[2; 25_000]);
    first.expect(&[1; 25_000]);
    second.expect(&[2; 25_000]);
    // 100,000 bytes, there and back.
    assert!(begun.elapsed() >= Duration::from_millis(500), "{:?}", begun.elapsed());
    proxy.throttle(None);
    first.ask(&[7; 1_000_000]);
}

#[test]
fn the_end_of_a_connection_passes() {
    let (server, proxy) = start();
    let (client, connection, served) = connect(&server, &proxy);
    drop(client);
    served.expect_end();
    wait_until("the connection is over", PATIENCE, || !connection.is_open());
    assert!(proxy.connections().is_empty());
    assert_eq!((proxy.traffic().open, proxy.traffic().opened), (0, 1));
}

#[test]
fn a_connection_is_known_by_the_ports_of_both_its_sides() {
    let (server, proxy) = start();
    let (client, connection, served) = connect(&server, &proxy);
    assert_eq!(connection.client_port(), client.port());
    assert_eq!(connection.upstream_port(), served.peer.port());
    assert_ne!(connection.client_port(), connection.upstream_port());
}

#[test]
fn a_stall_passes_nothing_and_closes_nothing_until_it_is_over() {
    let (server, proxy) = start();
    let (mut old, _, old_served) = connect(&server, &proxy);
    old.ask(b"before");
    old_served.expect(b"before");

    proxy.stall();
    old.say(b"old");
    old_served.say(b"unasked ");
    let (mut new, _, new_served) = connect(&server, &proxy);
    new.say(b"new");
    old_served.expect_silence(MOMENT);
    old.expect_silence(MOMENT);
    new_served.expect_silence(MOMENT);
    new.expect_silence(MOMENT);

    proxy.resume();
    old.expect(b"unasked old");
    new.expect(b"new");
    let (mut late, _, _) = connect(&server, &proxy);
    late.ask(b"late");
}

#[test]
fn a_client_that_dies_behind_a_stall_dies_unseen() {
    let (server, proxy) = start();
    let (mut closed, _, closed_served) = connect(&server, &proxy);
    let (reset, _, reset_served) = connect(&server, &proxy);
    closed.ask(b"here");
    closed_served.expect(b"here");

    // A socket that closes with bytes unread resets the connection.
    reset_served.say(b"unread");
    reset.0.set_read_timeout(Some(PATIENCE)).unwrap();
    reset.0.peek(&mut [0]).unwrap();
    proxy.stall();
    drop(closed);
    drop(reset);
    closed_served.expect_silence(MOMENT);
    reset_served.expect_silence(MOMENT);

    proxy.resume();
    closed_served.expect_end();
    reset_served.expect_end();
}

#[test]
fn stalled_replies_leave_the_server_with_the_request() {
    let (server, proxy) = start();
    let (mut client, _, served) = connect(&server, &proxy);
    proxy.stall_replies();
    client.say(b"COMMIT");
    served.expect(b"COMMIT");
    client.expect_silence(MOMENT);

    proxy.resume();
    client.expect(b"COMMIT");
}

#[test]
fn one_connection_stalls_while_another_flows() {
    let (server, proxy) = start();
    let (mut one, connection, served) = connect(&server, &proxy);
    let (mut other, _, _) = connect(&server, &proxy);
    connection.stall();
    one.say(b"one");
    other.ask(b"other");
    served.expect_silence(MOMENT);

    connection.stall_replies();
    served.expect(b"one");
    one.expect_silence(MOMENT);

    connection.resume();
    one.expect(b"one");
}

#[test]
fn a_drop_is_a_clean_end_on_both_sides_even_with_bytes_under_way() {
    let (server, proxy) = start();
    let (mut client, connection, served) = connect(&server, &proxy);
    let (mut stalled, _, stalled_served) = connect(&server, &proxy);
    client.ask(b"asked");
    served.expect(b"asked");
    // More than the proxy takes in one piece, so that its socket keeps a rest.
    proxy.stall();
    stalled.say(&[1; 2 * CHUNK]);
    stalled_served.say(&[2; 2 * CHUNK]);

    proxy.drop_all();
    assert_eq!(proxy.traffic().open, 0);
    assert!(!connection.is_open());
    client.end().unwrap();
    served.expect_end();
    stalled.end().unwrap();
    stalled_served.expect_end();

    proxy.resume();
    let (mut next, _, _) = connect(&server, &proxy);
    next.ask(b"next");
}

#[test]
fn a_drop_takes_back_nothing_that_was_passed_on() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::start(server.local_addr().unwrap());
    let mut client = Asking::connect(proxy.address());
    let (mut served, _) = server.accept().unwrap();
    // More than the client's socket takes in before it is read, so that most of
    // it waits in the proxy's.
    std::thread::spawn(move || served.write_all(&vec![1; 16 << 20]));
    let passed_on = 1 << 20;
    wait_until("much is passed on", PATIENCE, || proxy.traffic().replies > passed_on);
    proxy.stall();
    client.say(&[2; 2 * CHUNK]);

    proxy.drop_all();
    client.0.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut came = Vec::new();
    client.0.read_to_end(&mut came).unwrap();
    assert!(came.len() as u64 > passed_on, "{}", came.len());
}

#[test]
fn a_reset_reaches_the_client_as_one_and_the_server_as_an_end() {
    let (server, proxy) = start();
    let (mut client, _, served) = connect(&server, &proxy);
    client.ask(b"asked");
    served.expect(b"asked");

    proxy.reset_all();
    assert_eq!(proxy.traffic().open, 0);
    assert_eq!(client.end().unwrap_err().kind(), ErrorKind::ConnectionReset);
    served.expect_end();
}

#[test]
fn a_stalled_connection_can_be_reset() {
    let (server, proxy) = start();
    let (mut client, _, served) = connect(&server, &proxy);
    proxy.stall();
    client.say(b"under way");
    proxy.reset_all();
    assert_eq!(client.end().unwrap_err().kind(), ErrorKind::ConnectionReset);
    served.expect_end();
}

#[test]
fn one_connection_ends_alone() {
    let (server, proxy) = start();
    let (mut reset, to_reset, _) = connect(&server, &proxy);
    let (mut closed, to_close, _) = connect(&server, &proxy);
    let (mut other, _, other_served) = connect(&server, &proxy);
    to_reset.reset();
    to_close.close();
    assert_eq!(reset.end().unwrap_err().kind(), ErrorKind::ConnectionReset);
    closed.end().unwrap();

    other.ask(b"still here");
    let left: Vec<u16> = proxy.connections().iter().map(Connection::upstream_port).collect();
    assert_eq!(left, [other_served.peer.port()]);
}

#[test]
fn refused_clients_never_reach_the_server_and_others_stay() {
    let (server, proxy) = start();
    let (mut old, _, _) = connect(&server, &proxy);
    proxy.refuse();
    Asking::connect(proxy.address()).end().unwrap();
    server.expect_none();
    old.ask(b"still here");
    let Traffic { opened, refused, .. } = proxy.traffic();
    assert_eq!((opened, refused), (1, 1));

    proxy.accept();
    let (mut new, _, _) = connect(&server, &proxy);
    new.ask(b"back");
}

#[test]
fn a_client_of_a_server_that_is_away_is_closed() {
    // Bound and not listening: nobody else gets the port.
    let away = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::start(away.local_addr().unwrap());
    Asking::connect(proxy.address()).end().unwrap();
    assert_eq!(proxy.traffic().opened, 0);
}

#[test]
fn a_hold_keeps_the_answer_to_a_pattern_that_comes_in_pieces() {
    let (server, proxy) = start();
    let (mut client, _, served) = connect(&server, &proxy);
    let (mut other, _, _) = connect(&server, &proxy);
    client.ask(b"COMMIT");
    served.expect(b"COMMIT");

    proxy.hold_after(b"COMMIT");
    client.ask(b"COMMON; COM");
    served.expect(b"COMMON; COM");
    client.ask(b"M");
    served.expect(b"M");
    client.say(b"IT;");
    let held = proxy.wait_until_held(PATIENCE);
    assert_eq!(held.client_port(), client.port());
    served.expect(b"IT;");
    let answered = proxy.wait_until_answered(PATIENCE);
    assert_eq!(answered.upstream_port(), served.peer.port());
    client.expect_silence(MOMENT);
    // Nobody else is held, whatever they send.
    other.ask(b"COMMIT");

    held.reset();
    assert_eq!(client.end().unwrap_err().kind(), ErrorKind::ConnectionReset);
    served.expect_end();
}

#[test]
fn a_held_answer_arrives_once_its_connection_resumes() {
    let (server, proxy) = start();
    let (mut client, _, _) = connect(&server, &proxy);
    proxy.hold_after(b"COMMIT");
    client.say(b"COMMIT");
    proxy.wait_until_answered(PATIENCE).resume();
    client.expect(b"COMMIT");
    client.ask(b"COMMIT");
}

#[test]
fn a_hold_before_a_pattern_keeps_it_from_the_server() {
    let (server, proxy) = start();
    let (mut client, _, served) = connect(&server, &proxy);
    proxy.hold_before(b"COMMIT");
    client.ask(b"BEGIN; COM");
    served.expect(b"BEGIN; COM");
    client.say(b"MIT;");
    let held = proxy.wait_until_held(PATIENCE);
    served.expect_silence(MOMENT);
    held.reset();
    served.expect_end();
    assert_eq!(client.end().unwrap_err().kind(), ErrorKind::ConnectionReset);

    let (mut client, _, served) = connect(&server, &proxy);
    proxy.hold_before(b"COMMIT");
    client.say(b"COMMIT");
    proxy.wait_until_held(PATIENCE).resume();
    served.expect(b"COMMIT");
    client.expect(b"COMMIT");
}

#[test]
fn what_came_before_a_hold_is_no_part_of_its_pattern() {
    let (server, proxy) = start();
    let (mut client, _, _) = connect(&server, &proxy);
    proxy.hold_after(b"another");
    client.ask(b"COM");
    proxy.hold_after(b"COMMIT");
    client.ask(b"MIT");
    client.say(b"COMMIT");
    let held = proxy.wait_until_held(PATIENCE);
    assert_eq!(held.client_port(), client.port());
}

#[test]
#[should_panic(expected = "not held within")]
fn a_wait_for_a_hold_ends_at_its_deadline() {
    let (_server, proxy) = start();
    proxy.hold_after(b"COMMIT");
    let _ = proxy.wait_until_held(MOMENT);
}

#[test]
fn a_dropped_proxy_is_gone() {
    let (server, proxy) = start();
    let (mut client, _, served) = connect(&server, &proxy);
    client.ask(b"here");
    served.expect(b"here");
    let address = proxy.address();
    drop(proxy);
    client.end().unwrap();
    served.expect_end();
    // A process that another test starts shares the listener for a moment.
    wait_until("connections are refused", PATIENCE, || {
        let connected = TcpStream::connect(address).map_err(|error| error.kind());
        matches!(connected, Err(ErrorKind::ConnectionRefused))
    });
}
